// SPDX-License-Identifier: Apache-2.0
// draw: a plan as a Graphviz or Mermaid graph. Each launch is a box around its nodes, precomputed values are outside of
// the boxes, and leaves are rounded.
#pragma once
#include <graft/plan/explain.h>

namespace graft {

enum class drawing : unsigned char { graphviz, mermaid };

template <class Sink> constexpr void draw_node(const graph& g, id i, drawing format, Sink&& line) {
  const node& v = g[i];
  text t;
  const bool leaf = is_leaf(v.what);
  t << "    n" << i;
  if (format == drawing::graphviz)
    t << (leaf ? " [shape=ellipse, label=\"" : " [label=\"");
  else
    t << (leaf ? "([\"" : "[\"");
  if (v.what == op::constant)
    print(t, g, i);
  else
    leaf ? t << g.name(i) : t << traits_of(v.what).name;
  t << ' ', print_shape(t, g, i);
  if (format == drawing::graphviz)
    t << "\"];";
  else
    t << (leaf ? "\"])" : "\"]");
  line(t);
}

template <class Sink> constexpr void draw(const graph& g, const launch_plan& p, drawing format, Sink&& line) {
  const bool graphviz = format == drawing::graphviz;
  auto visible = [&](id i) { return i >= 0 && p.live[i] && g[i].what != op::reshape; };  // a reshape is not drawn
  line(text(graphviz ? "digraph plan {\n  rankdir=TB; node [shape=box, fontname=Helvetica];" : "flowchart TB"));
  for (id i = 0; i < g.size; ++i)
    if (visible(i) && p.launch_of[i] < 0) draw_node(g, i, format, line);
  for (int k = 0; k < p.launches.size(); ++k) {
    const launch& l = p.launches[k];
    text t;
    t << "  subgraph " << (graphviz ? "cluster_" : "k") << k;
    t << (graphviz ? " { label=\"" : "[\"") << "launch " << k << ": " << p.name_of(g, l);
    t << (graphviz ? "\";" : "\"]");
    line(t);
    for (int n = 0; n < l.count; ++n)
      if (visible(p.nodes[l.first + n])) draw_node(g, p.nodes[l.first + n], format, line);
    line(text(graphviz ? "  }" : "  end"));
  }
  for (id i = 0; i < g.size; ++i)
    for (int o = 0; visible(i) && o < 3; ++o)
      if (const id a = unshaped(g, g[i].operand(o)); a >= 0) {
        text t;
        t << "  n" << a << (graphviz ? " -> n" : " --> n") << i;
        if (graphviz) t << ';';
        line(t);
      }
  for (int k = 0; k < g.outs; ++k) {
    text t;
    t << "  n" << unshaped(g, g.out[k].at) << (graphviz ? " -> out_" : " --> out_") << k;
    if (graphviz)
      t << "; out_" << k << " [shape=plaintext, label=\"" << g.output_name(k) << "\"];";
    else
      t << "[/\"" << g.output_name(k) << "\"/]";
    line(t);
  }
  if (graphviz) line(text("}"));
}

}  // namespace graft
