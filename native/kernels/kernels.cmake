# CPU kernels: each instruction set is a translation unit with its own flags, chosen at run time.
target_sources(_native PRIVATE
  kernels/install.cpp kernels/paths.cpp kernels/buffer.cpp kernels/layout.cpp kernels/multiply.cpp kernels/attention.cpp
  kernels/memory.cpp kernels/blank.cpp kernels/broken_amx.cpp kernels/limits.cpp)

# Weights are laid by the threads ggml computes with; without OpenMP, by one.
find_package(OpenMP COMPONENTS CXX)
if(OpenMP_CXX_FOUND)
  target_link_libraries(_native PRIVATE OpenMP::OpenMP_CXX)
else()
  set_source_files_properties(kernels/buffer.cpp PROPERTIES COMPILE_OPTIONS -Wno-unknown-pragmas)
endif()

# Contraction would let the compiler decide which operations are fused, and the paths would differ in their last bits.
set(_kernel_flags "-O3 -ffp-contract=off -fno-trapping-math -fno-math-errno")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  string(APPEND _kernel_flags " -Wno-maybe-uninitialized -Wno-uninitialized") # false alarms about its own intrinsics
endif()

if(EAGLE_EDGE_SANITIZE)
  string(APPEND _kernel_flags " -fno-sanitize=all") # instrumented intrinsics take minutes to compile
endif()

function(add_kernel_path name flags)
  target_sources(_native PRIVATE kernels/path_${name}.cpp)
  set_source_files_properties(kernels/path_${name}.cpp PROPERTIES COMPILE_FLAGS "${_kernel_flags} ${flags}")
endfunction()

# Elsewhere, and with other compilers, the shim builds without kernels and says so.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(_avx512 "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni")
    set(_definitions EE_KERNELS_X86)
    add_kernel_path(avx2 "-mavx2 -mfma -mf16c")
    include(CheckCXXCompilerFlag)
    check_cxx_compiler_flag(-mavxvnni EE_COMPILER_KNOWS_AVXVNNI)
    if(EE_COMPILER_KNOWS_AVXVNNI)
      list(APPEND _definitions EE_KERNELS_AVXVNNI)
      add_kernel_path(avxvnni "-mavx2 -mfma -mf16c -mavxvnni")
    endif()
    add_kernel_path(avxvnni_evex "-mavx2 -mfma -mf16c ${_avx512}")
    add_kernel_path(avx512vnni "-mavx2 -mfma -mf16c ${_avx512}")
    set_source_files_properties(kernels/paths.cpp PROPERTIES COMPILE_DEFINITIONS "${_definitions}")
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set_source_files_properties(kernels/paths.cpp PROPERTIES COMPILE_DEFINITIONS EE_KERNELS_ARM64)
    add_kernel_path(neon_dot "-march=armv8.2-a+dotprod+fp16")
    add_kernel_path(neon_i8mm "-march=armv8.2-a+dotprod+fp16+i8mm")
  endif()
endif()
