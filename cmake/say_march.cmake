# SPDX-License-Identifier: Apache-2.0
# Prints one line about the cost of leaving out -march to a project that links graft::cpu, because headers cannot choose
# the instructions of the machines that the program will run on; graft::cpu_compiled chooses those of products with
# weights. It is printed once, at the end of the configuration, when all targets and their options are known;
# GRAFT_SAY_MARCH=OFF disables it.
# Finds the first target below this directory that links the CPU backend and has no option that graft_march_pattern
# matches.
function(graft_find_without_march directory result)
  set(${result} "" PARENT_SCOPE)
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "INTERFACE_LIBRARY" OR type STREQUAL "UTILITY" OR target MATCHES "^graft_")
      continue()
    endif()
    get_target_property(links ${target} LINK_LIBRARIES)
    get_target_property(options ${target} COMPILE_OPTIONS)
    if("${links}" MATCHES "graft(::|_)(cpu|cpu_compiled|models_compiled|bench)(;|$)" AND NOT "${options}" MATCHES "${graft_march_pattern}")
      set(${result} ${target} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  get_property(directories DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(below IN LISTS directories)
    graft_find_without_march(${below} found)
    if(found)
      set(${result} ${found} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

function(graft_say_march)
  set(graft_march_pattern "-march=|-mcpu=|-mavx|-xHost|/arch:")
  string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
  if("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}" MATCHES "${graft_march_pattern}")
    return()
  endif()
  graft_find_without_march(${CMAKE_SOURCE_DIR} target)
  if(NOT target)
    return()
  endif()
  get_target_property(links ${target} LINK_LIBRARIES)
  set(chooses "")
  if(TARGET graft_cpu_compiled)
    get_target_property(chooses graft_cpu_compiled COMPILE_DEFINITIONS)
  endif()
  if("${links}" MATCHES "graft(::|_)(cpu|models)_compiled(;|$)" AND "${chooses}" MATCHES "GRAFT_CPU_KERNELS")
    message(STATUS "graft: ${target} links graft::cpu without -march: in graft::cpu_compiled products with weights use the "
                   "instructions of the machine they run on, attention, norms and all else those that every processor "
                   "has; GRAFT_SAY_MARCH=OFF silences this")
    return()
  endif()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|i.86")
    set(cost "with SSE2 alone Eigen does a quarter of the arithmetic of AVX2 with FMA per cycle, and products with 4- and \
8-bit weights have no vector code; use -march=native, or -march=x86-64-v3 for machines since 2013,")
  else()
    set(cost "products with 4- and 8-bit weights then do without the dot-product instructions; use -march=native, or -mcpu= \
with the machine it is for,")
  endif()
  message(STATUS "graft: ${target} links graft::cpu without -march: ${cost} for the whole project "
                 "(CMAKE_CXX_FLAGS), because all files of a program must agree; GRAFT_SAY_MARCH=OFF silences this")
endfunction()

get_property(graft_march_is_asked GLOBAL PROPERTY graft_march_is_asked)
if(NOT graft_march_is_asked AND (NOT DEFINED GRAFT_SAY_MARCH OR GRAFT_SAY_MARCH))
  set_property(GLOBAL PROPERTY graft_march_is_asked ON)
  cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL graft_say_march)
endif()
unset(graft_march_is_asked)
