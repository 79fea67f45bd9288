// Blank rows: an evaluation in a graph of more rows than it has. See kernels.h.
//
// llama.cpp builds, splits and allocates its graph anew whenever the number of rows changes, which takes as long as a row
// of a small model. So the graph keeps its size, and only while it is computed its tensors claim to have fewer rows: rows
// come last in memory, so nothing else about a tensor changes. ggml plans a graph in the thread that asked for it, before
// any other thread sees it; that is when rows are taken away. They are given back when the last product is computed,
// because llama.cpp reads whole tensors afterwards.
#include "kernels.h"

#include <algorithm>

namespace ee::kernels {

static thread_local blank_rows * running = nullptr;

blank_rows::blank_rows(int64_t in_graph, int64_t wanted) : in_graph(in_graph), wanted(wanted) {
    running = this;
}

blank_rows::~blank_rows() {
    running = nullptr;
    give_back();
}

void blank_rows::give_back() {
    for (int64_t * rows : taken) {
        *rows = in_graph;
    }
    taken.clear();
}

// The dimension of a tensor's rows; nullptr where it has none, or several that could be it.
int64_t * blank_rows::rows_of(const ggml_tensor * t) const {
    int64_t * const ne = const_cast<ggml_tensor *>(t)->ne;
    const bool second = ne[1] == in_graph, third = ne[2] == in_graph;
    return ne[3] != 1 || second == third ? nullptr : second ? ne + 1 : ne + 2;
}

void blank_rows::take(int64_t * rows) {
    if (rows != nullptr && *rows == in_graph && wanted < in_graph) {
        *rows = wanted;
        taken.push_back(rows);
    }
}

// Operations that treat every row by itself, as far as anybody has looked.
static bool is_row_by_row(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_GET_ROWS: case GGML_OP_SET_ROWS: case GGML_OP_RMS_NORM: case GGML_OP_MUL_MAT: case GGML_OP_ADD:
        case GGML_OP_MUL: case GGML_OP_SCALE: case GGML_OP_GLU: case GGML_OP_UNARY: case GGML_OP_ROPE: case GGML_OP_CONT:
        case GGML_OP_RESHAPE: case GGML_OP_VIEW: case GGML_OP_PERMUTE:
            return true;
        case GGML_OP_FLASH_ATTN_EXT:
            return current.attends && attention_is_ours(op);
        default:
            return false;
    }
}

// Part of something that outlives the graph: the cache.
static bool is_stored(const ggml_tensor * t) {
    return t->view_src != nullptr && t->view_src->op == GGML_OP_NONE;
}

void blank_rows::plan(ggml_tensor * op, bool ours) {
    if (last != nullptr && !is_stored(last)) {
        take(rows_of(last)); // it is not the last, which stays whole
    }
    if (op->op == GGML_OP_GET_ROWS && op->src[1]->op == GGML_OP_NONE) {
        take(&op->src[1]->ne[0]); // which rows to get
    }
    possible = possible && is_row_by_row(op) && (is_stored(op) || rows_of(op) != nullptr);
    last = op;
    last_is_ours = ours;
}

// Of what llama.cpp copies out of the buffer, only the wanted rows of the last product.
static std::atomic<decltype(ggml_backend_buffer::get_tensor)> read_all{nullptr};

static void read_wanted(ggml_backend_buffer_t buffer, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    if (running != nullptr && t == running->last) {
        const size_t end = running->wanted * t->nb[1];
        size = std::min(size, end - std::min(end, offset));
    }
    read_all.load()(buffer, t, data, offset, size);
}

void blank_rows::computes(ggml_tensor * op) {
    if (op != last || taken.empty()) {
        return;
    }
    // The other threads have finished all operations before this one, and still read its activations.
    const int64_t * const x = op->src[1]->ne;
    const auto still_read = [&](const int64_t * rows) { return rows >= x && rows < x + GGML_MAX_DIMS; };
    const auto others = std::stable_partition(taken.begin(), taken.end(), still_read);
    std::for_each(others, taken.end(), [&](int64_t * rows) { *rows = in_graph; });
    taken.erase(others, taken.end());
    if (op->buffer->get_tensor != read_wanted) {
        read_all = op->buffer->get_tensor; // that of every buffer of the CPU
        op->buffer->get_tensor = read_wanted;
    }
}

void plan_rows(const ggml_tensor * op, bool ours) {
    if (running != nullptr) {
        running->plan(const_cast<ggml_tensor *>(op), ours);
    }
}

void compute_rows(const ggml_compute_params * params, ggml_tensor * op) {
    if (params->ith == 0 && running != nullptr) {
        running->computes(op);
    }
}

cpu_tensor_traits * planning_traits() {
    // An operation that ggml computes, but whose rows are planned.
    static class : public cpu_tensor_traits {
        bool work_size(int, const ggml_tensor * op, size_t &) override {
            plan_rows(op, false);
            return false;
        }
        bool compute_forward(ggml_compute_params *, ggml_tensor *) override { return false; }
    } traits;
    return running == nullptr ? nullptr : &traits;
}

} // namespace ee::kernels
