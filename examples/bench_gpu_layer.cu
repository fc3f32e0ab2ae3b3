// SPDX-License-Identifier: Apache-2.0
// Benchmarks a layer on a GPU against the bare GEMM of cuBLASLt and against the formula op by op (eager).
//     bench_gpu_layer --benchmark_out=mine.json --benchmark_filter=fused
#include <graft/bench.h>

struct q_proj : graft::linear<4096, 4096, graft::bf16, graft::lora<16>> {};

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU: nothing to measure"), 0;
  graft::gpu::bench<q_proj>({1, 16, 4096});
  return graft::run_benchmarks(argc, argv);
}
