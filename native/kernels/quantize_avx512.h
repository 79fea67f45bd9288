// Quantising four blocks of activations at a time: what is found out of each block, its largest value and its sums, is
// computed for all four together. The same bits as `quantize` in multiply.inl.
#pragma once

#include "path.h"

#include <immintrin.h>

namespace {

constexpr int BLOCKS_TOGETHER = 4;

// The largest lane of each of four vectors.
inline __m128 largest_of_four(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 abcd = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                      _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// 64 whole numbers as signed bytes, in order.
inline __m512i as_bytes(const __m512i * whole) {
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(whole[0], whole[1]), _mm512_packs_epi32(whole[2], whole[3]));
    // Packing went by 128-bit parts: part p holds values 4 * p .. 4 * p + 3 of all four vectors.
    return _mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), bytes);
}

// The sum of every 16 bytes, in both qwords of its 128-bit part.
inline __m512i sums_of_16(__m512i bytes) {
    const __m512i sums = _mm512_sad_epu8(_mm512_xor_si512(bytes, _mm512_set1_epi8(-128)), _mm512_setzero_si512());
    return _mm512_sub_epi32(_mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC)), _mm512_set1_epi32(16 * 128));
}

inline void quantize_four(const float * x, int offset, ee::kernels::activation * out, size_t stride) {
    __m512 values[2 * BLOCKS_TOGETHER], peaks[BLOCKS_TOGETHER];
    for (int i = 0; i < 2 * BLOCKS_TOGETHER; ++i) {
        values[i] = _mm512_loadu_ps(x + 16 * i);
    }
    for (int i = 0; i < BLOCKS_TOGETHER; ++i) {
        peaks[i] = _mm512_max_ps(_mm512_abs_ps(values[2 * i]), _mm512_abs_ps(values[2 * i + 1]));
    }
    const __m128 largest = largest_of_four(peaks[0], peaks[1], peaks[2], peaks[3]);
    const __m128 scale   = _mm_div_ps(largest, _mm_set1_ps(127.0f));
    alignas(16) float inverse[BLOCKS_TOGETHER];
    const __mmask8 any = _mm_cmp_ps_mask(largest, _mm_setzero_ps(), _CMP_GT_OQ);
    _mm_store_ps(inverse, _mm_maskz_div_ps(any, _mm_set1_ps(127.0f), largest));

    __m512i bytes[2];
    for (int half = 0; half < 2; ++half) {
        __m512i whole[4];
        for (int i = 0; i < 4; ++i) {
            const int at = 4 * half + i;
            whole[i] = _mm512_cvtps_epi32(_mm512_mul_ps(values[at], _mm512_set1_ps(inverse[at / 2])));
        }
        bytes[half] = as_bytes(whole);
    }
    // [block][half] sums of q, [block][both] the same of whole blocks.
    const __m512i every_fourth = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    const __m256i halves = _mm512_castsi512_si256(_mm512_permutex2var_epi32(sums_of_16(bytes[0]), every_fourth, sums_of_16(bytes[1])));
    const __m256i blocks = _mm256_add_epi32(halves, _mm256_shuffle_epi32(halves, _MM_SHUFFLE(2, 3, 0, 1)));
    const __m256  scales = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(scale), _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0));
    const __m256  sums   = _mm256_mul_ps(scales, _mm256_cvtepi32_ps(blocks));
    const __m256i first  = _mm256_castps_si256(_mm256_blend_ps(scales, sums, 0xaa)); // [block][scale, sum]
    const __m256i starts = _mm256_mullo_epi32(halves, _mm256_set1_epi32(-offset));   // [block][half]
    const __m256i even = _mm256_unpacklo_epi64(first, starts), odd = _mm256_unpackhi_epi64(first, starts);
    const __m128i facts[BLOCKS_TOGETHER] = {_mm256_castsi256_si128(even), _mm256_castsi256_si128(odd),
                                            _mm256_extracti128_si256(even, 1), _mm256_extracti128_si256(odd, 1)};
    for (int i = 0; i < BLOCKS_TOGETHER; ++i, out += stride) {
        const __m256i q = i % 2 ? _mm512_extracti64x4_epi64(bytes[i / 2], 1) : _mm512_castsi512_si256(bytes[i / 2]);
        _mm256_storeu_si256((__m256i *) out->q, q);
        _mm_storeu_si128((__m128i *) &out->scale, facts[i]);
    }
}

} // namespace
