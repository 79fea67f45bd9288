// The state of a draft between calls, and the steps its C interface is made of.
//
// Cells 0..n_pairs-1 of the cache hold the committed pairs in order, node i of the round lies in cell n_pairs + i. A pair's
// position is that of its taps; a child of the last pair has position n_pairs, its children n_pairs + 1, and so on.
#pragma once

#include "draft_graph.h"
#include "draft_top.h"

#include <list>

namespace ee {
constexpr int32_t CELL_STEP = 256; // attention looks at a multiple of this, so that graphs can be reused
}

struct ee_draft {
    ee_draft_params  params{};
    bool             native_attention = false; // the kernels chosen when it was loaded
    ee::head_config  config;
    ggml_backend_ptr backend;
    ee::head_weights weights;
    ee::head_memory  memory;

    ggml_backend_set_n_threads_t set_threads = nullptr; // absent on a GPU

    ggml_gallocr_ptr          graph_memory; // shared: only one graph runs at a time, and nothing in it outlives the run
    std::list<ee::head_graph> graphs;       // newest first

    int32_t              n_pairs   = 0;
    bool                 has_state = false; // row 0 of the states belongs to the last pair
    std::vector<int32_t> parents, depths;   // of the nodes of this round

    ee::perturbation     perturbed; // how children are chosen

    std::vector<float>    floats, scores; // scratch on its way to or from the backend, and for children
    std::vector<uint16_t> halves;
    std::vector<int64_t>  longs;
    std::vector<int32_t>  ints;

    int32_t n_nodes() const { return (int32_t) parents.size(); }

    void             use_threads(int32_t n_threads);
    ee::head_graph & graph(const ee::graph_shape & shape);
    void             compute(const ee::head_graph & g);
    // Commit m pairs; gives the top_k children of the last when top_k > 0.
    void             extend(const int32_t * next_tokens, const float * taps, int32_t m, int32_t top_k, int32_t * ids, float * logprobs);
    // Evaluate n nodes whose parents are known; gives the top_k children of each when top_k > 0.
    void             level(const int32_t * tokens, const int32_t * node_parents, int32_t n, int32_t top_k, int32_t * ids, float * logprobs);
    // The row of the states that belongs to a node of this round (-1: the last pair).
    int32_t          state_row(int32_t node) const;

  private:
    ee::head_graph & set_pairs(const int32_t * next_tokens, const float * taps, int32_t m, bool last, bool with_output);
    ee::head_graph & set_nodes(const int32_t * tokens, const int32_t * node_parents, int32_t n, bool with_output);
    void             set_embedding(const ee::head_graph & g, const int32_t * tokens);
    void             set_mask(const ee::head_graph & g);
    void             set_rows(const ee::head_graph & g, int32_t first_cell, const int32_t * positions, int32_t first_state);
    void             see(int32_t row, int32_t n_cells, int32_t first, int32_t end);
    void             read_top(const ee::head_graph & g, int32_t top_k, int32_t * ids, float * logprobs);
};
