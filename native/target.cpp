// The target: a llama.cpp model and context, opened, described, and read row by row. The tree is in target_tree.cpp.

#include "target.h"

#include "kernels/kernels.h"

#include <cstring>

namespace ee {

std::string architecture(const llama_model * model) {
    char text[64] = "";
    llama_model_meta_val_str(model, "general.architecture", text, sizeof text);
    return text;
}

void make_context(ee_target & t) {
    t.context.reset();
    llama_context_params c = llama_context_default_params();
    // Uncommitted nodes need cells beyond the last position of the text.
    c.n_ctx             = GGML_PAD(t.info.n_ctx + t.params.n_streams + 1, 256);
    c.n_batch           = std::max(t.params.n_batch, t.params.n_streams);
    c.n_ubatch          = t.params.n_ubatch;
    c.n_seq_max         = t.params.n_streams + 2;
    if (t.params.separate_streams) {
        c.n_ctx = GGML_PAD(t.info.n_ctx, 256) * c.n_seq_max; // llama.cpp divides it among the sequences
    }
    c.n_outputs_max     = c.n_seq_max; // llama.cpp aborts below that
    c.n_threads         = t.params.n_threads;
    c.n_threads_batch   = t.params.n_threads;
    c.flash_attn_type   = (llama_flash_attn_type) t.params.flash_attn;
    c.type_k            = (ggml_type) t.params.type_k;
    c.type_v            = (ggml_type) t.params.type_v;
    c.kv_unified        = !t.params.separate_streams;
    c.swa_full          = true; // a sliding cache could not be rewound
    c.no_perf           = true;
    c.cb_eval           = t.by_callback ? on_graph_node : nullptr;
    c.cb_eval_user_data = &t;
    t.context.reset(llama_init_from_model(t.model.get(), c));
    if (!t.context) {
        ee::fail(EE_ERR_MEMORY, "llama.cpp could not make a context of %d positions: %s", t.info.n_ctx, ee::last_log_error().c_str());
    }
    t.n_past  = 0;
    t.n_paths = 0;
    t.parents.clear();
    t.stream_length.clear();
    const bool on_our_kernels = t.native_attention && t.params.n_gpu_layers == 0 && !t.by_callback;
    const bool has_room       = std::min(t.params.n_ubatch, t.params.n_streams) >= GRAPH_ROWS && !t.params.separate_streams;
    t.pads = on_our_kernels && has_room && t.info.can_branch && !t.params.pair_single_row ? answer::unknown : answer::no;
}

// Decode the batch as built.
void decode(ee_target & t) {
    for (auto & rows : t.tap_rows) {
        rows.clear();
    }
    ee::kernels::current.attends = t.native_attention;
    const int32_t status = llama_decode(t.context.get(), t.batch->batch);
    if (status == 1) {
        ee::fail(EE_ERR_MEMORY, "the cache has no room for %d more tokens", t.batch->batch.n_tokens);
    }
    if (status != 0) {
        ee::fail(EE_ERR_BACKEND, "llama.cpp failed to evaluate %d tokens (status %d): %s", t.batch->batch.n_tokens, status,
                 ee::last_log_error().c_str());
    }
    llama_synchronize(t.context.get());
    const size_t expected = (size_t) t.batch->batch.n_tokens * t.info.n_embd;
    for (size_t k = 0; t.by_callback && k < t.tap_rows.size(); ++k) {
        if (t.tap_rows[k].size() != expected) {
            ee::fail(EE_ERR_BACKEND, "the %s graph does not expose boundary %d", architecture(t.model.get()).c_str(), t.boundaries[k]);
        }
    }
}

void check_token(const ee_target & t, int32_t token, int32_t at) {
    if (token < 0 || token >= t.info.n_vocab) {
        ee::fail(EE_ERR_ARG, "token %d at %d is outside the vocabulary of %d", token, at, t.info.n_vocab);
    }
}

} // namespace ee

namespace {

bool on_load_progress(float progress, void * user) {
    const auto & params = *static_cast<const ee_target_params *>(user);
    if (params.progress != nullptr) {
        *params.progress = progress;
    }
    return params.cancel == nullptr || *params.cancel == 0;
}

void check_params(const ee_target_params & p) {
    const auto within = [](const char * name, int32_t value, int32_t low, int32_t high) {
        if (value < low || value > high) {
            ee::fail(EE_ERR_ARG, "%s must be between %d and %d, got %d", name, low, high, value);
        }
    };
    within("n_ctx", p.n_ctx, 0, 1 << 24);
    within("n_batch", p.n_batch, 1, 4096);
    within("n_ubatch", p.n_ubatch, 1, p.n_batch);
    within("n_streams", p.n_streams, 1, ee::MAX_SEQUENCES - 2);
    within("n_threads", p.n_threads, 1, 512);
    within("flash_attn", p.flash_attn, -1, 1);
}

void read_info(ee_target & t) {
    const llama_model * model = t.model.get();
    const std::string   arch  = ee::architecture(model);
    t.info.n_vocab            = llama_vocab_n_tokens(llama_model_get_vocab(model));
    t.info.n_embd             = llama_model_n_embd(model);
    t.info.n_layer            = llama_model_n_layer(model);
    t.info.n_ctx_train        = llama_model_n_ctx_train(model);
    t.info.n_ctx              = t.params.n_ctx > 0 ? t.params.n_ctx : t.info.n_ctx_train;
    t.info.n_params           = (int64_t) llama_model_n_params(model);
    t.info.model_bytes        = (int64_t) llama_model_size(model);
    t.info.can_branch         = !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
    t.info.layer_input_taps   = ee::fills_layer_inputs(arch);
    const int64_t head_width  = t.info.n_embd / std::max(1, llama_model_n_head(model));
    const int64_t row         = head_width * llama_model_n_head_kv(model);
    t.info.cache_bytes        = (int64_t) t.info.n_ctx * t.info.n_layer *
                         (int64_t) (ggml_row_size((ggml_type) t.params.type_k, row) + ggml_row_size((ggml_type) t.params.type_v, row));
}

} // namespace

ee_status ee_target_open(const char * path, const ee_target_params * params, ee_target ** out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        *out = nullptr;
        check_params(*params);
        auto t    = std::make_unique<ee_target>();
        t->params = *params;
        llama_backend_init();
        llama_model_params m          = llama_model_default_params();
        m.n_gpu_layers                = params->n_gpu_layers;
        m.use_extra_bufts             = params->repack != 0;
        m.progress_callback           = on_load_progress;
        m.progress_callback_user_data = &t->params;
        {
            const bool on_cpu = ee::kernels::current.offered && params->repack && params->n_gpu_layers == 0;
            const ee::kernels::head_start memory(on_cpu ? path : "");
            t->model.reset(llama_model_load_from_file(path, m));
        }
        t->params.progress = nullptr;
        t->params.cancel   = nullptr;
        if (!t->model) {
            ee::fail(EE_ERR_FILE, "%s: llama.cpp cannot load it: %s", path, ee::last_log_error().c_str());
        }
        t->native_attention = ee::kernels::current.offered;
        if (t->native_attention) {
            ee::kernels::settle_weights();
        }
        read_info(*t);
        ee::make_context(*t);
        t->batch = std::make_unique<ee::batch_builder>(std::max(params->n_batch, params->n_streams) + 1, params->n_streams + 2);
        *out = t.release();
    });
}

void ee_target_free(ee_target * target) {
    delete target;
}

void ee_target_get_info(const ee_target * target, ee_target_info * out) {
    *out = target->info;
}

ee_status ee_target_set_threads(ee_target * target, int32_t n_threads, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        if (n_threads < 1 || n_threads > 512) {
            ee::fail(EE_ERR_ARG, "n_threads must be between 1 and 512, got %d", n_threads);
        }
        target->params.n_threads = n_threads;
        llama_set_n_threads(target->context.get(), n_threads, n_threads);
    });
}

ee_status ee_target_logits(ee_target * target, int32_t node, float ** out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        if (node < 0 || node >= (int32_t) target->has_logits.size() || !target->has_logits[node]) {
            ee::fail(EE_ERR_ARG, "node %d has no logits in the last evaluation", node);
        }
        *out = llama_get_logits_ith(target->context.get(), node);
        if (*out == nullptr) {
            ee::fail(EE_ERR_BACKEND, "llama.cpp has no logits for row %d", node);
        }
    });
}

// vocab.cpp asks for the vocabulary without knowing the rest.
const llama_vocab * ee_target_vocab(const ee_target * target) {
    return llama_model_get_vocab(target->model.get());
}
