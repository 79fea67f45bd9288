#include "layout.h"

#include "ggml.h"
#include "path.h"

#include <cstring>

namespace ee::kernels {

// Blocks as ggml-common.h of the pinned llama.cpp stores them; install.cpp checks their sizes against the library.

template <int BYTES> static void copy(const uint8_t * from, uint8_t * to) {
    memcpy(to, from, BYTES);
}

// 32 signed bytes become unsigned.
static void flip_q8_0(const uint8_t * from, uint8_t * to) {
    memcpy(to, from, 2);
    for (int i = 2; i < 34; ++i) {
        to[i] = from[i] ^ 0x80;
    }
}

// The fifth bits: bit 4 * i + k of the stored word is weight 4 * i + k. Arranged, byte k holds it at bit i, where the
// dword i of the weights finds it in place.
template <int FIELDS> static void arrange_q5(const uint8_t * stored, uint8_t * arranged) {
    memcpy(arranged, stored, FIELDS * 2 + 4 + 16);
    uint32_t bits, moved = 0;
    memcpy(&bits, stored + FIELDS * 2, 4);
    for (int i = 0; i < 8; ++i) {
        for (int k = 0; k < 4; ++k) {
            moved |= (bits >> (4 * i + k) & 1) << (8 * k + i);
        }
    }
    memcpy(arranged + FIELDS * 2, &moved, 4);
}

template <int FIELDS> static void restore_q5(const uint8_t * arranged, uint8_t * stored) {
    memcpy(stored, arranged, FIELDS * 2 + 4 + 16);
    uint32_t moved, bits = 0;
    memcpy(&moved, arranged + FIELDS * 2, 4);
    for (int i = 0; i < 8; ++i) {
        for (int k = 0; k < 4; ++k) {
            bits |= (moved >> (8 * k + i) & 1) << (4 * i + k);
        }
    }
    memcpy(stored + FIELDS * 2, &bits, 4);
}

// The 8 scales and 8 minimums of Q4_K and Q5_K, 6 bits each: stored, the last four of either have their top bits in the
// first four. Arranged, word v / 5 holds value v at bit 6 * (v % 5), and the top bits of the three words hold value 15.
static void arrange_scales(const uint8_t * s, uint8_t * arranged) {
    uint32_t values[16], words[3] = {0, 0, 0};
    for (int j = 0; j < 4; ++j) {
        values[j]      = s[j] & 63;
        values[8 + j]  = s[4 + j] & 63;
        values[4 + j]  = (s[8 + j] & 15) | (s[j] >> 6) << 4;
        values[12 + j] = s[8 + j] >> 4 | (s[4 + j] >> 6) << 4;
    }
    for (int v = 0; v < 15; ++v) {
        words[v / 5] |= values[v] << (6 * (v % 5));
    }
    for (int w = 0; w < 3; ++w) {
        words[w] |= (values[15] >> (2 * w) & 3) << 30;
    }
    memcpy(arranged, words, 12);
}

static void restore_scales(const uint8_t * arranged, uint8_t * s) {
    uint32_t words[3], values[16];
    memcpy(words, arranged, 12);
    for (int v = 0; v < 15; ++v) {
        values[v] = words[v / 5] >> (6 * (v % 5)) & 63;
    }
    values[15] = words[0] >> 30 | (words[1] >> 30) << 2 | (words[2] >> 30) << 4;
    for (int j = 0; j < 4; ++j) {
        s[j]     = uint8_t(values[j] | (values[4 + j] >> 4) << 6);
        s[4 + j] = uint8_t(values[8 + j] | (values[12 + j] >> 4) << 6);
        s[8 + j] = uint8_t((values[4 + j] & 15) | (values[12 + j] & 15) << 4);
    }
}

template <int BYTES> static void arrange_k(const uint8_t * stored, uint8_t * arranged) {
    memcpy(arranged, stored, BYTES);
    arrange_scales(stored + 4, arranged + 4);
}

template <int BYTES> static void restore_k(const uint8_t * arranged, uint8_t * stored) {
    memcpy(stored, arranged, BYTES);
    restore_scales(arranged + 4, stored + 4);
}

// Stored: 128 bytes of low nibbles, 64 of high bits, 16 scales, and the field last.
static void arrange_q6_k(const uint8_t * stored, uint8_t * arranged) {
    memcpy(arranged, stored + 208, 2);
    memcpy(arranged + 2, stored + 192, 16);
    memcpy(arranged + 18, stored, 192);
}

static void restore_q6_k(const uint8_t * arranged, uint8_t * stored) {
    memcpy(stored + 208, arranged, 2);
    memcpy(stored + 192, arranged + 2, 16);
    memcpy(stored, arranged + 18, 192);
}

static const weight_layout LAYOUTS[] = {
    // type          values bytes fields dwords offset floats
    {GGML_TYPE_Q4_0, 32, 18, 1, 4, 8, false, copy<18>, copy<18>},
    {GGML_TYPE_Q4_1, 32, 20, 2, 4, 0, false, copy<20>, copy<20>},
    {GGML_TYPE_Q5_0, 32, 22, 1, 5, 16, false, arrange_q5<1>, restore_q5<1>},
    {GGML_TYPE_Q5_1, 32, 24, 2, 5, 0, false, arrange_q5<2>, restore_q5<2>},
    {GGML_TYPE_Q8_0, 32, 34, 1, 8, 128, false, flip_q8_0, flip_q8_0},
    {GGML_TYPE_IQ4_NL, 32, 18, 1, 4, 128, false, copy<18>, copy<18>},
    {GGML_TYPE_Q4_K, 256, 144, 2, 35, 0, false, arrange_k<144>, restore_k<144>},
    {GGML_TYPE_Q5_K, 256, 176, 2, 43, 0, false, arrange_k<176>, restore_k<176>},
    {GGML_TYPE_Q6_K, 256, 210, 1, 52, 32, false, arrange_q6_k, restore_q6_k},
    {GGML_TYPE_F16, 32, 64, 32, 0, 0, true, copy<64>, copy<64>},
    {GGML_TYPE_BF16, 32, 64, 32, 0, 0, true, copy<64>, copy<64>},
};

const weight_layout * find_layout(int type) {
    for (const weight_layout & layout : LAYOUTS) {
        if (layout.type == type) {
            return &layout;
        }
    }
    return nullptr;
}

constexpr int MAX_BLOCK_BYTES = 210;

void lay(const weight_layout & layout, const uint8_t * stored, uint8_t * laid, int64_t n_groups, int64_t n_blocks) {
    const int64_t row_bytes = n_blocks * layout.block_bytes, field_bytes = layout.n_fields * 2 * ROWS;
    const int64_t dword_bytes = layout.n_dwords * 4 * ROWS;
    for (int64_t g = 0; g < n_groups; ++g, stored += ROWS * row_bytes, laid += ROWS * row_bytes) {
        for (int64_t b = 0; b < n_blocks; ++b) {
            uint8_t * fields = laid + b * field_bytes;
            uint8_t * dwords = laid + n_blocks * field_bytes + b * dword_bytes;
            for (int row = 0; row < ROWS; ++row) {
                uint8_t block[MAX_BLOCK_BYTES];
                layout.arrange(stored + row * row_bytes + b * layout.block_bytes, block);
                for (int f = 0; f < layout.n_fields; ++f) {
                    memcpy(fields + (f * ROWS + row) * 2, block + 2 * f, 2);
                }
                for (int d = 0; d < layout.n_dwords; ++d) {
                    memcpy(dwords + (d * ROWS + row) * 4, block + 2 * layout.n_fields + 4 * d, 4);
                }
            }
        }
    }
}

void unlay(const weight_layout & layout, const uint8_t * laid, uint8_t * stored, int64_t n_groups, int64_t n_blocks) {
    const int64_t row_bytes = n_blocks * layout.block_bytes, field_bytes = layout.n_fields * 2 * ROWS;
    const int64_t dword_bytes = layout.n_dwords * 4 * ROWS;
    for (int64_t g = 0; g < n_groups; ++g, stored += ROWS * row_bytes, laid += ROWS * row_bytes) {
        for (int64_t b = 0; b < n_blocks; ++b) {
            const uint8_t * fields = laid + b * field_bytes;
            const uint8_t * dwords = laid + n_blocks * field_bytes + b * dword_bytes;
            for (int row = 0; row < ROWS; ++row) {
                uint8_t block[MAX_BLOCK_BYTES];
                for (int f = 0; f < layout.n_fields; ++f) {
                    memcpy(block + 2 * f, fields + (f * ROWS + row) * 2, 2);
                }
                for (int d = 0; d < layout.n_dwords; ++d) {
                    memcpy(block + 2 * layout.n_fields + 4 * d, dwords + (d * ROWS + row) * 4, 4);
                }
                layout.restore(block, stored + row * row_bytes + b * layout.block_bytes);
            }
        }
    }
}

} // namespace ee::kernels
