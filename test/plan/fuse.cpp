// SPDX-License-Identifier: Apache-2.0
#include "../support/all_layers.h"
#include "../support/formula_text.h"
#include "../support/launches.h"

using namespace test;

namespace {

template <class Adapter, class Kind = linear_kind, bool Bias = false> text forward() {
  return launches(capture_forward(layer_of<Kind, Adapter, Bias>()));
}
template <class Adapter, class Kind = linear_kind, bool Bias = false> text backward() {
  return launches(capture_backward(layer_of<Kind, Adapter, Bias>()));
}

}  // namespace

TEST_CASE("fuse: the forward of every layer is one launch") {
  for_all_graphs([](const char* name, const captured_graphs& d) {
    INFO(std::string(name));
    CHECK(fuse(d.forward).launches.size() == 1);
    CHECK(fuse(d.forward).breaks == 0);
    CHECK(fuse(d.folded).launches.size() == 1);
  });
}

TEST_CASE("fuse: the slots of the forward launches") {
  SAYS_NOW(forward<none>(), "GEMM");
  SAYS_NOW((forward<none, linear_kind, true>()), "GEMM, epilogue add");
  SAYS_NOW(forward<lora<>>(), "GEMM, low-rank branch, epilogue add");
  SAYS_NOW((forward<lora<>, linear_kind, true>()), "GEMM, low-rank branch, epilogue add+add");
  SAYS_NOW((forward<dora<>, linear_kind, true>()), "GEMM, low-rank branch, epilogue add+mul+add");
  SAYS_NOW(forward<loha<>>(), "GEMM, low-rank branch, epilogue add");
  SAYS_NOW(forward<lokr<>>(), "GEMM, low-rank branch, epilogue add");
  SAYS_NOW(forward<hra<>>(), "GEMM, low-rank branch, epilogue sub");
  SAYS_NOW(forward<oft<dyn>>(), "GEMM, prologue rotate");
  SAYS_NOW((forward<boft<dyn, dyn>, linear_kind, true>()), "GEMM, prologue rotate, epilogue mul+add");
  SAYS_NOW((forward<ia3, linear_kind, true>()), "GEMM, epilogue mul+add");
  SAYS_NOW(forward<ia3_feedforward>(), "GEMM, prologue mul");
  SAYS_NOW(forward<miss<>>(), "GEMM, low-rank branch+fold_columns, epilogue add");
  SAYS_NOW((forward<lora_embedding<>, embedding_kind>()), "gather, low-rank branch+gather, epilogue add");
  SAYS_NOW((forward<lora<>, conv2d_kind>()), "GEMM, prologue im2col, low-rank branch, epilogue add+transpose");
  SAYS_NOW((forward<ln_tuning, norm_kind<false>, true>()), "rowwise, epilogue mul+add");
}

TEST_CASE("fuse: the backward launches") {
  SAYS_NOW(backward<none>(), "GEMM");
  SAYS_NOW(backward<lora<>>(), "GEMM, low-rank branch, epilogue add, 2 fused wgrads | small matrices, mul");
  SAYS_NOW(backward<miss<>>(), "GEMM, low-rank branch+repeat+fold_columns, epilogue add, fused wgrad");
  SAYS_NOW((backward<oft_neumann<dyn, dyn>>()),
           "GEMM, epilogue rotate, reduce rotate_grad | small matrices, neumann_grad+unskew");
  SAYS_NOW((backward<ln_tuning, norm_kind<false>, true>()),
           "rowwise, prologue mul, branch normalize+mul, reduce sum_to+sum_to");
}

TEST_CASE("fuse: every value of a call that has memory of its own is in exactly one launch, others in none") {
  for_all_graphs([](const char* name, const captured_graphs& d) {
    for (const graph& g : {graph(d.forward), graph(d.folded), graph(d.backward)}) {
      const launch_plan p = fuse(g);
      const node_set live = reachable(g);
      for (int i = 0; i < g.size; ++i) {
        const bool data = live.in[i] && p.when.of[i] == stage::call && !is_leaf(g.n[i].what);
        const bool member = data && (g.n[i].what != op::reshape || p.rows.dependence_of[i] == row_dependence::chunk);
        INFO(std::string(name), ", ", expression(g, static_cast<id>(i), {nullptr, 2}).c_str());
        CHECK((p.launch_of[i] >= 0) == member);
        CHECK(p.launch_of[i] < p.launches.size());
        if (member) CHECK(p.slot_of[i] != launch_slot::none);
      }
    }
  });
}

TEST_CASE("fuse: a launch's anchor is its GEMM") {
  static constexpr graph g = derived<linear_kind, lora<>, false>::forward;
  static constexpr node anchor = [] {
    const launch_plan p = fuse(g);
    return g[p.anchor_of(p.launches[0])];
  }();
  BOTH(anchor.what == op::matmul);
  BOTH(same_text(g[anchor.b].name, "weight"));
}

TEST_CASE("fuse: a host function is a graph break, and the plan names it") {
  static constexpr graph g = derived<linear_kind, erased, false>::forward;
  BOTH(fuse(g).breaks == 1);
  BOTH(g[fuse(g).first_break].what == op::host);
  BOTH((fuse(derived<linear_kind, lora<>, false>::forward).first_break == none_id));
}

TEST_CASE("fuse: a host function on data is a launch between two others") {
  builder g;
  const scope p{&g};
  const ex w = linear_kind::weight(p), x = linear_kind::input(p, w);
  g.add_output(exp(host("f", x * t(w))).i, "y");
  SAYS_NOW(launches(g), "GEMM | host function, host | elementwise, epilogue exp");
  CHECK(fuse(g).breaks == 1);
}

TEST_CASE("fuse: a graph without a weight is one elementwise launch") {
  builder g;
  const scope p{&g};
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), p.size("in"));
  g.add_output(exp(x + x).i, "y");
  SAYS_NOW(launches(g), "elementwise, epilogue add+exp");
}

TEST_CASE("fuse: the number of launches has no fixed limit") {
  builder g;
  const scope p{&g};
  const extent n = p.size("n", dyn, 4096);
  ex y = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  for (int i = 0; i < 20; ++i) y = softmax(y * t(y)) * host("f", y);
  g.add_output(y.i, "y");
  const builder long_graph = canonical(g);
  const launch_plan l = fuse(long_graph);
  CHECK(l.launches.size() == 40);  // a host function and a round over the rows, twenty times
  CHECK(l.breaks == 20);
  CHECK(l.rows.rounds == 20);
  int members = 0;
  for (const launch& k : l.launches) members += k.count;
  CHECK(members == 80);
  CHECK(members == l.nodes.size());
  for (int i = 1; i < l.nodes.size(); ++i)  // every value comes after its operands
    for (int o = 0; o < 3; ++o)
      if (const id a = long_graph.n[l.nodes[i]].operand(o); a >= 0 && l.launch_of[a] >= 0)
        CHECK(l.launch_of[a] <= l.launch_of[l.nodes[i]]);
}
