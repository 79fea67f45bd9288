// The first half of attention: the scratch of a task, and the scores of its query vectors. See attend.inl.
#include "path.h"

#include "ggml.h"

#include <cmath>
#include <cstring>

namespace {

using namespace ee::kernels;

constexpr int CELLS = 16;    // cells handled together

template <int TYPE> isa::floats load_as_float(const char * p, int i) {
    if constexpr (TYPE == GGML_TYPE_F16) {
        return isa::load_half(p + 2 * i);
    } else if constexpr (TYPE == GGML_TYPE_BF16) {
        return isa::load_bfloat(p + 2 * i);
    } else {
        return isa::load((const float *) p + i);
    }
}

// The scratch of one task and share of cells; sizes as in attention_scratch_bytes. Vectors are padded.
struct attention_scratch {
    int n_cells;             // of the share, which are numbered without gaps here
    double * sums;           // [vector][dim_v]
    double * values;         // [cell][dim_v]
    double * probabilities;  // [vector][cell]
    double * totals;         // [vector][lane]
    float * keys;            // [dim_k][cell]
    float * queries;         // [vector / SCORED_TOGETHER][dim_k][SCORED_TOGETHER]
    float * largest;         // [vector]
    float * scores;          // [vector][n_cells]
    uint8_t * live;          // [n_cells / CELLS]: some row sees a cell of this block
};

attention_scratch divide(char * p, const attention_task & task, int n_cells) {
    const size_t padded = (task.n_rows * task.n_heads + SCORED_TOGETHER - 1) / SCORED_TOGETHER * SCORED_TOGETHER;
    attention_scratch s;
    s.n_cells = n_cells;
    s.sums = (double *) p;
    s.values = s.sums + padded * task.dim_v;
    s.probabilities = s.values + CELLS * task.dim_v;
    s.totals = s.probabilities + padded * CELLS;
    s.keys = (float *) (s.totals + padded * isa::LANES);
    s.queries = s.keys + task.dim_k * CELLS;
    s.largest = s.queries + padded * task.dim_k;
    s.scores = s.largest + padded;
    s.live = (uint8_t *) (s.scores + padded * n_cells);
    return s;
}

bool sees_a_cell(const attention_task & task, int row, int cell) {
    if (task.mask == nullptr) {
        return true;
    }
    const char * mask = task.mask + row * task.mask_stride + 2 * cell;
    bool any = false;
    for (int i = 0; i < CELLS; i += isa::LANES) {
        any = isa::any_above(isa::load_half(mask + 2 * i), isa::all(-INFINITY)) || any;
    }
    return any;
}

// Fetches a block of cells into a cache, a line a step: memory works while a block is computed, not before it.
template <int LEVEL> struct ahead {
    const char * cell;
    size_t stride;
    int bytes, n_cells = CELLS, at = 0;

    void step() {
        if (n_cells > 0) {
            __builtin_prefetch(cell + at, 0, 4 - LEVEL);
            at += 64;
            if (at >= bytes) {
                at = 0;
                cell += stride;
                --n_cells;
            }
        }
    }
};

template <int TYPE> void load_keys(const attention_task & task, int cell, float * keys, ahead<1> & next) {
    for (int d = 0; d < task.dim_k; d += isa::LANES) {
        for (int i = 0; i < CELLS; i += isa::LANES) {
            const char * k = task.k + (cell + i) * task.k_stride;
            isa::floats rows[isa::LANES];
            for (int j = 0; j < isa::LANES; ++j) {
                rows[j] = load_as_float<TYPE>(k + j * task.k_stride, d);
                if (j % 2 == 0) {
                    next.step();
                }
            }
            isa::transpose<CELLS>(rows, keys + d * CELLS + i);
        }
    }
}

// Scores of N query vectors and LANES cells; `at` is the number of the cell within the share.
template <int N> void score(const attention_task & task, const attention_scratch & s, int first, int cell, int at, int lane, ahead<2> & values) {
    const float * queries = s.queries + size_t(first) * task.dim_k;
    isa::floats sums[N];
    for (int t = 0; t < N; ++t) {
        sums[t] = isa::zero();
    }
    for (int d = 0; d < task.dim_k; ++d) {
        const isa::floats key = isa::load(s.keys + d * CELLS + lane);
        for (int t = 0; t < N; ++t) {
            sums[t] = isa::fma(key, isa::all(queries[d * SCORED_TOGETHER + t]), sums[t]);
        }
        if (d % 2 == 0) {
            values.step();
        }
    }
    for (int t = 0; t < N; ++t) {
        isa::floats x = isa::mul(sums[t], isa::all(task.scale));
        if (task.mask != nullptr) {
            const int row = (first + t) / task.n_heads;
            x = isa::add(x, isa::load_half(task.mask + row * task.mask_stride + 2 * (cell + lane)));
        }
        isa::store(s.scores + size_t(first + t) * s.n_cells + at + lane, x);
    }
}

template <int N = SCORED_TOGETHER> void score_some(const attention_task & task, const attention_scratch & s, int first, int n, int cell, int at, ahead<2> & values) {
    if constexpr (N > 0) {
        if (n >= N) {
            for (int lane = 0; lane < CELLS; lane += isa::LANES) {
                score<N>(task, s, first, cell, at, lane, values);
            }
        } else {
            score_some<N - 1>(task, s, first, n, cell, at, values);
        }
    }
}

// queries[first / SCORED_TOGETHER][d][t] from task.q.
void load_queries(const attention_task & task, float * queries) {
    for (int t = 0; t < task.n_rows * task.n_heads; ++t) {
        const int row = t / task.n_heads, head = t % task.n_heads;
        const float * q = (const float *) (task.q + row * task.q_row_stride + head * task.q_head_stride);
        float * out = queries + size_t(t / SCORED_TOGETHER) * SCORED_TOGETHER * task.dim_k + t % SCORED_TOGETHER;
        for (int d = 0; d < task.dim_k; ++d) {
            out[d * SCORED_TOGETHER] = q[d];
        }
    }
}

constexpr int type_bytes(int type) {
    return type == GGML_TYPE_F32 ? 4 : 2;
}

template <int TYPE> void score_cells(const attention_task & task, cell_share share, const attention_scratch & s) {
    const int n_vectors = task.n_rows * task.n_heads, next = share.step * CELLS;
    const int k_bytes = task.dim_k * type_bytes(TYPE), v_bytes = task.dim_v * type_bytes(task.v_type);
    for (int at = 0, cell = share.first * CELLS; cell < task.n_kv; at += CELLS, cell += next) {
        bool live = false;
        for (int row = 0; row < task.n_rows && !live; ++row) {
            live = sees_a_cell(task, row, cell);
        }
        s.live[at / CELLS] = live;
        if (!live) {
            continue;
        }
        // Cells of one head lie apart, which no hardware prefetcher follows: fetch the next keys, and the values for later.
        ahead<1> keys{task.k + (cell + next) * task.k_stride, task.k_stride, k_bytes};
        ahead<2> values{task.v + cell * task.v_stride, task.v_stride, v_bytes};
        load_keys<TYPE>(task, cell, s.keys, keys);
        for (int first = 0; first < n_vectors; first += SCORED_TOGETHER) {
            score_some(task, s, first, n_vectors - first, cell, at, values);
        }
    }
}

} // namespace
