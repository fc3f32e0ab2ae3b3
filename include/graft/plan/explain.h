// SPDX-License-Identifier: Apache-2.0
// explain: a layer or plan as text: the formula, the derived graphs, the launches with their GEMM slots, flops and
// bytes, and graph breaks. Lines go to a sink, any callable that takes a `const text&`; nothing here allocates.
#pragma once
#include <graft/plan/compile.h>

#include <initializer_list>

namespace graft {

// Prints a launch by the slots of its kernel: "GEMM, low-rank branch, epilogue add, 2 fused wgrads". The matmuls that a
// slot always consists of are not listed, and the operations of a standalone launch follow its kind.
constexpr void describe_launch(text& t, const graph& g, const launch_plan& p, const launch& l) {
  t << p.name_of(g, l);
  for (const launch_slot s : {launch_slot::prologue, launch_slot::mainloop, launch_slot::branch, launch_slot::epilogue,
                              launch_slot::reduce, launch_slot::standalone}) {
    sequence<id> ops;
    for (int n = 0; n < l.count; ++n)
      if (const id i = p.nodes[l.first + n]; p.slot_of[i] == s && g[i].what != op::reshape) ops.push(i);
    const bool said = s == launch_slot::mainloop && ops.size() == 1 &&
                      (traits_of(g[ops[0]].what).kind != op_class::product || g[ops[0]].what == op::matmul);
    if (ops.empty() || said) continue;
    const bool multiplies = s == launch_slot::branch || s == launch_slot::reduce;
    int products = 0, listed = 0;
    for (const id i : ops) products += multiplies && g[i].what == op::matmul ? 1 : 0;
    t << ", ";
    if (s == launch_slot::branch && products > 0)
      t << name_of(s), ++listed;
    else if (s == launch_slot::branch)
      t << "branch ";
    else if (products > 0)
      products == 1 ? t << "fused wgrad" : t << products << " fused wgrads", ++listed;
    else if (s != launch_slot::standalone)
      t << name_of(s) << ' ';
    for (const id i : ops)
      if (!multiplies || g[i].what != op::matmul) t << (listed++ > 0 ? "+" : "") << traits_of(g[i].what).name;
  }
}

constexpr void print_si(text& t, long long n) {  // prints 33554432 as 33.6 M
  constexpr const char* units[] = {" ", " k", " M", " G", " T"};
  int u = 0;
  double v = static_cast<double>(n);
  while (v >= 1000 && u < 4) v /= 1000, ++u;
  const auto tenths = static_cast<long long>(v * 10 + 0.5);
  t << tenths / 10;
  if (u > 0 && tenths < 1000) t << '.' << tenths % 10;
  t << units[u];
}

// The values that are printed with a name: those with several readers, precomputed ones, and inputs of other launches.
constexpr node_set printed_by_name(const graph& g, const launch_plan& p) {
  node_set named(g.size);
  sequence<int> readers(g.size, 0);
  for (id r = 0; r < g.size; ++r)
    for (int o = 0; p.live[r] && g[r].what != op::reshape && o < 3; ++o) {
      const id a = unshaped(g, g[r].operand(o));
      if (a < 0 || is_leaf(g[a].what)) continue;
      const bool earlier = p.when.of[a] != p.when.of[r];
      const bool elsewhere = p.when.of[a] == stage::call && p.launch_of[a] != p.launch_of[r];
      const bool again = readers[a]++ > 0 && g[a].what != op::transpose;
      if (earlier || elsewhere || again) named.add(a);
    }
  return named;
}

constexpr node_set shared_values(const graph& g) {
  const node_set live = reachable(g);
  sequence<int> readers(g.size, 0);
  node_set named(g.size);
  for (id r = 0; r < g.size; ++r)
    for (int o = 0; live[r] && o < 3; ++o) {
      const id a = g[r].operand(o);
      if (a < 0 || is_leaf(g[a].what) || g[a].what == op::transpose || g[a].what == op::reshape) continue;
      named.in[a] = ++readers[a] > 1;
    }
  return named;
}
// Prints a graph as equations: first the values with several readers, then the outputs.
template <class Sink> constexpr void explain_outputs(const graph& g, const char* title, Sink&& line) {
  const node_set named = shared_values(g);
  const print_style style{named.in.data(), 16};
  auto equation = [&](id i, const char* name) {
    text t;
    t << "  " << title << "  ";
    name == nullptr ? t << 't' << i : t << name;
    print_shape(t, g, i);
    t << " = ";
    print(t, g, i, style);
    line(t);
  };
  for (id i = 0; i < g.size; ++i)
    if (named[i]) equation(i, nullptr);
  for (int k = 0; k < g.outs; ++k)
    if (!same_text(g.out[k].name, "saved")) equation(g.out[k].at, g.output_name(k).c_str());
}

// `more(text, k)` appends to the line of launch k.
template <class Sink, class More>
constexpr void explain_graph(const graph& g, const launch_plan& p, const char* title, int kernels, const cost* price,
                             Sink&& line, More&& more) {
  const node_set named = printed_by_name(g, p);
  const print_style style{named.in.data(), 12};
  text head;
  head << "  " << title << " on " << p.to.name << ": " << kernels << (kernels == 1 ? " kernel" : " kernels");
  if (price != nullptr) {
    head << ", ", print_si(head, price->flops), head << "flop, ", print_si(head, price->bytes), head << "B per call";
    if (price->parameter_flops + price->load_flops > 0) {
      head << "; once per change of the parameters ", print_si(head, price->parameter_flops), head << "flop";
      head << ", precomputed ", print_si(head, price->precomputed_bytes), head << 'B';
    }
  }
  if (p.breaks > 0) head << ", " << p.breaks << " graph break" << (p.breaks == 1 ? "" : "s");
  line(head);
  auto assignment = [&](id i, text& t) { t << 't' << i, print_shape(t, g, i), t << " = ", print(t, g, i, style); };
  for (const stage s : {stage::load, stage::parameter})
    for (id i = 0; i < g.size; ++i)
      if (p.live[i] && named[i] && p.when.of[i] == s) {
        text t;
        t << (s == stage::load ? "    once per load        " : "    once per parameters  ");
        assignment(i, t);
        line(t);
      }
  for (int k = 0; k < p.launches.size(); ++k) {
    const launch& l = p.launches[k];
    text t;
    t << "    launch " << k << ": ";
    describe_launch(t, g, p, l);
    more(t, k);
    line(t);
    for (id i = 0; i < g.size; ++i) {
      if (p.launch_of[i] != k) continue;
      int as = -1;
      for (int o = 0; o < g.outs; ++o)
        if (i == (p.launch_of[g.out[o].at] >= 0 ? g.out[o].at : unshaped(g, g.out[o].at))) as = o;
      if (!named[i] && as < 0) continue;
      text v;
      v << "      ";
      if (as >= 0) v << g.output_name(as) << " = ";
      assignment(i, v);
      line(v);
    }
  }
  for (id i = 0; i < g.size; ++i)
    if (p.live[i] && p.to.is_graph_break(g[i].what)) {
      text t;
      t << "    graph break: " << located(g, i) << ", line " << g[i].line << " of the formula";
      line(t);
    }
}

template <class Sink>
constexpr void explain_graph(const graph& g, const launch_plan& p, const char* title, int kernels, const cost* price,
                             Sink&& line) {
  explain_graph(g, p, title, kernels, price, line, [](text&, int) {});
}

namespace detail {
// The text of a layer; block types have a specialization (plan/explain_block.h).
template <class Layer, const target& To> struct explained {
  // The size of a quantized weight, the least time to read it, and whether folding is given up because it is quantized.
  template <class Sink> static constexpr void explain_quantized(Sink&& line) {
    constexpr quant_format format = element_traits<typename Layer::element>::format;
    text t;
    t << "  weight    " << name_of(format.type);
    if (format.block > 0) t << " in blocks of " << format.block;
    const graph& g = derived_of<Layer>::forward;
    const size_values s = with_nominals(g, static_sizes<Layer>(g));
    for (id i = 0; i < g.size; ++i) {
      if (g[i].what != op::base || !same_text(g[i].name, "weight")) continue;
      const long long n = element_count(g, i, s), cols = g.sizes.value(g[i].d[3], s),
                      bytes = bytes_of(format, n / cols, cols);
      const long long hundredths = (bytes * 800 + n / 2) / n;
      t << ", " << hundredths / 100 << '.' << hundredths / 10 % 10 << hundredths % 10
        << " bits per weight with scales: ";
      print_si(t, bytes), t << 'B';
      if (To.bytes_per_second <= 0) continue;
      const auto tenths = static_cast<long long>(static_cast<double>(bytes) / To.bytes_per_second * 1e7 + 0.5);
      t << ", which " << To.name << " cannot read in less than " << tenths / 10 << '.' << tenths % 10 << " us";
    }
    line(t);
    if (plan_of<Layer, To>::prefers_folding)
      line(
          text("            the adapter would be folded into a copy of the weight; of a quantized weight it stays a "
               "low-rank branch"));
  }
  template <class Sink> static constexpr void write(Sink&& line, long long tokens) {
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
    using facts = plan_of<Layer, To>;
    if constexpr (facts::is_quantized) explain_quantized(line);
    explain_outputs(d::merge, "formula ", line);
    const bool priced = tokens != dyn && static_sizes_known<Layer>();
    constexpr bool folded = facts::folded;
    auto pass = [&](const graph& g, const char* title, const cost& price) {
      const launch_plan p = fuse(g, To);
      size_values s = with_nominals(g, static_sizes<Layer>(g));
      if (tokens != dyn) g.sizes.set_tokens(s, tokens);
      using numbers = element_traits<typename Layer::element>;
      const quant_format stored = facts::is_quantized ? numbers::format : quant_format{};
      const int kernels = kernel_count(g, p, s, numbers::stored, stored);
      explain_graph(g, p, title, kernels, priced ? &price : nullptr, line, [&](text& t, int k) {
        const text why = why_several_kernels(g, p, p.launches[k], s, numbers::stored, stored);
        if (!why.empty())
          t << ", " << kernel_count(g, p, p.launches[k], s, numbers::stored, stored) << " kernels, because " << why;
      });
    };
    pass(folded ? d::folded : d::forward, folded ? "forward (folded)" : "forward",
         priced ? forward_cost<Layer, To>(tokens) : cost{});
    if (d::backward.bad.what == formula_error::none)
      pass(d::backward, "backward", priced ? backward_cost<Layer>(tokens) : cost{});
    if (d::unmerging.weight)
      explain_outputs(d::unmerge_weight, "unmerge ", line);
    else
      line(text("  unmerge   the formula replaces the weight: keep the base"));
    for (int k = 0, kept = 0; k < d::merge.outs; ++k) {
      if (!same_text(d::merge.out[k].name, "saved")) continue;
      text t;
      t << "            saved" << kept++ << " is the value at the merge of ";
      const node_set named = shared_values(d::merge);
      print(t, d::merge, d::merge.out[k].at, {named.in.data(), 8});
      line(t);
    }
  }
};
}  // namespace detail

template <class Layer, const target& To = cpu_target, class Sink>
requires requires(Sink& line, const text& t) { line(t); }
constexpr void explain(Sink&& line, long long tokens = dyn) { detail::explained<Layer, To>::write(line, tokens); }

}  // namespace graft
