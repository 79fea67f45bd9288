// What no kernel can beat here: how fast threads read memory, and how many byte products their instructions do.
#include "kernels.h"

#include "common.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace ee::kernels {

// The shortest time of a few tries of body(thread) on every thread, in seconds.
template <typename Body> static double best_seconds(int n_threads, Body body) {
    double best = 1e9;
    for (int i = 0; i < 9; ++i) {
        const auto start = std::chrono::steady_clock::now();
        std::vector<std::thread> threads;
        for (int t = 1; t < n_threads; ++t) {
            threads.emplace_back(body, t);
        }
        body(0);
        for (std::thread & thread : threads) {
            thread.join();
        }
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

// Fetched ahead as the products fetch weights: left to the processor, reading is a fifth slower.
static uint64_t sum_words(const uint64_t * p, size_t n) {
    constexpr size_t AHEAD = PREFETCH_BYTES / sizeof(uint64_t);
    uint64_t sums[16] = {};
    for (size_t i = 0; i + 16 <= n; i += 16) {
        __builtin_prefetch(p + i + AHEAD, 0, 2);
        __builtin_prefetch(p + i + AHEAD + 8, 0, 2);
        for (int k = 0; k < 16; ++k) {
            sums[k] += p[i + k];
        }
    }
    return *std::max_element(sums, sums + 16);
}

} // namespace ee::kernels

ee_status ee_measure_limits(int32_t n_threads, int64_t n_bytes, double * bytes_per_second, double * products_per_second, char * err, size_t err_len) {
    using namespace ee::kernels;
    return ee::guarded(err, err_len, [&] {
        if (n_threads < 1 || n_threads > 512 || n_bytes < 1 << 20) {
            ee::fail(EE_ERR_ARG, "limits need 1 to 512 threads and a megabyte at least, got %d and %lld bytes", n_threads, (long long) n_bytes);
        }
        ggml_backend_buffer_t buffer = fresh_buffer(n_bytes);
        if (buffer == nullptr) {
            ee::fail(EE_ERR_MEMORY, "no memory to read %lld bytes from", (long long) n_bytes);
        }
        auto * data = (uint64_t *) ggml_backend_buffer_get_base(buffer);
        memset(data, 1, n_bytes);
        const size_t share = n_bytes / 8 / n_threads;
        std::vector<uint64_t> sums(n_threads * 8); // a cache line each: they keep the compiler from leaving the work out
        *bytes_per_second = n_bytes / best_seconds(n_threads, [&](int t) { sums[8 * t] += sum_words(data + t * share, share); });
        ggml_backend_buffer_free(buffer);
        constexpr int64_t ROUNDS = 200000;
        const path * active = current.active;
        *products_per_second = active == nullptr ? 0 : n_threads * active->peak(ROUNDS) / best_seconds(n_threads, [&](int) { active->peak(ROUNDS); });
    });
}
