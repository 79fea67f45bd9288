// Taps: hidden states of the target, from the graph's own layer inputs where the architecture fills them, otherwise by a
// scheduler callback on the layer outputs.

#include "target.h"

#include "ggml-backend.h"

#include <cstring>

namespace {

constexpr int32_t MAX_TAPS = 16;

// Architectures whose graphs fill their layer inputs (grep t_layer_inp src/models at the pinned commit). Asking any other
// aborts the process.
const char * const LAYER_INPUT_ARCHITECTURES[] = {
    "bailingmoe3", "deepseek4", "gemma4", "hunyuan_vl", "lfm2", "llama", "mimo2", "minimax-01", "minimax-m2",
    "muse-glimmer", "nanbeige", "nemotron_h", "gpt-oss", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp",
};

} // namespace

bool ee::fills_layer_inputs(const std::string & architecture) {
    return std::any_of(std::begin(LAYER_INPUT_ARCHITECTURES), std::end(LAYER_INPUT_ARCHITECTURES),
                       [&](const char * name) { return architecture == name; });
}

bool ee::on_graph_node(ggml_tensor * node, bool ask, void * user) {
    auto &     target = *static_cast<ee_target *>(user);
    const auto found  = target.tap_of_node.find(node->name);
    if (found == target.tap_of_node.end()) {
        return !ask; // not ours: do not split the graph here
    }
    if (!ask) {
        auto &       rows  = target.tap_rows[found->second];
        const size_t start = rows.size();
        rows.resize(start + ggml_nelements(node));
        ggml_backend_tensor_get(node, rows.data() + start, 0, ggml_nbytes(node));
    }
    return true;
}

ee_status ee_target_set_taps(ee_target * target, const int32_t * boundaries, int32_t n, ee_tap_route route, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_target & t = *target;
        if (n < 0 || n > MAX_TAPS) {
            ee::fail(EE_ERR_ARG, "0 to %d taps are possible, got %d", MAX_TAPS, n);
        }
        bool inputs_only = true;
        for (int32_t i = 0; i < n; ++i) {
            if (boundaries[i] < ee::FINAL_NORM || boundaries[i] > t.info.n_layer) {
                ee::fail(EE_ERR_ARG, "tap boundary %d is outside -1..%d", boundaries[i], t.info.n_layer);
            }
            inputs_only = inputs_only && boundaries[i] >= 0 && boundaries[i] < t.info.n_layer;
        }
        const bool can_read_inputs = t.info.layer_input_taps && inputs_only;
        if (route == EE_TAPS_LAYER_INPUT && !can_read_inputs) {
            ee::fail(EE_ERR_ARG, "layer inputs are not available for %s at these boundaries", ee::architecture(t.model.get()).c_str());
        }
        t.by_callback = n > 0 && (route == EE_TAPS_CALLBACK || !can_read_inputs);
        t.boundaries.assign(boundaries, boundaries + n);
        t.tap_of_node.clear();
        t.tap_rows.assign(t.by_callback ? n : 0, {});
        for (int32_t i = 0; t.by_callback && i < n; ++i) {
            const int32_t b = boundaries[i];
            const std::string name = b == ee::FINAL_NORM ? "result_norm" : b == 0 ? "inp_embd" : "l_out-" + std::to_string(b - 1);
            if (!t.tap_of_node.emplace(name, i).second) {
                ee::fail(EE_ERR_ARG, "tap boundary %d is listed twice", b);
            }
        }
        ee::make_context(t); // the callback is fixed when a context is made
        for (int32_t i = 0; !t.by_callback && i < n; ++i) {
            llama_set_embeddings_layer_inp(t.context.get(), boundaries[i], true);
        }
    });
}

ee_status ee_target_taps(ee_target * target, const int32_t * nodes, int32_t n, float * out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        const ee_target & t      = *target;
        const size_t      n_embd = t.info.n_embd;
        for (size_t k = 0; k < t.boundaries.size(); ++k) {
            const float * rows = t.by_callback ? t.tap_rows[k].data() : llama_get_embeddings_layer_inp(t.context.get(), t.boundaries[k]);
            for (int32_t i = 0; i < n; ++i) {
                if (nodes[i] < 0 || nodes[i] >= (int32_t) t.has_logits.size()) {
                    ee::fail(EE_ERR_ARG, "node %d is not in the last evaluation", nodes[i]);
                }
                memcpy(out + i * t.width() + k * n_embd, rows + nodes[i] * n_embd, sizeof(float) * n_embd);
            }
        }
    });
}
