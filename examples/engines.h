// SPDX-License-Identifier: Apache-2.0
// Which engine a program runs a model on, by the word behind --on: cpu, or cuda, which is bf16, and cuda-f32 where the
// program was compiled by nvcc.
#pragma once
#include <graft/model/on_cpu.h>

#include <string>
#ifdef GRAFT_EXAMPLES_CUDA
#include <graft/model/on_cuda.cuh>
#endif

// Calls run with an engine's type as its template argument: [&]<class Engine>() { … }.
template <class Run> graft::status on_engine(const std::string& on, Run run) {
  if (on.empty() || on == "cpu") return run.template operator()<graft::cpu::engine<float>>();
#ifdef GRAFT_EXAMPLES_CUDA
  if (on == "cuda") return run.template operator()<graft::cuda::engine<__nv_bfloat16>>();
  if (on == "cuda-f32") return run.template operator()<graft::cuda::engine<float>>();
  return graft::fail("--on takes cpu, cuda or cuda-f32, not ", on.c_str());
#else
  return graft::fail("--on takes cpu here, not ", on.c_str(), "; where nvcc is found it also takes cuda");
#endif
}
