// SPDX-License-Identifier: Apache-2.0
// Constrained OFT: rows that a step made too long are at the bound after the next call, as PEFT writes them back.
#include <doctest/doctest.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

using namespace graft;
using engine = cpu::engine<float>;

namespace {

double longest_row(const std::vector<trained_parameter>& all) {
  double longest = 0;
  for (const trained_parameter& p : all)
    for (long long row = 0; row < p.value.size[0]; ++row) {
      double squares = 0;
      for (long long i = 0; i < p.value.size[1]; ++i)
        squares += std::pow(static_cast<const float*>(p.value.data)[row * p.value.size[1] + i], 2);
      longest = std::max(longest, std::sqrt(squares));
    }
  return longest;
}

}  // namespace

TEST_CASE("rows of constrained OFT go back to their bound before each call") {
  auto model = io::hf::load_model<engine>(GRAFT_GOLDEN_DIR "/models/llama/base");
  REQUIRE(model);
  const auto config = io::parse_adapter_config(
      R"({"peft_type":"OFT","target_modules":["q_proj"],"r":0,"oft_block_size":8,"coft":true,"eps":0.01})", "c");
  REQUIRE(config);
  REQUIRE(io::hf::add_adapter(*model, "fresh", *config, 7));
  REQUIRE(model->activate({"fresh"}));
  auto t = training_run<engine>::make(*model);
  REQUIRE(t);
  auto by = t->optimizer();
  REQUIRE(by);
  const std::vector<std::int64_t> ids{7, 3, 9, 5, 4, 30};
  const labeled_sequence batch[] = {{ids}};
  const double bound = 0.01 / std::sqrt(2.0 * 64 / 8);
  for (int step = 0; step < 2; ++step) {
    t->clear();
    REQUIRE(t->add(batch));
    CHECK(longest_row(t->on_host()) <= bound * (1 + 1e-6));
    REQUIRE(by->step());
    REQUIRE(t->parameters_changed());
    CHECK(longest_row(t->on_host()) > bound);
  }
}
