// The forward pass of an EAGLE head, every variant of it.
//
//   EAGLE-3 (arXiv 2503.01840):      g = fc(taps) or the parent's state;  e = norm(embedding), u = norm(g)
//                                    h = r + attention([e; u]),  o = h + mlp(norm(h)),  logits = W norm(o)
//                                    r is g, or u with norm_before_residual; the state is o, or norm(o) with norm_output
//   EAGLE-1/2 (arXiv 2401.15077):    x = fc([embedding; tap or state]),  h = x + attention(x) without a norm,
//                                    o = h + mlp(norm(h)),  logits = W o,  the state is o

#include "draft_graph.h"

#include <cmath>

namespace ee {

namespace {

constexpr size_t TENSORS_PER_LAYER = 96; // more than any variant needs, the input and output stages count as a layer

class builder {
  public:
    builder(const head_config & c, const head_weights & w, const head_memory & m, const graph_shape & shape) : c(c), w(w), m(m) {
        out.shape = shape;
        const size_t n_tensors = TENSORS_PER_LAYER * (c.n_layer + 1);
        out.context.reset(ggml_init({ggml_tensor_overhead() * n_tensors + ggml_graph_overhead_custom(n_tensors, false), nullptr, true}));
        ctx       = out.context.get();
        out.graph = ggml_new_graph_custom(ctx, n_tensors, false);
    }

    head_graph step() {
        const int64_t n = out.shape.n_rows;
        out.embedding   = input(GGML_TYPE_F32, c.n_embd, n);
        out.positions   = input(GGML_TYPE_I32, n);
        out.cells       = input(GGML_TYPE_I64, n);
        const int64_t n_attending = c.n_layer > 1 ? n : out.shape.n_states; // the last layer attends for kept rows only
        out.mask                  = n_attending > 0 ? input(GGML_TYPE_F16, out.shape.n_cells, n_attending) : nullptr;

        ggml_tensor * hidden = c.eagle1 ? eagle1_input() : feature();
        for (int32_t i = 0; i < c.n_layer; ++i) {
            hidden = layer(i, hidden, i + 1 < c.n_layer ? n : out.shape.n_states);
        }
        if (hidden != nullptr) {
            keep_states(hidden);
        }
        return std::move(out);
    }

    head_graph output() {
        out.parents           = input(GGML_TYPE_I32, 1);
        ggml_tensor * state   = ggml_get_rows(ctx, m.states, out.parents);
        const bool    is_read = c.eagle1 || c.norm_output; // the state is already what the output matrix reads
        out.logits            = ggml_mul_mat(ctx, w.output, is_read ? state : norm(state, w.output_norm));
        ggml_set_output(out.logits);
        ggml_build_forward_expand(out.graph, out.logits);
        return std::move(out);
    }

  private:
    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1 = 1) {
        ggml_tensor * t = ggml_new_tensor_2d(ctx, type, ne0, ne1);
        ggml_set_input(t);
        return t;
    }

    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight) { return ggml_mul(ctx, ggml_rms_norm(ctx, x, c.rms_eps), weight); }

    ggml_tensor * linear(ggml_tensor * matrix, ggml_tensor * x, ggml_tensor * bias) {
        ggml_tensor * y = ggml_mul_mat(ctx, matrix, x);
        return bias != nullptr ? ggml_add(ctx, y, bias) : y;
    }

    // [H, n] what stands in for the target's hidden state: its taps through fc, or the state of the parent.
    ggml_tensor * feature() {
        if (!out.shape.from_taps) {
            out.parents = input(GGML_TYPE_I32, out.shape.n_rows);
            return ggml_get_rows(ctx, m.states, out.parents);
        }
        out.taps        = input(GGML_TYPE_F32, c.tap_width(), out.shape.n_rows);
        ggml_tensor * x = out.taps;
        if (c.eagle1 || !c.fc) {
            return x;
        }
        if (c.norm_before_fc) {
            x = norm(x, w.fc_input_norm);
        } else if (c.fc_norm) {
            x = norm_each_tap(x);
        }
        return linear(w.fc, x, w.fc_bias);
    }

    ggml_tensor * norm_each_tap(ggml_tensor * taps) {
        ggml_tensor * all = nullptr;
        for (size_t k = 0; k < c.taps.size(); ++k) {
            const size_t  start = k * c.n_embd_target * sizeof(float);
            ggml_tensor * tap   = norm(ggml_cont(ctx, ggml_view_2d(ctx, taps, c.n_embd_target, out.shape.n_rows, taps->nb[1], start)), w.fc_norm[k]);
            all                 = all == nullptr ? tap : ggml_concat(ctx, all, tap, 0);
        }
        return all;
    }

    ggml_tensor * eagle1_input() { return linear(w.fc, ggml_concat(ctx, out.embedding, feature(), 0), w.fc_bias); }

    // The last n of the rows of x.
    ggml_tensor * last_rows(ggml_tensor * x, int64_t n) {
        return n == x->ne[1] ? x : ggml_view_2d(ctx, x, x->ne[0], n, x->nb[1], (x->ne[1] - n) * x->nb[1]);
    }

    // [H, n] -> [H, kept]: every row writes its keys and values, the last `kept` rows go on. nullptr when none does.
    ggml_tensor * layer(int32_t index, ggml_tensor * hidden, int64_t kept) {
        const layer_weights & l        = w.layers[index];
        ggml_tensor *         residual = hidden;
        ggml_tensor *         x        = hidden;
        if (c.fused_input(index)) {
            ggml_tensor * normed = norm(hidden, l.attn_norm_2);
            residual             = c.norm_before_residual ? normed : hidden;
            x                    = ggml_concat(ctx, norm(out.embedding, l.attn_norm), normed, 0);
        } else if (l.attn_norm != nullptr) {
            x = norm(hidden, l.attn_norm);
        }
        ggml_tensor * k = rotated(linear(l.k, x, l.k_bias), c.n_head_kv, l.k_norm);
        ggml_tensor * v = linear(l.v, x, l.v_bias);
        k               = stored(m.layers[index].k, ggml_reshape_2d(ctx, k, v->ne[0], v->ne[1]));
        v               = stored(m.layers[index].v, v);
        if (kept == 0) {
            ggml_build_forward_expand(out.graph, k);
            ggml_build_forward_expand(out.graph, v);
            return nullptr;
        }
        ggml_tensor * q    = rotated(linear(l.q, last_rows(x, kept), l.q_bias), c.n_head, l.q_norm);
        ggml_tensor * h    = ggml_add(ctx, linear(l.o, attention(q, k, v), l.o_bias), last_rows(residual, kept));
        ggml_tensor * y    = norm(h, l.ffn_norm);
        ggml_tensor * gate = linear(l.gate, y, l.gate_bias);
        ggml_tensor * up   = linear(l.up, y, l.up_bias);
        return ggml_add(ctx, linear(l.down, ggml_swiglu_split(ctx, gate, up), l.down_bias), h);
    }

    // [head_dim, heads, rows] of rotated q or k of the last rows, normed within each head where the variant does so.
    ggml_tensor * rotated(ggml_tensor * x, int32_t n_head, ggml_tensor * norm_weight) {
        const int64_t n         = x->ne[1];
        ggml_tensor * positions = ggml_view_1d(ctx, out.positions, n, (out.shape.n_rows - n) * sizeof(int32_t));
        x                       = ggml_reshape_3d(ctx, x, c.head_dim, n_head, n);
        if (norm_weight != nullptr) {
            x = norm(x, norm_weight);
        }
        return ggml_rope_ext(ctx, x, positions, w.rope_factors, c.head_dim, GGML_ROPE_TYPE_NORMAL, c.rope_n_ctx_orig, c.rope_theta,
                             c.rope_scale, c.rope_ext_factor, c.rope_attn_factor, c.rope_beta_fast, c.rope_beta_slow);
    }

    // Write the rows into their cells and give the cells that attention looks at: [head_dim, n_cells, n_head_kv].
    ggml_tensor * stored(ggml_tensor * cache, ggml_tensor * rows) {
        ggml_tensor * all = ggml_set_rows(ctx, cache, rows, out.cells);
        return ggml_view_3d(ctx, all, c.head_dim, out.shape.n_cells, c.n_head_kv, cache->nb[1], ggml_row_size(cache->type, c.head_dim), 0);
    }

    // [n_head*head_dim, rows]
    ggml_tensor * attention(ggml_tensor * q, ggml_tensor * k, ggml_tensor * v) {
        const int64_t n     = q->ne[2];
        const float   scale = 1.0f / std::sqrt((float) c.head_dim);
        ggml_tensor * y     = ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), k, v, last_rows(out.mask, n), scale, 0.0f, 0.0f);
        return ggml_reshape_2d(ctx, y, (int64_t) c.n_head * c.head_dim, n);
    }

    // Keep the states [H, n_states], and turn them into logits where these are wanted.
    void keep_states(ggml_tensor * hidden) {
        out.state_rows         = input(GGML_TYPE_I64, out.shape.n_states);
        ggml_tensor * readable = c.eagle1 ? hidden : norm(hidden, w.output_norm);
        ggml_tensor * state    = c.norm_output ? readable : hidden;
        ggml_build_forward_expand(out.graph, ggml_set_rows(ctx, m.states, state, out.state_rows));
        if (out.shape.with_output) {
            out.logits = ggml_mul_mat(ctx, w.output, readable);
            ggml_set_output(out.logits);
            ggml_build_forward_expand(out.graph, out.logits);
        }
    }

    const head_config &  c;
    const head_weights & w;
    const head_memory &  m;
    head_graph           out{};
    ggml_context *       ctx = nullptr;
};

} // namespace

head_memory make_memory(const head_config & c, const head_weights & w, ggml_backend_t backend, int32_t n_cells, int32_t max_nodes) {
    head_memory m;
    m.context.reset(ggml_init({ggml_tensor_overhead() * (2 * c.n_layer + 1), nullptr, true}));
    // A head stored in f32 runs in f32 throughout; GPU attention wants f16.
    const bool      on_cpu = ggml_backend_dev_type(ggml_backend_get_device(backend)) == GGML_BACKEND_DEVICE_TYPE_CPU;
    const ggml_type type   = on_cpu && w.layers[0].k->type == GGML_TYPE_F32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    for (int32_t i = 0; i < c.n_layer; ++i) {
        const int64_t width = (int64_t) c.n_head_kv * c.head_dim;
        m.layers.push_back({ggml_new_tensor_2d(m.context.get(), type, width, n_cells), ggml_new_tensor_2d(m.context.get(), type, width, n_cells)});
    }
    m.states = ggml_new_tensor_2d(m.context.get(), GGML_TYPE_F32, c.n_embd, 1 + max_nodes);
    m.buffer.reset(ggml_backend_alloc_ctx_tensors(m.context.get(), backend));
    if (!m.buffer) {
        fail(EE_ERR_MEMORY, "no memory for a draft cache of %d cells", n_cells);
    }
    ggml_backend_buffer_clear(m.buffer.get(), 0); // a masked cell must not hold NaN
    return m;
}

head_graph build_step(const head_config & c, const head_weights & w, const head_memory & m, const graph_shape & shape) {
    return builder(c, w, m, shape).step();
}

head_graph build_output(const head_config & c, const head_weights & w, const head_memory & m, const graph_shape & shape) {
    return builder(c, w, m, shape).output();
}

} // namespace ee
