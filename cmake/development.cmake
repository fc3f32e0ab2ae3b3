# SPDX-License-Identifier: Apache-2.0
# Settings shared by tests, examples and benchmarks. None of them reaches a user of the library.
include(CheckCXXCompilerFlag)
include(CheckLanguage)

# Options of our own programs. They see the library's headers as ordinary headers, so that their warnings count.
add_library(graft_development INTERFACE)
target_compile_options(graft_development INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion;-Wshadow>
  # The switches over operations have no default, so that this warning finds a pass that lacks a new operation.
  $<$<COMPILE_LANGUAGE:CXX>:-Werror=switch> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror=switch>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 reports overlapping copies inside its own std::string at -O3 (GCC bug 105651).
  target_compile_options(graft_development INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|i.86")
    # g++ 12's AVX-512 intrinsics pass a register that is undefined on purpose, and it warns about that inside its own
    # avx512fintrin.h wherever Eigen uses them (GCC bug 105593).
    target_compile_options(graft_development INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-uninitialized;-Wno-maybe-uninitialized>)
  endif()
endif()
if(GRAFT_WERROR)
  target_compile_options(graft_development INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror> "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
endif()
if(GRAFT_NATIVE)
  check_cxx_compiler_flag(-march=native GRAFT_HAS_MARCH_NATIVE)
  if(GRAFT_HAS_MARCH_NATIVE)
    target_compile_options(graft_development INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
  endif()
endif()
if(GRAFT_SANITIZE)
  # Line tables only. The checks for null pointers and alignment are left out here because they triple the time that
  # instrumented Eigen products and constant evaluation take to compile; users may have them (test/options). The first finds
  # nothing that the address sanitizer misses; the second is on wherever bytes of a file become numbers (test/CMakeLists.txt).
  target_compile_options(graft_development INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${GRAFT_SANITIZE};-fno-sanitize=null,alignment,nonnull-attribute,returns-nonnull-attribute;-fno-sanitize-recover=all>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer;-g1>)
  target_link_options(graft_development INTERFACE -fsanitize=${GRAFT_SANITIZE})
endif()

# Executors, models and file readers, compiled once for all our programs: they are most of the build time. Users include
# the headers and do not need this library.
if(TARGET graft::cpu)
  set(support ${PROJECT_SOURCE_DIR}/test/support)
  add_library(graft_instances STATIC ${graft_compiled_sources} ${support}/instance_graphs.cpp)
  target_link_libraries(graft_instances PRIVATE graft_development PUBLIC graft::cpu)
  target_compile_definitions(graft_instances PRIVATE GRAFT_CPU_COMPILED GRAFT_MODELS_COMPILED)
  set_target_properties(graft_instances PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # Only tests compute in double, and capturing graphs takes milliseconds, so these files are not optimized.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cpu_double.cpp ${PROJECT_SOURCE_DIR}/src/io.cpp
                              ${support}/instance_graphs.cpp PROPERTIES COMPILE_OPTIONS -O1)
  if(GRAFT_SANITIZE)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cpu_float.cpp ${PROJECT_SOURCE_DIR}/src/models.cpp
                                PROPERTIES COMPILE_OPTIONS -O1)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/io.cpp PROPERTIES COMPILE_OPTIONS "-O1;-fsanitize=alignment")
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cpu_double.cpp PROPERTIES COMPILE_OPTIONS -O0)
  endif()
endif()

# Compiles a program without optimization: the arithmetic that tests call is in graft_instances, and they build in a
# third of the time. (An optimizing compiler would instantiate those templates again to inline them.)
function(graft_build_quickly target)
  target_compile_options(${target} PRIVATE -O0)
endfunction()

# Tells every file of the target that the instances exist.
function(graft_use_instances target)
  if(TARGET graft_instances)
    target_link_libraries(${target} PRIVATE graft_instances)
    target_compile_definitions(${target} PRIVATE GRAFT_CPU_COMPILED GRAFT_MODELS_COMPILED)
  endif()
endfunction()

# Parsing the headers of models is most of the time that a small program takes to compile, so programs that are built
# quickly and use the instances share one precompiled header. What each header includes is tested by `headers`.
if(TARGET graft_instances AND TARGET graft::io)
  set(empty ${CMAKE_CURRENT_BINARY_DIR}/precompiled_models.cpp)
  file(CONFIGURE OUTPUT ${empty} CONTENT "// graft/models.h is precompiled with this file.\n")
  add_library(graft_precompiled_models OBJECT EXCLUDE_FROM_ALL ${empty})
  target_link_libraries(graft_precompiled_models PRIVATE graft_development graft::graft graft::cpu graft::io)
  graft_use_instances(graft_precompiled_models)
  graft_build_quickly(graft_precompiled_models)
  target_precompile_headers(graft_precompiled_models PRIVATE <graft/models.h>)
endif()
function(graft_precompile_models target)
  if(TARGET graft_precompiled_models)
    target_precompile_headers(${target} REUSE_FROM graft_precompiled_models)
  endif()
endfunction()
# ccache needs this to cache a file that uses a precompiled header.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(graft_development INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

# Adds one of our programs, linked with the whole library as far as this machine offers it.
function(graft_add_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE graft_development graft::graft $<TARGET_NAME_IF_EXISTS:graft::cpu>
                                        $<TARGET_NAME_IF_EXISTS:graft::io>)
  graft_use_instances(${name})
endfunction()

# Uses nvcc only if it works. Build machines need no GPU, so the architectures are listed and never "native".
if(GRAFT_CUDA AND TARGET graft_gpu)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # One architecture, because each costs the full compile time; test_gpu_host is also compiled for sm_80 to check
      # that path.
      set(CMAKE_CUDA_ARCHITECTURES 90a-real)
      set(graft_gpu_host_for "80;90a-real")
    endif()
    enable_language(CUDA)
    set(graft_nvcc ON)
    if(NOT TARGET graft_gpu_compiled)
      graft_add_gpu_compiled(${PROJECT_SOURCE_DIR}/src)
    endif()
    target_link_libraries(graft_gpu_compiled PRIVATE graft_development)
    graft_use_instances(graft_gpu_compiled)
    set_target_properties(graft_gpu_compiled PROPERTIES RULE_LAUNCH_COMPILE
                          "sh ${PROJECT_SOURCE_DIR}/cmake/refuse_serialized_wgmma.sh")
    # A layer on the GPU for programs that the host compiler compiles.
    set(gpu ${PROJECT_SOURCE_DIR}/test/support)
    add_library(graft_test_gpu STATIC ${gpu}/gpu_layer.cu)
    target_link_libraries(graft_test_gpu PRIVATE graft_development PUBLIC graft::gpu_compiled)
    set_target_properties(graft_test_gpu PROPERTIES POSITION_INDEPENDENT_CODE ON)
    set_source_files_properties(${gpu}/gpu_layer.cu PROPERTIES COMPILE_OPTIONS -O0)  # host code; it only launches kernels
  endif()
endif()
