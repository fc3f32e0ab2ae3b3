# SPDX-License-Identifier: Apache-2.0
# Builds for x86-64 on another Linux machine; tests run under qemu. `./run cross` uses it.
# The libraries that the tests need are header-only, so those of the host are used.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER x86_64-linux-gnu-g++ CACHE STRING "")
# With AVX2, Eigen's packets are twice as long as on arm64. qemu does not support AVX-512.
set(CMAKE_CXX_FLAGS_INIT -march=x86-64-v3)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-x86_64 -cpu max -L /usr/x86_64-linux-gnu)
