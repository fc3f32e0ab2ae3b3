# SPDX-License-Identifier: Apache-2.0
# An overlay port that installs the tree it lies in:  vcpkg install graft --overlay-ports=packaging/vcpkg/ports
# A port of a registry fetches a release instead, and has nothing else to change.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../.." ABSOLUTE)
set(VCPKG_BUILD_TYPE release)  # nothing is compiled
vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES cpu GRAFT_CPU)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DGRAFT_TESTS=OFF -DGRAFT_EXAMPLES=OFF -DGRAFT_BENCHMARKS=OFF -DGRAFT_FETCH=OFF
    -DGRAFT_MPI=OFF -DGRAFT_NCCL=OFF -DGRAFT_CUDA=OFF -DGRAFT_BLAS=OFF
    -DGRAFT_CMAKE_DIR=share/graft
    ${features}
)
vcpkg_cmake_install()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/licenses")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CURRENT_PORT_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
