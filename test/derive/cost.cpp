// SPDX-License-Identifier: Apache-2.0
// The cost of a graph on given sizes, compared with counts by hand.
#include "../support/formula_text.h"

using namespace test;

namespace {

constexpr long long T = 512, out = 1024, in = 768, r = 16;

constexpr size_values sizes(const graph& g) {
  size_values s;
  for (const auto& [name, n] :
       {std::pair{"tokens", T}, std::pair{"out", out}, std::pair{"in", in}, std::pair{"r", r}, std::pair{"b", 32LL},
        std::pair{"m", 2LL}, std::pair{"vocab", 5000LL}, std::pair{"dim", in}, std::pair{"n", in}})
    if (const int at = g.sizes.find(name); at >= 0) s.v[at] = n;
  return s;
}
template <class Adapter, class Kind = linear_kind, bool Bias = false>
constexpr cost forward(dtype stored = dtype::f32, dtype moved = dtype::f32) {
  const graph g = derived<Kind, Adapter, Bias>::forward;
  return cost_of(g, sizes(g), {stored}, moved);
}
template <class Adapter> constexpr cost backward() {
  const graph g = derived<linear_kind, Adapter, false>::backward;
  return cost_of(g, sizes(g), {dtype::f32}, dtype::f32);
}
constexpr long long base = 2 * T * out * in;

}  // namespace

TEST_CASE("cost: flops of a call") {
  BOTH(forward<none>().flops == base);
  BOTH(forward<none, linear_kind, true>().flops == base + T * out);  // the bias
  BOTH(forward<lora<>>().flops == base + 2 * T * r * (in + out) + T * out);
  BOTH(forward<dora<>>().flops == base + 2 * T * r * (in + out) + 2 * T * out);
  BOTH(forward<ia3>().flops == base + T * out);
  BOTH(forward<ia3_feedforward>().flops == base + T * in);
  BOTH(forward<loha<>>().flops == base + 2 * T * r * r * (in + out) + T * out);
  BOTH(forward<hra<>>().flops == base + 2 * T * r * (in + out) + T * out);
  BOTH(forward<oft<dyn>>().flops == base + 2 * T * in * 32);
  BOTH(forward<boft<dyn, dyn>>().flops == base + 2 * T * in * 32 * 2 + T * out);
  BOTH(forward<miss<>>().flops == base + 2 * T * r * out + T * out);  // folding x needs additions only
}

TEST_CASE("cost: flops per parameter change, and per load") {
  BOTH(forward<none>().parameter_flops == 0);
  BOTH(forward<none>().load_flops == 0);
  BOTH(forward<lora<>>().parameter_flops == out * r);  // the scaling
  BOTH(forward<vera<>>().parameter_flops == out * r + r * in);
  BOTH(forward<dora<>>().load_flops == 2 * out * in);  // ||W||
  // W A', A A', B (A A'), two row-wise dot products, and elementwise work on columns
  constexpr long long columns = forward<dora<>>().parameter_flops - 2 * out * in * r - 2 * r * in * r -
                                2 * out * r * r - 2 * (2 * out * r) - out * r;
  BOTH(columns > 0);
  BOTH(columns <= 10 * out);
}

TEST_CASE("cost: LoKr's branch is two small products") {
  static constexpr size_values s = [] {
    const graph g = derived<linear_kind, lokr<>, false>::forward;
    size_values v = sizes(g);
    v.v[g.sizes.find("a")] = 32;
    v.v[g.sizes.find("c")] = 24;
    return v;
  }();
  constexpr cost c = cost_of(derived<linear_kind, lokr<>, false>::forward, s, {dtype::f32}, dtype::f32);
  BOTH(c.flops == base + 2 * T * (24 * 32 * 32 + 32 * 24 * 32) + T * out);
  BOTH(c.parameter_flops == 2 * 32 * 32 * r + 24 * 32);
}

TEST_CASE("cost: gathers and rows") {
  BOTH(forward<none, embedding_kind>().flops == 0);
  BOTH(forward<lora_embedding<>, embedding_kind>().flops == 2 * T * r * in + T * in);
  BOTH(forward<none, norm_kind<true>>().flops == 8 * T * in + T * in);
}

TEST_CASE("cost: the bytes of a call are what it reads and writes once") {
  BOTH(forward<none>().bytes == 4 * (T * in + out * in + T * out));
  BOTH(forward<lora<>>().bytes == 4 * (T * in + out * in + r * in + out * r + T * out));
  BOTH(forward<lora<>>(dtype::bf16, dtype::bf16).bytes == 2 * (T * in + out * in + r * in + out * r + T * out));
  BOTH(forward<none>(dtype::nf4, dtype::bf16).bytes == out * in / 2 + 2 * (T * in + T * out));
  BOTH(forward<none>(dtype::int8, dtype::bf16).bytes == out * in + 2 * (T * in + T * out));
  BOTH(forward<none, embedding_kind>().bytes == 4 * (2 * T * in) + 8 * T);  // the gathered rows, not the table
}

TEST_CASE("cost: precomputed values, and the largest of them") {
  BOTH(forward<none>().precomputed_bytes == 0);
  BOTH(forward<lora<>>().precomputed_bytes == 4 * out * r);
  BOTH(forward<lora<>>().largest_precomputed == out * r);
  BOTH(forward<dora<>>().precomputed_bytes == 4 * (out * r + out));
  BOTH(forward<oft<dyn>>().largest_precomputed == in * 32);
  BOTH(forward<miss_bat<>>().largest_precomputed == out * in);  // the only method with a second matrix of this size
}

TEST_CASE("cost: the backward of LoRA") {
  // dy W, dy (s B), that times A, x A' and the two gradients; an addition for dx, a scaling for B
  BOTH(backward<lora<>>().flops == base + 2 * T * r * (3 * in + 2 * out) + T * in + out * r);
  BOTH(backward<none>().flops == base);
}

TEST_CASE("cost: the roofline is the slower of computing and moving bytes") {
  constexpr device fast_memory{"", 1e12, 1e30}, fast_units{"", 1e30, 1e9};
  constexpr cost c = forward<lora<>>();
  BOTH(c.roofline_seconds(fast_memory) == static_cast<double>(c.flops) / 1e12);
  BOTH(c.roofline_seconds(fast_units) == static_cast<double>(c.bytes) / 1e9);
}

TEST_CASE("cost: a branch above a tenth of the layer is folded, above a quarter if the copy is wider") {
  constexpr long long small = 1 << 12, large = 1 << 20;
  CHECK_FALSE(worth_folding(100, 100, false, small));
  CHECK_FALSE(worth_folding(110, 100, false, small));
  CHECK(worth_folding(111, 100, false, small));
  CHECK_FALSE(worth_folding(105, 100, false, large));  // a large weight: above a twentieth
  CHECK(worth_folding(106, 100, false, large));
  CHECK_FALSE(worth_folding(125, 100, true, large));
  CHECK(worth_folding(126, 100, true, large));
  CHECK_FALSE(worth_folding(0, 0, false, large));
  CHECK_FALSE(worth_folding(100, 0, false, large));  // a gather has no arithmetic to save
}

TEST_CASE("cost: unknown sizes give an unknown cost") {
  const graph g = derived<linear_kind, lora<>, false>::forward;
  CHECK(element_count(g, g.result("y"), size_values{}) == unknown);
  CHECK(element_count(g, g.result("y"), sizes(g)) == T * out);
  CHECK(nominal_count(g, g.find("weight")) == 4096 * 4096);
}

TEST_CASE("cost: sizes whose products overflow give the largest cost") {
  using large = linear<1'000'000, 1'000'000, bf16, lora<16>>;
  using larger = linear<1'000'000, 1'000'000, bf16, dora<16>>;
  BOTH(forward_cost<large>(4096).flops == 8'192'266'240'000'000);
  BOTH(forward_cost<large>(2'147'483'647).flops == saturated);
  BOTH(forward_cost<large>(2'147'483'647).bytes == 8'591'934'652'000'000);
  BOTH(backward_cost<larger>(2'147'483'647).flops == saturated);
  BOTH(forward_cost<larger>(2'147'483'647).load_flops == 2'000'000'000'000);
  BOTH(worth_folding(saturated, saturated, false, saturated) == false);
  BOTH(worth_folding(saturated, saturated / 2, false, saturated) == true);
}
