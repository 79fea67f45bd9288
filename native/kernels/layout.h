// The order of weight bytes the kernels read: 16 rows side by side, the same number of bytes as before.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ee::kernels {

// How one weight type is stored and re-laid. A group is 16 rows of n blocks: first the scales of all its blocks
// ([block][field][16 rows] 2-byte values), then their quants ([block][dword][16 rows] 4 bytes).
struct weight_layout {
    int type;             // ggml_type
    int block_values;
    int block_bytes;
    int scale_offset;     // where a stored block keeps its 2-byte fields
    int n_scales;
    int quant_offset;     // where it keeps its quants
    int quant_bytes;
    uint8_t flip;         // xor of every quant byte: signed to unsigned
    int offset;           // what the kernel's unsigned weights exceed the true ones by
};

// The layout of a ggml_type, or nullptr when the kernels leave the type to llama.cpp.
const weight_layout * find_layout(int type);

// Re-lay a whole matrix of n_rows (a multiple of 16) rows of n_blocks blocks, or put it back.
void lay(const weight_layout & layout, const uint8_t * stored, uint8_t * laid, int64_t n_rows, int64_t n_blocks);
void unlay(const weight_layout & layout, const uint8_t * laid, uint8_t * stored, int64_t n_rows, int64_t n_blocks);

} // namespace ee::kernels
