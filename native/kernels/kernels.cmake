# CPU kernels: each instruction set is a translation unit with its own flags, chosen at run time.
target_sources(_native PRIVATE
  kernels/install.cpp kernels/paths.cpp kernels/buffer.cpp kernels/layout.cpp kernels/multiply.cpp kernels/attention.cpp)

# Contraction would let the compiler decide which operations are fused, and the paths would differ in their last bits.
set(_kernel_flags "-O3 -ffp-contract=off -fno-trapping-math -fno-math-errno")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  string(APPEND _kernel_flags " -Wno-maybe-uninitialized -Wno-uninitialized") # a false alarm about the intrinsics of its own headers
endif()

function(add_kernel_path name flags)
  target_sources(_native PRIVATE kernels/path_${name}.cpp)
  set_source_files_properties(kernels/path_${name}.cpp PROPERTIES COMPILE_FLAGS "${_kernel_flags} ${flags}")
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set_source_files_properties(kernels/paths.cpp PROPERTIES COMPILE_DEFINITIONS EE_KERNELS_X86)
  add_kernel_path(avx512vnni "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni")
endif()
