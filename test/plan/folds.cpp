// SPDX-License-Identifier: Apache-2.0
// When the CPU folds the adapter into a copy of the weight: by the cost of its branch relative to the layer, and for a
// butterfly by the number of passes over x.
#include <graft/targets.h>

#include "../support/formula_text.h"
#include "../support/static_check.h"

using namespace test;

namespace {

template <class Adapter>
constexpr bool folds_on_a_cpu(int size, std::initializer_list<named_size> more, dtype stored = dtype::f32) {
  const graph branch = derived<linear_kind, Adapter, false>::forward;
  size_values s;
  for (const named_size& n : {named_size{"tokens", 16}, {"out", size}, {"in", size}})
    if (const int at = branch.sizes.find(n.name); at >= 0) s.v[at] = n.value;
  for (const named_size& n : more)
    if (const int at = branch.sizes.find(n.name); at >= 0) s.v[at] = n.value;
  return folds(cpu_target, branch, derived<linear_kind, Adapter, false>::folded, s, stored);
}

}  // namespace

TEST_CASE("folds: on a CPU a branch above a twentieth of a large layer, above a tenth of a small one") {
  CHECK_FALSE(folds_on_a_cpu<lora<>>(1024, {{"r", 24}}));
  CHECK(folds_on_a_cpu<lora<>>(1024, {{"r", 32}}));
  CHECK_FALSE(folds_on_a_cpu<lora<>>(512, {{"r", 16}}));
  CHECK(folds_on_a_cpu<lora<>>(512, {{"r", 32}}));
  CHECK_FALSE(folds_on_a_cpu<lora<>>(1024, {{"r", 64}}, dtype::bf16));  // the copy would have wider elements
}
TEST_CASE("folds: on a CPU a butterfly of several factors on a large weight of floats") {
  CHECK(folds_on_a_cpu<boft<dyn, dyn>>(1024, {{"b", 8}, {"m", 2}}));
  CHECK_FALSE(folds_on_a_cpu<boft<dyn, dyn>>(1024, {{"b", 8}, {"m", 1}}));
  CHECK_FALSE(folds_on_a_cpu<boft<dyn, dyn>>(512, {{"b", 8}, {"m", 2}}));
  CHECK_FALSE(folds_on_a_cpu<boft<dyn, dyn>>(1024, {{"b", 8}, {"m", 2}}, dtype::bf16));
  CHECK_FALSE(folds_on_a_cpu<oft<>>(1024, {{"b", 32}}));
}

namespace {

// LoRA with a factor for each output, with the brackets in two positions.
template <bool Outside> struct gated {
  static constexpr const char* name = "gated";
  static constexpr ex weight(scope p, ex W) {
    const ex A = p.param("A", 16, W.cols()), B = p.param("B", W.rows(), 16), f = p.param("gate", W.rows());
    return Outside ? W + f * (p.scalar("scaling") * (B * A)) : W + p.scalar("scaling") * ((f * B) * A);
  }
};
template <class Adapter> using large = linear<4096, 4096, bf16, Adapter>;
template <class Layer> constexpr int backward_kernels() {
  const graph& g = derived_of<Layer>::backward;
  return kernel_count(g, fuse(g, sm_90), sizes_at<Layer>(g, 4096), dtype::bf16);
}

}  // namespace

TEST_CASE("folds: a factor of the rows outside the update needs no copy of the weight on a GPU and no further launch") {
  BOTH((!compile<large<gated<true>>, for_target<sm_90>>::folded));
  BOTH((!compile<large<gated<false>>, for_target<sm_90>>::folded));
  BOTH((compile<large<gated<true>>, fullgraph, one_kernel, for_target<sm_90>>::kernels == 1));
  CHECK(backward_kernels<large<gated<true>>>() == backward_kernels<large<gated<false>>>());
}

TEST_CASE("folds: the bytes of the copy of the weight are a fact of the layer type") {
  BOTH((compile<large<lora<16>>, for_target<sm_90>>::folded_bytes == 0));
  BOTH((compile<large<lora<80>>, for_target<sm_90>>::folded));
  BOTH((compile<large<lora<80>>, for_target<sm_90>>::folded_bytes == 2LL * 4096 * 4096));
  BOTH((compile<linear<1024, 512, bf16, lora<256>>>::folded_bytes == 4LL * 1024 * 512));  // a CPU computes in float
  BOTH((compile<linear<1024, 512, nf4<64>, lora<256>>>::folded_bytes == 0));
  BOTH((compile<linear<dyn, 512, float, lora<256>>>::folded_bytes == unknown));
}

namespace {
template <class Layer, const target& To> std::string why() { return plan_of<Layer, To>::why_several_kernels().c_str(); }
}  // namespace

TEST_CASE("kernels: the reason for several kernels of a forward call says what to change") {
  CHECK(why<large<lora<16>>, sm_90>() ==
        "launch 0 computes x @ weight' + x @ lora_A.weight' @ (scaling * "
        "lora_B.weight)'");
  CHECK(why<linear<4096, 4096, float, lora<16>>, sm_90>() ==
        "the shrink x A' is inside the product only where the layer stores bf16 or f16, and this one stores f32");
  CHECK(why<linear<4095, 4096, bf16, lora<16>>, sm_90>() ==
        "the shrink x A' is inside the product only where inputs and outputs are multiples of 8, and these are 4096 "
        "and 4095");
  CHECK(why<large<lora<16>>, sm_80>() ==
        "only compute capability 9.0 has kernels with the shrink x A' inside the product, and sm_80 has another");
  CHECK(why<linear<256, 4096, bf16, lora<8>>, sm_90>() ==
        "with 4096 tokens, 4096 inputs, 256 outputs and rank 8 no kernel has the shrink x A' inside the product");
  CHECK(why<linear<4096, 4096, nf4<64>, lora<8>>, sm_90>() ==
        "with 4096 tokens the quantized weight is dequantized ahead of the product");
  CHECK(why<embedding<4096, 4096, bf16, lora_embedding<8>>, sm_90>().find("launch 1 computes gather_columns(") !=
        std::string::npos);
}
TEST_CASE("kernels: explain prints the reason at the launch") {
  std::string all;
  explain<linear<4096, 4096, float, lora<16>>, sm_90>([&](const text& t) { all += t.c_str(); }, 4096);
  CHECK(all.find("2 kernels, because the shrink x A' is inside the product only where") != std::string::npos);
}
