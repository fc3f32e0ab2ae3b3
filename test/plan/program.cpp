// SPDX-License-Identifier: Apache-2.0
#include "../support/all_layers.h"
#include "../support/both.h"

using namespace test;

namespace {

template <class Adapter, class Kind = linear_kind, bool Bias = false> constexpr program of_forward() {
  return encode(derived<Kind, Adapter, Bias>::forward, fuse(derived<Kind, Adapter, Bias>::forward));
}

}  // namespace

TEST_CASE("program: layers that differ in shape, rank or element type have one program") {
  BOTH(compile<linear<1024, 1024, bf16, lora<16>>>::key == compile<linear<64, 48, float, lora<4>>>::key);
  BOTH(compile<linear<64, 48, float, lora<>>>::key == compile<linear<dyn, dyn, double, lora<4>>>::key);
  BOTH(compile<linear<64, 64, float, oft<32>>>::key == compile<linear<64, 64, float, oft<8>>>::key);
  BOTH(of_forward<lora<4>>() == of_forward<lora<64>>());
}

TEST_CASE("program: methods that do the same at data-time share it") {
  // x W' + (x P') Q': what P and Q are made of is over when data comes
  BOTH(of_forward<lora<>>() == of_forward<vera<>>());
  BOTH(of_forward<lora<>>() == of_forward<adalora<>>());
  BOTH((of_forward<oft<dyn>>() == of_forward<oft_neumann<dyn, dyn>>()));
}

TEST_CASE("program: methods that do something else do not") {
  struct entry {
    const char* name;
    unsigned long long key;
  };
  constexpr entry distinct[] = {
      {"none", of_forward<none>().key},
      {"none with bias", of_forward<none, linear_kind, true>().key},
      {"lora", of_forward<lora<>>().key},
      {"lora with bias", of_forward<lora<>, linear_kind, true>().key},
      {"dora", of_forward<dora<>>().key},
      {"dora with bias", of_forward<dora<>, linear_kind, true>().key},
      {"ia3", of_forward<ia3>().key},
      {"ia3_feedforward", of_forward<ia3_feedforward>().key},
      {"lokr", of_forward<lokr<>>().key},
      {"hra", of_forward<hra<>>().key},
      {"oft", of_forward<oft<dyn>>().key},
      {"boft", of_forward<boft<dyn, dyn>>().key},
      {"miss", of_forward<miss<>>().key},
      {"miss_mini", of_forward<miss_mini<>>().key},
      {"embedding", of_forward<none, embedding_kind>().key},
      {"lora embedding", of_forward<lora_embedding<>, embedding_kind>().key},
      {"conv2d", of_forward<none, conv2d_kind>().key},
      {"lora conv2d", of_forward<lora<>, conv2d_kind>().key},
      {"layer norm", of_forward<none, norm_kind<false>, true>().key},
      {"rms norm", of_forward<none, norm_kind<true>>().key},
  };
  for (const entry& a : distinct)
    for (const entry& b : distinct) {
      INFO(a.name, " and ", b.name);
      CHECK((&a == &b) == (a.key == b.key));
    }
}

TEST_CASE("program: layer norm without a bias and rms norm are different programs") {
  CHECK(of_forward<none, norm_kind<false>>().key != of_forward<none, norm_kind<true>>().key);
}

TEST_CASE("program: a third operand counts") {
  auto made = [](bool own) {
    builder g{};
    const scope p{&g};
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens"), p.size("in"));
    const ex dy = p.leaf(op::input, "dy", 2, 1, 1, p.size("tokens"), p.size("in"));
    g.give(make::normalize_grad(g, x.i, p.scalar("eps").i, own ? x.i : dy.i, false), "dx");
    return encode(g, fuse(g)).key;
  };
  CHECK(made(true) != made(false));
}

TEST_CASE("program: one word per data-time value, transpositions in it") {
  BOTH(of_forward<none>().size == 2);    // x, the product
  BOTH(of_forward<lora<>>().size == 5);  // x, three products, a sum
  auto product = [](bool tb) {
    builder g{};
    const scope p{&g};
    const ex w = p.leaf(op::base, "weight", 2, 1, 1, p.size("n", dyn, 64), p.size("n", dyn, 64));
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens"), p.size("n", dyn, 64));
    g.give(make::matmul(g, x.i, w.i, false, tb), "y");
    return encode(g, fuse(g)).key;
  };
  CHECK(product(true) != product(false));
}

TEST_CASE("program: equality is of all words") {
  program a, b;
  a.add(1), b.add(1);
  CHECK(a == b);
  a.add(2);
  CHECK_FALSE(a == b);
  b.add(3);
  CHECK_FALSE(a == b);
}
