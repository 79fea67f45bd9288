// The kernels as the rest of the shim sees them. They know nothing of targets or drafts: weights that land in their
// buffer type are multiplied by them, and attention of the CPU backend is theirs while they are offered.
#pragma once

#include "ggml_interface.h"
#include "layout.h"
#include "path.h"

#include <atomic>
#include <functional>

namespace ee::kernels {

// The running path (nullptr before a successful installation), and whether new weights and attention are taken.
struct state {
    const path * active = nullptr;
    std::atomic<bool> offered{false};
};
extern state current;

// The buffer type that owns re-laid weights, and the object the CPU backend asks about every operation.
ggml_backend_buffer_type_t buffer_type();

// Whether the kernels can hold this weight: a plain matrix of whole groups and blocks of a known type.
const weight_layout * layout_of(const ggml_tensor * weight);

// Run share(first, last) over parts of 0..n on a few threads, where so many bytes are worth starting them.
void in_shares(int64_t n, size_t n_bytes, const std::function<void(int64_t first, int64_t last)> & share);
// Touch a fresh buffer, through large pages where the system has some at hand.
void fault_in(void * base, size_t size);
// Map the pages that are about to be read and written all at once, not each at its first use.
void prepare_copy(const void * from, void * to, size_t size);
// After a model is loaded: drop the resident pages of mapped model files, whose weights have been re-laid, so that nothing
// is held twice; and exchange small pages of weights for large ones, in the background.
void settle_weights();

cpu_tensor_traits * multiply_traits();
cpu_tensor_traits * attention_traits();
bool attention_is_ours(const ggml_tensor * op);

} // namespace ee::kernels
