// Weights times activations, for the `isa` included before: one accumulator per (row, column), blocks added in order
// of K, so a column's result does not depend on how many columns are computed with it.
#include "weights.inl"

#include <cstring>

namespace {

// How far ahead of the block in work weights are fetched, into the second level: memory must not wait for columns that
// are being computed, and the first level cannot wait for so many lines at once.
constexpr int PREFETCH_BYTES = 8192;

inline void prefetch(const uint8_t * block, int n_bytes) {
    for (int i = 0; i < n_bytes; i += 64) {
        __builtin_prefetch(block + PREFETCH_BYTES + i, 0, 2);
    }
}

// One part of 32 weights of LANES rows into the sums of C columns.
template <class W, int C, int S> void multiply_part(const W & block, const activation * a, isa::floats * sums) {
    isa::ints w[8];
    block.template load<S>(w);
    const isa::floats scale = block.template scale<S>();
    for (int c = 0; c < C; ++c) {
        isa::ints dot;
        if constexpr (W::HALVES) {
            const isa::ints first  = isa::dot<W::BITS, 4>(isa::all_ints(a[c].start[0]), w, a[c].q);
            const isa::ints second = isa::dot<W::BITS, 4>(isa::all_ints(a[c].start[1]), w + 4, a[c].q + BLOCK / 2);
            dot = isa::add_ints(isa::mul_ints(first, block.template whole<S, 0>()), isa::mul_ints(second, block.template whole<S, 1>()));
        } else {
            const isa::ints start = isa::all_ints(W::OFFSET ? a[c].start[0] + a[c].start[1] : 0);
            dot = isa::dot<W::BITS, 8>(start, w, a[c].q);
        }
        sums[c] = isa::fma(isa::to_float(dot), isa::mul(scale, isa::all(a[c].scale)), sums[c]);
        if constexpr (W::MINIMUM) {
            sums[c] = isa::fma(block.template minimum<S>(), isa::all(a[c].sum), sums[c]);
        }
    }
}

template <class W, int C, int S = 0>
void multiply_parts(const W & block, const uint8_t * here, const activation * a, isa::floats * sums) {
    if constexpr (S < W::BLOCKS) {
        constexpr int share = (W::FIELDS * FIELD + W::DWORDS * DWORD) / W::BLOCKS;
        prefetch(here + S * share, share);
        multiply_part<W, C, S>(block, a + S * C, sums);
        multiply_parts<W, C, S + 1>(block, here, a, sums);
    }
}

// Weights of integers and scales.
template <class W> struct quantised {
    template <int C> static void group(const uint8_t * group, int n_blocks, const void * activations, float * dst, size_t dst_stride) {
        constexpr int fields = W::FIELDS * FIELD, dwords = W::DWORDS * DWORD;
        const int n = n_blocks / W::BLOCKS;
        for (int lane = 0; lane < ROWS; lane += isa::LANES) {
            const activation * a = (const activation *) activations;
            isa::floats sums[C];
            for (int c = 0; c < C; ++c) {
                sums[c] = isa::zero();
            }
            for (int b = 0; b < n; ++b, a += W::BLOCKS * C) {
                W block;
                block.fields = group + size_t(b) * fields + 2 * lane;
                block.dwords = group + size_t(n) * fields + size_t(b) * dwords + 4 * lane;
                multiply_parts<W, C>(block, group + size_t(b) * (fields + dwords), a, sums);
            }
            for (int c = 0; c < C; ++c) {
                isa::store(dst + c * dst_stride + lane, sums[c]);
            }
        }
    }
};

// Weights of 16-bit floats times float activations [K][C]; even and odd K are summed apart.
template <class W> struct floating {
    template <int C> static void group(const uint8_t * group, int n_blocks, const void * activations, float * dst, size_t dst_stride) {
        for (int lane = 0; lane < ROWS; lane += isa::LANES) {
            const float * x = (const float *) activations;
            isa::floats even[C], odd[C];
            for (int c = 0; c < C; ++c) {
                even[c] = odd[c] = isa::zero();
            }
            const uint8_t * w = group;
            for (int k = 0; k < n_blocks * BLOCK; k += 2, w += 2 * FIELD, x += 2 * C) {
                prefetch(w, 2 * FIELD);
                isa::floats w0, w1;
                W::load(w, lane, w0, w1);
                for (int c = 0; c < C; ++c) {
                    even[c] = isa::fma(w0, isa::all(x[c]), even[c]);
                    odd[c]  = isa::fma(w1, isa::all(x[C + c]), odd[c]);
                }
            }
            for (int c = 0; c < C; ++c) {
                isa::store(dst + c * dst_stride + lane, isa::add(even[c], odd[c]));
            }
        }
    }
};

template <class Kernel, int C = isa::MAX_COLUMNS>
void multiply(const uint8_t * group, int n_blocks, const void * activations, int n_columns, float * dst, size_t dst_stride) {
    if constexpr (C > 0) {
        if (n_columns == C) {
            Kernel::template group<C>(group, n_blocks, activations, dst, dst_stride);
        } else {
            multiply<Kernel, C - 1>(group, n_blocks, activations, n_columns, dst, dst_stride);
        }
    }
}

multiply_fn find_multiply(int type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return multiply<quantised<weights_q4_0>>;
        case GGML_TYPE_Q4_1:   return multiply<quantised<weights_q4_1>>;
        case GGML_TYPE_Q5_0:   return multiply<quantised<weights_q5_0>>;
        case GGML_TYPE_Q5_1:   return multiply<quantised<weights_q5_1>>;
        case GGML_TYPE_Q8_0:   return multiply<quantised<weights_q8_0>>;
        case GGML_TYPE_IQ4_NL: return multiply<quantised<weights_iq4_nl>>;
        case GGML_TYPE_Q4_K:   return multiply<quantised<weights_q4_k>>;
        case GGML_TYPE_Q5_K:   return multiply<quantised<weights_q5_k>>;
        case GGML_TYPE_Q6_K:   return multiply<quantised<weights_q6_k>>;
        case GGML_TYPE_F16:    return multiply<floating<weights_f16>>;
        case GGML_TYPE_BF16:   return multiply<floating<weights_bf16>>;
        default: return nullptr;
    }
}

int64_t multiply_registers(int64_t n) {
    constexpr int CHAINS = 12; // more than latency times throughput of the products
    static const int8_t bytes[4 * 4 * ROWS] = {};
    isa::ints w[8], sums[CHAINS];
    for (int i = 0; i < 8; ++i) {
        w[i] = isa::load_bytes(bytes);
    }
    for (int c = 0; c < CHAINS; ++c) {
        sums[c] = isa::all_ints(c);
    }
    for (int64_t i = 0; i < n; ++i) {
        for (int c = 0; c < CHAINS; ++c) {
            sums[c] = isa::dot<4, 8>(sums[c], w, bytes);
        }
    }
    isa::ints total = sums[0];
    for (int c = 1; c < CHAINS; ++c) {
        total = isa::add_ints(total, sums[c]);
    }
    volatile float kept = isa::max_lane(isa::to_float(total)); // or the compiler leaves it all out
    (void) kept;
    return n * CHAINS * 8 * 4 * isa::LANES;
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
        const int32_t first = isa::sum_bytes(out->q), second = isa::sum_bytes(out->q + BLOCK / 2);
        out->scale    = largest / 127.0f;
        out->sum      = out->scale * float(first + second);
        out->start[0] = -offset * first;
        out->start[1] = -offset * second;
    }
}

} // namespace
