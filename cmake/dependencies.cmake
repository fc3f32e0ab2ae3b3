# SPDX-License-Identifier: Apache-2.0
# Finds what is installed; downloads a pinned release only where a package is absent and GRAFT_FETCH allows it.
include(FetchContent)

# A package's targets are visible only in the directory that looked for them. Whoever adds graft as a subdirectory
# links graft::cpu from elsewhere, so the targets behind it have to be global.
function(graft_make_global)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      get_target_property(imported ${target} IMPORTED)
      if(imported)
        set_target_properties(${target} PROPERTIES IMPORTED_GLOBAL TRUE)
      endif()
    endif()
  endforeach()
endfunction()

# Explains, with the package to install, why a missing dependency stops the configuration.
function(graft_may_fetch package debian without)
  if(NOT GRAFT_FETCH)
    message(FATAL_ERROR "graft: ${package} was not found and GRAFT_FETCH is OFF. Install it (Debian, Ubuntu: ${debian}), "
                        "or point CMAKE_PREFIX_PATH at it, or set ${without}=OFF.")
  endif()
  message(STATUS "graft: ${package} is not installed (Debian, Ubuntu: ${debian}); downloading it")
endfunction()

# A header-only dependency. Only its headers are used, so its own CMakeLists.txt never runs: SOURCE_SUBDIR names a folder
# that does not exist. An imported target makes them system headers, whose warnings are not ours.
macro(graft_find_headers package target version debian without include repository tag)
  if(NOT TARGET ${target})
    find_package(${package} CONFIG QUIET)
    if(TARGET ${target} AND ${package}_VERSION VERSION_LESS ${version})
      message(FATAL_ERROR "graft: ${package} ${${package}_VERSION} was found, ${version} or later is needed")
    endif()
    graft_make_global(${target})
  endif()
  if(NOT TARGET ${target})
    graft_may_fetch(${package} ${debian} ${without})
    string(TOLOWER graft_${package} fetched)
    FetchContent_Declare(${fetched} GIT_REPOSITORY ${repository} GIT_TAG ${tag} GIT_SHALLOW ON SOURCE_SUBDIR none)
    FetchContent_MakeAvailable(${fetched})
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} INTERFACE "${${fetched}_SOURCE_DIR}${include}")
  endif()
endmacro()

if(GRAFT_CPU)
  graft_find_headers(Eigen3 Eigen3::Eigen 3.4 libeigen3-dev GRAFT_CPU "" https://gitlab.com/libeigen/eigen.git 3.4.0)
  find_package(OpenMP QUIET COMPONENTS CXX)
  graft_make_global(OpenMP::OpenMP_CXX)
endif()
if(GRAFT_TESTS)
  # What our own reader of JSON is held against.
  graft_find_headers(nlohmann_json nlohmann_json::nlohmann_json 3.10 nlohmann-json3-dev GRAFT_TESTS /include
                     https://github.com/nlohmann/json.git v3.11.3)
  graft_find_headers(doctest doctest::doctest 2.4.8 doctest-dev GRAFT_TESTS "" https://github.com/doctest/doctest.git v2.4.11)
endif()
if(GRAFT_BENCHMARKS)
  find_package(benchmark CONFIG QUIET)
  if(NOT TARGET benchmark::benchmark)
    graft_may_fetch(benchmark libbenchmark-dev GRAFT_BENCHMARKS)
    set(BENCHMARK_ENABLE_TESTING OFF CACHE BOOL "")
    set(BENCHMARK_ENABLE_INSTALL OFF CACHE BOOL "")
    FetchContent_Declare(graft_benchmark GIT_REPOSITORY https://github.com/google/benchmark.git GIT_TAG v1.8.3 GIT_SHALLOW ON)
    FetchContent_MakeAvailable(graft_benchmark)
  endif()
endif()
if(GRAFT_CUDA)
  find_package(CUDAToolkit QUIET)
  graft_make_global(CUDA::toolkit CUDA::cudart)
endif()
