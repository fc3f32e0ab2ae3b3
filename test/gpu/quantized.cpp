// SPDX-License-Identifier: Apache-2.0
// Quantized bases with skinny kernels: every such format, every number of tokens that has another kernel, with a branch,
// with factors, with both, against the dequantized weight in double. quantized_formats.cpp has the other formats.
#include <graft/backend/gpu/dispatch/quantized.h>

#include "quantized_case.h"

using namespace test;

namespace {

std::vector<named_quant_format> every_skinny_quant_format() {
  std::vector<named_quant_format> all;
  for (const auto* list : {&every_quant_format(), &every_wide_quant_format()})
    for (const named_quant_format& e : *list)
      if (gpu::quant_layout_of(e.format, 4096) != gpu::quant_layout::none) all.push_back(e);
  return all;
}

}  // namespace

TEST_CASE("gpu: GEMMs with weights of every format that has skinny kernels, by every kernel") {
  if (no_gpu()) return;
  const std::vector<std::pair<const char*, sizes>> methods{{"lora", {{"r", 12}}}, {"dora", {{"r", 40}}}, {"ia3", {}}};
  std::size_t turn = 0;
  for (const named_quant_format& e : every_skinny_quant_format())
    for (const long long in : {256, 1088})
      for (const long long tokens : {1, 8, 13, 32, 50, 64, 130}) {
        if (!exists_on(e.format, in)) continue;
        const char* const method = methods[turn % methods.size()].first;
        const sizes& more = methods[turn++ % methods.size()].second;
        INFO(e.name, ", ", method, ", in ", in, ", ", tokens, " tokens");
        const layer_graphs g = graphs_for("linear", method, true);
        const quantized_case c(g, with(with(usual_sizes(), {{"tokens", tokens}, {"out", 200}, {"in", in}}), more),
                               e.format);
        gpu_layer on_gpu = c.bound(dtype::bf16);
        std::vector<float> y = c.layer.buffer_for("y", g.forward);
        const status ran = on_gpu.forward(c.layer.x(), into(y));
        INFO(std::string(ran ? "" : ran.message()));
        REQUIRE(bool(ran));
        CHECK(distance(y, reference(c.layer)) < 1e-2);
      }
}
TEST_CASE("gpu: rows so long that thread blocks share them, with partial shrink results") {
  if (no_gpu()) return;
  for (const named_quant_format& e : every_skinny_quant_format())
    for (const auto& length : {std::pair{4096, 1}, {4096, 16}, {8256, 8}, {14336, 3}, {14336, 20}})
      for (const int rank : {16, 64}) {
        const int in = length.first, tokens = length.second;
        if (e.name != "nf4 64" && e.name != "nf4 64 double" && e.name != "nf4 32 double by rows" && e.name != "int8" &&
            e.name != "fp8 by row" && e.format.block_bytes == 0)
          continue;  // the same kernels read the other formats
        if (!exists_on(e.format, in)) continue;
        INFO(e.name, ", in ", in, ", ", tokens, " tokens, rank ", rank);
        const layer_graphs g = graphs_for("linear", "lora", false);
        const quantized_case c(g, with(usual_sizes(), {{"tokens", tokens}, {"out", 136}, {"in", in}, {"r", rank}}),
                               e.format);
        gpu_layer on_gpu = c.bound(dtype::bf16);
        std::vector<float> y = c.layer.buffer_for("y", g.forward), again = y;
        for (std::vector<float>* to : {&y, &again}) {  // the second call begins while the first one ends
          const status ran = on_gpu.forward(c.layer.x(), into(*to));
          INFO(std::string(ran ? "" : ran.message()));
          REQUIRE(bool(ran));
        }
        CHECK(distance(y, reference(c.layer)) < 1e-2);
        CHECK(y == again);
      }
}
TEST_CASE("gpu: the kernels of whole units, with a low-rank branch and without") {
  if (no_gpu()) return;
  for (const named_quant_format& e : every_skinny_quant_format())
    for (const auto& size : {std::pair{144, 1}, {144, 13}, {4240, 8}, {4240, 16}, {4240, 29}, {2128, 3}})
      for (const int rank : {0, 16, 48}) {
        const int most = size.first, tokens = size.second;
        const bool of_64 = e.name == "nf4 64" || e.name == "fp4 64";
        if (is_four_bit(e.format) && !of_64 && e.name != "nf4 64 double" && e.name != "nf4 32")
          continue;                                           // other kernels, or the same ones, read these formats
        const int out = of_64 ? most : std::min(most, 2192);  // more units than thread blocks
        INFO(e.name, ", out ", out, ", ", tokens, " tokens, rank ", rank);
        const bool has_bias = tokens % 8 != 0;  // without a bias, the short epilogue
        const layer_graphs g = graphs_for("linear", rank > 0 ? "lora" : "none", has_bias);
        const quantized_case c(
            g, with(usual_sizes(), {{"tokens", tokens}, {"out", out}, {"in", 4096}, {"r", std::max(rank, 1)}}),
            e.format);
        gpu_layer on_gpu = c.bound(dtype::bf16);
        std::vector<float> y = c.layer.buffer_for("y", g.forward), again = y;
        for (std::vector<float>* to : {&y, &again, &again}) {  // partial shrink results use two buffers in turn
          const status ran = on_gpu.forward(c.layer.x(), into(*to));
          INFO(std::string(ran ? "" : ran.message()));
          REQUIRE(bool(ran));
        }
        CHECK(distance(y, reference(c.layer)) < 1e-2);
        CHECK(y == again);
      }
}
