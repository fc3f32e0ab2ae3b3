// SPDX-License-Identifier: Apache-2.0
// The plan as a picture: Graphviz or Mermaid. One box per kernel around its nodes; what is computed earlier stands
// outside, leaves are rounded.
#pragma once
#include <graft/plan/explain.h>

namespace graft {

enum class drawing : unsigned char { graphviz, mermaid };

template <class Sink> constexpr void draw_node(const graph& g, id i, drawing how, Sink&& line) {
  const node& v = g[i];
  text t;
  const bool leaf = is_leaf(v.what);
  t << "    n" << static_cast<int>(i);
  if (how == drawing::graphviz)
    t << (leaf ? " [shape=ellipse, label=\"" : " [label=\"");
  else
    t << (leaf ? "([\"" : "[\"");
  if (v.what == op::constant)
    print(t, g, i);
  else
    t << (leaf ? v.name : row(v.what).name);
  t << ' ', print_shape(t, g, i);
  if (how == drawing::graphviz)
    t << "\"];";
  else
    t << (leaf ? "\"])" : "\"]");
  line(t);
}

template <class Sink> constexpr void draw(const graph& g, drawing how, Sink&& line) {
  const plan p = fuse(g);
  const node_set live = reachable(g);
  auto visible = [&](id i) { return i >= 0 && live.in[i] && g[i].what != op::reshape; };
  auto source = [&](id i) {  // a reshape is not drawn
    while (i >= 0 && g[i].what == op::reshape) i = g[i].a;
    return i;
  };
  line(text(how == drawing::graphviz ? "digraph plan {\n  rankdir=TB; node [shape=box, fontname=Helvetica];"
                                     : "flowchart TB"));
  for (int k = 0; k < g.size; ++k)
    if (visible(static_cast<id>(k)) && p.kernel_of[k] < 0) draw_node(g, static_cast<id>(k), how, line);
  for (int kernel = 0; kernel < p.kernels; ++kernel) {
    text t;
    t << "  subgraph " << (how == drawing::graphviz ? "cluster_" : "k") << kernel;
    if (how == drawing::graphviz)
      t << " { label=\"kernel " << kernel << ": " << name_of(p.what[kernel]) << "\";";
    else
      t << "[\"kernel " << kernel << ": " << name_of(p.what[kernel]) << "\"]";
    line(t);
    for (int k = 0; k < g.size; ++k)
      if (visible(static_cast<id>(k)) && p.kernel_of[k] == kernel) draw_node(g, static_cast<id>(k), how, line);
    line(text(how == drawing::graphviz ? "  }" : "  end"));
  }
  for (int k = 0; k < g.size; ++k)
    for (int o = 0; visible(static_cast<id>(k)) && o < 3; ++o)
      if (const id a = source(g.n[k].operand(o)); a >= 0) {
        text t;
        t << "  n" << static_cast<int>(a) << (how == drawing::graphviz ? " -> n" : " --> n") << k;
        if (how == drawing::graphviz) t << ';';
        line(t);
      }
  for (int k = 0; k < g.outs; ++k) {
    text t;
    t << "  n" << static_cast<int>(source(g.out[k].at)) << (how == drawing::graphviz ? " -> out_" : " --> out_") << k;
    if (how == drawing::graphviz)
      t << "; out_" << k << " [shape=plaintext, label=\"" << g.out[k].name << "\"];";
    else
      t << "[/\"" << g.out[k].name << "\"/]";
    line(t);
  }
  if (how == drawing::graphviz) line(text("}"));
}

}  // namespace graft
