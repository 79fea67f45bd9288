// The kernels as the rest of the shim sees them. They know nothing of targets or drafts: weights that land in their
// buffer type are multiplied by them, and attention of the CPU backend is theirs while they attend.
#pragma once

#include "ggml_interface.h"
#include "layout.h"
#include "path.h"

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace ee::kernels {

// The running path (nullptr before a successful installation), and whether new weights are taken.
struct state {
    const path * active = nullptr;
    std::atomic<bool> offered{false};
    std::atomic<bool> attends{false}; // whether attention is taken of the model that is being evaluated
};
extern state current;

// The buffer type that owns re-laid weights, and the object the CPU backend asks about every operation.
ggml_backend_buffer_type_t buffer_type();

// Whether the kernels can hold this weight: a plain matrix of whole groups and blocks of a known type.
const weight_layout * layout_of(const ggml_tensor * weight);

// Run share(first, last) over parts of 0..n on a few threads, where so many bytes are worth starting them.
void in_shares(int64_t n, size_t n_bytes, const std::function<void(int64_t first, int64_t last)> & share);

// While one lives, the thread that made it finds memory for the weights of the file already touched: a thread of its own
// does that while llama.cpp reads the vocabulary, which takes about as long and leaves the other cores idle.
class head_start {
  public:
    explicit head_start(const char * path);
    ~head_start();
    // The memory, once and if that is enough, and the address up to which it has been touched.
    ggml_backend_buffer_t take(size_t size, uintptr_t & up_to);

  private:
    ggml_backend_buffer_t buffer = nullptr;
    uintptr_t touched = 0;
    std::atomic<bool> enough{false};
    std::thread toucher;
};

// A buffer of the CPU whose memory has been touched, through large pages where the system has some at hand.
ggml_backend_buffer_t fresh_buffer(size_t size);
// After a model is loaded: drop the resident pages of mapped model files, whose weights have been re-laid, so that nothing
// is held twice; and exchange small pages of weights for large ones, in the background.
void settle_weights();
// Whether that exchange is over.
bool weights_are_settled();

// While one lives, its thread evaluates a graph of `in_graph` rows of which only the first `wanted` are computed; of the
// others nothing may be read. With as many wanted as there are it only finds out whether that is possible.
class blank_rows {
  public:
    blank_rows(int64_t in_graph, int64_t wanted);
    ~blank_rows();
    blank_rows(const blank_rows &) = delete;
    blank_rows & operator=(const blank_rows &) = delete;

    // After an evaluation: whether its graph has rows only where they can be left out, and a last product that is ours.
    bool were_possible() const { return possible && last_is_ours; }

    void plan(ggml_tensor * op, bool ours);
    void computes(ggml_tensor * op);

    const int64_t in_graph, wanted;
    const ggml_tensor * last = nullptr; // that was planned

  private:
    int64_t * rows_of(const ggml_tensor * t) const;
    void take(int64_t * rows);
    void give_back();

    bool possible = true, last_is_ours = false;
    std::vector<int64_t *> taken; // numbers of rows to give back
};

// To be called for every operation when it is planned, and for our products when they are computed.
void plan_rows(const ggml_tensor * op, bool ours);
void compute_rows(const ggml_compute_params * params, ggml_tensor * op);
// For an operation that is not ours: nullptr, or what plans its rows and leaves the rest to ggml.
cpu_tensor_traits * planning_traits();

cpu_tensor_traits * multiply_traits();
cpu_tensor_traits * attention_traits();
bool attention_is_ours(const ggml_tensor * op);

} // namespace ee::kernels
