// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/safetensors/optimizer_state.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

struct run {
  std::vector<float> w{1, -2, 3, 4}, dw{0.5F, 0.1F, -0.2F, 0.3F};
  adamw optimizer = std::move(*adamw::make({{"w", view_into(w.data(), 2, 2), view_into(dw.data(), 2, 2)}}));
};

}  // namespace

TEST_CASE("optimizer_state: a run with a state that was read continues with the same bits") {
  temp_folder dir;
  run one, two;
  for (int i = 0; i < 3; ++i) REQUIRE(one.optimizer.step());
  REQUIRE(write_optimizer(dir.path / "optimizer.safetensors", one.optimizer));
  two.w = one.w;
  const auto file = read_safetensors(dir.path / "optimizer.safetensors");
  REQUIRE(file);
  REQUIRE(read_optimizer(*file, two.optimizer));
  CHECK(two.optimizer.steps() == 3);
  REQUIRE((one.optimizer.step() && two.optimizer.step()));
  CHECK(one.w == two.w);
}

TEST_CASE("optimizer_state: a file of other parameters changes nothing") {
  temp_folder dir;
  run one;
  REQUIRE(one.optimizer.step());
  std::vector<float> v(4), dv(4);
  const auto message = [&](adamw& other) {
    CHECK(write_optimizer(dir.path / "o", other));
    const auto file = read_safetensors(dir.path / "o");
    REQUIRE(file);
    return std::string(read_optimizer(*file, one.optimizer).message());
  };
  const std::vector<float> mean(one.optimizer.mean(0).begin(), one.optimizer.mean(0).end());
  auto named = std::move(*adamw::make({{"v", view_into(v.data(), 2, 2), view_into(dv.data(), 2, 2)}}));
  CHECK(message(named).find("there is no tensor 'w.exp_avg'") != std::string::npos);
  auto shaped = std::move(*adamw::make({{"w", view_into(v.data(), 4), view_into(dv.data(), 4)}}));
  CHECK(message(shaped).find("tensor 'w.exp_avg' is F32 [4], expected F32 [2, 2]") != std::string::npos);
  auto more = std::move(*adamw::make({{"w", view_into(v.data(), 2, 2), view_into(dv.data(), 2, 2)},
                                      {"x", view_into(v.data(), 4), view_into(dv.data(), 4)}}));
  CHECK(message(more).find("holds 5 tensors, expected the 3") != std::string::npos);
  CHECK(std::equal(mean.begin(), mean.end(), one.optimizer.mean(0).begin()));
  CHECK(one.optimizer.steps() == 1);
}
