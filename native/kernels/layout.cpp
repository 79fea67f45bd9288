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

using block_fn = void (*)(const uint8_t * from, uint8_t * to);

// Visit the 16 rows of every block: move(stored block, laid fields, laid dwords, row).
template <int BYTES, int FIELDS, typename Stored, typename Laid, typename Move>
static void walk(Stored * stored, Laid * laid, int64_t n_blocks, Move move) {
    constexpr int64_t field_bytes = FIELDS * 2 * ROWS, dword_bytes = (BYTES - 2 * FIELDS) * ROWS;
    for (int64_t b = 0; b < n_blocks; ++b) {
        // Sixteen rows are read at once, which no hardware prefetcher follows: fetch the next group in order meanwhile.
        for (int64_t i = (n_blocks + b) * BYTES * ROWS; i < (n_blocks + b + 1) * BYTES * ROWS; i += 64) {
            __builtin_prefetch(stored + i);
            __builtin_prefetch(laid + i, 1);
        }
        for (int row = 0; row < ROWS; ++row) {
            move(stored + (row * n_blocks + b) * BYTES, laid + b * field_bytes + 2 * row,
                 laid + n_blocks * field_bytes + b * dword_bytes + 4 * row);
        }
    }
}

template <int BYTES, int FIELDS, block_fn ARRANGE> static void lay_group(const uint8_t * stored, uint8_t * laid, int64_t n_blocks) {
    walk<BYTES, FIELDS>(stored, laid, n_blocks, [](const uint8_t * from, uint8_t * fields, uint8_t * dwords) {
        uint8_t block[BYTES];
        ARRANGE(from, block);
        for (int f = 0; f < FIELDS; ++f) {
            memcpy(fields + f * ROWS * 2, block + 2 * f, 2);
        }
        for (int d = 0; d < (BYTES - 2 * FIELDS) / 4; ++d) {
            memcpy(dwords + d * ROWS * 4, block + 2 * FIELDS + 4 * d, 4);
        }
    });
}

template <int BYTES, int FIELDS, block_fn RESTORE> static void unlay_group(const uint8_t * laid, uint8_t * stored, int64_t n_blocks) {
    walk<BYTES, FIELDS>(stored, laid, n_blocks, [](uint8_t * to, const uint8_t * fields, const uint8_t * dwords) {
        uint8_t block[BYTES];
        for (int f = 0; f < FIELDS; ++f) {
            memcpy(block + 2 * f, fields + f * ROWS * 2, 2);
        }
        for (int d = 0; d < (BYTES - 2 * FIELDS) / 4; ++d) {
            memcpy(block + 2 * FIELDS + 4 * d, dwords + d * ROWS * 4, 4);
        }
        RESTORE(block, to);
    });
}

template <int BYTES, int FIELDS, block_fn ARRANGE, block_fn RESTORE>
static constexpr weight_layout describe(int type, int values, int offset, bool floats) {
    return {type, values, BYTES, FIELDS, offset, floats, RESTORE, lay_group<BYTES, FIELDS, ARRANGE>, unlay_group<BYTES, FIELDS, RESTORE>};
}

static const weight_layout LAYOUTS[] = {
    // bytes, 2-byte fields, and type, values, offset, floats
    describe<18, 1, copy<18>, copy<18>>(GGML_TYPE_Q4_0, 32, 8, false),
    describe<20, 2, copy<20>, copy<20>>(GGML_TYPE_Q4_1, 32, 0, false),
    describe<22, 1, arrange_q5<1>, restore_q5<1>>(GGML_TYPE_Q5_0, 32, 16, false),
    describe<24, 2, arrange_q5<2>, restore_q5<2>>(GGML_TYPE_Q5_1, 32, 0, false),
    describe<34, 1, flip_q8_0, flip_q8_0>(GGML_TYPE_Q8_0, 32, 128, false),
    describe<18, 1, copy<18>, copy<18>>(GGML_TYPE_IQ4_NL, 32, 128, false),
    describe<144, 2, arrange_k<144>, restore_k<144>>(GGML_TYPE_Q4_K, 256, 0, false),
    describe<176, 2, arrange_k<176>, restore_k<176>>(GGML_TYPE_Q5_K, 256, 0, false),
    describe<210, 1, arrange_q6_k, restore_q6_k>(GGML_TYPE_Q6_K, 256, 32, false),
    describe<64, 32, copy<64>, copy<64>>(GGML_TYPE_F16, 32, 0, true),
    describe<64, 0, copy<64>, copy<64>>(GGML_TYPE_BF16, 32, 0, true),
};

const weight_layout * find_layout(int type) {
    for (const weight_layout & layout : LAYOUTS) {
        if (layout.type == type) {
            return &layout;
        }
    }
    return nullptr;
}

} // namespace ee::kernels
