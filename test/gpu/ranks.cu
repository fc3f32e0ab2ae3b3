// SPDX-License-Identifier: Apache-2.0
// A tensor-parallel model of 2 and 4 ranks on the GPU equals the model on one: logits, tokens, merged weights, losses
// and trained adapters. The ranks are threads that share the GPU in turns.
#include <doctest/doctest.h>
#include <graft/model/on_gpu.cuh>
#include <graft/parallel/single_process.h>

#include <cstdio>
#include <optional>

#include "../support/gpu_layer.h"
#include "../support/shared_model.h"
#include "../support/simulated_ranks.h"

using namespace graft;
using test::model_numbers;

namespace {

const std::string tiny_llama = GRAFT_GOLDEN_DIR "/models/llama";

bool no_gpu() {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}
using wide = gpu::engine<float>;
// In 16 bits the addends of a row-parallel GEMM are applied after the rounded all-reduce, not in its epilogue. The
// distance of the logits from those in f32 may therefore be 1.5 times that of the model without ranks.
template <class Engine> void compare(const std::string& adapter, int ranks) {
  constexpr bool exact = Engine::storage_type == dtype::f32;
  INFO(adapter, " on ", ranks, " ranks");
  const auto alone = test::numbers_of<Engine>(tiny_llama, adapter, nullptr);
  REQUIRE_MESSAGE(bool(alone), alone.message());
  using made = std::optional<result<model_numbers>>;
  const auto shared = test::by_ranks<made>(ranks, [&](std::shared_ptr<communicator> mine) -> made {
    return test::numbers_of<Engine>(tiny_llama, adapter, std::move(mine));
  });
  const result<model_numbers> expected = exact ? alone : test::numbers_of<wide>(tiny_llama, adapter, nullptr);
  REQUIRE_MESSAGE(bool(expected), expected.message());
  const double rounding = test::relative_distance(alone->logits, expected->logits);
  for (const made& rank : shared) {
    REQUIRE_MESSAGE(bool(*rank), rank->message());
    const model_numbers& r = **rank;
    CHECK(r.merged == alone->merged);
    CHECK(test::relative_distance(r.losses, alone->losses) < (exact ? 1e-6 : 1e-2));
    CHECK(test::relative_distance(r.trained, alone->trained) < (exact ? 1e-6 : 1e-2));
    if (!exact) CHECK(test::relative_distance(r.logits, expected->logits) < 1.5 * rounding);
    if (exact) CHECK(test::furthest(r.logits, alone->logits) < 1e-5);
    if (exact) CHECK(r.tokens == alone->tokens);
  }
}

}  // namespace

TEST_CASE("gpu ranks: a tensor-parallel model equals the model on one rank") {
  if (no_gpu()) return;
  for (const char* adapter : {"lora", "dora", "oft", "ia3", "hra", "loha", "lora_modules_to_save", "lora_embedding"})
    compare<wide>(adapter, 2);
  compare<wide>("lora", 4);
  compare<wide>("dora", 4);
}

TEST_CASE("gpu ranks: a tensor-parallel model in 16 bits differs by rounding") {
  if (no_gpu()) return;
  for (const char* adapter : {"lora", "dora"}) compare<gpu::engine<__nv_bfloat16>>(adapter, 2);
}

TEST_CASE("gpu ranks: a model refuses a communicator for host memory") {
  if (no_gpu()) return;
  model_options how;
  how.ranks = std::make_shared<single_process>();
  const auto model = io::hf::load_model<wide>(tiny_llama + "/base", how);
  REQUIRE(!model);
  CHECK(std::string(model.message()).find("nccl_communicator") != std::string::npos);
}
