# SPDX-License-Identifier: Apache-2.0
# graft::graft needs only a compiler. Each backend and the file readers are separate targets, so that a project needs
# only the dependencies that it uses.
file(GLOB_RECURSE graft_headers CONFIGURE_DEPENDS include/graft/*.h include/graft/*.cuh)

# add(NAME TARGETS...) adds graft_NAME with the alias graft::NAME. The linked targets are recorded once for the build
# and once, by name, for the installed package, because a downloaded dependency cannot be in our export set.
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
    # The build machine decides about threads; the installed package searches for OpenMP again.
    target_link_libraries(graft_cpu INTERFACE $<BUILD_INTERFACE:OpenMP::OpenMP_CXX>)
  endif()
  if(graft_uses_blas)
    # The installed package searches for a BLAS again, and defines GRAFT_BLAS if it finds one.
    target_link_libraries(graft_cpu INTERFACE $<BUILD_INTERFACE:BLAS::BLAS>)
    target_compile_definitions(graft_cpu INTERFACE $<BUILD_INTERFACE:GRAFT_BLAS>)
  endif()
endif()
include(cmake/cpu_compiled.cmake)
include(cmake/gpu_compiled.cmake)
include(cmake/earlier_names.cmake)
if(GRAFT_CPU)
  graft_add_cpu_compiled(${PROJECT_SOURCE_DIR}/src)
  if(NOT top_level)
    include(cmake/say_march.cmake)
  endif()
endif()
if(GRAFT_IO)
  graft_add_component(io)
endif()
if(GRAFT_MPI AND TARGET MPI::MPI_CXX)
  graft_add_component(mpi MPI::MPI_CXX)
endif()
if(GRAFT_CUDA AND TARGET CUDA::cudart)
  graft_add_component(gpu CUDA::cudart)
  graft_add_earlier_name(cuda gpu GLOBAL)
  # The standard is a plain option because CMake before 3.26 does not know C++20 for nvcc. The suppressed warnings are
  # about Eigen's host and device annotations.
  target_compile_options(graft_gpu INTERFACE
    "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:SHELL:-std=c++20 --expt-relaxed-constexpr -diag-suppress=20012,20014>")
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(CUDA IN_LIST languages)
    graft_add_gpu_compiled(${PROJECT_SOURCE_DIR}/src)
    graft_add_earlier_name(cuda_compiled gpu_compiled GLOBAL)
  endif()
endif()
if(TARGET graft_gpu AND TARGET NCCL::nccl)
  graft_add_component(nccl graft::gpu NCCL::nccl)
endif()
if(TARGET benchmark::benchmark AND GRAFT_CPU)
  # graft/bench.h needs these. In a file for nvcc it also needs graft::gpu and CUDA::cublasLt, which only such programs
  # link.
  graft_add_component(bench graft::cpu benchmark::benchmark)
endif()
