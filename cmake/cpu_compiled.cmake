# SPDX-License-Identifier: Apache-2.0
# graft_add_cpu_kernels(TARGET SOURCE_DIR) adds the kernels that are chosen at run time to a library: the products with
# weights, compiled once for each instruction set, always optimized (include/graft/backend/cpu/instructions). Code that
# is compiled for the machine at hand has nothing to choose, and other compilers or processors keep the flags they have.
function(graft_add_cpu_kernels target source_dir)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
  set(flags "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}")
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" OR flags MATCHES "-m(arch|cpu)=native")
    return()
  endif()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(sets "avx2|1|-mavx2 -mfma -mf16c" "avx512|2|-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq")
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(sets "dotprod|1|-march=armv8.2-a+dotprod" "i8mm|2|-march=armv8.2-a+dotprod+i8mm")
  else()
    return()
  endif()
  foreach(set IN LISTS sets)
    string(REPLACE "|" ";" facts "${set}")
    list(GET facts 0 name)
    list(GET facts 1 level)
    list(GET facts 2 options)
    separate_arguments(options)
    set(kernels ${target}_${name})
    add_library(${kernels} OBJECT EXCLUDE_FROM_ALL ${source_dir}/kernels/variant.cpp)
    target_link_libraries(${kernels} PRIVATE graft::cpu)
    # g++ 12 takes the undefined operands of intrinsics in its own headers for uninitialized variables.
    target_compile_options(${kernels} PRIVATE ${options} -O3 -Wno-uninitialized
                           $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_compile_definitions(${kernels} PRIVATE GRAFT_KERNEL_SET=${name} GRAFT_KERNEL_LEVEL=${level})
    set_target_properties(${kernels} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${kernels}>)
  endforeach()
  target_sources(${target} PRIVATE ${source_dir}/cpu_kernels.cpp)
  target_compile_definitions(${target} PUBLIC GRAFT_CPU_KERNELS)
endfunction()

# graft_add_cpu_compiled(SOURCE_DIR) adds the target graft::cpu_compiled, see include/graft/run/cpu_compiled.h, and
# graft::models_compiled, see include/graft/model/on_cpu.h. The first compiles executors and file readers once instead of
# in every file that uses them, the second whole models and the serving engine. The project that links one of them
# compiles it on first use with its own compiler and flags, also if the library was installed, because a compiled library
# depends on both: Eigen's memory layout follows from -march. Sets graft_compiled_sources.
function(graft_add_cpu_compiled source_dir)
  set(sources cpu_float.cpp cpu_double.cpp io.cpp)
  list(TRANSFORM sources PREPEND ${source_dir}/)
  set(models ${source_dir}/models.cpp ${source_dir}/serving.cpp)
  set(graft_compiled_sources ${sources} ${models} PARENT_SCOPE)
  if(TARGET graft_cpu_compiled)
    return()
  endif()
  add_library(graft_cpu_compiled STATIC EXCLUDE_FROM_ALL ${sources})
  add_library(graft::cpu_compiled ALIAS graft_cpu_compiled)
  target_link_libraries(graft_cpu_compiled PUBLIC graft::cpu)
  target_compile_definitions(graft_cpu_compiled PUBLIC GRAFT_CPU_COMPILED)
  set_target_properties(graft_cpu_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
  graft_add_cpu_kernels(graft_cpu_compiled ${source_dir})

  add_library(graft_models_compiled STATIC EXCLUDE_FROM_ALL ${models})
  add_library(graft::models_compiled ALIAS graft_models_compiled)
  target_link_libraries(graft_models_compiled PUBLIC graft_cpu_compiled)
  target_compile_definitions(graft_models_compiled PUBLIC GRAFT_MODELS_COMPILED)
  set_target_properties(graft_models_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()
