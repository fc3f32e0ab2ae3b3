// SPDX-License-Identifier: Apache-2.0
// A tensor-parallel model over NCCL with one rank on one GPU: the graph of the rank has all collectives, which are real
// and return their input. Logits, tokens, losses and trained adapters equal those of the model without ranks, also if
// the steps of generation and training are captured with their collectives and replayed.
//     nccl_tensor GOLDEN/models/llama lora dora oft
#include <graft/model/on_gpu.cuh>
#include <graft/parallel/nccl.h>
#include <graft/parallel/single_process.h>

#include <cstdio>

#include "../support/shared_model.h"

using namespace graft;
using test::model_numbers;

namespace {

template <class Engine>
result<model_numbers> over_nccl(const std::string& folder, const std::string& adapter, step_mode mode) {
  single_process nobody;
  auto made = nccl_communicator::make(nobody, {.timeout = 30});
  if (!made) return made.failure();
  return test::numbers_of<Engine>(folder, adapter, std::shared_ptr<communicator>(std::move(*made)), mode);
}
// In 16 bits the addends of a row-parallel GEMM are applied after the all-reduce, not in its epilogue. The distance of
// the logits from those in f32 may therefore be 1.5 times that of the model without ranks.
template <class Engine> int compare(const std::string& folder, const std::string& adapter, const char* type) {
  constexpr bool exact = Engine::storage_type == dtype::f32;
  const auto wide = test::numbers_of<gpu::engine<float>>(folder, adapter, nullptr);
  if (!wide) return std::printf("%s: %s\n", adapter.c_str(), wide.message()), 1;
  int wrong = 0;
  for (const step_mode mode : {step_mode::standard, step_mode::reduce_overhead}) {
    const auto ranks = over_nccl<Engine>(folder, adapter, mode);
    const auto alone = test::numbers_of<Engine>(folder, adapter, nullptr, mode);
    if (!ranks || !alone) return std::printf("%s: %s\n", adapter.c_str(), ranks ? alone.message() : ranks.message()), 1;
    const double logits = test::relative_distance(ranks->logits, wide->logits),
                 rounding = test::relative_distance(alone->logits, wide->logits),
                 losses = test::relative_distance(ranks->losses, alone->losses),
                 trained = test::relative_distance(ranks->trained, alone->trained);
    const bool same = ranks->tokens == alone->tokens || !exact;
    const bool near = exact ? test::furthest(ranks->logits, alone->logits) < 1e-5 : logits < 1.5 * rounding;
    const bool right = near && losses < (exact ? 1e-6 : 1e-2) && trained < (exact ? 1e-6 : 1e-2) && same;
    std::printf("%s, %s, %s: logits %.1e from f32 (without ranks %.1e), losses %.1e, adapters %.1e%s%s\n",
                adapter.c_str(), type, mode == step_mode::standard ? "launch by launch" : "captured", logits, rounding,
                losses, trained, same ? "" : ", other tokens", right ? "" : ": wrong");
    wrong += right ? 0 : 1;
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return std::puts("no GPU: nothing to share"), 0;
  if (argc < 3) return std::fprintf(stderr, "usage: nccl_tensor MODEL ADAPTER...\n"), 2;
  int wrong = 0;
  for (int a = 2; a < argc; ++a) {
    wrong += compare<gpu::engine<float>>(argv[1], argv[a], "f32");
    wrong += compare<gpu::engine<__nv_bfloat16>>(argv[1], argv[a], "bf16");
  }
  return wrong == 0 ? 0 : 1;
}
