// SPDX-License-Identifier: Apache-2.0
#include "../support/all_layers.h"
#include "../support/static_check.h"

using namespace test;

namespace {

template <class Adapter, class Kind = linear_kind, bool Bias = false> constexpr plan_fingerprint of_forward() {
  return fingerprint_of(derived<Kind, Adapter, Bias>::forward, fuse(derived<Kind, Adapter, Bias>::forward));
}

}  // namespace

TEST_CASE("fingerprint: layers that differ in shape, rank or element type have one fingerprint") {
  BOTH(compile<linear<1024, 1024, bf16, lora<16>>>::key == compile<linear<64, 48, float, lora<2>>>::key);
  BOTH(compile<linear<512, 768, float, lora<>>>::key == compile<linear<dyn, dyn, double, lora<4>>>::key);
  BOTH(compile<linear<1024, 64, float, oft<8>>>::key == compile<linear<64, 64, float, oft<4>>>::key);
  BOTH(of_forward<lora<4>>() == of_forward<lora<64>>());
}

TEST_CASE("fingerprint: the key belongs to the form that runs") {
  BOTH((compile<linear<64, 48, float, lora<16>>>::folded));
  BOTH((compile<linear<64, 48, float, lora<16>>>::key == compile<linear<64, 48, float, none>>::key));
}

TEST_CASE("fingerprint: methods with the same work per call share a fingerprint") {
  // x W' + (x P') Q': P and Q are computed before a call, so their formulas do not matter.
  BOTH(of_forward<lora<>>() == of_forward<vera<>>());
  BOTH(of_forward<lora<>>() == of_forward<adalora<>>());
  BOTH((of_forward<oft<dyn>>() == of_forward<oft_neumann<dyn, dyn>>()));
}

// Keys name kernels across programs and machines, so another compiler or CPU must give the same numbers.
TEST_CASE("fingerprint: keys are the same on every compiler and machine") {
  BOTH(of_forward<none>().key == 12371948799900018692ULL);
  BOTH(of_forward<lora<>>().key == 905735267634141456ULL);
  BOTH((of_forward<dora<>, linear_kind, true>().key == 1035018837483211379ULL));
  BOTH((of_forward<boft<dyn, dyn>>().key == 2209478148817364993ULL));
  BOTH((of_forward<lora_embedding<>, embedding_kind>().key == 16719481823899548022ULL));
  BOTH((of_forward<lora<>, conv2d_kind>().key == 13199952063518854927ULL));
  const builder b = capture_backward(layer_of<linear_kind, hra<>, true>());
  CHECK(fingerprint_of(b, fuse(b)).key == 11957863332018171870ULL);
}

namespace {

// A long chain whose last value reads the one numbered `from`.
graft::plan_fingerprint chain(int length, int from) {
  builder g;
  const scope p{&g};
  ex y = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), p.size("n"));
  for (int i = 0; i < length; ++i) y = i % 2 == 0 ? tanh(y) : exp(y);
  g.add_output((y + ex{&g, from}).i, "y");
  return fingerprint_of(g, fuse(g));
}

}  // namespace

TEST_CASE("fingerprint: operand indices are part of the key, however many nodes precede them") {
  CHECK(chain(300, 4).words.size() == chain(300, 260).words.size());
  CHECK(chain(300, 4).key != chain(300, 260).key);  // 4 and 260 agree in eight bits
  CHECK(chain(300, 260).key == chain(300, 260).key);
  CHECK(chain(1500, 700).words.size() == 1502 * 9);
  CHECK(chain(1500, 700).key != chain(1500, 701).key);
}

TEST_CASE("fingerprint: methods with different work have different keys") {
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

TEST_CASE("fingerprint: layer norm without a bias and rms norm have different keys") {
  CHECK(of_forward<none, norm_kind<false>>().key != of_forward<none, norm_kind<true>>().key);
}

TEST_CASE("fingerprint: a third operand is part of the key") {
  auto made = [](bool own) {
    builder g{};
    const scope p{&g};
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens"), p.size("in"));
    const ex dy = p.leaf(op::input, "dy", 2, 1, 1, p.size("tokens"), p.size("in"));
    g.add_output(make_node::normalize_grad(g, x.i, p.scalar("eps").i, own ? x.i : dy.i, false), "dx");
    return fingerprint_of(g, fuse(g)).key;
  };
  CHECK(made(true) != made(false));
}

TEST_CASE("fingerprint: every data-time value has equally many words, one of them for transpositions") {
  constexpr int words = 9;                             // operation, launch, three operands, four whole-number arguments
  BOTH(of_forward<none>().words.size() == 2 * words);  // x, the product
  BOTH(of_forward<lora<>>().words.size() == 5 * words);  // x, three products, a sum
  auto product = [](bool tb) {
    builder g{};
    const scope p{&g};
    const ex w = p.leaf(op::base, "weight", 2, 1, 1, p.size("n", dyn, 64), p.size("n", dyn, 64));
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens"), p.size("n", dyn, 64));
    g.add_output(make_node::matmul(g, x.i, w.i, false, tb), "y");
    return fingerprint_of(g, fuse(g)).key;
  };
  CHECK(product(true) != product(false));
}

TEST_CASE("fingerprint: equality is of all words") {
  graft::plan_fingerprint a, b;
  a.add(1), b.add(1);
  CHECK(a == b);
  a.add(2);
  CHECK_FALSE(a == b);
  b.add(3);
  CHECK_FALSE(a == b);
}
