// 256-bit vectors: 8 lanes, byte dot products by AVX-VNNI where EE_AVX_VNNI is set, by AVX2 elsewhere.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace {

struct isa {
    static constexpr int LANES = 8;
    static constexpr int VECTORS_OF_ROWS = 2; // multiplied together
    static constexpr int MAX_COLUMNS = 4; // 16 registers hold no more
    using ints    = __m256i;
    using floats  = __m256;
    using doubles = __m256d;

    static floats zero() { return _mm256_setzero_ps(); }
    static floats all(float x) { return _mm256_set1_ps(x); }
    static floats load(const float * p) { return _mm256_loadu_ps(p); }
    static void   store(float * p, floats x) { _mm256_storeu_ps(p, x); }
    static floats load_half(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
    static floats load_bfloat(const void * p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16));
    }
    // The low and the high halves of LANES dwords, as floats.
    static void load_bfloat_pairs(const void * p, floats & low, floats & high) {
        const __m256i pairs = _mm256_loadu_si256((const __m256i *) p);
        low  = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
        high = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000))));
    }
    static floats add(floats a, floats b) { return _mm256_add_ps(a, b); }
    static floats sub(floats a, floats b) { return _mm256_sub_ps(a, b); }
    static floats mul(floats a, floats b) { return _mm256_mul_ps(a, b); }
    static floats fma(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
    static floats max(floats a, floats b) { return _mm256_max_ps(a, b); }
    static floats round(floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static floats absolute(floats x) { return _mm256_andnot_ps(all(-0.0f), x); }
    static float  max_lane(floats x) {
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    }
    static bool   any_above(floats a, floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
    // x where by > limit, else 0.
    static floats keep_above(floats x, floats by, floats limit) { return _mm256_and_ps(x, _mm256_cmp_ps(by, limit, _CMP_GT_OQ)); }
    // x * 2^n for a whole n that keeps the result normal.
    static floats scale_by_power(floats x, floats n) {
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
    }
    // 32 values times a factor as signed bytes, and the sum of either half of them.
    static void store_bytes(const float * x, floats factor, int8_t * q, int32_t * sums) {
        ints whole[4];
        for (int i = 0; i < 4; ++i) {
            whole[i] = _mm256_cvtps_epi32(mul(load(x + 8 * i), factor));
        }
        const ints mixed = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
        const ints bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *) q, bytes);
        // Absolute differences add up bytes that are made unsigned.
        const ints eights = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
        const ints halves = add_ints(eights, _mm256_shuffle_epi32(eights, _MM_SHUFFLE(1, 0, 3, 2)));
        sums[0] = _mm256_extract_epi32(halves, 0) - 16 * 128;
        sums[1] = _mm256_extract_epi32(halves, 4) - 16 * 128;
    }

    static ints   load_bytes(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
    static ints   all_ints(int32_t x) { return _mm256_set1_epi32(x); }
    static ints   low_nibbles(ints x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
    static ints   high_nibbles(ints x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)); }
    // nibbles | (bits << SHIFT & MASK), per byte; a negative SHIFT moves to the right.
    template <int SHIFT, int MASK> static ints merge(ints nibbles, ints bits) {
        const ints moved = SHIFT >= 0 ? _mm256_slli_epi32(bits, SHIFT >= 0 ? SHIFT : 0) : _mm256_srli_epi32(bits, SHIFT < 0 ? -SHIFT : 0);
        return _mm256_or_si256(nibbles, _mm256_and_si256(moved, _mm256_set1_epi8(MASK)));
    }
    template <int SHIFT, int MASK> static ints bits(ints x) { return _mm256_and_si256(_mm256_srli_epi32(x, SHIFT), _mm256_set1_epi32(MASK)); }
    template <int BYTE> static ints signed_byte(ints x) { return _mm256_srai_epi32(_mm256_slli_epi32(x, 24 - 8 * BYTE), 24); }
    static ints   look_up(const uint8_t * table, ints x) {
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *) table)), x);
    }
    static ints   add_ints(ints a, ints b) { return _mm256_add_epi32(a, b); }
    static ints   mul_ints(ints a, ints b) { return _mm256_mullo_epi32(a, b); }
    static floats to_float(ints x) { return _mm256_cvtepi32_ps(x); }

    static void forget(ints & x) { asm volatile("" : "+x"(x)); } // to the compiler it may be anything from here on

    static ints all_fours(const int8_t * a) {
        int32_t four;
        memcpy(&four, a, 4);
        return _mm256_set1_epi32(four);
    }

    // start + the sum of N dwords of products: unsigned weights (BITS wide) times signed activations.
#if defined(EE_AVX_VNNI)
    template <int BITS, int N> struct dot {
        ints sum;
        void begin(int32_t start) { sum = all_ints(start); }
        template <int I> void add(ints w, ints fours) { sum = _mm256_dpbusd_avx_epi32(sum, w, fours); }
        ints total() const { return sum; }
    };
#else
    template <int BITS, int N> struct dot {
        // Sums of pairs are 16 bits wide: as many are added as cannot overflow before they are widened.
        static constexpr int TOGETHER = BITS == 4 ? 8 : BITS == 5 ? 4 : 2;
        int32_t start;
        ints pairs, sum;
        void begin(int32_t x) { start = x; }
        template <int I> void add(ints w, ints fours) {
            const ints products = _mm256_maddubs_epi16(w, fours);
            pairs = I % TOGETHER == 0 ? products : _mm256_add_epi16(pairs, products);
            forget(pairs); // or GCC computes all products first, for which there are no registers
            if constexpr (I % TOGETHER == TOGETHER - 1 || I == N - 1) {
                const ints wide = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                sum = I < TOGETHER ? wide : add_ints(sum, wide);
            }
        }
        ints total() const { return add_ints(all_ints(start), sum); }
    };
#endif

    static constexpr int DOUBLES = 4;
    static constexpr int VECTORS_SUMMED = 2;
    static constexpr int VECTORS_AT_ONCE = 6;
    static doubles all_doubles(double x) { return _mm256_set1_pd(x); }
    static doubles load_doubles(const double * p) { return _mm256_loadu_pd(p); }
    static void    store_doubles(double * p, doubles x) { _mm256_storeu_pd(p, x); }
    static doubles add_doubles(doubles a, doubles b) { return _mm256_add_pd(a, b); }
    static doubles mul_doubles(doubles a, doubles b) { return _mm256_mul_pd(a, b); }
    static doubles fma_doubles(doubles a, doubles b, doubles c) { return _mm256_fmadd_pd(a, b, c); }
    static void widen(double * p, floats x) { // LANES floats to doubles
        _mm256_storeu_pd(p, low_doubles(x));
        _mm256_storeu_pd(p + 4, high_doubles(x));
    }
    static doubles low_doubles(floats x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
    static doubles high_doubles(floats x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
    static void store_narrow(float * p, doubles x) { _mm_storeu_ps(p, _mm256_cvtpd_ps(x)); }

    // rows[i] holds 8 values of cell i; columns end up as out[STRIDE * d + i].
    template <int STRIDE> static void transpose(const floats * rows, float * out) {
        floats a[8];
        for (int i = 0; i < 8; i += 4) {
            const floats t0 = _mm256_unpacklo_ps(rows[i], rows[i + 1]), t1 = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
            const floats t2 = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]), t3 = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
            a[i]     = _mm256_shuffle_ps(t0, t2, 0x44);
            a[i + 1] = _mm256_shuffle_ps(t0, t2, 0xee);
            a[i + 2] = _mm256_shuffle_ps(t1, t3, 0x44);
            a[i + 3] = _mm256_shuffle_ps(t1, t3, 0xee);
        }
        for (int j = 0; j < 4; ++j) {
            store(out + STRIDE * j, _mm256_permute2f128_ps(a[j], a[4 + j], 0x20));
            store(out + STRIDE * (4 + j), _mm256_permute2f128_ps(a[j], a[4 + j], 0x31));
        }
    }
};

#if !defined(EE_AVX_VNNI)
// Eight-bit weights would overflow pairs of unsigned products: back to signed ones, the sign moved to the activations.
template <int N> struct isa::dot<8, N> {
    ints sum;
    void begin(int32_t) {}
    template <int I> void add(ints w, ints fours) {
        const ints weights = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        const ints pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(weights, weights), _mm256_sign_epi8(fours, weights));
        const ints wide = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        sum = I == 0 ? wide : add_ints(sum, wide);
        forget(sum);
    }
    ints total() const { return sum; }
};
#endif

} // namespace
