// SPDX-License-Identifier: Apache-2.0
// Leaf names with their path in a model.
#include <graft/graph/formula.h>
#include <graft/graph/print.h>

#include "../support/static_check.h"

using namespace graft;

TEST_CASE("path: a dotted path equals its words entered one by one") {
  builder g;
  const scope p{&g};
  CHECK(p.in("a.b").path == p.in("a").in("b").path);
  CHECK(p.in("a.b").path != p.in("b.a").path);
  CHECK(p.in("a").in("bc").path != p.in("ab").in("c").path);
  CHECK(p.in("").path == 0);
  CHECK(p.in("ab").path != p.in("a").path);
  SAYS_NOW(g.paths().full(p.in("a.b").path, "weight"), "a.b.weight");
  SAYS_NOW(g.paths().full(0, "weight"), "weight");
}

TEST_CASE("path: the same name below two paths gives two leaves and two sizes") {
  builder g;
  const scope q = scope{&g}.in("q_proj"), v = scope{&g}.in("v_proj");
  auto leaf = [](scope p) { return p.param("lora_A.weight", p.size("r"), 8); };
  const ex a = leaf(q), b = leaf(v);
  CHECK(a.i != b.i);
  CHECK(leaf(q).i == a.i);
  CHECK(g.n.size() == 2);
  CHECK(a.rows().d != b.rows().d);
  CHECK(g.bad.what == formula_error::none);
  CHECK(g.find("q_proj.lora_A.weight") == a.i);
  CHECK(g.find("v_proj.lora_A.weight") == b.i);
  CHECK(g.find("lora_A.weight") == none_id);
  CHECK(g.find("q_proj") == none_id);
  CHECK(g.sizes().find("q_proj.r") == 0);
  CHECK(g.sizes().find("v_proj.r") == 1);
  CHECK(g.sizes().find("r") == -1);
  SAYS_NOW(expression(g, a.i), "q_proj.lora_A.weight");
  text shape;
  print_shape(shape, g, b.i);
  SAYS_NOW(shape, "[v_proj.r, 8]");
}

TEST_CASE("path: tokens is one size for the whole graph") {
  builder g;
  const scope p{&g};
  CHECK(p.in("a").tokens().d == p.in("b").tokens().d);
  CHECK(g.sizes().find("tokens") >= 0);
}

TEST_CASE("path: results are found by path and name, gradients of inputs with a d") {
  builder g;
  const scope p{&g}, here = p.in("self_attn.q_proj");
  const ex x = here.leaf(op::input, "x", 2, 1, 1, p.tokens(), 8), a = here.param("a", 8);
  g.add_output(a.i, "a", here.path), g.add_output(x.i, "x", here.path, true), g.add_output(x.i, "y");
  CHECK(g.result("self_attn.q_proj.a") == a.i);
  CHECK(g.result("self_attn.q_proj.dx") == x.i);
  CHECK(g.result("self_attn.q_proj.x") == none_id);
  CHECK(g.result("y") == x.i);
  CHECK(g.result("q_proj.a") == none_id);
  SAYS_NOW(graph(g).output_name(1), "self_attn.q_proj.dx");
}

TEST_CASE("path: two paths are ordered by their words") {
  builder g;
  const int b = g.path(0, "b"), a = g.path(0, "a"), ab = g.path(a, "b"), aa = g.path(a, "a");
  CHECK(g.paths().order(a, b) < 0);
  CHECK(g.paths().order(b, a) > 0);
  CHECK(g.paths().order(aa, ab) < 0);
  CHECK(g.paths().order(0, a) < 0);
  CHECK(g.paths().order(ab, ab) == 0);
  CHECK(g.paths().order(g.path(0, "ab"), a) > 0);
}
