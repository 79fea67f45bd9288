// 256-bit VNNI in its VEX encoding, for processors without AVX-512. No machine of the tests has it: the same source runs
// there in its EVEX encoding (path_avxvnni_evex.cpp), and this path has to be asked for by name.
#define EE_AVX_VNNI
#include "isa_avx2.h"
#include "multiply.inl"
#include "attend.inl"

namespace ee::kernels {
extern const path path_avxvnni;
const path path_avxvnni = {"avxvnni", false, isa::MAX_COLUMNS, quantize, find_multiply, attend};
} // namespace ee::kernels
