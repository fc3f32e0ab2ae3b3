// SPDX-License-Identifier: Apache-2.0
// Loader of tiles by cp.async, for kernels without TMA (sm_80 and later): the threads of a block, or of a part of it,
// copy the 16-byte vectors of a tile of rows. Vectors outside the source become zeros. The caller says where a vector
// goes, which is where the swizzle of its tile is, and commits the group of copies (ptx::commit_copies).
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>

#include <cstdint>

namespace graft::gpu {

// Where a vector comes from. An address outside the source is not read, but it must be aligned.
struct vector_source {
  const void* at;
  bool inside;
};

// to(row, vec) is the shared address of a vector, and from(row, vec) its source; `thread` is one of Threads.
template <int Rows, int Vectors, int Threads, class To, class From>
__device__ __forceinline__ void copy_tile_async(int thread, const To& to, const From& from) {
#pragma unroll
  for (int e = thread; e < Rows * Vectors; e += Threads) {
    const int row = e / Vectors, vec = e % Vectors;
    const vector_source source = from(row, vec);
    ptx::copy_async16(to(row, vec), source.at, source.inside ? 16 : 0);
  }
}

}  // namespace graft::gpu
