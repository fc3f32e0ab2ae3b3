// SPDX-License-Identifier: Apache-2.0
// Which rotations of the inputs of a GEMM run as one kernel. Needs no CUDA header.
#pragma once
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/tile/adapter_args.h>

namespace graft::gpu {

// Returns true if several butterfly factors (BOFT) are composed to one rotation first. They must stay within 32
// columns.
constexpr bool composes_factors(long long factors, long long block, long long columns) {
  return factors > 1 && factors <= 5 && 32 % (block << (factors - 1)) == 0 && columns % 32 == 0;
}
// Do the input rotations of a launch run as one kernel (kernels/rotation/block_diagonal.cuh)? One factor each or
// composed, and blocks that divide 32 columns.
constexpr bool rotations_share_kernel(const graph& g, const id* rotations, int count, const size_values& s, dtype type,
                                      const target& t) {
  auto size = [&](id of, int axis) { return g.sizes.value(g[of].d[axis], s); };
  bool all = t.capability >= 80 && is_16_bit(type) && count <= max_segments;
  for (int k = 0; k < count; ++k) {
    const long long rows = size(rotations[k], 2), columns = size(rotations[k], 3), factors = size(g[rotations[k]].b, 0),
                    block = size(g[rotations[k]].b, 3);
    all = all && rows > 0 && columns % 32 == 0 && block > 0 && 32 % block == 0 &&
          (factors == 1 || composes_factors(factors, block, columns));
  }
  return all;
}
}  // namespace graft::gpu
