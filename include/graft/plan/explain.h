// SPDX-License-Identifier: Apache-2.0
// explain: a layer or plan as text: the formula, the derived graphs, the launches with their GEMM slots, flops and
// bytes, and graph breaks. Lines go to a sink, any callable that takes a `const text&`; nothing here allocates.
#pragma once
#include <graft/plan/compile.h>

#include <initializer_list>

namespace graft {

namespace detail {
// Lists the entries of a slot of a launch: equal ones that follow each other are counted.
struct slot_writer {
  text& t;
  text last{};
  int times = 0, listed = 0;

  constexpr void add(const text& entry) {
    if (times > 0 && same_text(last.c_str(), entry.c_str())) return void(++times);
    flush(), last = entry, times = 1;
  }
  constexpr void flush() {
    if (times == 0) return;
    t << (listed++ > 0 ? " + " : "");
    times > 1 ? t << times << " x " << last.c_str() : t << last.c_str();
    times = 0;
  }
};

// The words for one operation of a fused slot: "scale[out]" for a factor and "bias[out]" for a summand that all rows
// share, "residual" for a summand with rows of its own, otherwise the operation.
constexpr text words_of(const graph& g, id i) {
  const node& v = g[i];
  text t;
  const bool adds = v.what == op::add || v.what == op::sub, scales = v.what == op::mul || v.what == op::div;
  auto is_shared = [&](id o) { return is_scalar(g[o]) || g[o].d[2] == dim{1}; };
  const id other = !adds && !scales ? none_id : !is_shared(v.b) && is_shared(v.a) ? v.a : v.b;
  if (other >= 0 && is_scalar(g[other])) return t << (adds ? "shift" : "scale");
  if (other >= 0 && g[other].d[2] == dim{1}) {
    t << (adds ? "bias[" : "scale["), print(t, g.sizes, g[other].d[3]);
    return t << ']';
  }
  if (adds) return t << "residual";
  if (scales) return t << "gate";
  switch (v.what) {
    case op::rotate: return t << "rotation";
    case op::rotate_grad: return t << "rotation wgrad";
    case op::sum_to: return t << "column sum";
    case op::silu: return t << "SiLU";
    case op::gelu:
    case op::gelu_tanh: return t << "GELU";
    case op::relu: return t << "ReLU";
    default: return t << traits_of(v.what).name;
  }
}

// Prints the branch of a launch with its rank, which is the width of the shrink result: "low-rank branch r16". A
// product that another product of the branch reads is a shrink. A single product is a shrink or an expand: its rank is
// the size that the product `main` of the launch does not have. A product with the base weight is one that forward had.
constexpr void describe_branch(text& t, const graph& g, const sequence<id>& ops, id main) {
  node_set inside(g.size), shrinks(g.size);
  for (const id i : ops) inside.add(i);
  int low_rank = 0, recomputed = 0, ranks = 0;
  for (const id i : ops) {
    if (g[i].what != op::matmul) continue;
    id b = unshaped(g, g[i].b);
    if (b >= 0 && g[b].what == op::transpose) b = unshaped(g, g[b].a);
    if (b >= 0 && g[b].what == op::base) {
      ++recomputed;
      continue;
    }
    ++low_rank;
    id a = unshaped(g, g[i].a);
    while (a >= 0 && inside[a] && g[a].what != op::matmul) a = unshaped(g, g[a].a);
    if (a >= 0 && inside[a]) shrinks.add(a);
  }
  auto print_rank = [&](dim d) { t << (ranks++ > 0 ? " + " : d.is_static() ? " r" : " "), print(t, g.sizes, d); };
  t << (low_rank > 0 ? "low-rank branch" : recomputed > 0 ? "recomputed product" : "branch");
  for (const id i : ops)
    if (shrinks[i]) print_rank(g[i].d[3]);
  for (const id i : ops) {
    if (ranks > 0 || low_rank == 0 || g[i].what != op::matmul) continue;
    const dim made = g[i].d[3];
    const bool is_expand = main >= 0 && (made == g[main].d[3] || (g[main].a >= 0 && made == g[g[main].a].d[3]));
    print_rank(is_expand ? g[g[i].a].d[3] : made);
  }
  slot_writer w{t};
  for (const id i : ops)
    if (const op_class kind = traits_of(g[i].what).kind; g[i].what != op::matmul && kind != op_class::pointwise) {
      if (w.times == 0 && w.listed == 0) t << (low_rank > 0 ? " with " : ": ");
      w.add(words_of(g, i));
    }
  w.flush();
  if (low_rank > 0 && recomputed > 0) t << ", recomputed product";
}

// Prints how many operations of each name a launch of several operations has: "9 matmul, 4 mul, transpose".
constexpr void count_operations(text& t, const graph& g, const sequence<id>& ops) {
  node_set counted(g.size);
  int listed = 0;
  for (const id i : ops) {
    if (counted[i]) continue;
    int times = 0;
    for (const id k : ops)
      if (g[k].what == g[i].what) ++times, counted.add(k);
    t << (listed++ > 0 ? ", " : "");
    if (times > 1) t << times << ' ';
    t << (g[i].what == op::sum_to ? "sum" : traits_of(g[i].what).name);
  }
}
}  // namespace detail

// Prints a launch by the slots of its kernel: "GEMM, low-rank branch r16, epilogue: scale[out], 2 fused wgrads". What a
// slot always consists of is not listed: the product of the mainloop, the products of a branch, and the sum that adds
// it. A launch of several small operations is printed by their number: "small matrices: 4 matmul, 2 mul".
constexpr void describe_launch(text& t, const graph& g, const launch_plan& p, const launch& l) {
  node_set branch(g.size);
  id main = none_id;
  for (int n = 0; n < l.count; ++n) {
    const id i = p.nodes[l.first + n];
    if (p.slot_of[i] == launch_slot::branch) branch.add(i);
    if (p.slot_of[i] == launch_slot::mainloop) main = i;
  }
  auto in_branch = [&](id i) {
    i = unshaped(g, i);
    return i >= 0 && branch[i];
  };
  sequence<id> alone;
  bool plain = true;  // elementwise operations and layouts only
  for (int n = 0; n < l.count; ++n)
    if (const id i = p.nodes[l.first + n]; p.slot_of[i] == launch_slot::standalone && g[i].what != op::reshape) {
      alone.push(i);
      plain = plain && (is_pointwise(g[i].what) || traits_of(g[i].what).kind == op_class::layout);
    }
  const char* const name = p.name_of(g, l);
  t << (!alone.empty() && plain && same_text(name, "small matrices") ? "elementwise" : name);
  for (const launch_slot s : {launch_slot::prologue, launch_slot::mainloop, launch_slot::branch, launch_slot::epilogue,
                              launch_slot::reduce}) {
    sequence<id> ops;
    int wgrads = 0;
    for (int n = 0; n < l.count; ++n) {
      const id i = p.nodes[l.first + n];
      if (p.slot_of[i] != s || g[i].what == op::reshape) continue;
      const bool adds = g[i].what == op::add || g[i].what == op::sub;
      if (s == launch_slot::epilogue && adds && (in_branch(g[i].a) || in_branch(g[i].b))) continue;
      if (s == launch_slot::reduce && g[i].what == op::matmul)
        ++wgrads;
      else
        ops.push(i);
    }
    const bool said = s == launch_slot::mainloop && ops.size() == 1 &&
                      (traits_of(g[ops[0]].what).kind != op_class::product || g[ops[0]].what == op::matmul);
    if (wgrads > 0) wgrads == 1 ? t << ", fused wgrad" : t << ", " << wgrads << " fused wgrads";
    if (ops.empty() || said) continue;
    t << ", ";
    if (s == launch_slot::branch) {
      detail::describe_branch(t, g, ops, main);
      continue;
    }
    if (s != launch_slot::reduce) t << name_of(s) << ": ";
    detail::slot_writer w{t};
    for (const id i : ops) w.add(detail::words_of(g, i));
    w.flush();
  }
  if (alone.empty()) return;
  t << ": ";
  detail::count_operations(t, g, alone);
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
// The text of a layer; block types have a specialization (plan/block.h).
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
