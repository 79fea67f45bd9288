// llama.cpp's matrix tiles (AMX) crash when GCC 12 or older compiled them: its _tile_loadconfig says it reads 8 bytes,
// so the optimiser throws the rest of the tile configuration away (gcc 12.2, amxtileintrin.h, the "m" operand; called at
// https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cpu/amx/mmq.cpp, ggml_tile_config_init).
#include "kernels.h"

#include "eagle_edge.h"
#include "ggml-alloc.h"
#include "ggml-cpu.h"
#include "ggml-cpp.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__linux__)
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace ee::kernels {

#if defined(__linux__)

// A product of ones through a buffer type: right or wrong, if it comes back at all.
static bool multiplies_right(ggml_backend_buffer_type_t type) {
    constexpr int K = 64, ROWS_OF_WEIGHTS = 32, COLUMNS = 16, BLOCK_BYTES = 34;
    const ggml_init_params params = {ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true};
    ggml_context_ptr weights(ggml_init(params)), values(ggml_init(params));
    ggml_tensor * w = ggml_new_tensor_2d(weights.get(), GGML_TYPE_Q8_0, K, ROWS_OF_WEIGHTS);
    ggml_tensor * x = ggml_new_tensor_2d(values.get(), GGML_TYPE_F32, K, COLUMNS);
    ggml_tensor * product = ggml_mul_mat(values.get(), w, x);
    ggml_backend_buffer_ptr of_weights(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), type));
    ggml_backend_buffer_ptr of_values(ggml_backend_alloc_ctx_tensors_from_buft(values.get(), ggml_backend_cpu_buffer_type()));
    uint8_t blocks[ROWS_OF_WEIGHTS * K / 32 * BLOCK_BYTES]; // Q8_0: a half-precision scale and 32 bytes, all of them 1
    memset(blocks, 1, sizeof blocks);
    for (size_t i = 0; i < sizeof blocks; i += BLOCK_BYTES) {
        blocks[i] = 0x00;
        blocks[i + 1] = 0x3c;
    }
    float ones[K * COLUMNS], out[ROWS_OF_WEIGHTS * COLUMNS];
    std::fill(std::begin(ones), std::end(ones), 1.0f);
    ggml_backend_tensor_set(w, blocks, 0, sizeof blocks);
    ggml_backend_tensor_set(x, ones, 0, sizeof ones);
    ggml_cgraph * graph = ggml_new_graph(values.get());
    ggml_build_forward_expand(graph, product);
    ggml_backend_ptr cpu(ggml_backend_cpu_init());
    ggml_backend_cpu_set_n_threads(cpu.get(), 1);
    ggml_backend_graph_compute(cpu.get(), graph);
    ggml_backend_tensor_get(product, out, 0, sizeof out);
    return std::all_of(std::begin(out), std::end(out), [](float value) { return std::fabs(value - K) < 1.0f; });
}

// Whether a child process survives the product and gets it right.
static bool works(ggml_backend_buffer_type_t type) {
    const pid_t child = fork();
    if (child == 0) {
        for (int deadly : {SIGSEGV, SIGILL, SIGBUS, SIGABRT, SIGFPE}) {
            signal(deadly, SIG_DFL); // nobody should report the crash that is expected
        }
        alarm(10); // a child that hangs does not work either
        _exit(multiplies_right(type) ? 0 : 1);
    }
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

#else

static bool works(ggml_backend_buffer_type_t) {
    return true;
}

#endif

} // namespace ee::kernels

int32_t ee_leave_out_broken_kernels(void) {
    auto & types = ggml_backend_cpu_get_extra_buffer_types();
    const auto amx = std::find_if(types.begin(), types.end(),
                                  [](ggml_backend_buffer_type_t type) { return strcmp(ggml_backend_buft_name(type), "AMX") == 0; });
    if (amx == types.end() || ee::kernels::works(*amx)) {
        return 0;
    }
    types.erase(amx);
    return 1;
}
