// Sampling's noise of a whole vocabulary: the hash of eagle_edge/noise.py, and no logarithms.

#include "eagle_edge.h"

#include <cstring>

namespace {

constexpr float LOG_2 = 0.693147182f; // rounded up

uint32_t mixed(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352D;
    x ^= x >> 15;
    x *= 0x846CA68B;
    return x ^ x >> 16;
}

// At least -log(u) for every u in [word / 2^32, 1): by the exponent of the leading 24 bits, which a float holds exactly.
// No bit set gives exponent -127, far above any noise.
float most_noise(uint32_t word) {
    const float leading = float(int32_t(word >> 8));
    int32_t     bits;
    std::memcpy(&bits, &leading, sizeof bits);
    return float(24 + 127 - (bits >> 23)) * LOG_2;
}

} // namespace

// Twice as fast with AVX2, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("avx2", "default")))
#endif
void ee_noise_bounds(const int32_t * ids, const float * scores, int32_t n, const uint32_t * key, uint32_t * words, float * bounds) {
    const uint32_t first = key[0], second = key[1]; // words may lie anywhere, so the compiler would read them every time
    for (int32_t i = 0; i < n; ++i) {
        const uint32_t word = mixed(mixed(uint32_t(ids[i]) ^ first) ^ second);
        words[i]  = word;
        bounds[i] = scores[i] + most_noise(word);
    }
}
