# SPDX-License-Identifier: Apache-2.0
# One export file per target: find_package(graft COMPONENTS cpu) loads only the requested components.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
# Nothing here depends on the architecture, so it is installed below share, not lib.
set(package_dir ${CMAKE_INSTALL_DATADIR}/cmake/graft)

if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.23)
  install(TARGETS graft EXPORT graft-targets FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
else()
  install(TARGETS graft EXPORT graft-targets)
  install(DIRECTORY include/graft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
install(EXPORT graft-targets NAMESPACE graft:: DESTINATION ${package_dir})
foreach(component IN LISTS graft_components)
  install(TARGETS graft_${component} EXPORT graft-${component}-targets)
  install(EXPORT graft-${component}-targets NAMESPACE graft:: DESTINATION ${package_dir})
endforeach()

configure_package_config_file(cmake/graft-config.cmake.in graft-config.cmake INSTALL_DESTINATION ${package_dir})
# Below 1.0 a minor version may change the source interface.
write_basic_package_version_file(graft-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/graft-config.cmake ${PROJECT_BINARY_DIR}/graft-config-version.cmake
              cmake/find_blas.cmake cmake/find_nccl.cmake cmake/say_march.cmake
              cmake/cpu_compiled.cmake cmake/gpu_compiled.cmake
        DESTINATION ${package_dir})
# The sources of graft::cpu_compiled and graft::gpu_compiled, which the project that links them compiles.
install(DIRECTORY src DESTINATION ${package_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/graft)
