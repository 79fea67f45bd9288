// Attention whose result for a row depends only on the cells the row may see: not on their order in the cache, on the
// masked cells between them, on the other rows, or on how threads share the work.
//
// Scores are computed a cell a lane, dimensions in order. Probabilities relative to the row's largest score are rounded
// to whole multiples of 2^-24 and values to multiples of 2^-18, so sums of their products are exact in double precision
// (while the probability-weighted sum of |v| stays under 2^11), and exact sums have no order.
#include "path.h"

#include "ggml.h"

#include <cmath>
#include <cstring>

namespace {

using namespace ee::kernels;

constexpr int CELLS = 16;    // cells handled together
constexpr int VECTORS = 8;   // query vectors whose scores are accumulated together
constexpr int SUMS = 8;      // vectors of doubles accumulated together
constexpr float PROBABILITY_ONE = 16777216.0f; // 2^24
constexpr float VALUE_ROUNDER = 48.0f;         // adding and subtracting it rounds |v| < 16 to multiples of 2^-18

isa::floats load_as_float(int type, const char * p, int i) {
    switch (type) {
        case GGML_TYPE_F16:  return isa::load_half(p + 2 * i);
        case GGML_TYPE_BF16: return isa::load_bfloat(p + 2 * i);
        default:             return isa::load((const float *) p + i);
    }
}

// The scratch of one task; sizes as in attention_scratch_bytes.
struct attention_scratch {
    double * sums;           // [vector][dim_v]
    double * values;         // [cell][dim_v]
    double * probabilities;  // [vector][cell]
    double * totals;         // [vector]
    float * keys;            // [dim_k][cell]
    float * queries;         // [dim_k][vector], padded to whole VECTORS
    float * largest;         // [vector]
    float * scores;          // [vector][n_kv]
    uint8_t * live;          // [n_kv / CELLS]: some row sees a cell of this block
};

attention_scratch divide(char * p, int n_vectors, int dim_k, int dim_v, int n_kv) {
    const int padded = (n_vectors + VECTORS - 1) / VECTORS * VECTORS;
    attention_scratch s;
    s.sums = (double *) p;
    s.values = s.sums + size_t(n_vectors) * dim_v;
    s.probabilities = s.values + CELLS * dim_v;
    s.totals = s.probabilities + n_vectors * CELLS;
    s.keys = (float *) (s.totals + padded);
    s.queries = s.keys + dim_k * CELLS;
    s.largest = s.queries + size_t(padded) * dim_k;
    s.scores = s.largest + padded;
    s.live = (uint8_t *) (s.scores + size_t(padded) * n_kv);
    return s;
}

// 2^24 * exp(x) for x <= 0, rounded to a whole number.
isa::floats whole_exp(isa::floats x) {
    const isa::floats t = isa::mul(x, isa::all(1.44269504f));
    const isa::floats n = isa::round(isa::max(t, isa::all(-40.0f)));
    const isa::floats f = isa::sub(isa::max(t, isa::all(-40.0f)), n);
    isa::floats y = isa::all(1.5403530e-4f); // 2^f on [-0.5, 0.5]: Taylor coefficients of exp(f ln 2)
    y = isa::fma(y, f, isa::all(1.3333558e-3f));
    y = isa::fma(y, f, isa::all(9.6181291e-3f));
    y = isa::fma(y, f, isa::all(5.5504109e-2f));
    y = isa::fma(y, f, isa::all(2.4022651e-1f));
    y = isa::fma(y, f, isa::all(6.9314718e-1f));
    y = isa::fma(y, f, isa::all(1.0f));
    return isa::round(isa::scale_by_power(y, isa::add(n, isa::all(24.0f))));
}

bool sees_a_cell(const attention_task & task, int row, int cell) {
    if (task.mask == nullptr) {
        return true;
    }
    const char * mask = task.mask + row * task.mask_stride + 2 * cell;
    for (int i = 0; i < CELLS; i += isa::LANES) {
        if (isa::any_above(isa::load_half(mask + 2 * i), isa::all(-INFINITY))) {
            return true;
        }
    }
    return false;
}

void load_keys(const attention_task & task, int cell, float * keys) {
    for (int d = 0; d < task.dim_k; d += isa::LANES) {
        for (int i = 0; i < CELLS; i += isa::LANES) {
            isa::floats rows[isa::LANES];
            for (int j = 0; j < isa::LANES; ++j) {
                rows[j] = load_as_float(task.k_type, task.k + (cell + i + j) * task.k_stride, d);
            }
            isa::transpose(rows, keys + d * CELLS + i);
        }
    }
}

// Scores of VECTORS query vectors and LANES cells.
void score(const float * keys, const float * queries, int dim, isa::floats * out) {
    for (int t = 0; t < VECTORS; ++t) {
        out[t] = isa::zero();
    }
    for (int d = 0; d < dim; ++d) {
        const isa::floats key = isa::load(keys + d * CELLS);
        for (int t = 0; t < VECTORS; ++t) {
            out[t] = isa::fma(key, isa::all(queries[t]), out[t]);
        }
        queries += VECTORS;
    }
}

void score_block(const attention_task & task, attention_scratch & s, int cell) {
    const int n_vectors = task.n_rows * task.n_heads;
    load_keys(task, cell, s.keys);
    for (int first = 0; first < n_vectors; first += VECTORS) {
        for (int i = 0; i < CELLS; i += isa::LANES) {
            isa::floats scores[VECTORS];
            score(s.keys + i, s.queries + size_t(first) * task.dim_k, task.dim_k, scores);
            for (int t = 0; t < VECTORS && first + t < n_vectors; ++t) {
                isa::floats x = isa::mul(scores[t], isa::all(task.scale));
                if (task.mask != nullptr) {
                    const int row = (first + t) / task.n_heads;
                    x = isa::add(x, isa::load_half(task.mask + row * task.mask_stride + 2 * (cell + i)));
                }
                isa::store(s.scores + size_t(first + t) * task.n_kv + cell + i, x);
            }
        }
    }
}

// queries[first / VECTORS][d][t] from task.q; vectors beyond the last are zero.
void load_queries(const attention_task & task, float * queries) {
    const int n_vectors = task.n_rows * task.n_heads;
    for (int t = 0; t < (n_vectors + VECTORS - 1) / VECTORS * VECTORS; ++t) {
        const int row = t / task.n_heads, head = t % task.n_heads;
        const float * q = (const float *) (task.q + row * task.q_row_stride + head * task.q_head_stride);
        float * out = queries + size_t(t / VECTORS) * VECTORS * task.dim_k + t % VECTORS;
        for (int d = 0; d < task.dim_k; ++d) {
            out[d * VECTORS] = t < n_vectors ? q[d] : 0.0f;
        }
    }
}

float largest_score(const attention_task & task, const attention_scratch & s, int vector) {
    const float * scores = s.scores + size_t(vector) * task.n_kv;
    isa::floats largest = isa::all(-INFINITY);
    for (int cell = 0; cell < task.n_kv; cell += isa::LANES) {
        if (s.live[cell / CELLS]) {
            largest = isa::max(largest, isa::load(scores + cell));
        }
    }
    return isa::max_lane(largest);
}

// Turn a block of scores into whole probabilities; false when all are zero.
bool weigh_block(const attention_task & task, attention_scratch & s, int vector, int cell) {
    if (s.largest[vector] == -INFINITY) {
        return false;
    }
    const float * scores = s.scores + size_t(vector) * task.n_kv + cell;
    double * out = s.probabilities + vector * CELLS;
    bool any = false;
    for (int i = 0; i < CELLS; i += isa::LANES) {
        const isa::floats x = isa::sub(isa::load(scores + i), isa::all(s.largest[vector]));
        const isa::floats p = isa::keep_above(whole_exp(x), x, isa::all(-18.0f)); // exp(-18) * 2^24 < 1/2
        any = isa::any_above(p, isa::zero()) || any;
        isa::widen(out + i, p);
    }
    for (int i = 0; any && i < CELLS; ++i) {
        s.totals[vector] += out[i];
    }
    return any;
}

void load_values(const attention_task & task, int cell, double * values) {
    const isa::floats rounder = isa::all(VALUE_ROUNDER);
    for (int i = 0; i < CELLS; ++i) {
        const char * v = task.v + (cell + i) * task.v_stride;
        for (int d = 0; d < task.dim_v; d += isa::LANES) {
            const isa::floats x = load_as_float(task.v_type, v, d);
            isa::widen(values + i * task.dim_v + d, isa::sub(isa::add(x, rounder), rounder));
        }
    }
}

template <int N> void accumulate(const double * p, const double * values, int dim, double * sums) {
    isa::doubles x[N];
    for (int k = 0; k < N; ++k) {
        x[k] = isa::load_doubles(sums + k * isa::DOUBLES);
    }
    for (int i = 0; i < CELLS; ++i) {
        const isa::doubles weight = isa::all_doubles(p[i]);
        for (int k = 0; k < N; ++k) {
            x[k] = isa::fma_doubles(weight, isa::load_doubles(values + size_t(i) * dim + k * isa::DOUBLES), x[k]);
        }
    }
    for (int k = 0; k < N; ++k) {
        isa::store_doubles(sums + k * isa::DOUBLES, x[k]);
    }
}

void accumulate_block(const attention_task & task, attention_scratch & s, int vector) {
    double * sums = s.sums + size_t(vector) * task.dim_v;
    const double * p = s.probabilities + vector * CELLS;
    int d = 0;
    for (; d + SUMS * isa::DOUBLES <= task.dim_v; d += SUMS * isa::DOUBLES) {
        accumulate<SUMS>(p, s.values + d, task.dim_v, sums + d);
    }
    for (; d < task.dim_v; d += isa::DOUBLES) {
        accumulate<1>(p, s.values + d, task.dim_v, sums + d);
    }
}

void write_out(const attention_task & task, const attention_scratch & s) {
    for (int t = 0; t < task.n_rows * task.n_heads; ++t) {
        const double total = s.totals[t];
        const isa::doubles share = isa::all_doubles(total > 0 ? 1.0 / total : 0.0);
        const double * sums = s.sums + size_t(t) * task.dim_v;
        float * out = (float *) (task.out + (t / task.n_heads) * task.out_row_stride + (t % task.n_heads) * task.out_head_stride);
        for (int d = 0; d < task.dim_v; d += isa::DOUBLES) {
            isa::store_narrow(out + d, isa::mul_doubles(isa::load_doubles(sums + d), share));
        }
    }
}

void attend(const attention_task & task, char * scratch) {
    const int n_vectors = task.n_rows * task.n_heads;
    attention_scratch s = divide(scratch, n_vectors, task.dim_k, task.dim_v, task.n_kv);
    load_queries(task, s.queries);
    for (int cell = 0; cell < task.n_kv; cell += CELLS) {
        bool live = false;
        for (int row = 0; row < task.n_rows && !live; ++row) {
            live = sees_a_cell(task, row, cell);
        }
        s.live[cell / CELLS] = live;
        if (live) {
            score_block(task, s, cell);
        }
    }
    for (int t = 0; t < n_vectors; ++t) {
        s.largest[t] = largest_score(task, s, t);
        s.totals[t] = 0;
    }
    memset(s.sums, 0, sizeof(double) * n_vectors * task.dim_v);
    for (int cell = 0; cell < task.n_kv; cell += CELLS) {
        bool loaded = false;
        for (int t = 0; s.live[cell / CELLS] && t < n_vectors; ++t) {
            if (weigh_block(task, s, t, cell)) {
                if (!loaded) {
                    load_values(task, cell, s.values);
                    loaded = true;
                }
                accumulate_block(task, s, t);
            }
        }
    }
    write_out(task, s);
}

} // namespace
