#include "draft_round.h"

#include "kernels/kernels.h"

#include <algorithm>
#include <numeric>

namespace {

constexpr int32_t MAX_ROWS   = 512; // rows of one graph when many pairs are committed
constexpr size_t  MAX_GRAPHS = 64;  // graphs kept for reuse, newest first

constexpr uint16_t HALF_ZERO = 0x0000, HALF_MINUS_INFINITY = 0xFC00;

bool same(const ee::graph_shape & a, const ee::graph_shape & b) {
    return a.n_rows == b.n_rows && a.n_cells == b.n_cells && a.from_taps == b.from_taps && a.n_states == b.n_states &&
           a.with_output == b.with_output;
}

} // namespace

void ee_draft::use_threads(int32_t n_threads) {
    if (set_threads != nullptr) {
        set_threads(backend.get(), n_threads);
    }
}

ee::head_graph & ee_draft::graph(const ee::graph_shape & shape) {
    const auto found = std::find_if(graphs.begin(), graphs.end(), [&](const auto & g) { return same(g.shape, shape); });
    if (found != graphs.end()) {
        graphs.splice(graphs.begin(), graphs, found);
        return graphs.front();
    }
    const auto   build  = shape.n_cells > 0 ? ee::build_step : ee::build_output;
    auto         made   = build(config, weights, memory, shape);
    const size_t before = ggml_gallocr_get_buffer_size(graph_memory.get(), 0);
    if (!ggml_gallocr_alloc_graph(graph_memory.get(), made.graph)) {
        graphs.clear();
        ee::fail(EE_ERR_MEMORY, "no memory for a draft graph of %d rows", shape.n_rows);
    }
    if (ggml_gallocr_get_buffer_size(graph_memory.get(), 0) != before) {
        graphs.clear(); // the memory grew and moved: older graphs point to where it was
    }
    graphs.push_front(std::move(made));
    if (graphs.size() > MAX_GRAPHS) {
        graphs.pop_back();
    }
    return graphs.front();
}

void ee_draft::compute(const ee::head_graph & g) {
    ee::kernels::current.attends = native_attention;
    const ggml_status status = ggml_backend_graph_compute(backend.get(), g.graph);
    if (status != GGML_STATUS_SUCCESS) {
        ee::fail(EE_ERR_BACKEND, "ggml could not compute the draft: %s", ggml_status_to_string(status));
    }
}

void ee_draft::set_embedding(const ee::head_graph & g, const int32_t * tokens) {
    const ggml_tensor * table  = weights.embedding;
    const uint8_t *     bytes  = weights.embedding_file->bytes(table);
    const size_t        stride = ggml_row_size(table->type, table->ne[0]);
    floats.resize((size_t) config.n_embd * g.shape.n_rows);
    for (int32_t i = 0; i < g.shape.n_rows; ++i) {
        ee::to_float(table->type, bytes + tokens[i] * stride, floats.data() + (size_t) i * config.n_embd, config.n_embd);
    }
    ggml_backend_tensor_set(g.embedding, floats.data(), 0, floats.size() * sizeof(float));
}

// Where the rows go: consecutive cells, and consecutive rows of the states for those that are kept.
void ee_draft::set_rows(const ee::head_graph & g, int32_t first_cell, const int32_t * positions, int32_t first_state) {
    longs.resize(g.shape.n_rows);
    std::iota(longs.begin(), longs.end(), first_cell);
    ggml_backend_tensor_set(g.cells, longs.data(), 0, longs.size() * sizeof(int64_t));
    ggml_backend_tensor_set(g.positions, positions, 0, g.shape.n_rows * sizeof(int32_t));
    if (g.shape.n_states > 0) {
        longs.resize(g.shape.n_states);
        std::iota(longs.begin(), longs.end(), first_state);
        ggml_backend_tensor_set(g.state_rows, longs.data(), 0, longs.size() * sizeof(int64_t));
    }
}

void ee_draft::set_mask(const ee::head_graph & g) {
    if (g.mask != nullptr) {
        ggml_backend_tensor_set(g.mask, halves.data(), 0, halves.size() * sizeof(uint16_t));
    }
}

// Let a row of the mask see the cells first..end-1.
void ee_draft::see(int32_t row, int32_t n_cells, int32_t first, int32_t end) {
    uint16_t * cells = halves.data() + (size_t) row * n_cells;
    std::fill(cells + std::min(std::max(first, 0), end), cells + end, HALF_ZERO);
}

void ee_draft::read_top(const ee::head_graph & g, int32_t top_k, int32_t * ids, float * logprobs) {
    const int64_t R    = config.n_draft_vocab;
    const float * rows = static_cast<const float *>(g.logits->data);
    if (!ggml_backend_buffer_is_host(g.logits->buffer)) {
        floats.resize(ggml_nelements(g.logits));
        ggml_backend_tensor_get(g.logits, floats.data(), 0, ggml_nbytes(g.logits));
        rows = floats.data();
    }
    for (int32_t i = 0; i < g.shape.n_states; ++i) {
        int32_t * row_ids = ids + (size_t) i * top_k;
        if (!ee::top_of(rows + i * R, (int32_t) R, perturbed, top_k, row_ids, logprobs + (size_t) i * top_k, scores)) {
            ee::fail(EE_ERR_BACKEND, "the head's logits are not finite: it cannot draft for this text");
        }
        std::transform(row_ids, row_ids + top_k, row_ids, [&](int32_t id) { return weights.draft_vocab[id]; });
    }
}

// The inputs of m pairs. Only the last row of the last chunk keeps its state.
ee::head_graph & ee_draft::set_pairs(const int32_t * next_tokens, const float * taps, int32_t m, bool last, bool with_output) {
    const int32_t    n_cells = GGML_PAD(n_pairs + m, ee::CELL_STEP);
    const bool       output  = last && with_output;
    ee::head_graph & g       = graph({m, n_cells, /*from_taps =*/true, last ? 1 : 0, output});
    const int32_t    window  = config.sliding_window > 0 ? config.sliding_window : n_cells;
    const int32_t    masked  = g.mask != nullptr ? (int32_t) g.mask->ne[1] : 0; // the mask is for the last rows
    ints.resize(m);
    std::iota(ints.begin(), ints.end(), n_pairs); // the position of a pair is its number
    halves.assign((size_t) masked * n_cells, HALF_MINUS_INFINITY);
    for (int32_t i = 0; i < masked; ++i) {
        const int32_t position = n_pairs + m - masked + i;
        see(i, n_cells, position + 1 - window, position + 1);
    }
    set_embedding(g, next_tokens);
    ggml_backend_tensor_set(g.taps, taps, 0, (size_t) m * config.tap_width() * sizeof(float));
    set_mask(g);
    set_rows(g, n_pairs, ints.data(), 0);
    return g;
}

void ee_draft::extend(const int32_t * next_tokens, const float * taps, int32_t m, int32_t top_k, int32_t * ids, float * logprobs) {
    parents.clear();
    depths.clear();
    has_state = false;
    for (int32_t done = 0; done < m;) {
        const int32_t    n = std::min(MAX_ROWS, m - done);
        ee::head_graph & g = set_pairs(next_tokens + done, taps + (size_t) done * config.tap_width(), n, done + n == m, top_k > 0);
        compute(g);
        n_pairs += n;
        done += n;
        has_state = done == m;
        if (has_state && top_k > 0) {
            read_top(g, top_k, ids, logprobs);
        }
    }
}

// The inputs of n nodes: each sees the committed pairs, its ancestors and itself.
ee::head_graph & ee_draft::set_nodes(const int32_t * tokens, const int32_t * node_parents, int32_t n, bool with_output) {
    const int32_t    first   = n_nodes();
    const int32_t    n_cells = GGML_PAD(n_pairs + first + n, ee::CELL_STEP);
    const int32_t    window  = config.sliding_window > 0 ? config.sliding_window : n_cells;
    ee::head_graph & g       = graph({n, n_cells, /*from_taps =*/false, n, with_output});
    ints.resize(n);
    std::transform(node_parents, node_parents + n, ints.begin(), [&](int32_t parent) { return state_row(parent); });
    ggml_backend_tensor_set(g.parents, ints.data(), 0, n * sizeof(int32_t));
    halves.assign((size_t) n * n_cells, HALF_MINUS_INFINITY);
    for (int32_t i = 0; i < n; ++i) {
        const int32_t position = n_pairs + (node_parents[i] < 0 ? 0 : depths[node_parents[i]] + 1);
        const int32_t oldest   = position + 1 - window;
        see(i, n_cells, oldest, n_pairs);
        see(i, n_cells, n_pairs + first + i, n_pairs + first + i + 1);
        for (int32_t a = node_parents[i]; a >= 0 && n_pairs + depths[a] >= oldest; a = parents[a]) {
            see(i, n_cells, n_pairs + a, n_pairs + a + 1);
        }
        ints[i] = position;
    }
    set_embedding(g, tokens);
    set_mask(g);
    set_rows(g, n_pairs + first, ints.data(), 1 + first);
    return g;
}

void ee_draft::level(const int32_t * tokens, const int32_t * node_parents, int32_t n, int32_t top_k, int32_t * ids, float * logprobs) {
    ee::head_graph & g = set_nodes(tokens, node_parents, n, top_k > 0);
    compute(g);
    for (int32_t i = 0; i < n; ++i) {
        depths.push_back(ints[i] - n_pairs);
        parents.push_back(node_parents[i]);
    }
    if (top_k > 0) {
        read_top(g, top_k, ids, logprobs);
    }
}

int32_t ee_draft::state_row(int32_t node) const {
    if (node < -1 || node >= n_nodes()) {
        ee::fail(EE_ERR_ARG, "node %d does not exist: this round has %d", node, n_nodes());
    }
    if (!has_state) {
        ee::fail(EE_ERR_ARG, "the last pair has no state: extend the draft first");
    }
    return node + 1;
}
