# SPDX-License-Identifier: Apache-2.0
# One export file per target: find_package(graft COMPONENTS cpu) loads only the requested components. What is installed
# has three components of its own: graft_headers, graft_cmake (the package with the sources of the compiled libraries)
# and graft_pkgconfig; `cmake --install BUILD --component graft_headers` installs one of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
# Nothing here depends on the architecture, so it is installed below share, not lib.
set(GRAFT_CMAKE_DIR ${CMAKE_INSTALL_DATADIR}/cmake/graft CACHE STRING "Where the CMake package is installed")
mark_as_advanced(GRAFT_CMAKE_DIR)
set(package_dir ${GRAFT_CMAKE_DIR})

if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.23)
  install(TARGETS graft EXPORT graft-targets
          FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT graft_headers)
else()
  install(TARGETS graft EXPORT graft-targets)
  install(DIRECTORY include/graft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT graft_headers)
endif()
install(EXPORT graft-targets NAMESPACE graft:: DESTINATION ${package_dir} COMPONENT graft_cmake)
foreach(component IN LISTS graft_components)
  install(TARGETS graft_${component} EXPORT graft-${component}-targets)
  install(EXPORT graft-${component}-targets NAMESPACE graft:: DESTINATION ${package_dir} COMPONENT graft_cmake)
endforeach()

configure_package_config_file(cmake/graft-config.cmake.in graft-config.cmake INSTALL_DESTINATION ${package_dir})
# Below 1.0 a minor version may change the source interface.
write_basic_package_version_file(graft-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/graft-config.cmake ${PROJECT_BINARY_DIR}/graft-config-version.cmake
              cmake/find_blas.cmake cmake/find_nccl.cmake cmake/say_march.cmake
              cmake/cpu_compiled.cmake cmake/gpu_compiled.cmake cmake/earlier_names.cmake
        DESTINATION ${package_dir} COMPONENT graft_cmake)
# The sources of the compiled libraries, which the project that links them compiles.
install(DIRECTORY src DESTINATION ${package_dir} COMPONENT graft_cmake)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/graft COMPONENT graft_headers)

# pkg-config: graft is the language, graft-cpu the CPU backend with file readers and models, from the headers alone.
set(graft_pc_files graft)
set(graft_pc_openmp "")
if(TARGET graft_cpu)
  list(APPEND graft_pc_files graft-cpu)
  if(OpenMP_CXX_FOUND)
    list(JOIN OpenMP_CXX_FLAGS " " graft_pc_openmp)
  endif()
endif()
set(graft_pc_dir ${CMAKE_INSTALL_DATADIR}/pkgconfig)
file(RELATIVE_PATH graft_pc_prefix /${graft_pc_dir} /)
foreach(name IN LISTS graft_pc_files)
  configure_file(packaging/pkgconfig/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${graft_pc_dir} COMPONENT graft_pkgconfig)
endforeach()
