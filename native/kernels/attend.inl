// Attention whose result for a row depends only on the cells the row may see: not on their order in the cache, on the
// masked cells between them, on the other rows, or on how threads share the work.
//
// Scores are computed a cell a lane, dimensions in order. Probabilities relative to the row's largest score are rounded
// to whole multiples of 2^-24 and values to multiples of 2^-18, so sums of their products are exact in double precision
// (while the probability-weighted sum of |v| stays under 2^11), and exact sums have no order.
#include "attend_scores.inl"

namespace {

constexpr int CHUNK = 2 * isa::LANES; // dimensions whose sums are accumulated together
constexpr float VALUE_ROUNDER = 48.0f; // adding and subtracting it rounds |v| < 16 to multiples of 2^-18

// 2^24 * exp(x) for x <= 0, rounded to a whole number.
isa::floats whole_exp(isa::floats x) {
    const isa::floats t = isa::max(isa::mul(x, isa::all(1.44269504f)), isa::all(-40.0f));
    const isa::floats n = isa::round(t);
    const isa::floats f = isa::sub(t, n);
    isa::floats y = isa::all(1.5403530e-4f); // 2^f on [-0.5, 0.5]: Taylor coefficients of exp(f ln 2)
    y = isa::fma(y, f, isa::all(1.3333558e-3f));
    y = isa::fma(y, f, isa::all(9.6181291e-3f));
    y = isa::fma(y, f, isa::all(5.5504109e-2f));
    y = isa::fma(y, f, isa::all(2.4022651e-1f));
    y = isa::fma(y, f, isa::all(6.9314718e-1f));
    y = isa::fma(y, f, isa::all(1.0f));
    return isa::round(isa::scale_by_power(y, isa::add(n, isa::all(24.0f))));
}

float largest_score(const attention_task & task, const attention_scratch & s, int vector) {
    const float * scores = s.scores + size_t(vector) * task.n_kv;
    isa::floats largest = isa::all(-INFINITY);
    for (int cell = 0; cell < task.n_kv; cell += isa::LANES) {
        if (s.live[cell / CELLS]) {
            largest = isa::max(largest, isa::load(scores + cell));
        }
    }
    // A row that sees nothing weighs everything zero.
    const float found = isa::max_lane(largest);
    return found == -INFINITY ? 0.0f : found;
}

// Turn a block of scores into whole probabilities; false when all are zero.
bool weigh(const attention_task & task, const attention_scratch & s, int vector, int cell) {
    const float * scores = s.scores + size_t(vector) * task.n_kv + cell;
    double * out = s.probabilities + vector * CELLS;
    double * totals = s.totals + vector * isa::LANES;
    bool any = false;
    for (int i = 0; i < CELLS; i += isa::LANES) {
        const isa::floats x = isa::sub(isa::load(scores + i), isa::all(s.largest[vector]));
        const isa::floats p = isa::keep_above(whole_exp(x), x, isa::all(-18.0f)); // exp(-18) * 2^24 < 1/2
        any = isa::any_above(p, isa::zero()) || any;
        isa::widen(out + i, p);
        for (int j = 0; j < isa::LANES; j += isa::DOUBLES) {
            isa::store_doubles(totals + j, isa::add_doubles(isa::load_doubles(totals + j), isa::load_doubles(out + i + j)));
        }
    }
    return any;
}

template <int TYPE> void load_values(const attention_task & task, int cell, double * values) {
    const isa::floats rounder = isa::all(VALUE_ROUNDER);
    for (int i = 0; i < CELLS; ++i) {
        const char * v = task.v + (cell + i) * task.v_stride;
        for (int d = 0; d < task.dim_v; d += isa::LANES) {
            const isa::floats x = load_as_float<TYPE>(v, d);
            isa::widen(values + i * task.dim_v + d, isa::sub(isa::add(x, rounder), rounder));
        }
    }
}

// Add the values of a block, weighed, to N * DOUBLES sums of T vectors.
template <int T, int N> void accumulate(const double * p, const double * values, int dim, double * sums) {
    isa::doubles x[T][N];
    for (int t = 0; t < T; ++t) {
        for (int k = 0; k < N; ++k) {
            x[t][k] = isa::load_doubles(sums + t * dim + k * isa::DOUBLES);
        }
    }
    for (int i = 0; i < CELLS; ++i, values += dim) {
        for (int k = 0; k < N; ++k) {
            const isa::doubles value = isa::load_doubles(values + k * isa::DOUBLES);
            for (int t = 0; t < T; ++t) {
                x[t][k] = isa::fma_doubles(isa::all_doubles(p[t * CELLS + i]), value, x[t][k]);
            }
        }
    }
    for (int t = 0; t < T; ++t) {
        for (int k = 0; k < N; ++k) {
            isa::store_doubles(sums + t * dim + k * isa::DOUBLES, x[t][k]);
        }
    }
}

template <int T = isa::VECTORS_SUMMED> int accumulate_some(const attention_task & task, const attention_scratch & s, int first, int n) {
    if constexpr (T > 1) {
        if (n < T) {
            return accumulate_some<T - 1>(task, s, first, n);
        }
    }
    double * sums = s.sums + size_t(first) * task.dim_v;
    const double * p = s.probabilities + first * CELLS;
    int d = 0;
    for (; d + CHUNK <= task.dim_v; d += CHUNK) {
        accumulate<T, CHUNK / isa::DOUBLES>(p, s.values + d, task.dim_v, sums + d);
    }
    for (; d < task.dim_v; d += isa::DOUBLES) {
        accumulate<T, 1>(p, s.values + d, task.dim_v, sums + d);
    }
    return T;
}

// The same for so few vectors that values are not worth storing as doubles first: LANES dimensions at a time.
template <int TYPE, int T> void accumulate_once(const attention_task & task, const attention_scratch & s, int first, int cell) {
    constexpr int N = isa::LANES / isa::DOUBLES;
    const isa::floats rounder = isa::all(VALUE_ROUNDER);
    const double * p = s.probabilities + first * CELLS;
    for (int d = 0; d < task.dim_v; d += isa::LANES) {
        double * sums = s.sums + size_t(first) * task.dim_v + d;
        isa::doubles x[T][N];
        for (int t = 0; t < T; ++t) {
            for (int k = 0; k < N; ++k) {
                x[t][k] = isa::load_doubles(sums + t * task.dim_v + k * isa::DOUBLES);
            }
        }
        for (int i = 0; i < CELLS; ++i) {
            const isa::floats loaded = load_as_float<TYPE>(task.v + (cell + i) * task.v_stride, d);
            const isa::floats value = isa::sub(isa::add(loaded, rounder), rounder);
            for (int t = 0; t < T; ++t) {
                const isa::doubles weight = isa::all_doubles(p[t * CELLS + i]);
                x[t][0] = isa::fma_doubles(weight, isa::low_doubles(value), x[t][0]);
                x[t][1] = isa::fma_doubles(weight, isa::high_doubles(value), x[t][1]);
            }
        }
        for (int t = 0; t < T; ++t) {
            for (int k = 0; k < N; ++k) {
                isa::store_doubles(sums + t * task.dim_v + k * isa::DOUBLES, x[t][k]);
            }
        }
    }
}

template <int TYPE, int T = isa::VECTORS_SUMMED>
void accumulate_few(const attention_task & task, const attention_scratch & s, int first, int n, int cell) {
    if constexpr (T > 0) {
        if (n == T) {
            accumulate_once<TYPE, T>(task, s, first, cell);
        } else {
            accumulate_few<TYPE, T - 1>(task, s, first, n, cell);
        }
    }
}

void write_out(const attention_task & task, const attention_scratch & s) {
    for (int t = 0; t < task.n_rows * task.n_heads; ++t) {
        double total = 0; // whole numbers: any order
        for (int i = 0; i < isa::LANES; ++i) {
            total += s.totals[t * isa::LANES + i];
        }
        const isa::doubles share = isa::all_doubles(total > 0 ? 1.0 / total : 0.0);
        const double * sums = s.sums + size_t(t) * task.dim_v;
        float * out = (float *) (task.out + (t / task.n_heads) * task.out_row_stride + (t % task.n_heads) * task.out_head_stride);
        for (int d = 0; d < task.dim_v; d += isa::DOUBLES) {
            isa::store_narrow(out + d, isa::mul_doubles(isa::load_doubles(sums + d), share));
        }
    }
}

template <int TYPE> void sum_cells(const attention_task & task, attention_scratch & s, int n_vectors) {
    for (int cell = 0; cell < task.n_kv; cell += CELLS) {
        int begin = n_vectors, end = 0; // the vectors that see anything here
        for (int t = 0; s.live[cell / CELLS] && t < n_vectors; ++t) {
            if (weigh(task, s, t, cell)) {
                begin = begin < t ? begin : t;
                end = t + 1;
            }
        }
        if (end - begin <= isa::VECTORS_SUMMED) {
            accumulate_few<TYPE>(task, s, begin, end - begin, cell);
            continue;
        }
        load_values<TYPE>(task, cell, s.values);
        while (begin < end) {
            begin += accumulate_some(task, s, begin, end - begin);
        }
    }
}

void attend(const attention_task & task, char * scratch) {
    const int n_vectors = task.n_rows * task.n_heads;
    attention_scratch s = divide(scratch, n_vectors, task);
    load_queries(task, s.queries);
    switch (task.k_type) {
        case GGML_TYPE_F16:  score_cells<GGML_TYPE_F16>(task, s, n_vectors); break;
        case GGML_TYPE_BF16: score_cells<GGML_TYPE_BF16>(task, s, n_vectors); break;
        default:             score_cells<GGML_TYPE_F32>(task, s, n_vectors); break;
    }
    for (int t = 0; t < n_vectors; ++t) {
        s.largest[t] = largest_score(task, s, t);
    }
    memset(s.totals, 0, sizeof(double) * n_vectors * isa::LANES);
    memset(s.sums, 0, sizeof(double) * n_vectors * task.dim_v);
    switch (task.v_type) {
        case GGML_TYPE_F16:  sum_cells<GGML_TYPE_F16>(task, s, n_vectors); break;
        case GGML_TYPE_BF16: sum_cells<GGML_TYPE_BF16>(task, s, n_vectors); break;
        default:             sum_cells<GGML_TYPE_F32>(task, s, n_vectors); break;
    }
    write_out(task, s);
}

} // namespace
