// SPDX-License-Identifier: Apache-2.0
// Benchmarks a layer on the CPU: one line registers the bare GEMM, the formula op by op (eager), and the fused layer.
// Every flag of Google Benchmark works: --benchmark_filter, --benchmark_out, --benchmark_min_time.
// run: bench_layer --benchmark_min_time=0.001 --benchmark_repetitions=1
#include <graft/bench.h>

// Your own adapter is measured like any other.
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
