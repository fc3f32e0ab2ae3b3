// SPDX-License-Identifier: Apache-2.0
// A compiled kernel as a function pointer, with the threads and the dynamic shared memory (bytes) of one block.
#pragma once

namespace graft::gpu {

struct kernel_entry {
  const void* kernel = nullptr;
  unsigned threads = 0, shared = 0;
};

}  // namespace graft::gpu
