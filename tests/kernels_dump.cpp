// Prints a hash of what one kernel path computes on fixed inputs, for every weight type and for attention. Built and run
// for each instruction set, an emulated one included: every path has to print the same lines.
#include "layout.h"
#include "path.h"

#include "ggml.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

using namespace ee::kernels;

static uint32_t state = 1;

static uint32_t next() { // xorshift
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static float uniform() { // -1 .. 1
    return float(int(next() >> 8) - (1 << 23)) / float(1 << 23);
}

static uint64_t hash(const float * x, size_t n) { // FNV-1a of the bits
    uint64_t h = 1469598103934665603ull;
    const unsigned char * p = (const unsigned char *) x;
    for (size_t i = 0; i < n * sizeof(float); ++i) {
        h = (h ^ p[i]) * 1099511628211ull;
    }
    return h;
}

// A finite 16-bit float of either format with the exponent of about 1/4.
static void set_field(uint8_t * p, bool bfloat) {
    const uint16_t value = uint16_t((bfloat ? 0x3e00 : 0x3000) | (next() & 0x83ff));
    memcpy(p, &value, 2);
}

static void dump_multiply(const path & path, int type) {
    const weight_layout & layout = *find_layout(type);
    constexpr int K = 512, COLUMNS = 8;
    const int n_blocks = K / layout.block_values;
    std::vector<uint8_t> arranged(ROWS * n_blocks * layout.block_bytes), stored(arranged.size()), laid(arranged.size());
    for (size_t i = 0; i < arranged.size(); i += layout.block_bytes) {
        for (int b = 0; b < layout.block_bytes; ++b) {
            arranged[i + b] = uint8_t(next() >> 9);
        }
        for (int f = 0; f < (layout.floats ? layout.block_values : layout.n_fields); ++f) {
            set_field(&arranged[i + 2 * f], type == GGML_TYPE_BF16);
        }
        layout.restore(&arranged[i], &stored[i]);
    }
    layout.lay_group(stored.data(), laid.data(), n_blocks);
    std::vector<uint8_t> back(stored.size());
    layout.unlay_group(laid.data(), back.data(), n_blocks);
    if (back != stored) {
        printf("type %d is not put back as it was\n", type);
    }

    std::vector<float> x(K * COLUMNS), out(ROWS * COLUMNS);
    for (float & value : x) {
        value = uniform();
    }
    std::vector<activation> quantised(K / BLOCK * COLUMNS);
    std::vector<float> spread(K * COLUMNS);
    for (int c = 0; c < COLUMNS; ++c) {
        for (int first = 0; first < COLUMNS; first += path.max_columns) { // tiles of the path's width
            if (c >= first && c < first + path.max_columns) {
                path.quantize(&x[c * K], K / BLOCK, layout.offset, &quantised[first * K / BLOCK + c - first], path.max_columns);
                for (int k = 0; k < K; ++k) {
                    spread[first * K + k * path.max_columns + c - first] = x[c * K + k];
                }
            }
        }
    }
    for (int first = 0; first < COLUMNS; first += path.max_columns) {
        const void * a = layout.floats ? (const void *) &spread[first * K] : (const void *) &quantised[first * K / BLOCK];
        path.multiply(type)(laid.data(), K / BLOCK, a, path.max_columns, &out[first * ROWS], ROWS);
    }
    printf("type %d %016llx\n", type, (unsigned long long) hash(out.data(), out.size()));
}

static void dump_attention(const path & path, int type, int dim, int n_kv) {
    constexpr int n_rows = 5, n_heads = 3;
    const int element = type == GGML_TYPE_F32 ? 4 : 2;
    std::vector<uint8_t> k(n_kv * dim * element), v(k.size());
    for (auto * bytes : {&k, &v}) {
        for (size_t i = 0; i < bytes->size(); i += element) {
            const float value = uniform();
            element == 4 ? (void) memcpy(&(*bytes)[i], &value, 4) : set_field(&(*bytes)[i], type == GGML_TYPE_BF16);
        }
    }
    std::vector<float> q(n_rows * n_heads * dim), out(q.size());
    for (float & value : q) {
        value = 4 * uniform();
    }
    std::vector<uint16_t> mask(n_rows * n_kv);
    for (uint16_t & m : mask) {
        m = next() % 3 == 0 ? 0xfc00 : 0; // -inf
    }
    const size_t head = dim * sizeof(float), row = n_heads * head;
    const attention_task task = {
        (const char *) k.data(), (const char *) v.data(), size_t(dim * element), size_t(dim * element), type, type, dim, dim, n_kv,
        n_rows, n_heads, (const char *) q.data(), row, head, (const char *) mask.data(), size_t(n_kv) * 2,
        (char *) out.data(), row, head, 0.125f};
    for (int n : {1, 3}) { // scratches, which must not matter
        const size_t stride = attention_scratch_bytes(n_rows * n_heads, dim, dim, n_kv);
        std::vector<char> scratches(n * stride);
        const auto all = [&](auto step) {
            for (int i = 0; i < n; ++i) {
                step(cell_share{i, n}, &scratches[i * stride]);
            }
        };
        all([&](cell_share share, char * own) { path.attention.score(task, share, own); });
        all([&](cell_share share, char * own) { path.attention.sum(task, share, own, scratches.data(), stride, n); });
        all([&](cell_share share, char *) { path.attention.write(task, share.first, n, scratches.data(), stride, n); });
        printf("attention %d %d %016llx\n", type, dim, (unsigned long long) hash(out.data(), out.size()));
        std::fill(out.begin(), out.end(), 0.0f);
    }
}

static void dump_quantized(const path & path) {
    constexpr int n_blocks = 7; // no whole number of whatever is done together
    std::vector<float> x(n_blocks * BLOCK);
    for (size_t i = BLOCK; i < x.size(); ++i) { // a block of zeros first
        x[i] = uniform() * float(i);
    }
    std::vector<activation> out(2 * n_blocks);
    path.quantize(x.data(), n_blocks, 8, out.data(), 2);
    printf("quantized %016llx\n", (unsigned long long) hash((const float *) out.data(), out.size() * sizeof(activation) / sizeof(float)));
}

int main(int argc, char ** argv) {
    for (const path * const * p = paths; *p != nullptr; ++p) {
        if (argc == 2 && strcmp((*p)->name, argv[1]) == 0 && path_runs_here(**p)) {
            for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
                if (find_layout(type) != nullptr) {
                    dump_multiply(**p, type);
                }
            }
            dump_quantized(**p);
            for (int type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32}) {
                dump_attention(**p, type, 64, 256);
                dump_attention(**p, type, 80, 48);
            }
            return 0;
        }
    }
    fprintf(stderr, "no such path here\n");
    return 1;
}
