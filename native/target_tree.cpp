// The tree: sequence 0 of the cache holds the committed tokens, and an evaluation hangs a token tree under the last of
// them. Every root-to-leaf path of a tree is one more sequence that shares the committed cells.
//
// One invariant carries the exactness: committed cells lie in the order of their positions, without holes. Attention
// then adds a row's cells in the same order whether the row was evaluated alone, in a chain or in a tree.

#include "target.h"

#include "kernels/kernels.h"

void ee::drop_tree(ee_target & t) {
    for (int32_t s = 1; s <= t.n_paths; ++s) {
        llama_memory_seq_rm(t.memory(), s, -1, -1);
    }
    llama_memory_seq_rm(t.memory(), 0, t.n_past, -1);
    t.n_paths = 0;
    t.parents.clear();
}

namespace {

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

// Rows of the graph: the same for every small chain, where blank rows cost next to nothing and disturb nobody; after a
// while without drafts no more than there are.
int32_t rows_of_graph(ee_target & t, int32_t n, bool all) {
    if (all) {
        t.n_lone = n == 1 ? t.n_lone + 1 : 0;
    }
    const bool pads = t.pads != ee::answer::no && t.n_lone < ee::LONE_ROUNDS && all && n <= ee::GRAPH_ROWS && is_chain(t.parents) &&
                      t.n_past + ee::GRAPH_ROWS <= t.info.n_ctx;
    return pads ? ee::GRAPH_ROWS : n;
}

// Decode the batch, of which the first n rows are wanted.
void decode_wanted(ee_target & t, int32_t n) {
    const int32_t n_rows = t.batch->batch.n_tokens;
    if (n_rows == n) {
        ee::decode(t);
        return;
    }
    const bool known = t.pads == ee::answer::yes; // otherwise this evaluation tells
    const ee::kernels::blank_rows rows(n_rows, known ? n : n_rows);
    ee::decode(t);
    if (!known) {
        t.pads = rows.were_possible() ? ee::answer::yes : ee::answer::no;
    }
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
    ee::drop_tree(t);
    t.batch->clear();
    std::vector<int32_t> position(n);
    for (int32_t i = 0; i < n; ++i) {
        ee::check_token(t, tokens[i], i);
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
    for (int32_t i = n, n_rows = rows_of_graph(t, n, all); i < n_rows; ++i) {
        t.batch->join(t.batch->add(tokens[n - 1], t.n_past + i, true), 0);
    }
    try {
        decode_wanted(t, n);
    } catch (...) {
        ee::drop_tree(t);
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
    ee::drop_tree(t);
}

} // namespace

ee_status ee_target_eval(ee_target * target, const int32_t * tokens, const int32_t * parents, int32_t n, ee_logits_rows rows, char * err, size_t err_len) {
    return ee::guarded(err, err_len, [&] { eval(*target, tokens, parents, n, rows); });
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
        ee::drop_tree(t);
        if (n_past == 0) {
            // A cell that nobody sees counts for nothing, and zeros in all of them would take as long as a short prompt.
            llama_memory_clear(t.memory(), /*data =*/false);
            t.stream_length.clear();
        } else if (!llama_memory_seq_rm(t.memory(), 0, n_past, -1)) {
            ee::fail(EE_ERR_ARG, "this target can only be rewound to its start");
        }
        t.n_past = n_past;
    });
}

int32_t ee_target_graph_rows(const ee_target * target) {
    return target->batch->batch.n_tokens;
}

int32_t ee_target_n_past(const ee_target * target) {
    return target->n_past;
}
