// SPDX-License-Identifier: Apache-2.0
// The option --device selects the engine that runs a model: cpu, or in programs compiled by nvcc cuda (bf16) and
// cuda-f32.
#pragma once
#include <graft/model/on_cpu.h>

#include <string>

#include "arguments.h"
#ifdef GRAFT_EXAMPLES_CUDA
#include <graft/model/on_gpu.cuh>
#endif

inline void declare_engine(arguments& in, std::string& on) {
#ifdef GRAFT_EXAMPLES_CUDA
  in.option("--device cpu|cuda|cuda-f32", on, "where the model runs: cuda is bf16 on a GPU, cuda-f32 float on a GPU");
  in.earlier_name("--on");
#else
  in.option("--device cpu", on, "where the model runs; a program compiled by nvcc also takes cuda and cuda-f32");
  in.earlier_name("--on");
#endif
}

// Calls `run` with the engine's type as template argument: [&]<class Engine>() { … }.
template <class Run> graft::status on_engine(const std::string& on, Run run) {
  if (on.empty() || on == "cpu") return run.template operator()<graft::cpu::engine<float>>();
#ifdef GRAFT_EXAMPLES_CUDA
  if (on == "cuda") return run.template operator()<graft::gpu::engine<__nv_bfloat16>>();
  if (on == "cuda-f32") return run.template operator()<graft::gpu::engine<float>>();
  return graft::fail("--device takes cpu, cuda or cuda-f32, not ", on.c_str());
#else
  return graft::fail("--device takes cpu here, not ", on.c_str(), "; where nvcc is found it also takes cuda");
#endif
}
