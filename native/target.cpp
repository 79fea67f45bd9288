// The target: a llama.cpp context whose cache holds the committed tokens in sequence 0, and an evaluation of a token
// tree after them. Every root-to-leaf path of a tree is one more sequence that shares the committed cells.
//
// One invariant carries the exactness: committed cells lie in the order of their positions, without holes. Attention
// then adds a row's cells in the same order whether the row was evaluated alone, in a chain or in a tree.

#include "common.h"

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

// Exported by libllama with C++ names, declared in its staging header (src/llama-ext.h at the pinned commit).
void    llama_set_embeddings_layer_inp(llama_context * ctx, uint32_t layer, bool enabled);
float * llama_get_embeddings_layer_inp(llama_context * ctx, uint32_t layer);

namespace {

constexpr int32_t MAX_SEQUENCES = 256; // LLAMA_MAX_SEQ
constexpr int32_t MAX_TAPS      = 16;
constexpr int32_t FINAL_NORM    = -1; // the boundary after the final norm

// Architectures whose graphs fill their layer inputs (grep t_layer_inp src/models at the pinned commit). Asking any other
// aborts the process.
const char * const LAYER_INPUT_ARCHITECTURES[] = {
    "bailingmoe3", "deepseek4", "gemma4", "hunyuan_vl", "lfm2", "llama", "mimo2", "minimax-01", "minimax-m2",
    "muse-glimmer", "nanbeige", "nemotron_h", "gpt-oss", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp",
};

struct batch_builder {
    llama_batch batch;
    int32_t     max_sequences;

    batch_builder(int32_t max_tokens, int32_t max_sequences)
        : batch(llama_batch_init(max_tokens, 0, max_sequences)), max_sequences(max_sequences) {}
    ~batch_builder() { llama_batch_free(batch); }
    batch_builder(const batch_builder &) = delete;
    batch_builder & operator=(const batch_builder &) = delete;

    void clear() { batch.n_tokens = 0; }

    int32_t add(int32_t token, int32_t position, bool output) {
        const int32_t i   = batch.n_tokens++;
        batch.token[i]    = token;
        batch.pos[i]      = position;
        batch.n_seq_id[i] = 0;
        batch.logits[i]   = output;
        return i;
    }

    void join(int32_t row, int32_t sequence) { batch.seq_id[row][batch.n_seq_id[row]++] = sequence; }
};

} // namespace

struct ee_target {
    ee_target_params params{};
    ee_target_info   info{};

    std::unique_ptr<llama_model, decltype(&llama_model_free)> model{nullptr, llama_model_free};
    std::unique_ptr<llama_context, decltype(&llama_free)>     context{nullptr, llama_free};
    std::unique_ptr<batch_builder>                            batch;

    // Taps.
    std::vector<int32_t>            boundaries;   // [K]
    bool                            by_callback = false;
    std::map<std::string, size_t>   tap_of_node;  // graph node name -> tap, for the callback route
    std::vector<std::vector<float>> tap_rows;     // [K][rows * E], filled by the callback

    // The last evaluation: node i is batch row i.
    std::vector<int32_t> parents;
    std::vector<int32_t> leaf_of;  // [N] a leaf below the node, as its sequence id
    std::vector<bool>    has_logits;
    int32_t              n_paths = 0; // sequences 1..n_paths hold the tree; 0: the nodes are a chain on sequence 0

    int32_t              n_past = 0;
    std::vector<int32_t> stream_length; // tokens in each stream; empty outside stream mode
    std::vector<uint8_t> moved;         // cells on their way to their new place

    llama_memory_t memory() const { return llama_get_memory(context.get()); }
    int32_t        spare() const { return params.n_streams + 1; }
    int32_t        width() const { return (int32_t) boundaries.size() * info.n_embd; }
    bool           taps_need_outputs() const {
        return std::any_of(boundaries.begin(), boundaries.end(), [&](int32_t b) { return b == FINAL_NORM || b == info.n_layer; });
    }
};

namespace {

bool on_graph_node(ggml_tensor * node, bool ask, void * user) {
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
    within("n_streams", p.n_streams, 1, MAX_SEQUENCES - 2);
    within("n_threads", p.n_threads, 1, 512);
    within("flash_attn", p.flash_attn, -1, 1);
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
}

std::string architecture(const llama_model * model) {
    char text[64] = "";
    llama_model_meta_val_str(model, "general.architecture", text, sizeof text);
    return text;
}

void read_info(ee_target & t) {
    const llama_model * model = t.model.get();
    const std::string   arch  = architecture(model);
    t.info.n_vocab            = llama_vocab_n_tokens(llama_model_get_vocab(model));
    t.info.n_embd             = llama_model_n_embd(model);
    t.info.n_layer            = llama_model_n_layer(model);
    t.info.n_ctx_train        = llama_model_n_ctx_train(model);
    t.info.n_ctx              = t.params.n_ctx > 0 ? t.params.n_ctx : t.info.n_ctx_train;
    t.info.n_params           = (int64_t) llama_model_n_params(model);
    t.info.model_bytes        = (int64_t) llama_model_size(model);
    t.info.can_branch         = !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model);
    t.info.layer_input_taps   = std::any_of(std::begin(LAYER_INPUT_ARCHITECTURES), std::end(LAYER_INPUT_ARCHITECTURES),
                                            [&](const char * name) { return arch == name; });
    const int64_t head_width  = t.info.n_embd / std::max(1, llama_model_n_head(model));
    const int64_t row         = head_width * llama_model_n_head_kv(model);
    t.info.cache_bytes        = (int64_t) t.info.n_ctx * t.info.n_layer *
                         (int64_t) (ggml_row_size((ggml_type) t.params.type_k, row) + ggml_row_size((ggml_type) t.params.type_v, row));
}

// Decode the batch as built.
void decode(ee_target & t) {
    for (auto & rows : t.tap_rows) {
        rows.clear();
    }
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

// Drop the nodes of the last evaluation that were never committed.
void drop_tree(ee_target & t) {
    for (int32_t s = 1; s <= t.n_paths; ++s) {
        llama_memory_seq_rm(t.memory(), s, -1, -1);
    }
    llama_memory_seq_rm(t.memory(), 0, t.n_past, -1);
    t.n_paths = 0;
    t.parents.clear();
}

// Number the leaves 1, 2, ... and note for every node one leaf below it. Returns the number of leaves.
int32_t number_leaves(ee_target & t) {
    const int32_t     n = (int32_t) t.parents.size();
    std::vector<bool> is_parent(n, false);
    for (int32_t p : t.parents) {
        if (p >= 0) {
            is_parent[p] = true;
        }
    }
    t.leaf_of.assign(n, 0);
    int32_t n_leaves = 0;
    for (int32_t i = n - 1; i >= 0; --i) {
        if (!is_parent[i]) {
            t.leaf_of[i] = ++n_leaves;
        }
        if (t.parents[i] >= 0) {
            t.leaf_of[t.parents[i]] = t.leaf_of[i];
        }
    }
    return n_leaves;
}

// Hang every row of the batch on the sequences of the paths through it.
void join_paths(ee_target & t, int32_t n_leaves) {
    const int32_t n = (int32_t) t.parents.size();
    if (n_leaves > t.params.n_streams) {
        ee::fail(EE_ERR_ARG, "a tree of %d leaves needs n_streams >= %d, it is %d", n_leaves, n_leaves, t.params.n_streams);
    }
    t.n_paths = n_leaves;
    std::vector<bool> seen(n_leaves + 1, false);
    for (int32_t leaf = n - 1; leaf >= 0; --leaf) {
        const int32_t sequence = t.leaf_of[leaf];
        if (seen[sequence]) {
            continue; // an inner node: its leaf came first
        }
        seen[sequence] = true;
        for (int32_t node = leaf; node >= 0; node = t.parents[node]) {
            t.batch->join(node, sequence);
        }
        llama_memory_seq_cp(t.memory(), 0, sequence, 0, t.n_past);
    }
}

bool is_chain(const std::vector<int32_t> & parents) {
    for (size_t i = 0; i < parents.size(); ++i) {
        if (parents[i] != (int32_t) i - 1) {
            return false;
        }
    }
    return true;
}

void eval(ee_target & t, const int32_t * tokens, const int32_t * parents, int32_t n, ee_logits_rows rows) {
    if (n < 1 || n > t.params.n_batch) {
        ee::fail(EE_ERR_ARG, "an evaluation takes 1 to %d tokens, got %d", t.params.n_batch, n);
    }
    if (t.params.separate_streams) {
        ee::fail(EE_ERR_ARG, "the target was opened for separate streams, which have no tree");
    }
    if (!t.stream_length.empty()) {
        ee::fail(EE_ERR_ARG, "the target holds streams; clear them before evaluating a tree");
    }
    const bool all = rows == EE_LOGITS_ALL || t.taps_need_outputs();
    if (all && n > t.params.n_streams) {
        ee::fail(EE_ERR_ARG, "logits of %d rows at once need n_streams >= %d, it is %d", n, n, t.params.n_streams);
    }
    drop_tree(t);
    t.batch->clear();
    std::vector<int32_t> position(n);
    for (int32_t i = 0; i < n; ++i) {
        check_token(t, tokens[i], i);
        if (parents[i] < -1 || parents[i] >= i) {
            ee::fail(EE_ERR_ARG, "parent %d of node %d is not an earlier node", parents[i], i);
        }
        position[i] = parents[i] < 0 ? t.n_past : position[parents[i]] + 1;
        if (position[i] >= t.info.n_ctx) {
            ee::fail(EE_ERR_MEMORY, "position %d is outside the context of %d", position[i], t.info.n_ctx);
        }
        t.batch->add(tokens[i], position[i], all || (rows == EE_LOGITS_LAST && i == n - 1));
    }
    t.parents.assign(parents, parents + n);
    t.has_logits.assign(n, false);
    for (int32_t i = 0; i < n; ++i) {
        t.has_logits[i] = t.batch->batch.logits[i] != 0;
    }
    if (n == 1 && t.params.pair_single_row && t.info.can_branch) {
        t.n_paths = 2;
        t.leaf_of = {1};
        const int32_t twin = t.batch->add(tokens[0], t.n_past, t.has_logits[0]);
        for (int32_t row : {0, twin}) {
            t.batch->join(row, row + 1);
            llama_memory_seq_cp(t.memory(), 0, row + 1, 0, t.n_past);
        }
    } else if (is_chain(t.parents)) {
        for (int32_t i = 0; i < n; ++i) {
            t.batch->join(i, 0);
        }
    } else if (!t.info.can_branch) {
        t.parents.clear();
        ee::fail(EE_ERR_ARG, "a recurrent target evaluates chains only");
    } else {
        join_paths(t, number_leaves(t));
    }
    try {
        decode(t);
    } catch (...) {
        drop_tree(t);
        throw;
    }
}

// Lay the cells of sequence `from` at positions >= start into the first free cells, in order.
void compact(ee_target & t, int32_t from, int32_t start, int32_t end) {
    llama_memory_t memory = t.memory();
    const int32_t  spare  = t.spare();
    llama_memory_seq_cp(memory, from, spare, start, end);
    const size_t size = llama_state_seq_get_size(t.context.get(), spare);
    t.moved.resize(size);
    if (llama_state_seq_get_data(t.context.get(), t.moved.data(), size, spare) != size) {
        ee::fail(EE_ERR_BACKEND, "llama.cpp could not read %d cells", end - start);
    }
    for (int32_t s = 1; s <= t.n_paths; ++s) {
        llama_memory_seq_rm(memory, s, -1, -1);
    }
    llama_memory_seq_rm(memory, spare, -1, -1);
    if (llama_state_seq_set_data(t.context.get(), t.moved.data(), size, spare) != size) {
        ee::fail(EE_ERR_BACKEND, "llama.cpp could not write %d cells", end - start);
    }
    llama_memory_seq_cp(memory, spare, 0, start, end);
    llama_memory_seq_rm(memory, spare, -1, -1);
}

void commit(ee_target & t, const int32_t * path, int32_t n) {
    int32_t n_in_place = 0; // leading nodes whose cells already lie where they belong
    for (int32_t i = 0; i < n; ++i) {
        const int32_t parent = i == 0 ? -1 : path[i - 1];
        if (path[i] < 0 || path[i] >= (int32_t) t.parents.size() || t.parents[path[i]] != parent) {
            ee::fail(EE_ERR_ARG, "node %d is not a child of %d in the last evaluation", path[i], parent);
        }
        n_in_place += n_in_place == i && path[i] == i;
    }
    const int32_t kept = t.n_past + n;
    if (n > 0 && t.n_paths > 0) {
        const int32_t sequence = t.leaf_of[path[n - 1]];
        llama_memory_seq_cp(t.memory(), sequence, 0, t.n_past, t.n_past + n_in_place);
        if (n_in_place < n) {
            compact(t, sequence, t.n_past + n_in_place, kept);
        }
    }
    t.n_past = kept;
    drop_tree(t);
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
        t->model.reset(llama_model_load_from_file(path, m));
        t->params.progress = nullptr;
        t->params.cancel   = nullptr;
        if (!t->model) {
            ee::fail(EE_ERR_FILE, "%s: llama.cpp cannot load it: %s", path, ee::last_log_error().c_str());
        }
        read_info(*t);
        make_context(*t);
        t->batch = std::make_unique<batch_builder>(std::max(params->n_batch, params->n_streams) + 1, params->n_streams + 2);
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

ee_status ee_target_set_taps(ee_target * target, const int32_t * boundaries, int32_t n, ee_tap_route route, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_target & t = *target;
        if (n < 0 || n > MAX_TAPS) {
            ee::fail(EE_ERR_ARG, "0 to %d taps are possible, got %d", MAX_TAPS, n);
        }
        bool inputs_only = true;
        for (int32_t i = 0; i < n; ++i) {
            if (boundaries[i] < FINAL_NORM || boundaries[i] > t.info.n_layer) {
                ee::fail(EE_ERR_ARG, "tap boundary %d is outside -1..%d", boundaries[i], t.info.n_layer);
            }
            inputs_only = inputs_only && boundaries[i] >= 0 && boundaries[i] < t.info.n_layer;
        }
        const bool can_read_inputs = t.info.layer_input_taps && inputs_only;
        if (route == EE_TAPS_LAYER_INPUT && !can_read_inputs) {
            ee::fail(EE_ERR_ARG, "layer inputs are not available for %s at these boundaries", architecture(t.model.get()).c_str());
        }
        t.by_callback = n > 0 && (route == EE_TAPS_CALLBACK || !can_read_inputs);
        t.boundaries.assign(boundaries, boundaries + n);
        t.tap_of_node.clear();
        t.tap_rows.assign(t.by_callback ? n : 0, {});
        for (int32_t i = 0; t.by_callback && i < n; ++i) {
            const int32_t b = boundaries[i];
            const std::string name = b == FINAL_NORM ? "result_norm" : b == 0 ? "inp_embd" : "l_out-" + std::to_string(b - 1);
            if (!t.tap_of_node.emplace(name, i).second) {
                ee::fail(EE_ERR_ARG, "tap boundary %d is listed twice", b);
            }
        }
        make_context(t); // the callback is fixed when a context is made
        for (int32_t i = 0; !t.by_callback && i < n; ++i) {
            llama_set_embeddings_layer_inp(t.context.get(), boundaries[i], true);
        }
    });
}

ee_status ee_target_eval(ee_target * target, const int32_t * tokens, const int32_t * parents, int32_t n, ee_logits_rows rows, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] { eval(*target, tokens, parents, n, rows); });
}

ee_status ee_target_logits(ee_target * target, int32_t node, float * out, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        if (node < 0 || node >= (int32_t) target->has_logits.size() || !target->has_logits[node]) {
            ee::fail(EE_ERR_ARG, "node %d has no logits in the last evaluation", node);
        }
        const float * row = llama_get_logits_ith(target->context.get(), node);
        if (row == nullptr) {
            ee::fail(EE_ERR_BACKEND, "llama.cpp has no logits for row %d", node);
        }
        memcpy(out, row, sizeof(float) * target->info.n_vocab);
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

ee_status ee_target_commit(ee_target * target, const int32_t * path, int32_t n, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] { commit(*target, path, n); });
}

ee_status ee_target_rewind(ee_target * target, int32_t n_past, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_target & t = *target;
        if (n_past < 0 || n_past > t.n_past) {
            ee::fail(EE_ERR_ARG, "cannot rewind to %d of %d tokens", n_past, t.n_past);
        }
        drop_tree(t);
        if (n_past == 0) {
            llama_memory_clear(t.memory(), true);
            t.stream_length.clear();
        } else if (!llama_memory_seq_rm(t.memory(), 0, n_past, -1)) {
            ee::fail(EE_ERR_ARG, "this target can only be rewound to its start");
        }
        t.n_past = n_past;
    });
}

int32_t ee_target_n_past(const ee_target * target) {
    return target->n_past;
}

ee_status ee_target_eval_streams(ee_target * target, const int32_t * tokens, const int32_t * streams, const int8_t * want_logits, int32_t n, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_target & t = *target;
        if (n < 1 || n > t.params.n_batch) {
            ee::fail(EE_ERR_ARG, "an evaluation takes 1 to %d tokens, got %d", t.params.n_batch, n);
        }
        if (t.n_past > 0) {
            ee::fail(EE_ERR_ARG, "rewind the target to 0 before using streams");
        }
        t.stream_length.resize(t.params.n_streams, 0);
        t.batch->clear();
        t.has_logits.assign(n, false);
        std::vector<int32_t> length = t.stream_length;
        int32_t              n_rows = 0;
        for (int32_t i = 0; i < n; ++i) {
            check_token(t, tokens[i], i);
            if (streams[i] < 0 || streams[i] >= t.params.n_streams) {
                ee::fail(EE_ERR_ARG, "stream %d is outside 0..%d", streams[i], t.params.n_streams - 1);
            }
            t.has_logits[i] = want_logits[i] != 0 || t.taps_need_outputs();
            n_rows += t.has_logits[i];
            if (t.params.separate_streams && length[streams[i]] >= t.info.n_ctx) {
                ee::fail(EE_ERR_MEMORY, "stream %d is full: it holds %d positions", streams[i], t.info.n_ctx);
            }
            t.batch->join(t.batch->add(tokens[i], length[streams[i]]++, t.has_logits[i]), streams[i]);
        }
        if (n_rows > t.params.n_streams) {
            ee::fail(EE_ERR_ARG, "at most %d rows of logits at once, got %d", t.params.n_streams, n_rows);
        }
        decode(t);
        t.stream_length = length;
    });
}

ee_status ee_target_clear_stream(ee_target * target, int32_t stream, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] {
        ee_target & t = *target;
        if (stream < -1 || stream >= t.params.n_streams) {
            ee::fail(EE_ERR_ARG, "stream %d is outside -1..%d", stream, t.params.n_streams - 1);
        }
        if (stream < 0) {
            llama_memory_clear(t.memory(), true);
            t.stream_length.clear();
        } else if (!t.stream_length.empty()) {
            llama_memory_seq_rm(t.memory(), stream, -1, -1);
            t.stream_length[stream] = 0;
        }
    });
}

// vocab.cpp asks for the vocabulary without knowing the rest.
const llama_vocab * ee_target_vocab(const ee_target * target) {
    return llama_model_get_vocab(target->model.get());
}
