# SPDX-License-Identifier: Apache-2.0
# Builds for arm64 on another Linux machine; tests run under qemu. `./run cross` uses it.
# The libraries that the tests need are header-only, so those of the host are used.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++ CACHE STRING "")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
