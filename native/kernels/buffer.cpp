// The buffer type: weights are re-laid as they are loaded and put back when they are read.
#include "kernels.h"

#include "ggml-cpu.h"

#include <algorithm>
#include <thread>

namespace ee::kernels {

const weight_layout * layout_of(const ggml_tensor * weight) {
    const weight_layout * layout = find_layout(weight->type);
    const bool plain = layout != nullptr && ggml_is_contiguous(weight) && weight->ne[2] == 1 && weight->ne[3] == 1 &&
                       weight->ne[1] % ROWS == 0 && weight->ne[0] % layout->block_values == 0;
    return plain && current.active->multiply(weight->type) != nullptr ? layout : nullptr;
}

void in_shares(int64_t n, size_t n_bytes, const std::function<void(int64_t first, int64_t last)> & share) {
    constexpr size_t WORTH_A_THREAD = 32 << 10; // bytes
    const int n_threads = int(std::min<int64_t>({n, int64_t(n_bytes / WORTH_A_THREAD) + 1, 8, std::max(1u, std::thread::hardware_concurrency())}));
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int i = 0; i < n_threads; ++i) {
        share(n * i / n_threads, n * (i + 1) / n_threads);
    }
}

// Whole rows at a time: llama.cpp sets and reads whole tensors of extra buffer types.
static void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    const weight_layout * layout = layout_of(tensor);
    GGML_ASSERT(layout != nullptr && offset == 0 && size == ggml_nbytes(tensor));
    const size_t group_bytes = ROWS * tensor->nb[1];
    const int64_t n_groups = tensor->ne[1] / ROWS, n_blocks = tensor->ne[0] / layout->block_values;
    in_shares(n_groups, size, [=](int64_t first, int64_t last) {
        const uint8_t * from = (const uint8_t *) data + first * group_bytes;
        uint8_t * to = (uint8_t *) tensor->data + first * group_bytes;
        for (int64_t g = first; g < last; ++g, from += group_bytes, to += group_bytes) {
            layout->lay_group(from, to, n_blocks);
        }
    });
}

static void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    const weight_layout * layout = layout_of(tensor);
    GGML_ASSERT(layout != nullptr && offset == 0 && size == ggml_nbytes(tensor));
    const size_t group_bytes = ROWS * tensor->nb[1];
    const int64_t n_blocks = tensor->ne[0] / layout->block_values;
    for (int64_t g = 0; g < tensor->ne[1] / ROWS; ++g) {
        layout->unlay_group((const uint8_t *) tensor->data + g * group_bytes, (uint8_t *) data + g * group_bytes, n_blocks);
    }
}

static const char * get_name(ggml_backend_buffer_type_t) {
    return "EAGLE_EDGE";
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = fresh_buffer(size);
    if (buffer != nullptr) {
        buffer->buft = type;
        buffer->set_tensor = set_tensor;
        buffer->get_tensor = get_tensor;
        buffer->set_tensor_2d = nullptr;
        buffer->get_tensor_2d = nullptr;
        buffer->memset_tensor = nullptr;
        buffer->cpy_tensor = nullptr;
    }
    return buffer;
}

static size_t get_alignment(ggml_backend_buffer_type_t) {
    return 64; // a cache line
}

static bool is_ours(const ggml_tensor * tensor) {
    return tensor != nullptr && tensor->buffer != nullptr && tensor->buffer->buft == buffer_type();
}

// Whether the product is one the kernels compute: our weight, float activations in rows this machine can read.
static bool multiplies(const ggml_tensor * op) {
    return op->op == GGML_OP_MUL_MAT && is_ours(op->src[0]) && layout_of(op->src[0]) != nullptr;
}

namespace {

class extra_buffer_type : public cpu_extra_buffer_type {
  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        if (!multiplies(op) || op->src[1]->type != GGML_TYPE_F32 || op->src[1]->nb[0] != sizeof(float)) {
            return false;
        }
        if (op->src[1]->buffer != nullptr && !ggml_backend_buft_is_host(op->src[1]->buffer->buft)) {
            return false;
        }
        // A weight without data is being offered; one with data is already here.
        return op->src[0]->data != nullptr || current.offered;
    }

    cpu_tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (multiplies(op)) {
            return multiply_traits();
        }
        const bool attends = op->op == GGML_OP_FLASH_ATTN_EXT && current.attends && attention_is_ours(op);
        return attends ? attention_traits() : planning_traits();
    }
};

} // namespace

ggml_backend_buffer_type_t buffer_type() {
    static extra_buffer_type extra;
    static ggml_backend_buffer_type type = {
        get_name, alloc_buffer, get_alignment, nullptr, nullptr, nullptr,
        ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), static_cast<cpu_extra_buffer_type *>(&extra)};
    return &type;
}

} // namespace ee::kernels
