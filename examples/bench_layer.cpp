// SPDX-License-Identifier: Apache-2.0
// How fast is my layer? One line registers it with its contenders: the bare product, the formula as it is written, and the
// fused layer. Every flag of Google Benchmark works: --benchmark_filter, --benchmark_out, --benchmark_min_time.
// run: bench_layer --benchmark_min_time=0.001 --benchmark_repetitions=1
#include <graft/bench.h>

// An adapter of one's own is measured like any other.
struct scaled_lora {
  static constexpr const char* name = "scaled LoRA";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    return p.param("gain", W.rows()) * graft::lora<8>::weight(p, W);
  }
};
struct q_proj : graft::linear<256, 256, float, graft::lora<8>> {};
struct gated : graft::linear<256, 256, float, scaled_lora> {};

int main(int argc, char** argv) {
  graft::bench<q_proj>({1, 16});
  graft::bench<gated>({16}, {.name = "with a gain", .eager = false});
  return graft::run_benchmarks(argc, argv);
}
