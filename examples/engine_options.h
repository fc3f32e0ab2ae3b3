// SPDX-License-Identifier: Apache-2.0
// The option --on selects the engine that runs a model: cpu, or in programs compiled by nvcc gpu (bf16) and gpu-f32.
#pragma once
#include <graft/model/on_cpu.h>

#include <string>

#include "arguments.h"
#ifdef GRAFT_EXAMPLES_CUDA
#include <graft/model/on_gpu.cuh>
#endif

inline void declare_engine(arguments& in, std::string& on) {
#ifdef GRAFT_EXAMPLES_CUDA
  in.option("--on cpu|gpu|gpu-f32", on, "where the model runs: gpu is bf16 on a GPU, gpu-f32 float on a GPU");
#else
  in.option("--on cpu", on, "where the model runs; a program compiled by nvcc also takes gpu and gpu-f32");
#endif
}

// Calls `run` with the engine's type as template argument: [&]<class Engine>() { … }.
template <class Run> graft::status on_engine(const std::string& on, Run run) {
  if (on.empty() || on == "cpu") return run.template operator()<graft::cpu::engine<float>>();
#ifdef GRAFT_EXAMPLES_CUDA
  if (on == "gpu") return run.template operator()<graft::gpu::engine<__nv_bfloat16>>();
  if (on == "gpu-f32") return run.template operator()<graft::gpu::engine<float>>();
  return graft::fail("--on takes cpu, gpu or gpu-f32, not ", on.c_str());
#else
  return graft::fail("--on takes cpu here, not ", on.c_str(),
                     "; compiled by nvcc (-DGRAFT_EXAMPLES_CUDA=ON) it also takes gpu");
#endif
}
