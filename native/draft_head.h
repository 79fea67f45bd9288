// A draft head in memory: what it is (head_config) and its weights on a backend (head_weights).
#pragma once

#include "draft_file.h"

#include <memory>

namespace ee {

constexpr int MAX_TAPS = 16;

// The switches of the EAGLE family; the keys are those of eagle_edge/head_format.py.
struct head_config {
    bool    eagle1 = false;
    int32_t n_layer, n_embd, n_embd_target, n_ff, n_head, n_head_kv, head_dim, n_vocab, n_draft_vocab;
    std::vector<int32_t> taps; // [K]
    float   rms_eps;
    bool    norm_before_residual, norm_before_fc, fc, fc_norm, norm_output, fc_bias, qkv_bias, output_bias, mlp_bias, qk_norm;
    int32_t sliding_window;
    // Arguments of ggml_rope_ext.
    float   rope_theta, rope_scale, rope_ext_factor, rope_attn_factor, rope_beta_fast, rope_beta_slow;
    int32_t rope_n_ctx_orig;

    int32_t tap_width() const { return (int32_t) taps.size() * n_embd_target; }
    bool    fused_input(int32_t layer) const { return !eagle1 && layer == 0; } // q, k, v read embedding and feature
};

struct layer_weights {
    ggml_tensor *attn_norm, *attn_norm_2, *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
    ggml_tensor *ffn_norm, *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
};

// Tensors that a head has no use for are nullptr.
struct head_weights {
    ggml_tensor *              fc = nullptr, *fc_bias = nullptr, *fc_input_norm = nullptr;
    std::vector<ggml_tensor *> fc_norm; // [K]
    std::vector<layer_weights> layers;
    ggml_tensor *              output_norm = nullptr, *output = nullptr, *rope_factors = nullptr;

    std::vector<int32_t> draft_vocab; // [R] the target id of each draft id

    // The embedding stays in its file: the host turns the few rows of a level into floats.
    std::shared_ptr<gguf_file> embedding_file;
    const ggml_tensor *        embedding = nullptr;
    bool                       own_embedding = false, own_output = false;

    int64_t                              n_bytes = 0;
    std::vector<ggml_context_ptr>        contexts;
    std::vector<ggml_backend_buffer_ptr> buffers;
};

head_config read_head_config(const gguf_file & file);
// The first GPU that can run this head when one is wanted, otherwise the CPU.
ggml_backend_dev_t choose_device(const head_config & config, bool want_gpu);
// Load every tensor; what the head lacks is read from the target's file.
void load_head(const head_config & config, std::shared_ptr<gguf_file> head, const char * target_path, ggml_backend_dev_t device, head_weights & out);

} // namespace ee
