// SPDX-License-Identifier: Apache-2.0
// stage: when a value is computed. Load-time values depend on frozen tensors only, parameter-time values change with
// the parameters (once per load in inference, once per step in training), data-time values on every call.
#pragma once
#include <graft/graph/graph.h>

namespace graft {

enum class stage : unsigned char { load, parameter, data };

constexpr const char* name_of(stage s) {
  return s == stage::load ? "load" : s == stage::parameter ? "parameter" : "data";
}
constexpr stage leaf_stage(op o) {
  switch (o) {
    case op::input:
    case op::ids: return stage::data;
    case op::param:
    case op::scalar:
    case op::kept: return stage::parameter;
    default: return stage::load;
  }
}

struct stages {
  stage of[max_nodes]{};
  bool by_token[max_nodes]{};  // the value has a row, or several, for every token
};

constexpr bool depends(const size_table& z, dim d, int name) {
  if (d.known()) return false;
  const size_entry& e = z.e[d.entry()];
  if (e.what == size_entry::kind::name) return d.entry() == name;
  return depends(z, e.a, name) || depends(z, e.b, name);
}

constexpr stages schedule(const graph& g) {
  stages s;
  const int tokens = g.sizes.find("tokens");
  for (int i = 0; i < g.size; ++i) {
    const node& v = g.n[i];
    s.of[i] = leaf_stage(v.what);
    for (int k = 0; k < 3; ++k)
      if (v.operand(k) >= 0 && s.of[v.operand(k)] > s.of[i]) s.of[i] = s.of[v.operand(k)];
    for (dim d : v.d) s.by_token[i] = s.by_token[i] || (s.of[i] == stage::data && depends(g.sizes, d, tokens));
  }
  return s;
}

}  // namespace graft
