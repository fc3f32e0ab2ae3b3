// SPDX-License-Identifier: Apache-2.0
// Places for an index that a program makes up, as benches, examples and tests do: spread over the matrix that the index
// speaks of, some of them more than once.
#pragma once
#include <graft/graph/graph.h>

#include <cstdint>
#include <vector>

namespace graft {

inline std::vector<std::int64_t> spread_places(const graph& g, id index, const size_values& s) {
  std::vector<std::int64_t> places;
  const long long n = g.sizes.value(g[index].d[3], s);
  for (id i = 0; i < g.size && places.empty(); ++i) {
    if ((g[i].what != op::place && g[i].what != op::pick) || g[i].b != index) continue;
    const node& matrix = g[i].what == op::place ? g[i] : g[g[i].a];
    for (const int axis : {2, 3})
      for (long long k = 0; k < n; ++k) places.push_back(k * (axis == 2 ? 31 : 47) % g.sizes.value(matrix.d[axis], s));
  }
  return places;
}

}  // namespace graft
