// SPDX-License-Identifier: Apache-2.0
// Every adapter on a fixed layer, for tests that ask the same of all of them: of the types, while compiling, or of the
// graphs, captured at run time by the same functions (test/plan/compile.cpp checks that they are the same).
#pragma once
#include <graft/graft.h>

namespace test {

using namespace graft;

// f(name, type) for each; the type is passed as a value that holds nothing.
template <class Layer> struct layer_tag { using type = Layer; };

template <class F> constexpr void for_matrix_adapters(F f) {
  using enum lokr_form;
  auto on = [&]<class A>(const char* name, A) { f(name, layer_tag<linear<1024, 1024, bf16, A>>{}); };
  on("none", none{});
  on("lora", lora<16>{});
  on("lora_with_bias", lora_with_bias<16>{});
  on("dora", dora<16>{});
  on("adalora", adalora<16>{});
  on("ia3", ia3{});
  on("ia3_feedforward", ia3_feedforward{});
  on("loha", loha<16>{});
  on("lokr", lokr<16>{});
  on("lokr, both full", lokr<16, -1, full, full>{});
  on("lokr, first low", lokr<16, -1, low_rank, full>{});
  on("lokr, both low", lokr<16, -1, low_rank, low_rank>{});
  on("vera", vera<16>{});
  on("hra", hra<16>{});
  on("hra_gram_schmidt", hra_gram_schmidt<16>{});
  on("oft", oft<32>{});
  on("oft, shared", oft<32, oft_blocks::shared>{});
  on("oft, projected", oft<32, oft_blocks::own, oft_constraint::projected>{});
  on("oft_neumann", oft_neumann<32>{});
  on("boft", boft<4, 2>{});
  on("miss", miss<16>{});
  on("miss_mini", miss_mini<16, 16>{});
  on("miss_bat", miss_bat<16>{});
  on("vblora", vblora<4, 2>{});
}
template <class F> constexpr void for_all_layers(F f) {
  for_matrix_adapters(f);
  f("lora, with bias", layer_tag<linear<1024, 1024, bf16, lora<16>, bias::yes>>{});
  f("dora, with bias", layer_tag<linear<1024, 1024, bf16, dora<16>, bias::yes>>{});
  f("ia3, with bias", layer_tag<linear<1024, 1024, bf16, ia3, bias::yes>>{});
  f("embedding, lora", layer_tag<embedding<1024, 1024, bf16, lora_embedding<16>>>{});
  f("embedding, dora", layer_tag<embedding<1024, 1024, bf16, dora_embedding<16>>>{});
  f("conv2d, lora", layer_tag<conv2d<64, 64, 3, bf16, lora<16>>>{});
  f("conv2d, dora", layer_tag<conv2d<64, 64, 3, bf16, dora<16>>>{});
  f("conv2d, loha", layer_tag<conv2d<64, 64, 3, bf16, loha<16>>>{});
  f("conv2d, loha_conv", layer_tag<conv2d<64, 64, 3, bf16, loha_conv<16>>>{});
  f("layer_norm", layer_tag<layer_norm<1024, bf16, ln_tuning>>{});
  f("rms_norm", layer_tag<rms_norm<1024, bf16, ln_tuning_weight>>{});
}

// f(name, graphs) for each.
struct captured_graphs {
  builder forward, folded, backward;
};
inline captured_graphs captured_at_run_time(const layer_formula& f) {
  return {capture_forward(f), capture_folded(f), capture_backward(f)};
}
template <class F> void for_all_graphs(F f) {
  for_all_layers([&](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    f(name, captured_at_run_time(layer_of<typename layer::kind, typename layer::adapter, layer::has_bias>()));
  });
}

}  // namespace test
