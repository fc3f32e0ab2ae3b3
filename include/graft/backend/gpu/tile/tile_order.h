// SPDX-License-Identifier: Apache-2.0
// Sizes of a CTA's shared memory and orders of tiles that the host knows too, because it sizes launches and
// workspaces by them. tile_scheduler.cuh has the schedulers that need the device.
#pragma once
#include <cuda_runtime_api.h>

namespace graft::gpu {

inline constexpr int shared_memory_limit = 227 * 1024;  // largest shared memory of a CTA on sm_90, bytes
inline constexpr int max_longest_first_tiles = 128;     // tiles per worker that longest_first_scheduler sorts

struct grouped_raster {
  int rows, columns;  // in tiles
  int group;          // rows of tiles in a group; inside a group rows vary fastest

  struct tile_coord {
    int row, column;
  };
  __host__ __device__ tile_coord at(int t) const {
    const int per_group = group * columns, which = t / per_group, rest = t % per_group;
    const int left = rows - which * group, height = left < group ? left : group;
    return {which * group + rest % height, rest / height};
  }
};

}  // namespace graft::gpu
