#include "isa_neon.h"
#include "multiply.inl"
#include "attend.inl"

namespace ee::kernels {
extern const path path_neon_dot;
const path path_neon_dot = {"neon_dot", true, isa::MAX_COLUMNS, quantize, find_multiply, attend, multiply_registers};
} // namespace ee::kernels
