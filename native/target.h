// What the translation units of the target share: its state, and the few steps several of them take.
#pragma once

#include "common.h"

#include "llama.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

// Exported by libllama with C++ names, declared in its staging header (src/llama-ext.h at the pinned commit).
void    llama_set_embeddings_layer_inp(llama_context * ctx, uint32_t layer, bool enabled);
float * llama_get_embeddings_layer_inp(llama_context * ctx, uint32_t layer);

namespace ee {

constexpr int32_t MAX_SEQUENCES = 256; // LLAMA_MAX_SEQ
constexpr int32_t FINAL_NORM    = -1;  // the boundary after the final norm

// Rows of the graph of small trees: as many as a chain on a processor has, and a number that no model has heads.
constexpr int32_t GRAPH_ROWS    = 7;

constexpr int32_t LONE_ROUNDS   = 32; // evaluations of single nodes after which the graph is theirs

enum class answer { no, unknown, yes };

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

} // namespace ee

struct ee_target {
    ee_target_params params{};
    ee_target_info   info{};
    bool             native_attention = false; // the kernels chosen when it was loaded
    ee::answer       pads = ee::answer::no;    // whether small evaluations may have blank rows

    std::unique_ptr<llama_model, decltype(&llama_model_free)> model{nullptr, llama_model_free};
    std::unique_ptr<llama_context, decltype(&llama_free)>     context{nullptr, llama_free};
    std::unique_ptr<ee::batch_builder>                        batch;

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

    int32_t              n_lone = ee::LONE_ROUNDS; // evaluations of a single node in a row
    int32_t              n_past = 0;
    std::vector<int32_t> stream_length; // tokens in each stream; empty outside stream mode
    std::vector<uint8_t> moved;         // cells on their way to their new place

    llama_memory_t memory() const { return llama_get_memory(context.get()); }
    int32_t        spare() const { return params.n_streams + 1; }
    int32_t        width() const { return (int32_t) boundaries.size() * info.n_embd; }
    bool           taps_need_outputs() const {
        return std::any_of(boundaries.begin(), boundaries.end(), [&](int32_t b) { return b == ee::FINAL_NORM || b == info.n_layer; });
    }
};

namespace ee {

std::string architecture(const llama_model * model);
// Whether the architecture's graphs fill their layer inputs; asking another for them aborts the process.
bool fills_layer_inputs(const std::string & architecture);
// The scheduler callback of the callback route; user is the ee_target.
bool on_graph_node(ggml_tensor * node, bool ask, void * user);
// A new, empty context for the model as loaded and the taps as chosen.
void make_context(ee_target & target);
void check_token(const ee_target & target, int32_t token, int32_t at);
// Decode the batch as built.
void decode(ee_target & target);
// Drop the nodes of the last evaluation that were never committed.
void drop_tree(ee_target & target);

} // namespace ee
