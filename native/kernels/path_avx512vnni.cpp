#include "isa_avx512.h"
#include "multiply.inl"
#include "attend.inl"
#include "quantize_avx512.h"

namespace {

void quantize_by_fours(const float * x, int n_blocks, int offset, activation * out, size_t stride) {
    int b = 0;
    for (; b + BLOCKS_TOGETHER <= n_blocks; b += BLOCKS_TOGETHER) {
        quantize_four(x + b * BLOCK, offset, out + b * stride, stride);
    }
    quantize(x + b * BLOCK, n_blocks - b, offset, out + b * stride, stride);
}

} // namespace

namespace ee::kernels {
extern const path path_avx512vnni;
const path path_avx512vnni = {"avx512vnni", true, isa::MAX_COLUMNS, quantize_by_fours, find_multiply, attend, multiply_registers};
} // namespace ee::kernels
