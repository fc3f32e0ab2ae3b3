// SPDX-License-Identifier: Apache-2.0
// Blocks bound to tensors: what runs is what the formula says, gradients are those of finite differences, and equal blocks
// share their programs.
#include <doctest/doctest.h>
#include <graft/adapter/dora.h>
#include <graft/adapter/lokr.h>
#include <graft/backend/cpu/engine_plan.h>
#include <graft/block/gpt2.h>
#include <graft/block/llama.h>
#include <graft/block/opt.h>
#include <graft/block/qwen3.h>
#include <graft/run/block.h>

#include "../support/random_block.h"

using namespace test;

namespace {

const adaption lora_everywhere[] = {{"*_proj", formula_of<lora<>>()}};
const adaption mixed[] = {{"*_proj", formula_of<lora<>>()}, {"v_proj", formula_of<dora<>>()}};

}  // namespace

TEST_CASE("block: forward is the formula as it is written, and backward its slope") {
  struct example {
    block_formula formula;
    std::vector<adaption> adapters;
    std::vector<const char*> facts;
  };
  const example all[] = {
      {block_of<llama>(), {mixed[0], mixed[1]}, {"attention_bias"}},
      {block_of<qwen3>(), {lora_everywhere[0]}, {}},
      {block_of<opt>(), {lora_everywhere[0]}, {"attention_bias", "norm_before"}},
      {block_of<opt>(), {}, {}},
      {block_of<gpt2>(), {{"c_attn", formula_of<dora<>>()}, {"c_fc", formula_of<lora<>>()}}, {}},
      {{"embed", &gpt2::embed, true}, {{"wte", formula_of<lora_embedding<>>()}}, {}},
      {with_loss({"head", &llama::head}), {{"lm_head", formula_of<lora<>>()}}, {}},
  };
  for (const example& e : all) {
    INFO(std::string(e.formula.name));
    random_block b({e.formula, e.adapters, e.facts}, 11);
    const std::vector<double> y = b.forward();
    const std::vector<double> written = b.literal();
    REQUIRE(y.size() == written.size());
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(written[i]).epsilon(1e-9).scale(1));
    b.check_slopes();
  }
}

TEST_CASE("block: many rows on threads are what few rows are") {
  random_block few({block_of<llama>(), {mixed[0], mixed[1]}, {}}, 300);
  const std::vector<double> y = few.forward(), written = few.literal();
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(written[i]).epsilon(1e-9).scale(1));
}

TEST_CASE("block: equal blocks share a program, whatever the depth") {
  auto keys = [](int depth, int adapted) {
    block_programs<engine> programs;
    std::vector<std::unique_ptr<random_block>> blocks;
    for (int l = 0; l < depth; ++l) {
      std::vector<adaption> rules;
      if (l < adapted) rules.push_back(lora_everywhere[0]);
      blocks.push_back(std::make_unique<random_block>(block_spec{block_of<llama>(), rules, {}}, 5, &programs, l));
      static_cast<void>(blocks.back()->forward());
    }
    std::vector<unsigned long long> all;
    for (int k = 0; k < programs.count(); ++k) all.push_back(programs[k].key());
    return all;
  };
  CHECK(keys(2, 2) == keys(32, 32));
  CHECK(keys(2, 2).size() == 1);
  CHECK(keys(2, 1) == keys(32, 7));
  CHECK(keys(32, 7).size() == 2);
}

TEST_CASE("block: blocks that share a program keep their own tensors") {
  block_programs<engine> programs;
  random_block a({block_of<llama>(), {lora_everywhere[0]}, {}}, 5, &programs, 1),
      b({block_of<llama>(), {lora_everywhere[0]}, {}}, 5, &programs, 2);
  const std::vector<double> first = a.forward(), second = b.forward();
  CHECK(first != second);
  CHECK(a.forward() == first);
  CHECK(b.forward() == second);
  CHECK(programs.count() == 1);
}

TEST_CASE("block: another rank is another program") {
  block_programs<engine> programs;
  random_block a({block_of<llama>(), {lora_everywhere[0]}, {}}, 5, &programs, 1);
  random_block b({block_of<llama>(), {lora_everywhere[0]}, {}}, 5, &programs, 2, 7);
  static_cast<void>(a.forward()), static_cast<void>(b.forward());
  CHECK(programs.count() == 2);
}

TEST_CASE("block: sizes that an adapter finds for itself") {
  random_block b({block_of<llama>(), {{"down_proj", formula_of<lokr<>>()}}, {}}, 6);
  const std::vector<double> y = b.forward(), written = b.literal();
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(written[i]).epsilon(1e-9).scale(1));
}

TEST_CASE("block: what is missing or does not fit is said, with the path") {
  random_block b({block_of<llama>(), {lora_everywhere[0]}, {}}, 5);
  static_cast<void>(b.forward());
  auto says = [](const status& s) { return std::string(s.message()); };
  bound_block<engine>& block = b.block;
  block_call c = b.call();
  c[call_input::positions] = {};
  CHECK(says(block.forward(c)) == "layer 0: tensor 'positions' is missing in this call");
  c = b.call();
  b.positions[2] = 99;
  CHECK(says(block.forward(c)) == "layer 0: id 99 at position 2 is outside the table of 40 rows");
  b.positions[2] = 2, b.span[6] = 12;
  CHECK(says(block.forward(c)) == "layer 0: row 1 looks at rows 0 to 12, there are 5");
  b.span[6] = 2;
  CHECK(bool(block.forward(c)));
  block.values.tensors["mlp.down_proj.weight"] = view_of(b.positions.data(), 5);
  CHECK(says(block.bind({8})) ==
        "layer 0: tensor 'mlp.down_proj.weight' is stored as i64, expected f32, f64, bf16 or f16");
  block.values.tensors.erase("mlp.down_proj.weight");
  CHECK(says(block.bind({8})) ==
        "layer 0: tensor 'mlp.down_proj.weight' is not set, expected [hidden, intermediate] = [16, 24]");
}
