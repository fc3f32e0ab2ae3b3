// SPDX-License-Identifier: Apache-2.0
// A kernel as a pointer, with the threads and the shared memory of one of its blocks.
#pragma once

namespace graft::cuda {

struct kernel_entry {
  const void* kernel = nullptr;
  unsigned threads = 0, shared = 0;
};

}  // namespace graft::cuda
