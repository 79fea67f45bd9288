// The draft: pairs of (taps, next token) in a cache of its own, and a tree of nodes in the cells after them.
//
// Cells 0..n_pairs-1 hold the committed pairs in order, node i of the round lies in cell n_pairs + i. A pair's position is
// that of its taps; a child of the last pair has position n_pairs, its children n_pairs + 1, and so on.

#include "draft_graph.h"
#include "draft_top.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <numeric>

namespace {

constexpr int32_t MAX_ROWS   = 512; // rows of one graph when many pairs are committed
constexpr int32_t MAX_THREADS = 512;
constexpr int32_t CELL_STEP  = 256; // attention looks at a multiple of this, so that graphs can be reused
constexpr size_t  MAX_GRAPHS = 64;  // graphs kept for reuse, newest first

constexpr ee::graph_shape ONE_OUTPUT{1, 0, false, 1, true}; // the logits of one kept state

constexpr uint16_t HALF_ZERO = 0x0000, HALF_MINUS_INFINITY = 0xFC00;

void check_within(const char * name, int32_t value, int32_t low, int32_t high) {
    if (value < low || value > high) {
        ee::fail(EE_ERR_ARG, "%s must be between %d and %d, got %d", name, low, high, value);
    }
}

} // namespace

struct ee_draft {
    ee_draft_params  params{};
    ee::head_config  config;
    ggml_backend_ptr backend;
    ee::head_weights weights;
    ee::head_memory  memory;

    ggml_backend_set_n_threads_t set_threads = nullptr; // absent on a GPU

    ggml_gallocr_ptr          graph_memory; // shared: only one graph runs at a time, and nothing in it outlives the run
    std::list<ee::head_graph> graphs;       // newest first

    int32_t              n_pairs   = 0;
    bool                 has_state = false; // row 0 of the states belongs to the last pair
    std::vector<int32_t> parents, depths;   // of the nodes of this round

    std::vector<float>    floats; // scratch on its way to or from the backend
    std::vector<uint16_t> halves;
    std::vector<int64_t>  longs;
    std::vector<int32_t>  ints;

    int32_t n_nodes() const { return (int32_t) parents.size(); }

    void             use_threads(int32_t n_threads);
    ee::head_graph & graph(const ee::graph_shape & shape);
    void             compute(const ee::head_graph & g);
    void             set_embedding(const ee::head_graph & g, const int32_t * tokens);
    void             set_rows(const ee::head_graph & g, int32_t first_cell, const int32_t * positions, int32_t first_state);
    void             commit_chunk(const int32_t * next_tokens, const float * taps, int32_t m, bool last, bool with_output, int32_t top_k, int32_t * ids, float * logprobs);
    void             read_top(const ee::head_graph & g, int32_t top_k, int32_t * ids, float * logprobs);
    void             check_tokens(const int32_t * tokens, int32_t n) const;
    void             check_top_k(int32_t top_k) const;
    int32_t          state_row(int32_t node) const;
};

void ee_draft::use_threads(int32_t n_threads) {
    if (set_threads != nullptr) {
        set_threads(backend.get(), n_threads);
    }
}

ee::head_graph & ee_draft::graph(const ee::graph_shape & shape) {
    const auto found = std::find_if(graphs.begin(), graphs.end(), [&](const auto & g) { return g.shape == shape; });
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
    for (int32_t i = 0; i < g.shape.n_rows; ++i) {
        longs[i] = first_cell + i;
    }
    ggml_backend_tensor_set(g.cells, longs.data(), 0, longs.size() * sizeof(int64_t));
    ggml_backend_tensor_set(g.positions, positions, 0, g.shape.n_rows * sizeof(int32_t));
    if (g.shape.n_states > 0) {
        longs.resize(g.shape.n_states);
        for (int32_t i = 0; i < g.shape.n_states; ++i) {
            longs[i] = first_state + i;
        }
        ggml_backend_tensor_set(g.state_rows, longs.data(), 0, longs.size() * sizeof(int64_t));
    }
}

void ee_draft::check_tokens(const int32_t * tokens, int32_t n) const {
    for (int32_t i = 0; i < n; ++i) {
        if (tokens[i] < 0 || tokens[i] >= weights.embedding->ne[1]) {
            ee::fail(EE_ERR_ARG, "token %d is outside the embedding of %lld tokens", tokens[i], (long long) weights.embedding->ne[1]);
        }
    }
}

void ee_draft::check_top_k(int32_t top_k) const {
    const int32_t most = std::min(params.max_top_k, config.n_draft_vocab);
    if (top_k < 0 || top_k > most) {
        ee::fail(EE_ERR_ARG, "top_k must be between 0 and %d, got %d", most, top_k);
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

void ee_draft::read_top(const ee::head_graph & g, int32_t top_k, int32_t * ids, float * logprobs) {
    const int64_t R    = config.n_draft_vocab;
    const float * rows = static_cast<const float *>(g.probabilities->data);
    if (!ggml_backend_buffer_is_host(g.probabilities->buffer)) {
        floats.resize(ggml_nelements(g.probabilities));
        ggml_backend_tensor_get(g.probabilities, floats.data(), 0, ggml_nbytes(g.probabilities));
        rows = floats.data();
    }
    for (int32_t i = 0; i < g.shape.n_states; ++i) {
        int32_t * row_ids = ids + (size_t) i * top_k;
        if (ee::top_of(rows + i * R, (int32_t) R, top_k, row_ids, logprobs + (size_t) i * top_k) < top_k) {
            ee::fail(EE_ERR_BACKEND, "the head's logits are not finite: it cannot draft for this text");
        }
        std::transform(row_ids, row_ids + top_k, row_ids, [&](int32_t id) { return weights.draft_vocab[id]; });
    }
}

// Commit at most MAX_ROWS pairs; only the last row of the last chunk keeps its state.
void ee_draft::commit_chunk(const int32_t * next_tokens, const float * taps, int32_t m, bool last, bool with_output, int32_t top_k, int32_t * ids, float * logprobs) {
    const int32_t    n_cells = GGML_PAD(n_pairs + m, CELL_STEP);
    ee::head_graph & g       = graph({m, n_cells, /*from_taps =*/true, last ? 1 : 0, last && with_output});
    const int32_t    window  = config.sliding_window > 0 ? config.sliding_window : n_cells;
    set_embedding(g, next_tokens);
    ggml_backend_tensor_set(g.taps, taps, 0, (size_t) m * config.tap_width() * sizeof(float));
    ints.resize(m);
    std::iota(ints.begin(), ints.end(), n_pairs); // the position of a pair is its number
    const int32_t n_masked = g.mask != nullptr ? (int32_t) g.mask->ne[1] : 0;
    halves.assign((size_t) n_masked * n_cells, HALF_MINUS_INFINITY);
    for (int32_t i = 0; i < n_masked; ++i) {
        const int32_t position = n_pairs + m - n_masked + i;
        uint16_t *    row      = halves.data() + (size_t) i * n_cells;
        std::fill(row + std::max(0, position + 1 - window), row + position + 1, HALF_ZERO);
    }
    if (n_masked > 0) {
        ggml_backend_tensor_set(g.mask, halves.data(), 0, halves.size() * sizeof(uint16_t));
    }
    set_rows(g, n_pairs, ints.data(), 0);
    compute(g);
    n_pairs += m;
    if (last) {
        has_state = true;
        if (top_k > 0) {
            read_top(g, top_k, ids, logprobs);
        }
    }
}

ee_status ee_draft_open(const char * path, const char * target_path, const ee_draft_params * params, ee_draft ** out, char * err, size_t err_len) {
    *out = nullptr;
    return ee::guarded(err, err_len, [&] {
        check_within("n_ctx", params->n_ctx, 1, 1 << 24);
        check_within("n_threads", params->n_threads, 1, MAX_THREADS);
        check_within("max_nodes", params->max_nodes, 1, 1 << 14);
        check_within("max_top_k", params->max_top_k, 1, 1 << 10);
        auto draft    = std::make_unique<ee_draft>();
        auto file     = std::make_shared<ee::gguf_file>(path);
        draft->params = *params;
        draft->config = ee::read_head_config(*file);

        ggml_backend_dev_t device = ee::choose_device(draft->config, params->n_gpu_layers != 0);
        draft->backend.reset(ggml_backend_dev_init(device, nullptr));
        if (!draft->backend) {
            ee::fail(EE_ERR_BACKEND, "%s could not be started", ggml_backend_dev_name(device));
        }
        ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
        draft->set_threads     = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
        draft->use_threads(params->n_threads);
        ee::load_head(draft->config, file, target_path, device, draft->weights);
        const int32_t n_cells = GGML_PAD(params->n_ctx + params->max_nodes, CELL_STEP);
        draft->memory         = ee::make_memory(draft->config, draft->weights, draft->backend.get(), n_cells, params->max_nodes);
        draft->graph_memory.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(draft->backend.get())));
        *out = draft.release();
    });
}

void ee_draft_free(ee_draft * draft) {
    delete draft;
}

void ee_draft_get_info(const ee_draft * draft, ee_draft_info * out) {
    const ee::head_config & c = draft->config;
    *out                      = {};
    out->n_embd               = c.n_embd;
    out->n_embd_target        = c.n_embd_target;
    out->n_taps               = (int32_t) c.taps.size();
    std::copy(c.taps.begin(), c.taps.end(), out->taps);
    out->n_layer       = c.n_layer;
    out->n_vocab       = c.n_vocab;
    out->n_draft_vocab = c.n_draft_vocab;
    out->own_embedding = draft->weights.own_embedding;
    out->own_output    = draft->weights.own_output;
    out->weight_bytes  = draft->weights.n_bytes;
    out->cache_bytes   = (int64_t) ggml_backend_buffer_get_size(draft->memory.buffer.get());
}

ee_status ee_draft_set_threads(ee_draft * draft, int32_t n_threads, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        check_within("n_threads", n_threads, 1, MAX_THREADS);
        draft->use_threads(n_threads);
    });
}

ee_status ee_draft_vocab(const ee_draft * draft, int32_t * out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] { std::copy(draft->weights.draft_vocab.begin(), draft->weights.draft_vocab.end(), out); });
}

ee_status ee_draft_extend(ee_draft * draft, const int32_t * next_tokens, const float * taps, int32_t m, int32_t top_k, int32_t * ids, float * logprobs, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        if (m < 1) {
            ee::fail(EE_ERR_ARG, "at least one pair is needed, got %d", m);
        }
        draft->check_top_k(top_k);
        draft->check_tokens(next_tokens, m);
        if (m > draft->params.n_ctx - draft->n_pairs) {
            ee::fail(EE_ERR_MEMORY, "the draft's cache has room for %d more pairs, not %d", draft->params.n_ctx - draft->n_pairs, m);
        }
        draft->parents.clear();
        draft->depths.clear();
        draft->has_state = false;
        for (int32_t done = 0; done < m; done += MAX_ROWS) {
            const int32_t n    = std::min(MAX_ROWS, m - done);
            const bool    last = done + n == m;
            draft->commit_chunk(next_tokens + done, taps + (size_t) done * draft->config.tap_width(), n, last, top_k > 0, top_k, ids, logprobs);
        }
    });
}

ee_status ee_draft_level(ee_draft * draft, const int32_t * tokens, const int32_t * parents, int32_t n, int32_t top_k, int32_t * ids, float * logprobs, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_draft &    d     = *draft;
        const int32_t first = d.n_nodes();
        if (n < 1 || n > d.params.max_nodes - first) {
            ee::fail(EE_ERR_ARG, "a level of %d nodes after %d: the draft was opened for 1..%d in a round", n, first, d.params.max_nodes);
        }
        d.check_top_k(top_k);
        d.check_tokens(tokens, n);
        d.ints.resize(n);
        for (int32_t i = 0; i < n; ++i) {
            d.ints[i] = d.state_row(parents[i]);
        }
        const int32_t    n_cells = GGML_PAD(d.n_pairs + first + n, CELL_STEP);
        const int32_t    window  = d.config.sliding_window > 0 ? d.config.sliding_window : n_cells;
        ee::head_graph & g       = d.graph({n, n_cells, /*from_taps =*/false, n, top_k > 0});
        ggml_backend_tensor_set(g.parents, d.ints.data(), 0, n * sizeof(int32_t));
        d.set_embedding(g, tokens);
        d.halves.assign((size_t) n * n_cells, HALF_MINUS_INFINITY);
        for (int32_t i = 0; i < n; ++i) {
            const int32_t depth    = parents[i] < 0 ? 0 : d.depths[parents[i]] + 1;
            const int32_t position = d.n_pairs + depth;
            const int32_t oldest   = position + 1 - window;
            uint16_t *    row      = d.halves.data() + (size_t) i * n_cells;
            std::fill(row + std::min(d.n_pairs, std::max(0, oldest)), row + d.n_pairs, HALF_ZERO);
            row[d.n_pairs + first + i] = HALF_ZERO;
            for (int32_t a = parents[i]; a >= 0; a = d.parents[a]) {
                row[d.n_pairs + a] = d.n_pairs + d.depths[a] >= oldest ? HALF_ZERO : HALF_MINUS_INFINITY;
            }
            d.ints[i] = position;
        }
        ggml_backend_tensor_set(g.mask, d.halves.data(), 0, d.halves.size() * sizeof(uint16_t));
        d.set_rows(g, d.n_pairs + first, d.ints.data(), 1 + first);
        d.compute(g);
        for (int32_t i = 0; i < n; ++i) {
            d.depths.push_back(d.ints[i] - d.n_pairs);
            d.parents.push_back(parents[i]);
        }
        if (top_k > 0) {
            d.read_top(g, top_k, ids, logprobs);
        }
    });
}

ee_status ee_draft_logits(ee_draft * draft, int32_t node, float * out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        const int32_t row = draft->state_row(node);
        const ee::head_graph & g = draft->graph(ONE_OUTPUT);
        ggml_backend_tensor_set(g.parents, &row, 0, sizeof row);
        draft->compute(g);
        ggml_backend_tensor_get(g.logits, out, 0, ggml_nbytes(g.logits));
    });
}

ee_status ee_draft_hidden(const ee_draft * draft, int32_t node, float * out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        const ggml_tensor * states = draft->memory.states;
        ggml_backend_tensor_get(states, out, draft->state_row(node) * states->nb[1], states->nb[1]);
    });
}

ee_status ee_draft_rewind(ee_draft * draft, int32_t n_pairs, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        if (n_pairs < 0 || n_pairs > draft->n_pairs) {
            ee::fail(EE_ERR_ARG, "cannot rewind to %d pairs: the draft holds %d", n_pairs, draft->n_pairs);
        }
        draft->has_state = draft->has_state && n_pairs == draft->n_pairs;
        draft->n_pairs   = n_pairs;
        draft->parents.clear();
        draft->depths.clear();
    });
}

int32_t ee_draft_n_pairs(const ee_draft * draft) {
    return draft->n_pairs;
}
