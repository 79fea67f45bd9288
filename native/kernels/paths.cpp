// The paths of this build, and which of them this processor and operating system can run.
#include "path.h"

#include <cstring>

namespace ee::kernels {

#if defined(EE_KERNELS_X86)

extern const path path_avx512vnni;

const path * const paths[] = {&path_avx512vnni, nullptr};

// The compiler's own check covers what the operating system saves of the registers.
bool path_runs_here(const path & candidate) {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (strcmp(candidate.name, "avx512vnni") == 0) {
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    }
    return avx2;
}

#else

const path * const paths[] = {nullptr};

bool path_runs_here(const path &) {
    return false;
}

#endif

} // namespace ee::kernels
