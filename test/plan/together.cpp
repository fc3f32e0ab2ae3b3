// SPDX-License-Identifier: Apache-2.0
// Products that read the same input are one launch: one kernel with few tokens, one after the other with many.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/plan/together.h>
#include <graft/targets.h>

using namespace graft;

namespace {

struct tuned : adapted<llama, on<"*_proj", lora<16>>> {
  using element = bf16;
};
struct uneven : adapted<llama, on<"q_proj", lora<16>>> {
  using element = bf16;
};

struct turned : adapted<llama, on<"*_proj", oft<32>>> {
  using element = bf16;
};
struct half_turned : adapted<llama, on<"gate_proj", oft<32>>, on<"down_proj", boft<8, 2>>> {
  using element = bf16;
};

template <class Block> int kernels_with(long long tokens) {
  block_value v = value_of<Block>();
  v.how.cached = true;
  const builder b = capture_forward(v.formula, v.how);
  const graph g = b;
  size_values s = with_nominals(g, size_values{});
  g.sizes.set_tokens(s, tokens);
  return kernels_of(g, fuse(g, sm_90), s, dtype::bf16);
}

}  // namespace

TEST_CASE("together: Q, K and V, and gate and up, each with its adapter and its activation") {
  const block_value v = value_of<tuned>();
  const plan p = fuse(capture_forward(v.formula, v.how), sm_90);
  int of_three = 0, of_two = 0, alone = 0;
  for (const launch& l : p.launches) {
    if (l.product < 0) continue;
    of_three += l.together == 2 ? 1 : 0, of_two += l.together == 1 ? 1 : 0, alone += l.together == 0 ? 1 : 0;
    for (int k = 0; k <= l.together; ++k) {
      CHECK(p.products[l.product + k].x == p.products[l.product].x);
      CHECK(p.launch_of[p.products[l.product + k].result] == p.launch_of[l.anchor]);
    }
  }
  CHECK((of_three == 1 && of_two == 1 && alone == 2));
}
TEST_CASE("together: few tokens take one kernel for them, many one for each") {
  CHECK(kernels_with<tuned>(16) == 6);
  CHECK(kernels_with<tuned>(512) == 7 + 3 + 3);  // and heads side by side, what goes to the cache, silu(gate) ⊙ up
  CHECK(kernels_with<uneven>(16) == 6);          // K and V have no adapter: one of zeros
}
TEST_CASE("together: the product of gate and up is part of their launch, where nothing else reads them") {
  const block_value v = value_of<tuned>();
  const builder b = capture_forward(v.formula, v.how);
  const graph g = b;
  const plan p = fuse(g, sm_90);
  int gates = 0;
  for (const launch& l : p.launches) {
    if (l.gated < 0) continue;
    ++gates;
    REQUIRE(l.together == 1);
    CHECK(g[l.gated].what == op::mul);
    CHECK(p.launch_of[l.gated] == p.launch_of[l.anchor]);
    CHECK(p.place[l.gated] == slot::post);
    CHECK(p.products[l.product].act == op::silu);
  }
  CHECK(gates == 1);
  target apart = sm_90;
  apart.joins_gates = false;
  CHECK(fuse(g, apart).launches.size() == p.launches.size() + 1);
}
TEST_CASE("together: products that turn one input, each its own way, are one launch with the rotations ahead of them") {
  const block_value v = value_of<turned>();
  const builder b = capture_forward(v.formula, v.how);
  const graph g = b;
  const plan p = fuse(g, sm_90);
  int turns = 0, launches = 0;
  for (const launch& l : p.launches) {
    CHECK(g[l.anchor].what != op::rotate);
    if (l.product < 0) continue;
    ++launches;
    for (int k = 0; k <= l.together; ++k) {
      const product_slots& s = p.products[l.product + k];
      REQUIRE(s.turn >= 0);
      ++turns;
      CHECK(s.x == p.products[l.product].x);
      CHECK((p.launch_of[s.turn] == p.launch_of[l.anchor] && p.place[s.turn] == slot::pre));
    }
  }
  CHECK((turns == 7 && launches == 4));
  CHECK(kernels_with<turned>(16) == kernels_with<tuned>(16) + 4);  // one ahead of each launch; gate ⊙ up is in the last
  CHECK(kernels_with<turned>(65) == kernels_with<tuned>(65) + 7);  // one for each rotation
  target apart = sm_90;
  apart.turns_inputs = false;
  CHECK(fuse(g, apart).launches.size() > p.launches.size() + 7);
}
TEST_CASE("together: of gate and up one turns its input; gate ⊙ up is what the rotation behind them reads") {
  const block_value v = value_of<half_turned>();
  const builder b = capture_forward(v.formula, v.how);
  const graph g = b;
  const plan p = fuse(g, sm_90);
  int gates = 0;
  for (const product_slots& s : p.products) {
    if (s.gate < 0) continue;
    ++gates;
    CHECK((g[s.gate].what == op::mul && g[s.turn].a == s.gate));
    CHECK(((g[s.gate].a == s.x && g[s.gate].b == s.other)));
  }
  CHECK(gates == 1);
  for (const launch& l : p.launches) CHECK(l.gated < 0);
  CHECK(kernels_with<half_turned>(8) == kernels_with<tuned>(8) + 1 + 1);    // one ahead of each launch
  CHECK(kernels_with<half_turned>(65) == kernels_with<tuned>(65) + 1 + 1);  // gate ⊙ up is a kernel of its own in both
}
TEST_CASE("together: the rotation of a data gradient is part of its product, and of the kernel where tiles are wide") {
  const graph g = derived<linear_kind, oft<dyn>, false>::backward;
  const plan p = fuse(g, sm_90);
  REQUIRE(p.products.size() == 1);
  const product_slots& s = p.products[0];
  CHECK(g[s.result].what == op::rotate);
  CHECK((s.turned == g[s.result].a && s.before_posts < 0));  // the gradient of the blocks reads dx
  CHECK(p.place[s.result] == slot::post);
  auto kernels = [&](long long tokens, long long size, long long block) {
    size_values v = with_nominals(g, size_values{});
    for (const char* name : {"in", "out"}) v.v[g.sizes.e[g.sizes.find(name)].index] = size;
    v.v[g.sizes.e[g.sizes.find("b")].index] = block;
    g.sizes.set_tokens(v, tokens);
    return kernels_of(g, p, p.launches[0], v, dtype::bf16, {});
  };
  CHECK(kernels(4096, 4096, 32) == 1);
  CHECK(kernels(2000, 1184, 8) == 1);
  CHECK(kernels(4096, 4096, 64) == 2);  // blocks cross 32 columns
  CHECK(kernels(16, 4096, 32) == 2);    // a stream of W
  CHECK(kernels(300, 384, 32) == 2);    // narrow tiles
  const graph butterfly = derived<linear_kind, boft<dyn, dyn>, false>::backward;
  const plan of_factors = fuse(butterfly, sm_90);
  auto with_factors = [&](long long factors) {
    size_values v = with_nominals(butterfly, size_values{});
    for (const char* name : {"in", "out"}) v.v[butterfly.sizes.e[butterfly.sizes.find(name)].index] = 4096;
    v.v[butterfly.sizes.e[butterfly.sizes.find("b")].index] = 8;
    v.v[butterfly.sizes.e[butterfly.sizes.find("m")].index] = factors;
    butterfly.sizes.set_tokens(v, 4096);
    int n = 0;
    for (const launch& l : of_factors.launches)
      if (l.product >= 0 && of_factors.products[l.product].turned >= 0) {
        CHECK(of_factors.products[l.product].before_posts >= 0);  // that of several factors reads the sum before
        CHECK(l.beside[0] >= 0);                                  // the gradient of the scale
        n += kernels_of(butterfly, of_factors, l, v, dtype::bf16, {});
      }
    return n;
  };
  CHECK((with_factors(1) == 1 && with_factors(3) == 1 && with_factors(4) == 2));
  target apart = sm_90;
  apart.turns_results = false;
  CHECK(fuse(g, apart).launches.size() == p.launches.size() + 1);
}
TEST_CASE("together: what training keeps stands alone") {
  const block_value v = value_of<tuned>();
  const builder forward = capture_forward(v.formula, v.how), backward = capture_backward(v.formula, v.how);
  const kept_pair kept = keep(forward, backward);
  for (const launch& l : fuse(kept.forward, sm_90).launches)
    for (int k = 0; l.together > 0 && k <= l.together; ++k) FAIL("a product that keeps S runs with others");
}
TEST_CASE("together: a target that joins none gets a launch for each product") {
  const block_value v = value_of<tuned>();
  target single = sm_90;
  single.joins_products = 1;
  for (const launch& l : fuse(capture_forward(v.formula, v.how), single).launches) CHECK(l.together == 0);
}
