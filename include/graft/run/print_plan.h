// SPDX-License-Identifier: Apache-2.0
// explain<Layer>() and draw<Layer>() on standard output.
#pragma once
#include <graft/plan/draw.h>

#include <cstdio>

namespace graft {

inline void print_line(const text& t) { std::puts(t.c_str()); }

template <class Layer, const target& To = cpu_target> void explain(long long tokens = dyn) {
  explain<Layer, To>(print_line, tokens);
}
template <class Layer, const target& To = cpu_target> void draw(drawing format = drawing::mermaid) {
  const graph g = plan_of<Layer, To>::forward_graph();
  draw(g, fuse(g, To), format, print_line);
}

}  // namespace graft
