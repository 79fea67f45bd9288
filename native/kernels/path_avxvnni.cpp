// 256-bit VNNI in its VEX encoding, for processors without AVX-512.
#define EE_AVX_VNNI
#include "isa_avx2.h"
#include "multiply.inl"
#include "attend.inl"

namespace ee::kernels {
extern const path path_avxvnni;
const path path_avxvnni = {"avxvnni", true, isa::MAX_COLUMNS, quantize, find_multiply, attend, multiply_registers};
} // namespace ee::kernels
