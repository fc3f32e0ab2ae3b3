// SPDX-License-Identifier: Apache-2.0
// When each value of a graph is computed, and whether it has rows for the tokens of a call. Both follow from the leaves:
// the op table says when they are known, the size table which size counts rows.
#pragma once
#include <graft/core/sequence.h>
#include <graft/graph/graph.h>

namespace graft {

constexpr const char* name_of(stage s) {
  return s == stage::load ? "load" : s == stage::parameter ? "parameter" : "data";
}

struct stages {
  sequence<stage> of;
  sequence<bool> by_token;  // the value has a row, or several, for every token
};

[[gnu::cold]] constexpr stages schedule(const graph& g) {
  stages s{sequence<stage>(g.size, stage::load), sequence<bool>(g.size, false)};
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    s.of[i] = row(v.what).known;
    for (int k = 0; k < 3; ++k)
      if (v.operand(k) >= 0 && s.of[v.operand(k)] > s.of[i]) s.of[i] = s.of[v.operand(k)];
    for (dim d : v.d) s.by_token[i] = s.by_token[i] || (s.of[i] == stage::data && g.sizes.by_token(d));
  }
  return s;
}

}  // namespace graft
