// 512-bit vectors: 16 lanes, byte dot products by AVX-512 VNNI.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace {

struct isa {
    static constexpr int LANES = 16;
    static constexpr int VECTORS_OF_ROWS = 1; // multiplied together
    static constexpr int MAX_COLUMNS = 8;
    using ints    = __m512i;
    using floats  = __m512;
    using doubles = __m512d;

    static floats zero() { return _mm512_setzero_ps(); }
    static floats all(float x) { return _mm512_set1_ps(x); }
    static floats load(const float * p) { return _mm512_loadu_ps(p); }
    static void   store(float * p, floats x) { _mm512_storeu_ps(p, x); }
    static floats load_half(const void * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
    static floats load_bfloat(const void * p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16));
    }
    // The low and the high halves of LANES dwords, as floats.
    static void load_bfloat_pairs(const void * p, floats & low, floats & high) {
        const ints pairs = _mm512_loadu_si512(p);
        low  = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        high = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000))));
    }
    static floats add(floats a, floats b) { return _mm512_add_ps(a, b); }
    static floats sub(floats a, floats b) { return _mm512_sub_ps(a, b); }
    static floats mul(floats a, floats b) { return _mm512_mul_ps(a, b); }
    static floats fma(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
    static floats max(floats a, floats b) { return _mm512_max_ps(a, b); }
    static floats round(floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static floats absolute(floats x) { return _mm512_abs_ps(x); }
    static float  max_lane(floats x) { return _mm512_reduce_max_ps(x); }
    static bool   any_above(floats a, floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
    // x where x > limit, else 0.
    static floats keep_above(floats x, floats by, floats limit) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(by, limit, _CMP_GT_OQ), x);
    }
    // x * 2^n for a whole n that keeps the result normal.
    static floats scale_by_power(floats x, floats n) {
        return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
    }
    // 32 values times a factor as signed bytes, and the sum of either half of them.
    static void store_bytes(const float * x, floats factor, int8_t * q, int32_t * sums) {
        for (int half = 0; half < 2; ++half) {
            const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(mul(load(x + 16 * half), factor)));
            _mm_storeu_si128((__m128i *) q + half, bytes);
            // Absolute differences add up bytes that are made unsigned.
            const __m128i eights = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
            sums[half] = _mm_cvtsi128_si32(eights) + _mm_extract_epi16(eights, 4) - 16 * 128;
        }
    }

    static ints   load_bytes(const void * p) { return _mm512_loadu_si512(p); }
    static ints   all_ints(int32_t x) { return _mm512_set1_epi32(x); }
    static ints   low_nibbles(ints x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
    static ints   high_nibbles(ints x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
    // nibbles | (bits << SHIFT & MASK), per byte; a negative SHIFT moves to the right.
    template <int SHIFT, int MASK> static ints merge(ints nibbles, ints bits) {
        const ints moved = SHIFT >= 0 ? _mm512_slli_epi32(bits, SHIFT >= 0 ? SHIFT : 0) : _mm512_srli_epi32(bits, SHIFT < 0 ? -SHIFT : 0);
        return _mm512_ternarylogic_epi32(nibbles, moved, _mm512_set1_epi8(MASK), 0xf8); // a | (b & c)
    }
    template <int SHIFT, int MASK> static ints bits(ints x) { return _mm512_and_si512(_mm512_srli_epi32(x, SHIFT), _mm512_set1_epi32(MASK)); }
    template <int BYTE> static ints signed_byte(ints x) { return _mm512_srai_epi32(_mm512_slli_epi32(x, 24 - 8 * BYTE), 24); }
    static ints   look_up(const uint8_t * table, ints x) {
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i *) table)), x);
    }
    static ints   add_ints(ints a, ints b) { return _mm512_add_epi32(a, b); }
    static ints   mul_ints(ints a, ints b) { return _mm512_mullo_epi32(a, b); }
    static floats to_float(ints x) { return _mm512_cvtepi32_ps(x); }

    static void forget(ints & x) { asm volatile("" : "+v"(x)); } // to the compiler it may be anything from here on

    static ints all_fours(const int8_t * a) {
        int32_t four;
        memcpy(&four, a, 4);
        return _mm512_set1_epi32(four);
    }

    // start + the sum of N dwords of products: unsigned weights (BITS wide) times signed activations.
    template <int BITS, int N> struct dot {
        ints sum;
        void begin(int32_t start) { sum = all_ints(start); }
        template <int I> void add(ints w, ints fours) { sum = _mm512_dpbusd_epi32(sum, w, fours); }
        ints total() const { return sum; }
    };

    static constexpr int DOUBLES = 8;
    static constexpr int VECTORS_SUMMED = 4;
    static constexpr int VECTORS_AT_ONCE = 12;
    static doubles all_doubles(double x) { return _mm512_set1_pd(x); }
    static doubles load_doubles(const double * p) { return _mm512_loadu_pd(p); }
    static void    store_doubles(double * p, doubles x) { _mm512_storeu_pd(p, x); }
    static doubles add_doubles(doubles a, doubles b) { return _mm512_add_pd(a, b); }
    static doubles mul_doubles(doubles a, doubles b) { return _mm512_mul_pd(a, b); }
    static doubles fma_doubles(doubles a, doubles b, doubles c) { return _mm512_fmadd_pd(a, b, c); }
    static void widen(double * p, floats x) { // LANES floats to doubles
        _mm512_storeu_pd(p, low_doubles(x));
        _mm512_storeu_pd(p + 8, high_doubles(x));
    }
    static doubles low_doubles(floats x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
    static doubles high_doubles(floats x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
    static void store_narrow(float * p, doubles x) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(x)); }

    // rows[i] holds 16 values of cell i; columns end up as out[STRIDE * d + i].
    template <int STRIDE> static void transpose(const floats * rows, float * out) {
        floats a[16], b[16];
        for (int i = 0; i < 16; i += 4) {
            const floats t0 = _mm512_unpacklo_ps(rows[i], rows[i + 1]), t1 = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
            const floats t2 = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]), t3 = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
            a[i]     = pair_low(t0, t2);
            a[i + 1] = pair_high(t0, t2);
            a[i + 2] = pair_low(t1, t3);
            a[i + 3] = pair_high(t1, t3);
        }
        // a[4 * g + j]: 128-bit part p is column 4 * p + j of rows 4 * g .. 4 * g + 3.
        for (int j = 0; j < 4; ++j) {
            b[j]      = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x44);
            b[4 + j]  = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x44);
            b[8 + j]  = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xee);
            b[12 + j] = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xee);
        }
        for (int j = 0; j < 4; ++j) {
            store(out + STRIDE * j, _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88));
            store(out + STRIDE * (4 + j), _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd));
            store(out + STRIDE * (8 + j), _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88));
            store(out + STRIDE * (12 + j), _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xdd));
        }
    }

  private:
    static floats pair_low(floats a, floats b) {
        return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    }
    static floats pair_high(floats a, floats b) {
        return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    }
};

} // namespace
