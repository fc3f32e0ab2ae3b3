// SPDX-License-Identifier: Apache-2.0
// Measuring one's own layers with Google Benchmark: a line for each.
//     struct q_proj : graft::linear<1024, 1024, float, graft::lora<16>> {};
//     int main(int argc, char** argv) {
//       graft::bench<q_proj>({1, 16, 512});
//       return graft::run_benchmarks(argc, argv);        // its flags, its JSON
//     }
// In a file that nvcc compiles it is graft::cuda::bench, against cuBLASLt.
#pragma once
#if defined(__CUDACC__)
#include <graft/bench/cuda.cuh>
#else
#include <graft/bench/cpu.h>
#endif
