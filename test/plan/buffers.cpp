// SPDX-License-Identifier: Apache-2.0
#include <graft/plan/buffers.h>

#include <string>
#include <vector>

#include "../support/all_layers.h"
#include "../support/static_check.h"

using namespace test;

namespace {

struct planned {
  graph g;
  launch_plan p;
  buffers where;
  explicit planned(const graph& from) : g(from), p(fuse(from)), where(assign_buffers(from, p)) {}
  id product_of(const char* left, const char* right) const {
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      if (v.what == op::matmul && same_text(g[v.a].name, left) && same_text(g[v.b].name, right)) return i;
    }
    return none_id;
  }
};
template <class Adapter, bool Bias = false> planned forward() {
  return planned(derived<linear_kind, Adapter, Bias>::forward);
}

}  // namespace

TEST_CASE("buffers: LoRA's base product and its branch are accumulated in the memory of y") {
  const planned l = forward<lora<>>();
  const id y = l.g.result("y"), base = l.product_of("x", "weight"), down = l.product_of("x", "lora_A.weight");
  const id up = l.g[y].b;
  CHECK(l.g[y].what == op::add);
  CHECK(l.g[up].a == down);
  CHECK(l.where.writes_to[y] == 0);
  CHECK(l.where.into[base] == y);
  CHECK(l.where.into[up] == y);
  CHECK(l.where.computed_with[down] == y);
  CHECK(l.where.cell[up] == -1);
  // The workspace is one value of r numbers per token; nothing has the size of y.
  CHECK(l.where.cells == 1);
  CHECK(l.where.cell[down] == 0);
  CHECK(l.where.cell[base] == -1);
}

TEST_CASE("buffers: a bias and a factor per output are applied in place in y") {
  const planned p = forward<dora<>, true>();
  for (id i = p.g.result("y"); i >= 0; i = p.where.inplace[i]) {
    CHECK(p.where.writes_to[i] == 0);
    CHECK(p.where.cell[i] == -1);
  }
  CHECK(p.where.cells == 1);
}

TEST_CASE("buffers: the bare layer needs no workspace") {
  CHECK(forward<none>().where.cells == 0);
  CHECK(forward<none, true>().where.cells == 0);
  CHECK(forward<ia3, true>().where.cells == 0);
  CHECK(forward<oft<dyn>>().where.cells == 1);  // the rotated x
}

TEST_CASE("buffers: a reshaped input is the input") {
  const planned p = forward<lokr<>>();
  int aliases = 0;
  for (int i = 0; i < p.g.size; ++i)
    if (p.g.n[i].what == op::reshape && same_text(p.g[p.g.n[i].a].name, "x")) {
      ++aliases;
      CHECK(p.where.same_as[i] == p.g.find("x"));
      CHECK(p.where.cell[i] == -1);
    }
  CHECK(aliases > 0);
}

namespace {

// Simulates the launches chunk by chunk with the owner of each memory cell after each step. Returns the text of the
// first value that is read after its memory was reused; empty if there is none.
std::string first_clobbered(const graph& g) {
  const planned p(g);
  constexpr int outputs = 1000;
  auto memory = [&](id i) { return p.where.writes_to[i] >= 0 ? outputs + p.where.writes_to[i] : p.where.cell[i]; };
  auto reusable = [&](id i) {  // has memory that later values may reuse
    return i >= 0 && p.p.live[i] && p.p.rows.dependence_of[i] == row_dependence::chunk && p.where.same_as[i] < 0 &&
           !p.where.stored[i];
  };
  std::vector<id> owner(2 * outputs, none_id);
  std::string wrong;
  auto read = [&](id i, int launch) {
    if (!reusable(i) || !wrong.empty()) return;
    const std::string name = expression(g, i, {nullptr, 2}).c_str();
    if (launch >= 0 && p.p.launch_of[i] != launch)
      wrong = name + " is read by another launch but not stored";
    else if (p.where.into[i] >= 0)
      wrong = name + " is read but only accumulated";
    else if (memory(i) < 0)
      wrong = name + " has no memory";
    else if (owner[static_cast<std::size_t>(memory(i))] != i)
      wrong = name + " was overwritten";
  };
  for (const id i : p.p.nodes) {
    const node& v = g[i];
    const int launch = p.p.launch_of[i];
    if (p.where.same_as[i] >= 0) continue;                                // shares memory, nothing to compute
    if (p.where.into[i] >= 0 || p.where.computed_with[i] >= 0) continue;  // accumulated when the sum is computed
    auto is_product = [&](id o) { return o >= 0 && p.where.into[o] == i; };
    for (int o = 0; o < 3; ++o)
      if (v.operand(o) >= 0 && !is_product(v.operand(o))) read(v.operand(o), launch);
    if (reusable(i)) {
      if (memory(i) < 0) return "no memory for " + std::string(expression(g, i, {nullptr, 2}).c_str());
      // The memory that is about to be overwritten must not hold an operand, unless the value takes it over.
      for (int o = 0; o < 3; ++o)
        if (const id a = v.operand(o);
            reusable(a) && !is_product(a) && memory(a) == memory(i) && !is_pointwise(v.what) && v.what != op::reshape)
          wrong = "an op that cannot work in place does";
      owner[static_cast<std::size_t>(memory(i))] = i;
    }
    auto read_operands = [&](id of) {
      for (int o = 0; o < 3; ++o)
        if (g[of].operand(o) >= 0) read(g[of].operand(o), launch);
    };
    for (const id product : {v.a, v.b}) {
      if (!is_product(product)) continue;
      if (const id first = g[product].a; p.where.computed_with[first] == i) {
        read_operands(first);
        owner[static_cast<std::size_t>(memory(first))] = first;
      }
      read_operands(product);
    }
  }
  for (int k = 0; k < g.outs; ++k) read(g.out[k].at, -1);
  return wrong;
}

}  // namespace

// x A' B' is deferred into the last sum, after x C' D': x A' must stay valid until then.
TEST_CASE("buffers: the operands of a deferred product live until the sum") {
  builder b;
  const scope p{&b};
  const extent n = p.size("n"), r = p.size("r");
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), n);
  const ex A = p.param("A", r, n), B = p.param("B", n, r), C = p.param("C", r, n), D = p.param("D", n, r);
  const ex deferred = x * t(A) * t(B);
  b.add_output((x * t(C) * t(D) + deferred).i, "y");
  const planned l{b};
  const id y = l.g.result("y");
  CHECK(l.where.into[l.g[y].b] == y);
  CHECK(l.where.cells == 2);
  CHECK(first_clobbered(b) == "");
}

TEST_CASE("buffers: no value of any graph is read after its memory was reused") {
  for_all_graphs([](const char* name, const captured_graphs& d) {
    INFO(std::string(name));
    CHECK(first_clobbered(d.forward) == "");
    CHECK(first_clobbered(d.folded) == "");
    CHECK(first_clobbered(d.backward) == "");
  });
}
