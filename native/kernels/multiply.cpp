// Sharing a product among the CPU backend's threads: activations are quantised into the work buffer, then every thread
// takes whole groups of 16 weight rows.
#include "kernels.h"

#include <algorithm>
#include <cstring>

namespace ee::kernels {

// Up to this many columns every thread quantises all of them for itself, which costs less than waiting for the others.
constexpr int64_t PRIVATE_COLUMNS = 8;
// Groups a thread multiplies with one tile of columns before it takes the next: they stay in its cache.
constexpr int64_t GROUPS_TOGETHER = 4;

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static char * align_to_line(void * p) {
    return (char *) round_up((size_t) p, 64);
}

// A product as two plain matrices: weights [rows, K], activations [columns, K].
struct product {
    const ggml_tensor * weight;
    const ggml_tensor * x;
    const ggml_tensor * dst;
    const weight_layout * layout;
    int n_blocks;        // of 32 values
    int64_t n_columns;

    explicit product(const ggml_tensor * op)
        : weight(op->src[0]), x(op->src[1]), dst(op), layout(layout_of(op->src[0])),
          n_blocks(int(op->src[0]->ne[0] / BLOCK)), n_columns(op->src[1]->ne[1] * op->src[1]->ne[2] * op->src[1]->ne[3]) {}

    // Bytes of one block of 32 activations of one column.
    size_t block_bytes() const { return layout->floats ? BLOCK * sizeof(float) : sizeof(activation); }
    size_t activation_bytes() const { return round_up(n_columns * n_blocks * block_bytes(), 64); }

    static char * column(const ggml_tensor * t, int64_t c) {
        const int64_t i1 = c % t->ne[1], i2 = c / t->ne[1] % t->ne[2], i3 = c / (t->ne[1] * t->ne[2]);
        return (char *) t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
    }
};

// Columns are laid in tiles: [tile][block][column of the tile], floats [tile][k][column of the tile].
static void prepare_columns(const product & p, char * out, int64_t first, int64_t last) {
    const int64_t tile_columns = current.active->max_columns;
    for (int64_t c = first; c < last; ++c) {
        const int64_t tile = c / tile_columns * tile_columns;
        const int64_t width = std::min(tile_columns, p.n_columns - tile);
        const float * x = (const float *) product::column(p.x, c);
        char * to = out + tile * p.n_blocks * p.block_bytes();
        if (p.layout->floats) {
            float * values = (float *) to + (c - tile);
            for (int64_t k = 0; k < int64_t(p.n_blocks) * BLOCK; ++k) {
                values[k * width] = x[k];
            }
        } else {
            current.active->quantize(x, p.n_blocks, p.layout->offset, (activation *) to + (c - tile), width);
        }
    }
}

static void multiply_groups(const product & p, const char * activations, int64_t first, int64_t last) {
    const multiply_fn multiply = current.active->multiply(p.weight->type);
    const size_t group_bytes = ROWS * p.weight->nb[1];
    const int64_t tile_columns = current.active->max_columns;
    const int64_t n1 = p.dst->ne[1];
    for (int64_t together = first; together < last; together += GROUPS_TOGETHER) {
        const int64_t end = std::min(last, together + GROUPS_TOGETHER);
        for (int64_t c = 0; c < p.n_columns;) {
            // A tile ends at the end of a plane of dst, where the distance from column to column changes.
            const int width = int(std::min(tile_columns, p.n_columns - c));
            const bool one_plane = c / n1 == (c + width - 1) / n1;
            for (int64_t g = together; g < end; ++g) {
                const char * a = activations + c * p.n_blocks * p.block_bytes();
                const uint8_t * group = (const uint8_t *) p.weight->data + g * group_bytes;
                if (one_plane) {
                    multiply(group, p.n_blocks, a, width, (float *) product::column(p.dst, c) + g * ROWS, p.dst->nb[1] / sizeof(float));
                } else {
                    float rows[ROWS * 16];
                    multiply(group, p.n_blocks, a, width, rows, ROWS);
                    for (int i = 0; i < width; ++i) {
                        memcpy((float *) product::column(p.dst, c + i) + g * ROWS, rows + i * ROWS, ROWS * sizeof(float));
                    }
                }
            }
            c += width;
        }
    }
}

namespace {

class multiply_op : public cpu_tensor_traits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        plan_rows(op, true);
        const product p(op);
        size = 64 + p.activation_bytes() * (p.n_columns <= PRIVATE_COLUMNS ? n_threads : 1);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        compute_rows(params, op);
        const product p(op);
        const int64_t n_groups = p.weight->ne[1] / ROWS, ith = params->ith, nth = params->nth;
        char * work = align_to_line(params->wdata);
        if (p.n_columns <= PRIVATE_COLUMNS) {
            work += ith * p.activation_bytes();
            prepare_columns(p, work, 0, p.n_columns);
        } else {
            prepare_columns(p, work, p.n_columns * ith / nth, p.n_columns * (ith + 1) / nth);
            ggml_barrier(params->threadpool);
        }
        multiply_groups(p, work, n_groups * ith / nth, n_groups * (ith + 1) / nth);
        return true;
    }
};

} // namespace

cpu_tensor_traits * multiply_traits() {
    static multiply_op op;
    return &op;
}

} // namespace ee::kernels
