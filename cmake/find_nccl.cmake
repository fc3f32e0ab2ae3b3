# SPDX-License-Identifier: Apache-2.0
# graft_find_nccl() adds NCCL::nccl if the library and its header are on this machine, next to the CUDA Toolkit or
# elsewhere.
# NVIDIA's packages have no CMake configuration.
function(graft_find_nccl)
  if(TARGET NCCL::nccl)
    return()
  endif()
  find_path(GRAFT_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(GRAFT_NCCL_LIBRARY NAMES nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}
               PATH_SUFFIXES lib lib64)
  mark_as_advanced(GRAFT_NCCL_INCLUDE GRAFT_NCCL_LIBRARY)
  if(GRAFT_NCCL_INCLUDE AND GRAFT_NCCL_LIBRARY)
    add_library(NCCL::nccl UNKNOWN IMPORTED GLOBAL)
    set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${GRAFT_NCCL_LIBRARY}
                                                INTERFACE_INCLUDE_DIRECTORIES ${GRAFT_NCCL_INCLUDE})
  endif()
endfunction()
