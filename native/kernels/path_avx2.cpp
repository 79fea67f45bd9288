#include "isa_avx2.h"
#include "multiply.inl"
#include "attend.inl"

namespace ee::kernels {
extern const path path_avx2;
const path path_avx2 = {"avx2", true, isa::MAX_COLUMNS, quantize, find_multiply, attend, multiply_registers};
} // namespace ee::kernels
