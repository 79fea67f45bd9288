#include "layout.h"

#include "ggml.h"
#include "path.h"

#include <cstring>

namespace ee::kernels {

// Block structures: ggml-common.h of the pinned llama.cpp. Sizes are checked against the library in install.cpp.
static const weight_layout LAYOUTS[] = {
    // type           values bytes scales n quants bytes flip  offset
    {GGML_TYPE_Q4_0, 32, 18, 0, 1, 2, 16, 0x00, 8},
    {GGML_TYPE_Q4_1, 32, 20, 0, 2, 4, 16, 0x00, 0},
    {GGML_TYPE_Q8_0, 32, 34, 0, 1, 2, 32, 0x80, 128},
};

const weight_layout * find_layout(int type) {
    for (const weight_layout & layout : LAYOUTS) {
        if (layout.type == type) {
            return &layout;
        }
    }
    return nullptr;
}

// Visit every 2-byte scale and 4-byte quant of one group: move(stored offset, laid offset, bytes).
template <typename Move> static void walk_group(const weight_layout & layout, int64_t n_blocks, Move move) {
    const int64_t row_bytes = n_blocks * layout.block_bytes;
    const int n_dwords = layout.quant_bytes / 4;
    const int64_t quants = n_blocks * layout.n_scales * 2 * ROWS;
    for (int64_t b = 0; b < n_blocks; ++b) {
        for (int row = 0; row < ROWS; ++row) {
            const int64_t block = row * row_bytes + b * layout.block_bytes;
            for (int s = 0; s < layout.n_scales; ++s) {
                move(block + layout.scale_offset + 2 * s, ((b * layout.n_scales + s) * ROWS + row) * 2, 2);
            }
            for (int d = 0; d < n_dwords; ++d) {
                move(block + layout.quant_offset + 4 * d, quants + ((b * n_dwords + d) * ROWS + row) * 4, 4);
            }
        }
    }
}

static void flip_bytes(uint8_t * bytes, uint8_t flip) {
    for (int i = 0; i < 4; ++i) {
        bytes[i] ^= flip;
    }
}

void lay(const weight_layout & layout, const uint8_t * stored, uint8_t * laid, int64_t n_rows, int64_t n_blocks) {
    const int64_t group_bytes = ROWS * n_blocks * layout.block_bytes;
    for (int64_t g = 0; g < n_rows / ROWS; ++g, stored += group_bytes, laid += group_bytes) {
        walk_group(layout, n_blocks, [&](int64_t from, int64_t to, int n) {
            if (n == 4) {
                memcpy(laid + to, stored + from, 4);
                flip_bytes(laid + to, layout.flip);
            } else {
                memcpy(laid + to, stored + from, 2);
            }
        });
    }
}

void unlay(const weight_layout & layout, const uint8_t * laid, uint8_t * stored, int64_t n_rows, int64_t n_blocks) {
    const int64_t group_bytes = ROWS * n_blocks * layout.block_bytes;
    for (int64_t g = 0; g < n_rows / ROWS; ++g, stored += group_bytes, laid += group_bytes) {
        walk_group(layout, n_blocks, [&](int64_t to, int64_t from, int n) {
            if (n == 4) {
                memcpy(stored + to, laid + from, 4);
                flip_bytes(stored + to, layout.flip);
            } else {
                memcpy(stored + to, laid + from, 2);
            }
        });
    }
}

} // namespace ee::kernels
