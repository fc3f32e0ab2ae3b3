# SPDX-License-Identifier: Apache-2.0
# graft_add_earlier_name(EARLIER NAME [GLOBAL]): graft::EARLIER is graft::NAME, and CMake warns whoever links it. It is
# no alias, because an alias has no properties of its own.
function(graft_add_earlier_name earlier name)
  if(TARGET graft::${earlier} OR NOT TARGET graft::${name})
    return()
  endif()
  add_library(graft::${earlier} INTERFACE IMPORTED ${ARGN})
  set_target_properties(graft::${earlier} PROPERTIES
    INTERFACE_LINK_LIBRARIES graft::${name} DEPRECATION "graft::${earlier} is now graft::${name}; link that one")
endfunction()
