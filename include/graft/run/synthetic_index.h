// SPDX-License-Identifier: Apache-2.0
// Made-up indices of sparse entries (scatter_elements) for benchmarks, examples and tests: they are spread over the
// matrix that an index refers to, some more than once.
#pragma once
#include <graft/graph/graph.h>

#include <cstdint>
#include <vector>

namespace graft {

inline std::vector<std::int64_t> synthetic_index(const graph& g, id index, const size_values& s) {
  std::vector<std::int64_t> indices;
  const long long n = g.sizes.value(g[index].d[3], s);
  for (id i = 0; i < g.size && indices.empty(); ++i) {
    if ((g[i].what != op::scatter_elements && g[i].what != op::gather_elements) || g[i].b != index) continue;
    const node& matrix = g[i].what == op::scatter_elements ? g[i] : g[g[i].a];
    for (const int axis : {2, 3})
      for (long long k = 0; k < n; ++k) indices.push_back(k * (axis == 2 ? 31 : 47) % g.sizes.value(matrix.d[axis], s));
  }
  return indices;
}

}  // namespace graft
