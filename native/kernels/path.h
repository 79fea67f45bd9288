// What one instruction set provides, as a table of functions; everything else is independent of it.
//
// Every path gives the same bits: integers are exact, and floating-point operations are the same, lane by lane, in the
// same order. Letters: K columns of a weight matrix (the summed dimension), C columns of activations (tokens).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ee::kernels {

// 16 rows of weights are laid out together; a block of activations is 32 values.
constexpr int ROWS  = 16;
constexpr int BLOCK = 32;

// 32 activations as signed bytes with one scale, prepared once and read by every row of weights.
struct activation {
    int8_t  q[BLOCK];
    float   scale;     // x = scale * q
    float   sum;       // scale * (sum of q), for weights with a minimum
    int32_t start[2];  // -offset * (sum of q) of each half: undoes the offset that makes weights unsigned
};
static_assert(sizeof(activation) == 48, "activations are addressed by their size");

// How far ahead of the block in work weights are fetched, into the second level: memory must not wait for columns that
// are being computed, and the first level cannot wait for so many lines at once.
constexpr int PREFETCH_BYTES = 8192;

// The most query vectors whose scores are accumulated together, three heads of four rows; scratches are padded to
// multiples of it.
constexpr int SCORED_TOGETHER = 12;

// One task of attention: the query vectors that share a KV head and a run of token rows.
struct attention_task {
    const char * k;           // the first cell's K and V of this KV head
    const char * v;
    size_t k_stride;          // bytes from cell to cell
    size_t v_stride;
    int k_type, v_type;       // ggml_type: F16, BF16 or F32
    int dim_k, dim_v;         // multiples of 16
    int n_kv;                 // cells, a multiple of 16
    int n_rows;               // token rows
    int n_heads;              // query heads per row
    const char * q;           // [row][head][dim_k] float32 with the strides below
    size_t q_row_stride, q_head_stride;
    const char * mask;        // [row][cell] float16, or nullptr
    size_t mask_stride;
    char * out;               // [row][head][dim_v] float32
    size_t out_row_stride, out_head_stride;
    float scale;
};

// The cells one thread looks at: of the blocks of 16, every `step`-th from `first` on.
struct cell_share {
    int first, step;
    int n_cells(int n_kv) const { return (n_kv / 16 - first + step - 1) / step * 16; }
};

// Attention in steps. All threads that share a task have to end one before any begins the next; each has its own
// scratch, `stride` bytes after the one before.
struct attention_steps {
    // The scores of a share of the cells.
    void (*score)(const attention_task & task, cell_share share, char * own);
    // What the cells of that share add to the results.
    void (*sum)(const attention_task & task, cell_share share, char * own, char * scratches, size_t stride, int n_scratches);
    // The results of every `step`-th query vector from `first` on.
    void (*write)(const attention_task & task, int first, int step, char * scratches, size_t stride, int n_scratches);
};

// Multiply one group of 16 rows with C columns: dst[c][row], columns dst_stride floats apart. n_blocks = K / 32.
// activations: [K/32][C] activation, or [K][C] float for weights of 16-bit floats; C <= path.max_columns.
using multiply_fn = void (*)(const uint8_t * group, int n_blocks, const void * activations, int n_columns, float * dst, size_t dst_stride);

struct path {
    const char * name;
    bool automatic;       // taken without being asked for by name: its code has run in the tests
    int max_columns;
    // x [n_blocks*32] -> out, one activation every `stride`; offset is what the weight type adds to make itself unsigned.
    void (*quantize)(const float * x, int n_blocks, int offset, activation * out, size_t stride);
    multiply_fn (*multiply)(int weight_type);
    attention_steps attention;
    // Nothing but n rounds of byte products, in registers; returns how many products that is.
    int64_t (*peak)(int64_t n);
};

// Bytes of scratch that one attention task needs for a share of so many cells, a multiple of 64.
size_t attention_scratch_bytes(int n_vectors, int dim_k, int dim_v, int n_cells);

// The paths compiled into this build, best first, ended by nullptr.
extern const path * const paths[];
// Whether this processor and operating system can run a path.
bool path_runs_here(const path & candidate);

} // namespace ee::kernels
