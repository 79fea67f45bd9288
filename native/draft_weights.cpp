// Loading a head's weights. Each matrix goes to the first buffer type of the device that says it can multiply by it
// there: on the CPU that is where re-laid weights for faster kernels come in.

#include "draft_head.h"

#include <algorithm>
#include <functional>
#include <map>

namespace ee {

namespace {

// Tensors are first declared, each with the work that fills it, and then allocated and filled buffer type by buffer type.
class loader {
  public:
    loader(ggml_backend_dev_t device, head_weights & out) : device_(device), out_(out) {
        auto * reg   = ggml_backend_dev_backend_reg(device);
        auto   extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
        if (extra != nullptr) {
            for (ggml_backend_buffer_type_t * type = extra(device); type != nullptr && *type != nullptr; ++type) {
                types_.push_back(*type);
            }
        }
        types_.push_back(ggml_backend_dev_buffer_type(device));
    }

    ggml_tensor * vector(const gguf_file & file, const std::string & name, int64_t n) {
        const ggml_tensor * source = file.weights(name, n, 1);
        check_finite(file, source);
        ggml_tensor * t = ggml_new_tensor_1d(context(types_.back()), GGML_TYPE_F32, n);
        ggml_set_name(t, name.c_str());
        fill_.push_back([&file, source, t, n] {
            std::vector<float> values(n);
            to_float(source->type, file.bytes(source), values.data(), n);
            ggml_backend_tensor_set(t, values.data(), 0, n * sizeof(float));
        });
        return t;
    }

    ggml_tensor * matrix(const gguf_file & file, const std::string & name, int64_t ne0, int64_t ne1) {
        const ggml_tensor * source = file.weights(name, ne0, ne1);
        check_finite(file, source);
        ggml_tensor * t = declare(file, source, ne1);
        fill_.push_back([&file, source, t] { ggml_backend_tensor_set(t, file.bytes(source), 0, ggml_nbytes(t)); });
        return t;
    }

    // The given rows of a matrix, in their order.
    ggml_tensor * rows(const gguf_file & file, const ggml_tensor * source, const std::vector<int32_t> & ids) {
        ggml_tensor * t = declare(file, source, (int64_t) ids.size());
        fill_.push_back([&file, &ids, source, t] {
            std::vector<uint8_t> gathered(ggml_nbytes(t));
            const size_t         stride = ggml_row_size(source->type, source->ne[0]);
            for (size_t i = 0; i < ids.size(); ++i) {
                std::copy_n(file.bytes(source) + ids[i] * stride, stride, gathered.data() + i * stride);
            }
            ggml_backend_tensor_set(t, gathered.data(), 0, gathered.size());
        });
        return t;
    }

    void finish() {
        for (auto & [type, context] : contexts_) {
            ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), type));
            if (!buffer) {
                fail(EE_ERR_MEMORY, "no memory for the head's weights on %s", ggml_backend_dev_name(device_));
            }
            ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
            out_.n_bytes += (int64_t) ggml_backend_buffer_get_size(buffer.get());
            out_.buffers.push_back(std::move(buffer));
            out_.contexts.push_back(std::move(context));
        }
        for (const auto & fill : fill_) {
            fill();
        }
    }

  private:
    ggml_context * context(ggml_backend_buffer_type_t type) {
        ggml_context_ptr & context = contexts_[type];
        if (!context) {
            context.reset(ggml_init({/*mem_size =*/ggml_tensor_overhead() * 2048, nullptr, /*no_alloc =*/true}));
        }
        return context.get();
    }

    ggml_tensor * declare(const gguf_file & file, const ggml_tensor * source, int64_t n_rows) {
        for (ggml_backend_buffer_type_t type : types_) {
            if (can_multiply(type, source->type, source->ne[0], n_rows)) {
                ggml_tensor * t = ggml_new_tensor_2d(context(type), source->type, source->ne[0], n_rows);
                ggml_set_name(t, source->name);
                return t;
            }
        }
        fail(EE_ERR_FILE, "%s: the tensor %s is stored as %s, which %s cannot multiply by; quantise the head to another type",
             file.path().c_str(), source->name, ggml_type_name(source->type), ggml_backend_dev_name(device_));
    }

    bool can_multiply(ggml_backend_buffer_type_t type, ggml_type weight_type, int64_t ne0, int64_t ne1) const {
        ggml_context_ptr scratch(ggml_init({ggml_tensor_overhead() * 4, nullptr, true}));
        ggml_tensor *    weight = ggml_new_tensor_2d(scratch.get(), weight_type, ne0, ne1);
        ggml_tensor *    input  = ggml_new_tensor_2d(scratch.get(), GGML_TYPE_F32, ne0, 8);
        ggml_tensor *    op     = ggml_mul_mat(scratch.get(), weight, input);
        ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(type, 0));
        weight->buffer = empty.get();
        return empty && ggml_backend_dev_supports_op(device_, op);
    }

    ggml_backend_dev_t                                     device_;
    head_weights &                                         out_;
    std::vector<ggml_backend_buffer_type_t>                types_; // best first
    std::map<ggml_backend_buffer_type_t, ggml_context_ptr> contexts_;
    std::vector<std::function<void()>>                     fill_;
};

std::vector<int32_t> read_draft_vocab(const gguf_file & file, const head_config & c) {
    std::vector<int32_t> ids(c.n_draft_vocab);
    const ggml_tensor *  d2t = file.find("d2t");
    if (d2t == nullptr) {
        for (int32_t i = 0; i < c.n_draft_vocab; ++i) {
            ids[i] = i;
        }
        return ids;
    }
    if (d2t->type != GGML_TYPE_I64) {
        fail(EE_ERR_FILE, "%s: the tensor d2t is %s, it must be i64", file.path().c_str(), ggml_type_name(d2t->type));
    }
    const auto *      values = reinterpret_cast<const int64_t *>(file.bytes(file.need("d2t", c.n_draft_vocab, 1)));
    std::vector<bool> seen(c.n_vocab);
    for (int32_t i = 0; i < c.n_draft_vocab; ++i) {
        if (values[i] < 0 || values[i] >= c.n_vocab || seen[values[i]]) {
            fail(EE_ERR_FILE, "%s: d2t[%d] is %lld, it must be a token of its own below %d", file.path().c_str(), i, (long long) values[i], c.n_vocab);
        }
        seen[values[i]] = true;
        ids[i]          = (int32_t) values[i];
    }
    return ids;
}

layer_weights load_layer(loader & load, const gguf_file & file, const head_config & c, int32_t index) {
    const std::string block  = "blk." + std::to_string(index) + ".";
    const int64_t     H = c.n_embd, Q = (int64_t) c.n_head * c.head_dim, KV = (int64_t) c.n_head_kv * c.head_dim, I = c.n_ff;
    const int64_t     width  = c.fused_input(index) ? 2 * H : H;
    const auto        vector = [&](bool wanted, const char * name, int64_t n) { return wanted ? load.vector(file, block + name, n) : nullptr; };
    const auto        matrix = [&](const char * name, int64_t ne0, int64_t ne1) { return load.matrix(file, block + name, ne0, ne1); };
    layer_weights     w{};
    w.attn_norm   = vector(!c.eagle1 || index > 0, "attn_norm.weight", H);
    w.attn_norm_2 = vector(c.fused_input(index), "attn_norm_2.weight", H);
    w.q           = matrix("attn_q.weight", width, Q);
    w.k           = matrix("attn_k.weight", width, KV);
    w.v           = matrix("attn_v.weight", width, KV);
    w.o           = matrix("attn_output.weight", Q, H);
    w.q_bias      = vector(c.qkv_bias, "attn_q.bias", Q);
    w.k_bias      = vector(c.qkv_bias, "attn_k.bias", KV);
    w.v_bias      = vector(c.qkv_bias, "attn_v.bias", KV);
    w.o_bias      = vector(c.output_bias, "attn_output.bias", H);
    w.q_norm      = vector(c.qk_norm, "attn_q_norm.weight", c.head_dim);
    w.k_norm      = vector(c.qk_norm, "attn_k_norm.weight", c.head_dim);
    w.ffn_norm    = vector(true, "ffn_norm.weight", H);
    w.gate        = matrix("ffn_gate.weight", H, I);
    w.up          = matrix("ffn_up.weight", H, I);
    w.down        = matrix("ffn_down.weight", I, H);
    w.gate_bias   = vector(c.mlp_bias, "ffn_gate.bias", I);
    w.up_bias     = vector(c.mlp_bias, "ffn_up.bias", I);
    w.down_bias   = vector(c.mlp_bias, "ffn_down.bias", H);
    return w;
}

// The token embedding or output matrix of the target; a target with tied embeddings has only the first.
const ggml_tensor * borrow(const gguf_file & target, const head_config & c, const char * name, const char * otherwise) {
    if (target.integer("split.count", 1) > 1) {
        fail(EE_ERR_FILE, "%s: the head borrows %s from a target split over several files; merge them first", target.path().c_str(), name);
    }
    const ggml_tensor * t = target.find(name) != nullptr ? target.find(name) : target.find(otherwise);
    if (t == nullptr) {
        fail(EE_ERR_FILE, "%s: the head needs the target's %s, which is missing", target.path().c_str(), name);
    }
    return target.weights(t->name, c.n_embd, -1);
}

} // namespace

ggml_backend_dev_t choose_device(const head_config & c, bool want_gpu) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu == nullptr) {
        fail(EE_ERR_BACKEND, "ggml has no CPU backend");
    }
    if (!want_gpu) {
        return cpu;
    }
    ggml_backend_dev_t gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
    gpu                    = gpu != nullptr ? gpu : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
    if (gpu == nullptr) {
        return cpu;
    }
    ggml_context_ptr scratch(ggml_init({ggml_tensor_overhead() * 8, nullptr, true}));
    ggml_tensor *    q    = ggml_new_tensor_3d(scratch.get(), GGML_TYPE_F32, c.head_dim, 8, c.n_head);
    ggml_tensor *    k    = ggml_new_tensor_3d(scratch.get(), GGML_TYPE_F16, c.head_dim, 256, c.n_head_kv);
    ggml_tensor *    mask = ggml_new_tensor_2d(scratch.get(), GGML_TYPE_F16, 256, 8);
    ggml_tensor *    op   = ggml_flash_attn_ext(scratch.get(), q, k, k, mask, 1.0f, 0.0f, 0.0f);
    return ggml_backend_dev_supports_op(gpu, op) ? gpu : cpu;
}

void load_head(const head_config & c, std::shared_ptr<gguf_file> head, const char * target_path, ggml_backend_dev_t device, head_weights & out) {
    loader                     load(device, out);
    std::shared_ptr<gguf_file> target;
    const gguf_file &          file = *head;
    const int64_t              H = c.n_embd, width = c.eagle1 ? 2 * H : c.tap_width();
    out.draft_vocab   = read_draft_vocab(file, c);
    out.own_embedding = file.find("token_embd.weight") != nullptr;
    out.own_output    = file.find("output.weight") != nullptr;
    if (!out.own_embedding || !out.own_output) {
        target = std::make_shared<gguf_file>(target_path);
    }

    out.fc            = c.fc ? load.matrix(file, "fc.weight", width, H) : nullptr;
    out.fc_bias       = c.fc_bias ? load.vector(file, "fc.bias", H) : nullptr;
    out.fc_input_norm = c.norm_before_fc ? load.vector(file, "enc.output_norm.weight", width) : nullptr;
    for (size_t k = 0; c.fc_norm && k < c.taps.size(); ++k) {
        out.fc_norm.push_back(load.vector(file, "fc_norm." + std::to_string(k) + ".weight", c.n_embd_target));
    }
    for (int32_t i = 0; i < c.n_layer; ++i) {
        out.layers.push_back(load_layer(load, file, c, i));
    }
    out.output_norm  = c.eagle1 ? nullptr : load.vector(file, "output_norm.weight", H);
    out.rope_factors = file.find("rope_freqs.weight") != nullptr ? load.vector(file, "rope_freqs.weight", c.head_dim / 2) : nullptr;

    if (out.own_output) {
        out.output = load.matrix(file, "output.weight", H, c.n_draft_vocab);
    } else {
        const ggml_tensor * output  = borrow(*target, c, "output.weight", "token_embd.weight");
        int32_t             highest = 0;
        for (const int32_t id : out.draft_vocab) {
            highest = std::max(highest, id);
        }
        if (highest >= output->ne[1]) {
            fail(EE_ERR_FILE, "%s: the head drafts token %d, the target has %lld", file.path().c_str(), highest, (long long) output->ne[1]);
        }
        out.output = load.rows(*target, output, out.draft_vocab);
    }
    out.embedding_file = out.own_embedding ? head : target;
    out.embedding      = out.own_embedding ? file.weights("token_embd.weight", H, -1) : borrow(*target, c, "token_embd.weight", "token_embd.weight");
    if (out.own_embedding) {
        check_finite(file, out.embedding);
    }
    load.finish();
}

} // namespace ee
