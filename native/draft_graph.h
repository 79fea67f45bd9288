// One graph builder for every head of the EAGLE family, and the memory its graphs share.
#pragma once

#include "draft_head.h"

namespace ee {

// What lives from call to call: the cache of each layer, and the state that each node feeds back to its children.
struct head_memory {
    struct layer {
        ggml_tensor *k, *v; // [n_head_kv*head_dim, n_cells]
    };
    std::vector<layer>      layers;
    ggml_tensor *           states = nullptr; // [H, 1 + max_nodes]; row 0 belongs to the last pair, row 1 + i to node i
    ggml_context_ptr        context;
    ggml_backend_buffer_ptr buffer;
};

// The shape that decides a graph. No cells at all: only the logits of a kept state.
struct graph_shape {
    int32_t n_rows;     // rows that go through the head
    int32_t n_cells;    // cache cells that attention looks at
    bool    from_taps;  // rows start from taps (pairs) or from the states of their parents (tree nodes)
    int32_t n_states;   // the last rows, whose states are kept
    bool    with_output; // the rows with states also get logits
};

// A built graph, to be allocated by the caller. Inputs are set before, outputs read after each computation.
struct head_graph {
    graph_shape      shape;
    ggml_context_ptr context;
    ggml_cgraph *    graph = nullptr;
    // Inputs; nullptr where not used. The mask [n_cells, rows] is for the last rows.
    ggml_tensor *embedding, *taps, *parents, *positions, *cells, *mask, *state_rows;
    ggml_tensor * logits; // [R, n_states]; nullptr without output
};

head_memory make_memory(const head_config & config, const head_weights & weights, ggml_backend_t backend, int32_t n_cells, int32_t max_nodes);
head_graph  build_step(const head_config & config, const head_weights & weights, const head_memory & memory, const graph_shape & shape);
// The logits that belong to one kept state: input parents [1], output logits [R, 1].
head_graph build_output(const head_config & config, const head_weights & weights, const head_memory & memory, const graph_shape & shape);

} // namespace ee
