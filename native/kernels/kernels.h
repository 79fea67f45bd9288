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
// Map the pages of a file that are about to be read all at once; does nothing to other memory.
void map_file_pages(const void * data, size_t size);
// Drop the resident pages of mapped model files, whose weights have been re-laid: nothing is held twice.
void release_file_pages();

cpu_tensor_traits * multiply_traits();
cpu_tensor_traits * attention_traits();
bool attention_is_ours(const ggml_tensor * op);

} // namespace ee::kernels
