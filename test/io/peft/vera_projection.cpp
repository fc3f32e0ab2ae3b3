// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/peft/adapter_config.h>
#include <graft/io/peft/vera_projection.h>
#include <graft/io/safetensors/convert.h>

#include <filesystem>
#include <random>

using namespace graft;
using namespace graft::io;

TEST_CASE("vera_projection: equals the projections PEFT stored, bit for bit") {
  const std::filesystem::path folder = GRAFT_GOLDEN_DIR "/layers/vera/adapter";
  const auto config = read_adapter_config(folder);
  const auto weights = read_adapter_weights(folder);
  REQUIRE(config);
  REQUIRE(weights);
  const auto a = weights->find("base_model.vera_A"), b = weights->find("base_model.vera_B");
  REQUIRE(a);
  REQUIRE(b);
  const auto made =
      make_vera_projection(config->seed("projection_prng_key"), config->whole("r"),
                           static_cast<std::int64_t>(a->shape[1]), static_cast<std::int64_t>(b->shape[0]));
  REQUIRE(made);
  CHECK(made->A == *to_float(*a));
  CHECK(made->B == *to_float(*b));
}

TEST_CASE("vera_projection: the low 32 bits of the key count, as in PyTorch") {
  CHECK(make_vera_projection(5, 2, 3, 4)->A == make_vera_projection((std::uint64_t{9} << 32) + 5, 2, 3, 4)->A);
  CHECK(make_vera_projection(5, 2, 3, 4)->A != make_vera_projection(6, 2, 3, 4)->A);
}

TEST_CASE("vera_projection: sizes out of range are refused") {
  for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31}) {
    CHECK(contains(make_vera_projection(0, bad, 3, 4).message(), "expected 1 to 2147483647"));
    CHECK_FALSE(make_vera_projection(0, 2, bad, 4));
    CHECK_FALSE(make_vera_projection(0, 2, 3, bad));
  }
}

TEST_CASE("VeRA: the generator is std::mt19937") {
  for (const std::uint32_t seed : {0U, 1U, 5489U, 4294967295U}) {
    mersenne_twister ours(seed);
    std::mt19937 theirs(seed);
    for (int i = 0; i < 2000; ++i) REQUIRE(ours() == theirs());
  }
}
