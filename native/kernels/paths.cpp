// The paths of this build, and which of them this processor and operating system can run.
#include "path.h"

#if defined(EE_KERNELS_X86)
#include <cpuid.h>
#elif defined(EE_KERNELS_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(EE_KERNELS_ARM64) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ee::kernels {

size_t attention_scratch_bytes(int n_vectors, int dim_k, int dim_v, int n_cells) {
    const size_t padded = size_t(n_vectors + SCORED_TOGETHER - 1) / SCORED_TOGETHER * SCORED_TOGETHER;
    const size_t doubles = padded * dim_v + 16 * dim_v + padded * 16 + padded * 16;
    const size_t floats = size_t(dim_k) * 16 + padded * dim_k + padded + padded * n_cells;
    return (8 * doubles + 4 * floats + n_cells / 16 + 127) / 64 * 64;
}

#if defined(EE_KERNELS_X86)

extern const path path_avx512vnni, path_avxvnni_evex, path_avx2;
#if defined(EE_KERNELS_AVXVNNI)
extern const path path_avxvnni;
const path * const paths[] = {&path_avx512vnni, &path_avxvnni, &path_avxvnni_evex, &path_avx2, nullptr};
#else
const path * const paths[] = {&path_avx512vnni, &path_avxvnni_evex, &path_avx2, nullptr};
#endif

// The compiler's own check covers what the operating system saves of the registers.
bool path_runs_here(const path & candidate) {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    if (&candidate == &path_avx512vnni || &candidate == &path_avxvnni_evex) {
        return avx512;
    }
#if defined(EE_KERNELS_AVXVNNI)
    if (&candidate == &path_avxvnni) { // leaf 7, subleaf 1, EAX bit 4; older compilers have no name for it
        unsigned a, b, c, d;
        return avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
    }
#endif
    return avx2;
}

#elif defined(EE_KERNELS_ARM64)

extern const path path_neon_i8mm, path_neon_dot;

const path * const paths[] = {&path_neon_i8mm, &path_neon_dot, nullptr};

#if defined(__linux__)
static bool has_dot() { return getauxval(AT_HWCAP) >> 20 & 1; }   // HWCAP_ASIMDDP
static bool has_i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; } // HWCAP2_I8MM
#elif defined(__APPLE__)
static bool has(const char * feature) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
static bool has_dot() { return has("hw.optional.arm.FEAT_DotProd"); }
static bool has_i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }
#else
static bool has_dot() { return false; }
static bool has_i8mm() { return false; }
#endif

bool path_runs_here(const path & candidate) {
    return &candidate == &path_neon_i8mm ? has_dot() && has_i8mm() : has_dot();
}

#else

const path * const paths[] = {nullptr};

bool path_runs_here(const path &) {
    return false;
}

#endif

} // namespace ee::kernels
