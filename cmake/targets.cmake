# SPDX-License-Identifier: Apache-2.0
# graft::graft needs nothing but a compiler; each backend and the files are a target of their own, so nobody pays for
# a dependency that is not used.
file(GLOB_RECURSE graft_headers CONFIGURE_DEPENDS include/graft/*.h include/graft/*.cuh)

# add(NAME TARGETS...): graft_NAME, alias graft::NAME. What it links is written once for the build and once, by name, for
# the installed package, because a downloaded dependency has no place in our export set.
function(graft_add_component name)
  add_library(graft_${name} INTERFACE)
  add_library(graft::${name} ALIAS graft_${name})
  set_target_properties(graft_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(graft_${name} INTERFACE graft)
  foreach(dependency IN LISTS ARGN)
    target_link_libraries(graft_${name} INTERFACE $<BUILD_INTERFACE:${dependency}> $<INSTALL_INTERFACE:${dependency}>)
  endforeach()
  set(graft_components ${graft_components} ${name} PARENT_SCOPE)
endfunction()

set(graft_components "")
add_library(graft INTERFACE)
add_library(graft::graft ALIAS graft)
target_compile_features(graft INTERFACE cxx_std_20)
if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.23)
  target_sources(graft INTERFACE FILE_SET HEADERS BASE_DIRS include FILES ${graft_headers})
else()
  target_include_directories(graft INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
endif()

if(GRAFT_CPU)
  graft_add_component(cpu Eigen3::Eigen)
  if(TARGET OpenMP::OpenMP_CXX)
    # Threads are a choice of the machine that builds; the installed package looks for OpenMP again.
    target_link_libraries(graft_cpu INTERFACE $<BUILD_INTERFACE:OpenMP::OpenMP_CXX>)
  endif()
  if(graft_uses_blas)
    # As with threads: the installed package looks for a BLAS again, and says GRAFT_BLAS where it finds one.
    target_link_libraries(graft_cpu INTERFACE $<BUILD_INTERFACE:BLAS::BLAS>)
    target_compile_definitions(graft_cpu INTERFACE $<BUILD_INTERFACE:GRAFT_BLAS>)
  endif()
endif()
if(GRAFT_CPU)
  # Optional: executors, models and files compiled once instead of in every file that uses them. Not installed: a compiled
  # library belongs to one compiler and its flags, so a project builds it with its own.
  set(graft_compiled_sources ${PROJECT_SOURCE_DIR}/src/cpu_float.cpp ${PROJECT_SOURCE_DIR}/src/cpu_double.cpp
                             ${PROJECT_SOURCE_DIR}/src/models.cpp ${PROJECT_SOURCE_DIR}/src/io.cpp)
  add_library(graft_cpu_compiled STATIC EXCLUDE_FROM_ALL ${graft_compiled_sources})
  add_library(graft::cpu_compiled ALIAS graft_cpu_compiled)
  target_link_libraries(graft_cpu_compiled PUBLIC graft_cpu)
  target_compile_definitions(graft_cpu_compiled PUBLIC GRAFT_CPU_COMPILED)
  set_target_properties(graft_cpu_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()
if(GRAFT_IO)
  graft_add_component(io)
endif()
if(GRAFT_MPI AND TARGET MPI::MPI_CXX)
  graft_add_component(mpi MPI::MPI_CXX)
endif()
if(GRAFT_CUDA AND TARGET CUDA::cudart)
  graft_add_component(cuda CUDA::cudart)
  # The standard is a plain option because CMake before 3.26 knows no C++20 for nvcc. Eigen marks functions for both sides
  # where nvcc sees only one; the suppressed numbers are those remarks.
  target_compile_options(graft_cuda INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:SHELL:-std=c++20 --expt-relaxed-constexpr -diag-suppress=20012,20014>")
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(CUDA IN_LIST languages)
    include(cmake/cuda_compiled.cmake)
  endif()
endif()
if(TARGET graft_cuda AND TARGET NCCL::nccl)
  graft_add_component(nccl graft::cuda NCCL::nccl)
endif()
if(TARGET benchmark::benchmark AND GRAFT_CPU)
  # What graft/bench.h needs. In a file for nvcc it also needs graft::cuda and CUDA::cublasLt, which only such a program links.
  graft_add_component(bench graft::cpu benchmark::benchmark)
endif()
