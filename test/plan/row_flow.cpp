// SPDX-License-Identifier: Apache-2.0
// Which values can be computed in chunks of rows, and in how many rounds over the rows.
#include <graft/plan/buffers.h>

#include "../support/all_layers.h"
#include "../support/launches.h"
#include "../support/static_check.h"

using namespace test;

namespace {

row_flow rows_of(const graph& g) { return find_row_flow(g, schedule(g), reachable(g)); }

// A formula over x [tokens, n] with three square matrices.
template <class F> builder over_x(F f) {
  builder g;
  const scope p{&g};
  const extent n = p.size("n", dyn, 4096);
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  g.add_output(f(p, x).i, "y");
  return canonical(g);
}
ex times(scope p, ex x, const char* name) { return x * t(p.param(name, x.cols(), x.cols())); }

}  // namespace

TEST_CASE("row flow: every layer runs in chunks of tokens, forward and backward") {
  for_all_graphs([](const char* name, const captured_graphs& d) {
    INFO(std::string(name));
    for (const graph& g : {graph(d.forward), graph(d.folded)}) {
      const row_flow f = rows_of(g);
      CHECK(f.rounds == 1);
      for (id i = 0; i < g.size; ++i)
        CHECK((f.dependence_of[i] == row_dependence::none || f.dependence_of[i] == row_dependence::chunk));
    }
    // Gradients are sums over tokens; values that follow from these sums are computed after the last chunk.
    const graph b = d.backward;
    const row_flow f = rows_of(b);
    CHECK(f.rounds <= 2);
    const int dx = b.find_output("dx");
    if (dx >= 0) CHECK(f.dependence_of[b.out[dx].at] == row_dependence::chunk);
    for (id i = 0; i < b.size; ++i)
      if (f.dependence_of[i] == row_dependence::whole) CHECK(f.round[i] == 1);
  });
}

TEST_CASE("row flow: gradients are sums over tokens, activations are not") {
  const builder b = capture_backward(layer_of<linear_kind, lora<>, false>());
  const row_flow f = rows_of(b);
  CHECK(f.dependence_of[b.result("lora_A.weight")] == row_dependence::sum);
  CHECK(f.dependence_of[b.result("dx")] == row_dependence::chunk);
  // The gradient of lora_B is scaled after the sum over tokens.
  CHECK(f.dependence_of[b.result("lora_B.weight")] == row_dependence::whole);
  CHECK(f.dependence_of[b.n[b.result("lora_B.weight")].a] == row_dependence::sum);
  CHECK(f.dependence_of[b.find("dy")] == row_dependence::none);
  CHECK(f.axis[b.find("dy")] == 2);
}

// ---- attention: rows that depend on each other

TEST_CASE("row flow: softmax(x x') x is one round, because x is an input") {
  const builder g = over_x([](scope, ex x) { return softmax(x * t(x)) * x; });
  const row_flow f = rows_of(g);
  CHECK(f.rounds == 1);
  for (id i = 0; i < g.n.size(); ++i)
    if (!is_leaf(g.n[i].what)) CHECK(f.dependence_of[i] == row_dependence::chunk);
  const launch_plan p = fuse(g);
  SAYS_NOW(launches(g), "rowwise, prologue matmul, epilogue matmul");
  // x x': the left operand is read in chunks, the right one as a whole.
  const id scores = g.n[g.n[g.result("y")].a].a;
  CHECK(g.n[scores].what == op::matmul);
  CHECK(reads_by_chunk(g, p, scores, 0));
  CHECK_FALSE(reads_by_chunk(g, p, scores, 1));
  CHECK(reads_by_chunk(g, p, g.result("y"), 0));
  CHECK_FALSE(reads_by_chunk(g, p, g.result("y"), 1));
}

TEST_CASE("row flow: computed queries, keys and values need two rounds") {
  const builder g = over_x([](scope p, ex x) {
    const ex q = times(p, x, "q"), k = times(p, x, "k"), v = times(p, x, "v");
    return softmax(q * t(k)) * v;
  });
  const row_flow f = rows_of(g);
  CHECK(f.rounds == 2);
  const launch_plan p = fuse(g);
  CHECK(p.launches.size() == 2);
  const node y = g.n[g.result("y")], scores = g.n[g.n[y.a].a];
  CHECK(f.round[scores.a] == 0);
  CHECK(f.round[scores.b] == 0);
  CHECK(f.round[y.b] == 0);
  CHECK(f.round[y.a] == 1);
  CHECK(f.round[g.result("y")] == 1);
  // The second round reads keys and values as a whole and queries in chunks, so all three are stored.
  CHECK(crosses_launches(g, p, scores.b));
  CHECK(crosses_launches(g, p, y.b));
  CHECK(crosses_launches(g, p, scores.a));
  CHECK_FALSE(crosses_launches(g, p, y.a));
}

TEST_CASE("row flow: an operation that combines rows runs on all rows, after the previous round") {
  const builder g = over_x([](scope p, ex x) {
    const ex scores = times(p, x, "q") * t(x);
    return strict_upper(scores) * x;
  });
  const row_flow f = rows_of(g);
  const id upper = g.n[g.result("y")].a;
  CHECK(g.n[upper].what == op::strict_upper);
  CHECK(f.dependence_of[upper] == row_dependence::whole);
  CHECK(f.round[upper] == 1);
  CHECK(f.dependence_of[g.result("y")] == row_dependence::chunk);
  SAYS_NOW(launches(g), "GEMM, epilogue matmul+matmul | small matrices, strict_upper | GEMM, epilogue matmul");
  const builder inverted = over_x([](scope, ex x) { return inverse(x * t(x)) * x; });
  CHECK(rows_of(inverted).dependence_of[inverted.n[inverted.result("y")].a] == row_dependence::whole);
  // A transposition makes the rows columns, so it needs all of them.
  const builder transposed = over_x([](scope, ex x) { return t(exp(x)); });
  CHECK(rows_of(transposed).dependence_of[transposed.result("y")] == row_dependence::whole);
  // A host function gets all rows.
  const builder hosted = over_x([](scope, ex x) { return host("f", x); });
  CHECK(rows_of(hosted).dependence_of[hosted.result("y")] == row_dependence::whole);
}

TEST_CASE("row flow: a reshaped input shares the input's memory, also if it has no rows") {
  const builder g = over_x([](scope p, ex x) { return exp(reshape(x, p.size("n", dyn, 4096), p.tokens())); });
  const launch_plan p = fuse(g);
  const buffers b = assign_buffers(g, p);
  const id reshaped = g.n[g.result("y")].a;
  CHECK(p.rows.dependence_of[reshaped] == row_dependence::whole);
  CHECK(b.same_as[reshaped] == g.find("x"));
  SAYS_NOW(launches(g), "small matrices, exp");
}
