// The 256-bit VNNI path for processors that have the instruction in its EVEX encoding only; asked for by name.
#define EE_AVX_VNNI
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#include "isa_avx2.h"
#include "multiply.inl"
#include "attend.inl"

namespace ee::kernels {
extern const path path_avxvnni_evex;
const path path_avxvnni_evex = {"avxvnni", false, isa::MAX_COLUMNS, quantize, find_multiply, attend, multiply_registers};
} // namespace ee::kernels
