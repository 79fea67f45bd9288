// The order of weight bytes the kernels read: 16 rows side by side, the same number of bytes as before.
//
// A group is 16 rows of n blocks: first the 2-byte fields of all its blocks ([block][field][16 rows]), then their other
// bytes in fours ([block][dword][16 rows]), so that one vector load brings the same four weights of every row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ee::kernels {

struct weight_layout {
    int type;            // ggml_type
    int block_values;    // weights of a stored block
    int block_bytes;
    int n_fields;        // 2-byte fields, scales or whole weights
    int offset;          // what the kernel's unsigned weights exceed the true ones by
    bool floats;         // activations stay float32
    // An arranged block (its fields, then its dwords) as it is stored.
    void (*restore)(const uint8_t * arranged, uint8_t * stored);
    // Re-lay one group of 16 rows of n_blocks blocks, or put it back.
    void (*lay_group)(const uint8_t * stored, uint8_t * laid, int64_t n_blocks);
    void (*unlay_group)(const uint8_t * laid, uint8_t * stored, int64_t n_blocks);
};

// The layout of a ggml_type, or nullptr when the kernels leave the type to llama.cpp.
const weight_layout * find_layout(int type);

} // namespace ee::kernels
