// SPDX-License-Identifier: Apache-2.0
#include <graft/plan/buffers.h>

#include "../support/all_layers.h"
#include "../support/both.h"

using namespace test;

namespace {

struct planned {
  graph g;
  stages when;
  buffers where;
  constexpr explicit planned(const graph& from) : g(from), when(schedule(from)), where(assign_buffers(from, when)) {}
  constexpr id product_of(const char* left, const char* right) const {
    for (int i = 0; i < g.size; ++i) {
      const node& v = g.n[i];
      if (v.what == op::matmul && same_text(g[v.a].name, left) && same_text(g[v.b].name, right))
        return static_cast<id>(i);
    }
    return none_id;
  }
};
constexpr planned lora_forward{derived<linear_kind, lora<>, false>::forward};

}  // namespace

TEST_CASE("buffers: LoRA's base product is written into y, the side branch accumulated there") {
  static constexpr id y = lora_forward.g.result("y"), base = lora_forward.product_of("x", "weight"),
                      down = lora_forward.product_of("x", "lora_A.weight"), up = lora_forward.g[y].b;
  BOTH(lora_forward.g[y].what == op::add);
  BOTH(lora_forward.g[up].a == down);
  BOTH(lora_forward.where.writes_to[y] == 0);
  BOTH(lora_forward.where.inplace[y] == base);
  BOTH(lora_forward.where.writes_to[base] == 0);
  BOTH(lora_forward.where.into[up] == y);
  BOTH(lora_forward.where.slot[up] == -1);
  // The workspace is one value of r numbers per token: nothing of y's size.
  BOTH(lora_forward.where.slots == 1);
  BOTH(lora_forward.where.slot[down] == 0);
  BOTH(lora_forward.where.slot[base] == -1);
}

TEST_CASE("buffers: a bias and a factor per output happen in y") {
  constexpr planned p{derived<linear_kind, dora<>, true>::forward};
  for (id i = p.g.result("y"); i >= 0; i = p.where.inplace[i]) {
    CHECK(p.where.writes_to[i] == 0);
    CHECK(p.where.slot[i] == -1);
  }
  CHECK(p.where.slots == 1);
}

TEST_CASE("buffers: the base layer alone needs no workspace") {
  BOTH((planned(derived<linear_kind, none, false>::forward).where.slots == 0));
  BOTH((planned(derived<linear_kind, none, true>::forward).where.slots == 0));
  BOTH((planned(derived<linear_kind, ia3, true>::forward).where.slots == 0));
  BOTH((planned(derived<linear_kind, oft<dyn>, false>::forward).where.slots == 1));  // the rotated x
}

TEST_CASE("buffers: a reshaped input is the input") {
  constexpr planned p{derived<linear_kind, lokr<>, false>::forward};
  int aliases = 0;
  for (int i = 0; i < p.g.size; ++i)
    if (p.g.n[i].what == op::reshape && same_text(p.g[p.g.n[i].a].name, "x")) {
      ++aliases;
      CHECK(p.where.same_as[i] == p.g.find("x"));
      CHECK(p.where.slot[i] == -1);
    }
  CHECK(aliases > 0);
}

namespace {

// Plays the schedule: who owns each piece of memory after each step. Returns the text of the first value that is read
// after its memory was given to another; empty when there is none.
std::string first_clobbered(const graph& g) {
  const planned p(g);
  const node_set live = reachable(g);
  constexpr int outputs = 1000;
  auto memory = [&](id i) {
    return p.where.writes_to[i] >= 0 ? outputs + p.where.writes_to[i] : static_cast<int>(p.where.slot[i]);
  };
  auto stored = [&](id i) {
    return i >= 0 && live.in[i] && p.when.by_token[i] && !is_leaf(g[i].what) && p.where.same_as[i] < 0;
  };
  id owner[2 * outputs];
  for (id& o : owner) o = none_id;
  std::string wrong;
  auto read = [&](id i) {
    if (!stored(i) || !wrong.empty()) return;
    const std::string name = expression(g, i, {nullptr, 2}).c_str();
    if (p.where.into[i] >= 0)
      wrong = name + " is read but only accumulated";
    else if (memory(i) < 0)
      wrong = name + " has no memory";
    else if (owner[memory(i)] != i)
      wrong = name + " was overwritten";
  };
  for (int k = 0; k < g.size; ++k) {
    const id i = static_cast<id>(k);
    const node& v = g.n[k];
    if (!live.in[k] || p.when.of[k] != stage::data || is_leaf(v.what) || p.where.same_as[i] >= 0) continue;
    if (p.where.into[i] >= 0) continue;  // computed when the sum is
    id product = none_id;
    for (const id o : {v.a, v.b})
      if (o >= 0 && p.where.into[o] == i) product = o;
    for (int o = 0; o < 3; ++o)
      if (v.operand(o) >= 0 && v.operand(o) != product) read(v.operand(o));
    if (stored(i)) {
      if (memory(i) < 0) return "no memory for " + std::string(expression(g, i, {nullptr, 2}).c_str());
      // What is about to be overwritten must not be an operand, unless it is taken over.
      for (int o = 0; o < 3; ++o)
        if (const id a = v.operand(o);
            stored(a) && a != product && memory(a) == memory(i) && !is_pointwise(v.what) && v.what != op::reshape)
          wrong = "an op that cannot work in place does";
      owner[memory(i)] = i;
    }
    if (product >= 0)
      for (int o = 0; o < 3; ++o)
        if (g[product].operand(o) >= 0) read(g[product].operand(o));
  }
  for (int k = 0; k < g.outs; ++k) read(g.out[k].at);
  return wrong;
}

}  // namespace

// x A' B' is deferred into the last sum, after x C' D': x A' must outlive everything in between.
TEST_CASE("buffers: the operands of a deferred product live until the sum") {
  static constexpr builder g = [] {
    builder b{};
    const scope p{&b};
    const extent n = p.size("n"), r = p.size("r");
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens"), n);
    auto times = [&](id a, const char* name, extent rows, extent cols) {
      return make::matmul(b, a, p.param(name, rows, cols).i, false, true);
    };
    const id deferred = times(times(x.i, "A", r, n), "B", n, r);
    b.give(make::add(b, times(times(x.i, "C", r, n), "D", n, r), deferred), "y");
    return b;
  }();
  constexpr planned p{graph(g)};
  CHECK(p.where.into[p.g[p.g.result("y")].b] == p.g.result("y"));
  CHECK(p.where.slots == 2);
  CHECK(first_clobbered(g) == "");
}

TEST_CASE("buffers: nothing is read after its memory was given away, in any graph") {
  for_all_layers([](const char* name, auto tag) {
    using d = derived_of<typename decltype(tag)::type>;
    INFO(name);
    CHECK(first_clobbered(d::forward) == "");
    CHECK(first_clobbered(d::folded) == "");
    CHECK(first_clobbered(d::backward) == "");
  });
}
