// 128-bit vectors of arm64: 4 lanes, byte dot products by DotProd, with I8MM (EE_ARM_I8MM) unsigned weights as they are.
#pragma once

#include <arm_neon.h>
#include <cstdint>

namespace {

struct isa {
    static constexpr int LANES = 4;
    static constexpr int VECTORS_OF_ROWS = 1; // multiplied together
    static constexpr int MAX_COLUMNS = 8;
    using ints    = int32x4_t;
    using floats  = float32x4_t;
    using doubles = float64x2_t;

    static floats zero() { return vdupq_n_f32(0); }
    static floats all(float x) { return vdupq_n_f32(x); }
    static floats load(const float * p) { return vld1q_f32(p); }
    static void   store(float * p, floats x) { vst1q_f32(p, x); }
    static floats load_half(const void * p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *) p))); }
    static floats load_bfloat(const void * p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *) p), 16)); }
    // The low and the high halves of LANES dwords, as floats.
    static void load_bfloat_pairs(const void * p, floats & low, floats & high) {
        const uint32x4_t pairs = vld1q_u32((const uint32_t *) p);
        low  = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
        high = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)));
    }
    static floats add(floats a, floats b) { return vaddq_f32(a, b); }
    static floats sub(floats a, floats b) { return vsubq_f32(a, b); }
    static floats mul(floats a, floats b) { return vmulq_f32(a, b); }
    static floats fma(floats a, floats b, floats c) { return vfmaq_f32(c, a, b); }
    static floats max(floats a, floats b) { return vmaxq_f32(a, b); }
    static floats round(floats x) { return vrndnq_f32(x); }
    static floats absolute(floats x) { return vabsq_f32(x); }
    static float  max_lane(floats x) { return vmaxvq_f32(x); }
    static bool   any_above(floats a, floats b) { return vmaxvq_u32(vcgtq_f32(a, b)) != 0; }
    // x where by > limit, else 0.
    static floats keep_above(floats x, floats by, floats limit) {
        return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vcgtq_f32(by, limit)));
    }
    // x * 2^n for a whole n that keeps the result normal.
    static floats scale_by_power(floats x, floats n) {
        return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(vcvtnq_s32_f32(n), 23)));
    }
    // 32 values times a factor as signed bytes, and the sum of either half of them.
    static void store_bytes(const float * x, floats factor, int8_t * q, int32_t * sums) {
        for (int half = 0; half < 2; ++half) {
            int16x4_t words[4];
            for (int i = 0; i < 4; ++i) {
                words[i] = vqmovn_s32(vcvtnq_s32_f32(mul(load(x + 16 * half + 4 * i), factor)));
            }
            const int8x16_t bytes = vcombine_s8(vqmovn_s16(vcombine_s16(words[0], words[1])), vqmovn_s16(vcombine_s16(words[2], words[3])));
            vst1q_s8(q + 16 * half, bytes);
            sums[half] = vaddlvq_s8(bytes);
        }
    }

    static ints   load_bytes(const void * p) { return vreinterpretq_s32_u8(vld1q_u8((const uint8_t *) p)); }
    static ints   all_ints(int32_t x) { return vdupq_n_s32(x); }
    static ints   low_nibbles(ints x) { return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(x), vdupq_n_u8(15))); }
    static ints   high_nibbles(ints x) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x), 4)); }
    // nibbles | (bits << SHIFT & MASK), per byte; a negative SHIFT moves to the right.
    template <int SHIFT, int MASK> static ints merge(ints nibbles, ints bits) {
        const ints mask = vreinterpretq_s32_u8(vdupq_n_u8(MASK));
        return vorrq_s32(nibbles, vandq_s32(shift<SHIFT>(bits), mask));
    }
    template <int SHIFT, int MASK> static ints bits(ints x) { return vandq_s32(shift<-SHIFT>(x), vdupq_n_s32(MASK)); }
    template <int BYTE> static ints signed_byte(ints x) { return vshrq_n_s32(vshlq_n_s32(x, 24 - 8 * BYTE), 24); }
    static ints   look_up(const uint8_t * table, ints x) { return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_s32(x))); }
    static ints   add_ints(ints a, ints b) { return vaddq_s32(a, b); }
    static ints   mul_ints(ints a, ints b) { return vmulq_s32(a, b); }
    static floats to_float(ints x) { return vcvtq_f32_s32(x); }

    static void forget(ints & x) { asm volatile("" : "+w"(x)); } // to the compiler it may be anything from here on

    static ints all_fours(const int8_t * a) { return vld1q_dup_s32((const int32_t *) a); }

    // start + the sum of N dwords of products: unsigned weights (BITS wide) times signed activations.
    template <int BITS, int N> struct dot {
        ints sum;
#if defined(EE_ARM_I8MM)
        void begin(int32_t start) { sum = all_ints(start); }
        template <int I> void add(ints w, ints fours) { sum = vusdotq_s32(sum, vreinterpretq_u8_s32(w), vreinterpretq_s8_s32(fours)); }
#else
        // Signed products take narrow weights as they are; eight bits turn signed again, which needs no start.
        void begin(int32_t start) { sum = all_ints(BITS < 8 ? start : 0); }
        template <int I> void add(ints w, ints fours) {
            const ints weights = BITS < 8 ? w : veorq_s32(w, vreinterpretq_s32_u8(vdupq_n_u8(0x80)));
            sum = vdotq_s32(sum, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(fours));
        }
#endif
        ints total() const { return sum; }
    };

    static constexpr int DOUBLES = 2;
    static constexpr int VECTORS_SUMMED = 4;
    static constexpr int VECTORS_AT_ONCE = 8;
    static doubles all_doubles(double x) { return vdupq_n_f64(x); }
    static doubles load_doubles(const double * p) { return vld1q_f64(p); }
    static void    store_doubles(double * p, doubles x) { vst1q_f64(p, x); }
    static doubles add_doubles(doubles a, doubles b) { return vaddq_f64(a, b); }
    static doubles mul_doubles(doubles a, doubles b) { return vmulq_f64(a, b); }
    static doubles fma_doubles(doubles a, doubles b, doubles c) { return vfmaq_f64(c, a, b); }
    static void widen(double * p, floats x) { // LANES floats to doubles
        vst1q_f64(p, low_doubles(x));
        vst1q_f64(p + 2, high_doubles(x));
    }
    static doubles low_doubles(floats x) { return vcvt_f64_f32(vget_low_f32(x)); }
    static doubles high_doubles(floats x) { return vcvt_high_f64_f32(x); }
    static void store_narrow(float * p, doubles x) { vst1_f32(p, vcvt_f32_f64(x)); }

    // rows[i] holds 4 values of cell i; columns end up as out[STRIDE * d + i].
    template <int STRIDE> static void transpose(const floats * rows, float * out) {
        const float32x4x2_t first = vtrnq_f32(rows[0], rows[1]), second = vtrnq_f32(rows[2], rows[3]);
        store(out, vcombine_f32(vget_low_f32(first.val[0]), vget_low_f32(second.val[0])));
        store(out + STRIDE, vcombine_f32(vget_low_f32(first.val[1]), vget_low_f32(second.val[1])));
        store(out + STRIDE * 2, vcombine_f32(vget_high_f32(first.val[0]), vget_high_f32(second.val[0])));
        store(out + STRIDE * 3, vcombine_f32(vget_high_f32(first.val[1]), vget_high_f32(second.val[1])));
    }

  private:
    template <int SHIFT> static ints shift(ints x) {
        if constexpr (SHIFT > 0) {
            return vshlq_n_s32(x, SHIFT);
        } else if constexpr (SHIFT < 0) {
            return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), -SHIFT));
        } else {
            return x;
        }
    }
};

} // namespace
