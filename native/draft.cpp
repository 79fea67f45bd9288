// The draft's C interface: arguments are checked here, the work is in draft_round.cpp.

#include "draft_round.h"
#include "kernels/kernels.h"

#include <algorithm>

namespace {

constexpr int32_t MAX_THREADS = 512;

constexpr ee::graph_shape ONE_OUTPUT{1, 0, false, 1, true}; // the logits of one kept state

void check_within(const char * name, int32_t value, int32_t low, int32_t high) {
    if (value < low || value > high) {
        ee::fail(EE_ERR_ARG, "%s must be between %d and %d, got %d", name, low, high, value);
    }
}

void check_tokens(const ee_draft & draft, const int32_t * tokens, int32_t n) {
    const int64_t n_rows = draft.weights.embedding->ne[1];
    for (int32_t i = 0; i < n; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_rows) {
            ee::fail(EE_ERR_ARG, "token %d is outside the embedding of %lld tokens", tokens[i], (long long) n_rows);
        }
    }
}

void check_top_k(const ee_draft & draft, int32_t top_k) {
    check_within("top_k", top_k, 0, std::min(draft.params.max_top_k, draft.config.n_draft_vocab));
}

} // namespace

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
        draft->native_attention = ee::kernels::current.offered;
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
        const int32_t n_cells = GGML_PAD(params->n_ctx + params->max_nodes, ee::CELL_STEP);
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
        check_top_k(*draft, top_k);
        check_tokens(*draft, next_tokens, m);
        if (m > draft->params.n_ctx - draft->n_pairs) {
            ee::fail(EE_ERR_MEMORY, "the draft's cache has room for %d more pairs, not %d", draft->params.n_ctx - draft->n_pairs, m);
        }
        draft->extend(next_tokens, taps, m, top_k, ids, logprobs);
    });
}

ee_status ee_draft_level(ee_draft * draft, const int32_t * tokens, const int32_t * parents, int32_t n, int32_t top_k, int32_t * ids, float * logprobs, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        const int32_t most = draft->params.max_nodes, first = draft->n_nodes();
        if (n < 1 || n > most - first) {
            ee::fail(EE_ERR_ARG, "a level of %d nodes after %d: the draft was opened for 1..%d in a round", n, first, most);
        }
        check_top_k(*draft, top_k);
        check_tokens(*draft, tokens, n);
        std::for_each(parents, parents + n, [&](int32_t parent) { draft->state_row(parent); });
        draft->level(tokens, parents, n, top_k, ids, logprobs);
    });
}

ee_status ee_draft_perturb(ee_draft * draft, const float * noise, float reach, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        draft->perturbed.noise.assign(noise, noise == nullptr ? noise : noise + draft->config.n_draft_vocab);
        draft->perturbed.reach = reach;
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
