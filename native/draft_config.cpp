// What a head is, read from its keys; every number is checked before anything is built from it.

#include "draft_head.h"

#include <cmath>

namespace ee {

namespace {

void within(const gguf_file & file, const char * name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        fail(EE_ERR_FILE, "%s: %s is %lld, possible are %lld to %lld", file.path().c_str(), name, (long long) value, (long long) low, (long long) high);
    }
}

void read_rope(const gguf_file & file, const std::string & arch, head_config & c) {
    const std::string kind   = file.text(arch + "rope.scaling.type", "none");
    const bool        scaled = kind == "linear" || kind == "yarn";
    if (!scaled && kind != "none") {
        fail(EE_ERR_FILE, "%s: rope scaling '%s' is not known; known are linear and yarn", file.path().c_str(), kind.c_str());
    }
    const float factor = scaled ? file.number(arch + "rope.scaling.factor") : 1.0f;
    if (!(factor > 0)) {
        fail(EE_ERR_FILE, "%s: rope scaling factor is %g, it must be positive", file.path().c_str(), factor);
    }
    c.rope_theta       = file.number(arch + "rope.freq_base", 10000.0f);
    c.rope_scale       = 1.0f / factor;
    c.rope_ext_factor  = kind == "yarn" ? 1.0f : 0.0f;
    c.rope_attn_factor = file.number(arch + "rope.scaling.attn_factor", 1.0f);
    c.rope_beta_fast   = file.number(arch + "rope.scaling.yarn_beta_fast", 32.0f);
    c.rope_beta_slow   = file.number(arch + "rope.scaling.yarn_beta_slow", 1.0f);
    c.rope_n_ctx_orig  = file.integer(arch + "rope.scaling.original_context_length", file.integer(arch + "context_length", 2048));
}

void check_config(const gguf_file & file, const head_config & c) {
    constexpr int64_t WIDTH = 1 << 17, VOCAB = 1 << 22;
    within(file, "block_count", c.n_layer, 1, 64);
    within(file, "embedding_length", c.n_embd, 1, WIDTH);
    within(file, "target_hidden_size", c.n_embd_target, 1, WIDTH);
    within(file, "feed_forward_length", c.n_ff, 1, 8 * WIDTH);
    within(file, "attention.head_count", c.n_head, 1, 1024);
    within(file, "attention.head_count_kv", c.n_head_kv, 1, c.n_head);
    within(file, "attention.key_length", c.head_dim, 2, 1024);
    within(file, "vocab_size", c.n_vocab, 1, VOCAB);
    within(file, "the length of d2t", c.n_draft_vocab, 1, c.n_vocab);
    within(file, "the number of target_layers", (int64_t) c.taps.size(), 1, MAX_TAPS);
    for (const int32_t tap : c.taps) {
        within(file, "a layer of target_layers", tap, -1, 100000);
    }
    if (!(c.rms_eps > 0) || !(c.rope_theta > 0) || !std::isfinite(c.rope_theta)) {
        fail(EE_ERR_FILE, "%s: layer_norm_rms_epsilon is %g and rope.freq_base %g, both must be positive", file.path().c_str(), c.rms_eps, c.rope_theta);
    }
    const bool reads_one_tap = c.taps.size() == 1 && c.n_embd == c.n_embd_target;
    if (c.n_head % c.n_head_kv != 0 || c.head_dim % 2 != 0 || (c.norm_before_fc && c.fc_norm) || ((!c.fc || c.eagle1) && !reads_one_tap)) {
        fail(EE_ERR_FILE, "%s: the head's keys contradict each other (heads, head width or taps)", file.path().c_str());
    }
}

} // namespace

head_config read_head_config(const gguf_file & file) {
    const std::string name = file.text("general.architecture");
    if (name != "eagle" && name != "eagle3") {
        fail(EE_ERR_FILE, "%s: a %s model is not a draft head", file.path().c_str(), name.c_str());
    }
    const std::string arch = name + ".";
    const auto        flag = [&](const char * key, bool fallback = false) { return file.flag(arch + key, fallback); };
    head_config       c;
    c.eagle1               = file.text(arch + "kind", "eagle3") == "eagle1";
    c.n_layer              = file.integer(arch + "block_count");
    c.n_embd               = file.integer(arch + "embedding_length");
    c.n_embd_target        = file.integer(arch + "target_hidden_size");
    c.n_ff                 = file.integer(arch + "feed_forward_length");
    c.n_head               = file.integer(arch + "attention.head_count");
    c.n_head_kv            = file.integer(arch + "attention.head_count_kv", c.n_head);
    c.head_dim             = file.integer(arch + "attention.key_length", c.n_head > 0 ? c.n_embd / c.n_head : 0);
    c.rms_eps              = file.number(arch + "attention.layer_norm_rms_epsilon");
    c.taps                 = file.integers(arch + "target_layers");
    c.norm_before_residual = flag("norm_before_residual");
    c.norm_before_fc       = flag("norm_before_fc");
    c.fc                   = flag("fc", true);
    c.fc_norm              = flag("fc_norm");
    c.norm_output          = flag("norm_output");
    c.fc_bias              = flag("fc_bias");
    c.qkv_bias             = flag("qkv_bias");
    c.output_bias          = flag("output_bias");
    c.mlp_bias             = flag("mlp_bias");
    c.qk_norm              = flag("qk_norm");
    c.sliding_window       = file.integer(arch + "attention.sliding_window", 0);

    const ggml_tensor * embedding = file.find("token_embd.weight");
    const ggml_tensor * d2t       = file.find("d2t");
    const int32_t       n_tokens  = file.array_length("tokenizer.ggml.tokens");
    c.n_vocab       = file.integer(arch + "vocab_size", n_tokens > 0 ? n_tokens : embedding != nullptr ? (int32_t) embedding->ne[1] : 0);
    c.n_draft_vocab = d2t != nullptr ? (int32_t) d2t->ne[0] : c.n_vocab;
    read_rope(file, arch, c);
    check_config(file, c);
    return c;
}

} // namespace ee
