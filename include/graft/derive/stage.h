// SPDX-License-Identifier: Apache-2.0
// Stages: whether each value of a graph is computed once per load, once per change of the parameters, or with every
// call, and whether it has rows for the tokens of a call. Both follow from the leaves: the op table says when they are
// known, the size table which size counts rows.
#pragma once
#include <graft/core/sequence.h>
#include <graft/graph/graph.h>

namespace graft {

constexpr const char* name_of(stage s) {
  return s == stage::load ? "load" : s == stage::parameter ? "parameter" : "data";
}

struct stages {
  sequence<stage> of;
  sequence<bool> has_token_rows;  // the value has a row, or several, for every token
};

[[gnu::cold]] constexpr stages schedule(const graph& g) {
  stages s{sequence<stage>(g.size, stage::load), sequence<bool>(g.size, false)};
  for (id i = 0; i < g.size; ++i) {
    const node& v = g[i];
    s.of[i] = traits_of(v.what).known_at;
    for (int k = 0; k < 3; ++k)
      if (v.operand(k) >= 0 && s.of[v.operand(k)] > s.of[i]) s.of[i] = s.of[v.operand(k)];
    for (dim d : v.d)
      s.has_token_rows[i] = s.has_token_rows[i] || (s.of[i] == stage::call && g.sizes.has_token_rows(d));
  }
  return s;
}

}  // namespace graft
