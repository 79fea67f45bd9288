// Weights times activations, for the `isa` included before: one accumulator per (row, column), blocks added in order
// of K, so a column's result does not depend on how many columns are computed with it.
#include "path.h"

#include "ggml.h"

#include <cstring>

namespace {

using namespace ee::kernels;

constexpr int DWORD_ROWS = 4 * ROWS; // bytes of 4 values of every row of a group

// How far ahead of the block in work weights are fetched: products of several columns leave the memory idle otherwise.
constexpr int PREFETCH_BYTES = 4096;

struct weights_q4_0 {
    static constexpr int SCALES = 1, QUANT_BYTES = 16, BITS = 4, OFFSET = 8;
    static constexpr bool MINIMUM = false;
    static void load(const uint8_t * q, isa::ints * w) {
        for (int i = 0; i < 4; ++i) {
            const isa::ints packed = isa::load_bytes(q + i * DWORD_ROWS);
            w[i]     = isa::low_nibbles(packed);
            w[4 + i] = isa::high_nibbles(packed);
        }
    }
};

struct weights_q4_1 : weights_q4_0 {
    static constexpr int SCALES = 2, OFFSET = 0;
    static constexpr bool MINIMUM = true;
};

struct weights_q8_0 {
    static constexpr int SCALES = 1, QUANT_BYTES = 32, BITS = 8, OFFSET = 128;
    static constexpr bool MINIMUM = false;
    static void load(const uint8_t * q, isa::ints * w) {
        for (int i = 0; i < 8; ++i) {
            w[i] = isa::load_bytes(q + i * DWORD_ROWS);
        }
    }
};

template <class W, int C>
void multiply_lanes(const uint8_t * scales, const uint8_t * quants, int n_blocks, const activation * a, float * dst, size_t dst_stride) {
    isa::floats sums[C];
    for (int c = 0; c < C; ++c) {
        sums[c] = isa::zero();
    }
    for (int b = 0; b < n_blocks; ++b) {
        for (int i = 0; i < W::QUANT_BYTES * ROWS; i += 64) {
            __builtin_prefetch(quants + PREFETCH_BYTES + i);
        }
        isa::ints w[8];
        W::load(quants, w);
        const isa::floats scale = isa::load_half(scales);
        isa::floats minimum;
        if constexpr (W::MINIMUM) {
            minimum = isa::load_half(scales + 2 * ROWS);
        }
        for (int c = 0; c < C; ++c) {
            const isa::ints start = W::OFFSET != 0 ? isa::all_ints(a[c].start[0] + a[c].start[1]) : isa::all_ints(0);
            const isa::ints dot   = isa::dot<W::BITS, 8>(start, w, a[c].q);
            sums[c] = isa::fma(isa::to_float(dot), isa::mul(scale, isa::all(a[c].scale)), sums[c]);
            if constexpr (W::MINIMUM) {
                sums[c] = isa::fma(minimum, isa::all(a[c].sum), sums[c]);
            }
        }
        a += C;
        scales += W::SCALES * 2 * ROWS;
        quants += W::QUANT_BYTES * ROWS;
    }
    for (int c = 0; c < C; ++c) {
        isa::store(dst + c * dst_stride, sums[c]);
    }
}

template <class W, int C>
void multiply_group(const uint8_t * group, int n_blocks, const activation * a, float * dst, size_t dst_stride) {
    const uint8_t * quants = group + size_t(n_blocks) * W::SCALES * 2 * ROWS;
    for (int lane = 0; lane < ROWS; lane += isa::LANES) {
        multiply_lanes<W, C>(group + 2 * lane, quants + 4 * lane, n_blocks, a, dst + lane, dst_stride);
    }
}

template <class W, int C = isa::MAX_COLUMNS>
void multiply(const uint8_t * group, int n_blocks, const activation * a, int n_columns, float * dst, size_t dst_stride) {
    if constexpr (C > 0) {
        if (n_columns == C) {
            multiply_group<W, C>(group, n_blocks, a, dst, dst_stride);
        } else {
            multiply<W, C - 1>(group, n_blocks, a, n_columns, dst, dst_stride);
        }
    }
}

multiply_fn find_multiply(int type) {
    switch (type) {
        case GGML_TYPE_Q4_0: return multiply<weights_q4_0>;
        case GGML_TYPE_Q4_1: return multiply<weights_q4_1>;
        case GGML_TYPE_Q8_0: return multiply<weights_q8_0>;
        default: return nullptr;
    }
}

int32_t sum_bytes(const int8_t * q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += q[i];
    }
    return sum;
}

void quantize(const float * x, int n_blocks, int offset, activation * out, size_t stride) {
    for (int b = 0; b < n_blocks; ++b, x += BLOCK, out += stride) {
        isa::floats peak = isa::zero();
        for (int i = 0; i < BLOCK; i += isa::LANES) {
            peak = isa::max(peak, isa::absolute(isa::load(x + i)));
        }
        const float largest = isa::max_lane(peak);
        const isa::floats inverse = isa::all(largest > 0 ? 127.0f / largest : 0.0f);
        for (int i = 0; i < BLOCK; i += isa::LANES) {
            isa::store_bytes(out->q + i, isa::mul(isa::load(x + i), inverse));
        }
        const int32_t first = sum_bytes(out->q, BLOCK / 2), second = sum_bytes(out->q + BLOCK / 2, BLOCK / 2);
        out->scale    = largest / 127.0f;
        out->sum      = out->scale * float(first + second);
        out->start[0] = -offset * first;
        out->start[1] = -offset * second;
    }
}

} // namespace
