// SPDX-License-Identifier: Apache-2.0
// explain: the layer in words. Formula, what is derived from it, the kernels with their slots, flops and bytes, and the
// graph breaks if any. Lines go to a sink, any callable that takes a `const text&`; nothing here allocates.
#pragma once
#include <graft/plan/compile.h>
#include <graft/plan/slots.h>

#include <initializer_list>

namespace graft {

constexpr void print_big(text& t, long long n) {  // 33554432 as 33.6 M
  constexpr const char* units[] = {" ", " k", " M", " G", " T"};
  int u = 0;
  double v = static_cast<double>(n);
  while (v >= 1000 && u < 4) v /= 1000, ++u;
  const auto tenths = static_cast<long long>(v * 10 + 0.5);
  t << tenths / 10;
  if (u > 0 && tenths < 1000) t << '.' << tenths % 10;
  t << units[u];
}

// Values that are read twice, computed once and reused, or handed from one kernel to another get a name.
constexpr node_set named_values(const graph& g, const plan& p) {
  node_set named;
  const node_set live = reachable(g);
  int readers[max_nodes]{};
  for (int r = 0; r < g.size; ++r)
    for (int o = 0; live.in[r] && g.n[r].what != op::reshape && o < 3; ++o) {
      id a = g.n[r].operand(o);
      while (a >= 0 && g[a].what == op::reshape) a = g[a].a;
      if (a < 0 || is_leaf(g[a].what)) continue;
      const bool earlier = p.when.of[a] != p.when.of[r];
      const bool elsewhere = p.when.of[a] == stage::data && p.kernel_of[a] != p.kernel_of[r];
      const bool again = readers[a]++ > 0 && g[a].what != op::transpose;
      if (earlier || elsewhere || again) named.in[a] = true;
    }
  return named;
}

constexpr node_set read_twice(const graph& g) {
  const node_set live = reachable(g);
  int readers[max_nodes]{};
  node_set named;
  for (int r = 0; r < g.size; ++r)
    for (int o = 0; live.in[r] && o < 3; ++o) {
      const id a = g.n[r].operand(o);
      if (a < 0 || is_leaf(g[a].what) || g[a].what == op::transpose || g[a].what == op::reshape) continue;
      named.in[a] = ++readers[a] > 1;
    }
  return named;
}
// A graph as equations: what is read twice first, then the outputs.
template <class Sink> constexpr void explain_outputs(const graph& g, const char* title, Sink&& line) {
  const node_set named = read_twice(g);
  const print_style style{named.in, 16};
  auto equation = [&](id i, const char* name) {
    text t;
    t << "  " << title << "  ";
    name == nullptr ? t << 't' << static_cast<int>(i) : t << name;
    print_shape(t, g, i);
    t << " = ";
    print(t, g, i, style);
    line(t);
  };
  for (int k = 0; k < g.size; ++k)
    if (named.in[k]) equation(static_cast<id>(k), nullptr);
  for (int k = 0; k < g.outs; ++k) equation(g.out[k].at, g.out[k].name);
}

template <class Sink> constexpr void explain_graph(const graph& g, const char* title, const cost* price, Sink&& line) {
  const plan p = fuse(g);
  const node_set named = named_values(g, p), live = reachable(g);
  const print_style style{named.in, 12};
  text head;
  head << "  " << title << ": " << p.kernels << (p.kernels == 1 ? " kernel" : " kernels");
  if (price != nullptr) {
    head << ", ", print_big(head, price->flops), head << "flop, ", print_big(head, price->bytes), head << "B per call";
    if (price->parameter_flops + price->load_flops > 0) {
      head << "; once per change of the parameters ", print_big(head, price->parameter_flops), head << "flop";
      head << ", kept ", print_big(head, price->cached_bytes), head << 'B';
    }
  }
  if (p.breaks > 0) head << ", " << p.breaks << " graph break" << (p.breaks == 1 ? "" : "s");
  line(head);
  auto assignment = [&](id i, text& t) {
    t << 't' << static_cast<int>(i), print_shape(t, g, i), t << " = ", print(t, g, i, style);
  };
  for (const stage s : {stage::load, stage::parameter})
    for (int k = 0; k < g.size; ++k)
      if (live.in[k] && named.in[k] && p.when.of[k] == s) {
        text t;
        t << (s == stage::load ? "    once per load        " : "    once per parameters  ");
        assignment(static_cast<id>(k), t);
        line(t);
      }
  for (int kernel = 0; kernel < p.kernels; ++kernel) {
    text t;
    t << "    kernel " << kernel << ' ' << name_of(p.what[kernel]) << ':';
    for (const slot s : {slot::pre, slot::product, slot::side, slot::post, slot::reduce, slot::small}) {
      bool first = true;
      for (int k = 0; k < g.size; ++k) {
        if (p.kernel_of[k] != kernel || p.place[k] != s || g.n[k].what == op::reshape) continue;
        t << (first ? " " : ",");
        if (first) t << name_of(s) << '=';
        t << row(g.n[k].what).name;
        first = false;
      }
    }
    line(t);
    for (int k = 0; k < g.size; ++k) {
      bool shown = p.kernel_of[k] == kernel && named.in[k];
      const char* as = nullptr;
      for (int o = 0; o < g.outs; ++o)
        if (g.out[o].at == k && p.kernel_of[k] == kernel) as = g.out[o].name;
      if (!shown && as == nullptr) continue;
      text v;
      v << "      ";
      if (as != nullptr) v << as << " = ";
      assignment(static_cast<id>(k), v);
      line(v);
    }
  }
  for (int k = 0; k < g.size; ++k)
    if (live.in[k] && g.n[k].what == op::host) {
      text t;
      t << "    graph break: " << located(g, static_cast<id>(k)) << ", line " << g.n[k].line << " of the formula";
      line(t);
    }
}

// What runs on the GPU, where fewer nodes have a place in a kernel.
template <class Sink>
constexpr void explain_gpu(const graph& forward, const graph& folded, const size_values& sizes, Sink&& line) {
  const linear_slots branch = slots_of(forward, schedule(forward)), plain = slots_of(folded, schedule(folded));
  long long rank = 0;
  for (int k = 0; k < branch.sides; ++k) {
    const long long r = forward.sizes.value(branch.side[k].rank, sizes);
    if (r != unknown) rank += r;
  }
  text t("  on the GPU: ");
  switch (form_of(forward, branch, folded, plain, rank)) {
    case slot_form::product:
      t << "one product" << (branch.pre >= 0 ? ", pre" : "") << (branch.sides > 0 ? ", side" : "");
      t << (branch.posts > 0 ? ", post" : "");
      break;
    case slot_form::input_first: t << "the input unfused, a kernel per operation; then one product"; break;
    case slot_form::folded: t << "one product with a copy of the weight that holds the adapter"; break;
    case slot_form::unfused: t << "unfused, a kernel per operation"; break;
  }
  line(t);
}

template <class Layer, class Sink>
requires requires(Sink& line, const text& t) { line(t); }
constexpr void explain(Sink&& line, long long tokens = dyn) {
  using d = derived_of<Layer>;
  text head;
  head << Layer::adapter::name << " on " << Layer::kind::name;
  for (const named_size& s : Layer::sizes) {
    head << ' ' << s.name << '=';
    s.value == dyn ? head << "dyn" : head << s.value;
  }
  head << ' ' << name_of(storage<typename Layer::element>::type);
  if (tokens != dyn) head << ", " << tokens << " tokens";
  line(head);
  explain_outputs(d::merge, "formula ", line);
  const bool priced = tokens != dyn && static_sizes_known<Layer>();
  const bool folded = priced && folds<Layer>(tokens);
  cost f, b;
  if (priced) f = forward_cost<Layer>(tokens), b = backward_cost<Layer>(tokens);
  explain_graph(folded ? graph(d::folded) : graph(d::forward), folded ? "forward (folded)" : "forward",
                priced ? &f : nullptr, line);
  if (fuse(d::forward).breaks == 0) explain_gpu(d::forward, d::folded, static_sizes<Layer>(d::forward), line);
  if (d::backward.bad.what == fault::none) explain_graph(d::backward, "backward", priced ? &b : nullptr, line);
  if (d::weight_facts.possible)
    explain_outputs(d::unmerge_weight, "unmerge ", line);
  else
    line(text("  unmerge   the formula replaces the weight: keep the base"));
  for (int k = 0; k < d::weight_facts.kept; ++k) {
    text t;
    t << "            " << kept_names[k] << " is the value at the merge of ";
    const node_set named = read_twice(d::merge);
    print(t, d::merge, d::weight_facts.kept_from[k], {named.in, 8});
    line(t);
  }
}

}  // namespace graft
