// SPDX-License-Identifier: Apache-2.0
// A model that 2 and 4 ranks share on the GPU computes what one computes: logits, tokens, merged weights, losses and
// trained adapters. The ranks are threads that take turns on the one GPU.
#include <doctest/doctest.h>
#include <graft/model/on_cuda.cuh>
#include <graft/parallel/alone.h>

#include <cstdio>
#include <optional>

#include "../support/gpu_layer.h"
#include "../support/ranks_in_turns.h"
#include "../support/shared_model.h"

using namespace graft;
using test::model_numbers;

namespace {

const std::string tiny_llama = GRAFT_GOLDEN_DIR "/models/llama";

bool no_gpu() {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}
using wide = cuda::engine<float>;
// In 16 bits a sum over the ranks is rounded before a row is added to it, and in a product with that row behind it: ranks
// are then not further from what f32 gives than one is, but for half as much.
template <class Engine> void compare(const std::string& adapter, int ranks) {
  constexpr bool exact = Engine::keeps == dtype::f32;
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

TEST_CASE("ranks that share a model on the GPU compute what one computes") {
  if (no_gpu()) return;
  for (const char* adapter : {"lora", "dora", "oft", "ia3", "hra", "loha", "lora_modules_to_save", "lora_embedding"})
    compare<wide>(adapter, 2);
  compare<wide>("lora", 4);
  compare<wide>("dora", 4);
}

TEST_CASE("ranks that share a model of 16 bits differ by its rounding") {
  if (no_gpu()) return;
  for (const char* adapter : {"lora", "dora"}) compare<cuda::engine<__nv_bfloat16>>(adapter, 2);
}

TEST_CASE("a model on the GPU refuses ranks that exchange host memory") {
  if (no_gpu()) return;
  model_options how;
  how.ranks = std::make_shared<alone>();
  const auto model = io::hf::load_model<wide>(tiny_llama + "/base", how);
  REQUIRE(!model);
  CHECK(std::string(model.message()).find("nccl_communicator") != std::string::npos);
}
