// SPDX-License-Identifier: Apache-2.0
// Umbrella header for benchmarks of your own layers with Google Benchmark; each layer gives one line per token count.
//     struct q_proj : graft::linear<1024, 1024, float, graft::lora<16>> {};
//     int main(int argc, char** argv) {
//       graft::bench<q_proj>({1, 16, 512});
//       return graft::run_benchmarks(argc, argv);        // accepts Google Benchmark's flags and writes its JSON
//     }
// In a file that nvcc compiles the function is graft::gpu::bench, and the baseline is cuBLASLt.
#pragma once
#if defined(__CUDACC__)
#include <graft/bench/gpu.cuh>
#else
#include <graft/bench/cpu.h>
#endif
