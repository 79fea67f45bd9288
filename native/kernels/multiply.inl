// Weights times activations, for the `isa` included before: one accumulator per (row, column), blocks added in order
// of K, so a column's result does not depend on how many columns are computed with it.
#include "weights.inl"

#include <cstring>
#include <utility>

namespace {

inline void prefetch(const uint8_t * block, int n_bytes) {
    for (int i = 0; i < n_bytes; i += 64) {
        __builtin_prefetch(block + PREFETCH_BYTES + i, 0, 2);
    }
}

// What undoes the offset of unsigned weights in the dot products of a column that begin with dword FIRST.
template <class W, int FIRST> int32_t start_of(const activation & a) {
    if constexpr (W::OFFSET) {
        return W::HALVES ? a.start[FIRST / 4] : a.start[0] + a.start[1];
    }
    return 0;
}

// The dot products of dwords FIRST + I... of part S, V vectors of rows with C columns.
template <int S, int FIRST, class W, int V, int C, int... I>
void dot_products(const W (&rows)[V], const activation * a, isa::ints (&out)[V][C], std::integer_sequence<int, I...>) {
    isa::dot<W::BITS, sizeof...(I)> sums[V][C];
    for (int v = 0; v < V; ++v) {
        for (int c = 0; c < C; ++c) {
            sums[v][c].begin(start_of<W, FIRST>(a[c]));
        }
    }
    const auto add = [&](auto i) {
        isa::ints w[V];
        for (int v = 0; v < V; ++v) {
            w[v] = rows[v].template dword<S, FIRST + i>();
        }
        for (int c = 0; c < C; ++c) {
            const isa::ints fours = isa::all_fours(a[c].q + 4 * (FIRST + i));
            for (int v = 0; v < V; ++v) {
                sums[v][c].template add<i>(w[v], fours);
            }
        }
    };
    (add(std::integral_constant<int, I>()), ...);
    for (int v = 0; v < V; ++v) {
        for (int c = 0; c < C; ++c) {
            out[v][c] = sums[v][c].total();
        }
    }
}

// One part of 32 weights of V * LANES rows into the sums of C columns.
template <int S, class W, int V, int C> void multiply_part(const W (&rows)[V], const activation * a, isa::floats (&sums)[V][C]) {
    isa::ints dots[V][C];
    if constexpr (W::HALVES) {
        isa::ints second[V][C];
        dot_products<S, 0>(rows, a, dots, std::make_integer_sequence<int, 4>());
        dot_products<S, 4>(rows, a, second, std::make_integer_sequence<int, 4>());
        for (int v = 0; v < V; ++v) {
            const isa::ints w0 = rows[v].template whole<S, 0>(), w1 = rows[v].template whole<S, 1>();
            for (int c = 0; c < C; ++c) {
                dots[v][c] = isa::add_ints(isa::mul_ints(dots[v][c], w0), isa::mul_ints(second[v][c], w1));
            }
        }
    } else {
        dot_products<S, 0>(rows, a, dots, std::make_integer_sequence<int, 8>());
    }
    for (int v = 0; v < V; ++v) {
        const isa::floats scale = rows[v].template scale<S>();
        for (int c = 0; c < C; ++c) {
            sums[v][c] = isa::fma(isa::to_float(dots[v][c]), isa::mul(scale, isa::all(a[c].scale)), sums[v][c]);
        }
        if constexpr (W::MINIMUM) {
            const isa::floats minimum = rows[v].template minimum<S>();
            for (int c = 0; c < C; ++c) {
                sums[v][c] = isa::fma(minimum, isa::all(a[c].sum), sums[v][c]);
            }
        }
    }
}

template <int S = 0, class W, int V, int C>
void multiply_parts(const W (&rows)[V], const uint8_t * here, const activation * a, isa::floats (&sums)[V][C]) {
    if constexpr (S < W::BLOCKS) {
        constexpr int share = (W::FIELDS * FIELD + W::DWORDS * DWORD) / W::BLOCKS;
        prefetch(here + S * share, share);
        multiply_part<S>(rows, a + S * C, sums);
        multiply_parts<S + 1>(rows, here, a, sums);
    }
}

template <int V, int C> void store_sums(const isa::floats (&sums)[V][C], float * dst, size_t dst_stride) {
    for (int v = 0; v < V; ++v) {
        for (int c = 0; c < C; ++c) {
            isa::store(dst + c * dst_stride + v * isa::LANES, sums[v][c]);
        }
    }
}

// Weights of integers and scales. Vectors of rows multiplied together share what is read of the activations.
template <class W> struct quantised {
    template <int C> static void group(const uint8_t * group, int n_blocks, const void * activations, float * dst, size_t dst_stride) {
        constexpr int fields = W::FIELDS * FIELD, dwords = W::DWORDS * DWORD, V = isa::VECTORS_OF_ROWS;
        const int n = n_blocks / W::BLOCKS;
        for (int lane = 0; lane < ROWS; lane += V * isa::LANES) {
            const activation * a = (const activation *) activations;
            isa::floats sums[V][C] = {};
            for (int b = 0; b < n; ++b, a += W::BLOCKS * C) {
                W rows[V];
                for (int v = 0; v < V; ++v) {
                    const int at = lane + v * isa::LANES;
                    rows[v].fields = group + size_t(b) * fields + 2 * at;
                    rows[v].dwords = group + size_t(n) * fields + size_t(b) * dwords + 4 * at;
                }
                multiply_parts(rows, group + size_t(b) * (fields + dwords), a, sums);
            }
            store_sums(sums, dst + lane, dst_stride);
        }
    }
};

// Weights of 16-bit floats times float activations [K][C]; even and odd K are summed apart.
template <class W> struct floating {
    template <int C> static void group(const uint8_t * group, int n_blocks, const void * activations, float * dst, size_t dst_stride) {
        constexpr int V = isa::VECTORS_OF_ROWS;
        for (int lane = 0; lane < ROWS; lane += V * isa::LANES) {
            const float * x = (const float *) activations;
            isa::floats even[V][C] = {}, odd[V][C] = {};
            const uint8_t * w = group;
            for (int k = 0; k < n_blocks * BLOCK; k += 2, w += 2 * FIELD, x += 2 * C) {
                prefetch(w, 2 * FIELD);
                isa::floats w0[V], w1[V];
                for (int v = 0; v < V; ++v) {
                    W::load(w, lane + v * isa::LANES, w0[v], w1[v]);
                }
                for (int c = 0; c < C; ++c) {
                    const isa::floats x0 = isa::all(x[c]), x1 = isa::all(x[C + c]);
                    for (int v = 0; v < V; ++v) {
                        even[v][c] = isa::fma(w0[v], x0, even[v][c]);
                        odd[v][c]  = isa::fma(w1[v], x1, odd[v][c]);
                    }
                }
            }
            for (int v = 0; v < V; ++v) {
                for (int c = 0; c < C; ++c) {
                    even[v][c] = isa::add(even[v][c], odd[v][c]);
                }
            }
            store_sums(even, dst + lane, dst_stride);
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

// One product for each I into every sum; the activations look new to the compiler every time, or it would reuse products.
template <int CHAINS, int... I>
void multiply_again(isa::dot<4, sizeof...(I)> (&sums)[CHAINS], isa::ints weights, isa::ints & fours, std::integer_sequence<int, I...>) {
    const auto add = [&](auto i) {
        for (int c = 0; c < CHAINS; ++c) {
            isa::forget(fours);
            sums[c].template add<i>(weights, fours);
        }
    };
    (add(std::integral_constant<int, I>()), ...);
}

int64_t multiply_registers(int64_t n) {
    constexpr int CHAINS = 12; // more than latency times throughput of the products
    isa::ints weights = isa::all_ints(0x01020304), fours = isa::all_ints(0x01010101), total = isa::all_ints(0);
    isa::dot<4, 8> sums[CHAINS];
    for (int c = 0; c < CHAINS; ++c) {
        sums[c].begin(c);
    }
    for (int64_t i = 0; i < n; ++i) {
        multiply_again(sums, weights, fours, std::make_integer_sequence<int, 8>());
    }
    for (int c = 0; c < CHAINS; ++c) {
        total = isa::add_ints(total, sums[c].total());
    }
    volatile float kept = isa::max_lane(isa::to_float(total)); // or the compiler leaves it all out
    (void) kept;
    return n * CHAINS * BLOCK * isa::LANES;
}

void quantize(const float * x, int n_blocks, int offset, activation * out, size_t stride) {
    for (int b = 0; b < n_blocks; ++b, x += BLOCK, out += stride) {
        isa::floats peak = isa::zero();
        for (int i = 0; i < BLOCK; i += isa::LANES) {
            peak = isa::max(peak, isa::absolute(isa::load(x + i)));
        }
        const float largest = isa::max_lane(peak);
        int32_t sums[2];
        isa::store_bytes(x, isa::all(largest > 0 ? 127.0f / largest : 0.0f), out->q, sums);
        out->scale = largest / 127.0f;
        out->sum   = out->scale * float(sums[0] + sums[1]);
        out->start[0] = -offset * sums[0];
        out->start[1] = -offset * sums[1];
    }
}

} // namespace
