#include "isa_avx512.h"
#include "multiply.inl"
#include "attend.inl"

namespace ee::kernels {
extern const path path_avx512vnni;
const path path_avx512vnni = {"avx512vnni", true, isa::MAX_COLUMNS, quantize, find_multiply, attend, multiply_registers};
} // namespace ee::kernels
