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

// -infinity where the vector sees none of the cells.
float largest_score(const attention_scratch & s, int vector) {
    const float * scores = s.scores + size_t(vector) * s.n_cells;
    isa::floats largest = isa::all(-INFINITY);
    for (int at = 0; at < s.n_cells; at += isa::LANES) {
        if (s.live[at / CELLS]) {
            largest = isa::max(largest, isa::load(scores + at));
        }
    }
    return isa::max_lane(largest);
}

// Turn a block of scores into whole probabilities; false when all are zero.
bool weigh(const attention_scratch & s, int vector, float largest, int at) {
    const float * scores = s.scores + size_t(vector) * s.n_cells + at;
    double * out = s.probabilities + vector * CELLS;
    double * totals = s.totals + vector * isa::LANES;
    bool any = false;
    for (int i = 0; i < CELLS; i += isa::LANES) {
        const isa::floats x = isa::sub(isa::load(scores + i), isa::all(largest));
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

// The same for so few vectors that their sums fit in registers beside values that are converted as they are read, LANES
// dimensions at a time: storing the values as doubles first takes longer than adding them up.
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

template <int TYPE, int T = isa::VECTORS_AT_ONCE>
void accumulate_few(const attention_task & task, const attention_scratch & s, int first, int n, int cell) {
    if constexpr (T > 0) {
        if (n == T) {
            accumulate_once<TYPE, T>(task, s, first, cell);
        } else {
            accumulate_few<TYPE, T - 1>(task, s, first, n, cell);
        }
    }
}

template <int TYPE> void sum_cells(const attention_task & task, cell_share share, const attention_scratch & s, const float * largest) {
    const int n_vectors = task.n_rows * task.n_heads;
    for (int at = 0, cell = share.first * CELLS; cell < task.n_kv; at += CELLS, cell += share.step * CELLS) {
        int begin = n_vectors, end = 0; // the vectors that see anything here
        for (int i = cell + share.step * CELLS; i < cell + (share.step + 1) * CELLS; ++i) {
            for (int b = 0; b < task.dim_v * type_bytes(TYPE); b += 64) {
                __builtin_prefetch(task.v + i * task.v_stride + b, 0, 3);
            }
        }
        for (int t = 0; s.live[at / CELLS] && t < n_vectors; ++t) {
            if (weigh(s, t, largest[t], at)) {
                begin = begin < t ? begin : t;
                end = t + 1;
            }
        }
        if (end - begin <= isa::VECTORS_AT_ONCE) {
            accumulate_few<TYPE>(task, s, begin, end - begin, cell);
            continue;
        }
        load_values<TYPE>(task, cell, s.values);
        while (begin < end) {
            begin += accumulate_some(task, s, begin, end - begin);
        }
    }
}

void score_share(const attention_task & task, cell_share share, char * own) {
    const attention_scratch s = divide(own, task, share.n_cells(task.n_kv));
    load_queries(task, s.queries);
    switch (task.k_type) {
        case GGML_TYPE_F16:  score_cells<GGML_TYPE_F16>(task, share, s); break;
        case GGML_TYPE_BF16: score_cells<GGML_TYPE_BF16>(task, share, s); break;
        default:             score_cells<GGML_TYPE_F32>(task, share, s); break;
    }
    for (int t = 0; t < task.n_rows * task.n_heads; ++t) {
        s.largest[t] = largest_score(s, t);
    }
}

void sum_share(const attention_task & task, cell_share share, char * own, char * scratches, size_t stride, int n_scratches) {
    const attention_scratch s = divide(own, task, share.n_cells(task.n_kv));
    const int n_vectors = task.n_rows * task.n_heads;
    float * largest = s.queries; // which have been used
    for (int t = 0; t < n_vectors; ++t) {
        float found = -INFINITY;
        for (int i = 0; i < n_scratches; ++i) {
            found = fmaxf(found, divide(scratches + i * stride, task, 0).largest[t]);
        }
        largest[t] = found == -INFINITY ? 0.0f : found; // a row that sees nothing weighs everything zero
    }
    memset(s.totals, 0, sizeof(double) * n_vectors * isa::LANES);
    memset(s.sums, 0, sizeof(double) * n_vectors * task.dim_v);
    switch (task.v_type) {
        case GGML_TYPE_F16:  sum_cells<GGML_TYPE_F16>(task, share, s, largest); break;
        case GGML_TYPE_BF16: sum_cells<GGML_TYPE_BF16>(task, share, s, largest); break;
        default:             sum_cells<GGML_TYPE_F32>(task, share, s, largest); break;
    }
}

void write_vectors(const attention_task & task, int first, int step, char * scratches, size_t stride, int n_scratches) {
    for (int t = first; t < task.n_rows * task.n_heads; t += step) {
        double total = 0; // whole numbers: any order
        for (int i = 0; i < n_scratches; ++i) {
            const double * totals = divide(scratches + i * stride, task, 0).totals + t * isa::LANES;
            for (int lane = 0; lane < isa::LANES; ++lane) {
                total += totals[lane];
            }
        }
        const isa::doubles share = isa::all_doubles(total > 0 ? 1.0 / total : 0.0);
        float * out = (float *) (task.out + (t / task.n_heads) * task.out_row_stride + (t % task.n_heads) * task.out_head_stride);
        for (int d = 0; d < task.dim_v; d += isa::DOUBLES) {
            isa::doubles sum = isa::all_doubles(0.0);
            for (int i = 0; i < n_scratches; ++i) {
                const double * sums = divide(scratches + i * stride, task, 0).sums + size_t(t) * task.dim_v + d;
                sum = isa::add_doubles(sum, isa::load_doubles(sums));
            }
            isa::store_narrow(out + d, isa::mul_doubles(sum, share));
        }
    }
}

constexpr attention_steps attend = {score_share, sum_share, write_vectors};

} // namespace
