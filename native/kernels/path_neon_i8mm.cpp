#define EE_ARM_I8MM
#include "isa_neon.h"
#include "multiply.inl"
#include "attend.inl"

namespace ee::kernels {
extern const path path_neon_i8mm;
const path path_neon_i8mm = {"neon_i8mm", true, isa::MAX_COLUMNS, quantize, find_multiply, attend, multiply_registers};
} // namespace ee::kernels
