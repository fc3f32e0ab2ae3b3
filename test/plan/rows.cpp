// SPDX-License-Identifier: Apache-2.0
// Which values can be computed a few rows at a time, and in how many rounds.
#include <graft/plan/buffers.h>

#include "../support/all_layers.h"
#include "../support/both.h"
#include "../support/launches.h"

using namespace test;

namespace {

row_flow rows_of(const graph& g) { return flow_of_rows(g, schedule(g), reachable(g)); }

// A formula over x [tokens, n] with three square matrices.
template <class F> builder over_x(F f) {
  builder g;
  const scope p{&g};
  const extent n = p.size("n", dyn, 4096);
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  g.give(f(p, x).i, "y");
  return canonical(g);
}
ex times(scope p, ex x, const char* name) { return x * t(p.param(name, x.cols(), x.cols())); }

}  // namespace

TEST_CASE("rows: every layer runs a few tokens at a time, forward and backward") {
  for_all_graphs([](const char* name, const captured_graphs& d) {
    INFO(std::string(name));
    for (const graph& g : {graph(d.forward), graph(d.folded)}) {
      const row_flow f = rows_of(g);
      CHECK(f.rounds == 1);
      for (id i = 0; i < g.size; ++i) CHECK((f.how[i] == reach::none || f.how[i] == reach::piece));
    }
    // Gradients are sums over tokens; what follows from the sums alone comes after the last row.
    const graph b = d.backward;
    const row_flow f = rows_of(b);
    CHECK(f.rounds <= 2);
    const int dx = b.find_output("dx");
    if (dx >= 0) CHECK(f.how[b.out[dx].at] == reach::piece);
    for (id i = 0; i < b.size; ++i)
      if (f.how[i] == reach::whole) CHECK(f.round[i] == 1);
  });
}

TEST_CASE("rows: gradients are sums over tokens, activations are not") {
  const builder b = capture_backward(layer_of<linear_kind, lora<>, false>());
  const row_flow f = rows_of(b);
  CHECK(f.how[b.result("lora_A.weight")] == reach::sum);
  CHECK(f.how[b.result("dx")] == reach::piece);
  // lora_B's is scaled afterwards: what is summed is below it
  CHECK(f.how[b.result("lora_B.weight")] == reach::whole);
  CHECK(f.how[b.n[b.result("lora_B.weight")].a] == reach::sum);
  CHECK(f.how[b.find("dy")] == reach::none);
  CHECK(f.axis[b.find("dy")] == 2);
}

// ---- attention: what mixes rows

TEST_CASE("rows: softmax(x x') x is one round, since x is there from the start") {
  const builder g = over_x([](scope, ex x) { return softmax(x * t(x)) * x; });
  const row_flow f = rows_of(g);
  CHECK(f.rounds == 1);
  for (id i = 0; i < g.n.size(); ++i)
    if (!is_leaf(g.n[i].what)) CHECK(f.how[i] == reach::piece);
  const plan p = fuse(g);
  SAYS_NOW(launches(g), "rowwise: pre=matmul product=softmax post=matmul");
  // x x': the left x by the piece, the right one as a whole
  const id scores = g.n[g.n[g.result("y")].a].a;
  CHECK(g.n[scores].what == op::matmul);
  CHECK(reads_by_piece(g, p, scores, 0));
  CHECK_FALSE(reads_by_piece(g, p, scores, 1));
  CHECK(reads_by_piece(g, p, g.result("y"), 0));
  CHECK_FALSE(reads_by_piece(g, p, g.result("y"), 1));
}

TEST_CASE("rows: with queries, keys and values of their own it is two rounds") {
  const builder g = over_x([](scope p, ex x) {
    const ex q = times(p, x, "q"), k = times(p, x, "k"), v = times(p, x, "v");
    return softmax(q * t(k)) * v;
  });
  const row_flow f = rows_of(g);
  CHECK(f.rounds == 2);
  const plan p = fuse(g);
  CHECK(p.launches.size() == 2);
  const node y = g.n[g.result("y")], scores = g.n[g.n[y.a].a];
  CHECK(f.round[scores.a] == 0);
  CHECK(f.round[scores.b] == 0);
  CHECK(f.round[y.b] == 0);
  CHECK(f.round[y.a] == 1);
  CHECK(f.round[g.result("y")] == 1);
  // keys and values are read by the second round as a whole, queries by the piece: all three are stored
  CHECK(crosses_launches(g, p, scores.b));
  CHECK(crosses_launches(g, p, y.b));
  CHECK(crosses_launches(g, p, scores.a));
  CHECK_FALSE(crosses_launches(g, p, y.a));
}

TEST_CASE("rows: what mixes the rows of a call is computed on all of them, after the round before") {
  const builder g = over_x([](scope p, ex x) {
    const ex scores = times(p, x, "q") * t(x);
    return strict_upper(scores) * x;
  });
  const row_flow f = rows_of(g);
  const id upper = g.n[g.result("y")].a;
  CHECK(g.n[upper].what == op::upper);
  CHECK(f.how[upper] == reach::whole);
  CHECK(f.round[upper] == 1);
  CHECK(f.how[g.result("y")] == reach::piece);
  SAYS_NOW(launches(g), "product: post=matmul,matmul | small: strict_upper | product: post=matmul");
  const builder inverted = over_x([](scope, ex x) { return inverse(x * t(x)) * x; });
  CHECK(rows_of(inverted).how[inverted.n[inverted.result("y")].a] == reach::whole);
  // columns of tokens: a transposition is the whole of it
  const builder turned = over_x([](scope, ex x) { return t(exp(x)); });
  CHECK(rows_of(turned).how[turned.result("y")] == reach::whole);
  // a host function sees everything
  const builder hosted = over_x([](scope, ex x) { return host("f", x); });
  CHECK(rows_of(hosted).how[hosted.result("y")] == reach::whole);
}

TEST_CASE("rows: a reshaped input is the input, also where it has no rows any more") {
  const builder g = over_x([](scope p, ex x) { return exp(reshape(x, p.size("n", dyn, 4096), p.tokens())); });
  const plan p = fuse(g);
  const buffers b = assign_buffers(g, p);
  const id reshaped = g.n[g.result("y")].a;
  CHECK(p.rows.how[reshaped] == reach::whole);
  CHECK(b.same_as[reshaped] == g.find("x"));
  SAYS_NOW(launches(g), "small: exp");
}
