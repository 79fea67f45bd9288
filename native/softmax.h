// Softmax over a vocabulary: exp, its sum, and clones of loops for wider vectors.
#pragma once

#include <cstdint>
#include <cstring>

// Twice as fast with AVX2, and again by up to 4/5 with AVX-512; chosen when the library is loaded.
#if !defined(__x86_64__) || !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__)
#define EE_CLONES
#elif defined(__clang__) || __GNUC__ < 12
#define EE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define EE_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#endif

namespace ee {

// exp(score) of a score of at most 0 to single precision, without a branch: 2^e * exp(r) with |r| < 0.35. NaN gives about 0.
inline float weight_of(float score) {
    const float   x        = score > -87 ? score : -87;
    const int32_t exponent = int32_t(x * 1.44269504f - 0.5f);
    const float   r        = x - float(exponent) * 0.693145752f - float(exponent) * 1.42860677e-6f;
    const int32_t bits     = (exponent + 127) << 23;
    float         power;
    std::memcpy(&power, &bits, sizeof power);
    return power * (1 + r * (1 + r * (1.0f / 2 + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r / 720))))));
}

// The sum of exp((logits [n] - top) / temperature), top being the largest of them.
double total_weight(const float * logits, int32_t n, float top, float temperature = 1);

} // namespace ee
