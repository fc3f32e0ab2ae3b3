# SPDX-License-Identifier: Apache-2.0
# graft_add_cpu_compiled(SOURCE_DIR) adds the target graft::cpu_compiled, see include/graft/run/cpu_compiled.h. It compiles
# executors, models and file readers once instead of in every file that uses them. The project that links it compiles it
# on first use with its own compiler and flags, also if the library was installed, because a compiled library depends on
# both: Eigen's memory layout follows from -march. Sets graft_compiled_sources.
function(graft_add_cpu_compiled source_dir)
  set(sources cpu_float.cpp cpu_double.cpp models.cpp serving.cpp io.cpp)
  list(TRANSFORM sources PREPEND ${source_dir}/)
  set(graft_compiled_sources ${sources} PARENT_SCOPE)
  if(TARGET graft_cpu_compiled)
    return()
  endif()
  add_library(graft_cpu_compiled STATIC EXCLUDE_FROM_ALL ${sources})
  add_library(graft::cpu_compiled ALIAS graft_cpu_compiled)
  target_link_libraries(graft_cpu_compiled PUBLIC graft::cpu)
  target_compile_definitions(graft_cpu_compiled PUBLIC GRAFT_CPU_COMPILED)
  set_target_properties(graft_cpu_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()
