// SPDX-License-Identifier: Apache-2.0
// Dropout of attention's probabilities in training: the backward pass is the derivative of the forward pass that
// dropped the same ones, what is dropped follows from the seed, and looking at the loss drops nothing.
#include <doctest/doctest.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

using namespace graft;
using engine = cpu::engine<float>;

namespace {

const std::string folder = GRAFT_GOLDEN_DIR "/models/";
const std::vector<std::vector<std::int64_t>> data{{5, 9, 100, 31, 8, 77, 12, 3}, {7, 70, 44, 2, 9}};

causal_lm<engine> tuned(const std::string& family, double dropped) {
  auto opened = io::hf::open_model_folder(folder + family + "/base", scale_granularity::flat_block);
  REQUIRE(opened);
  opened->config.attention_dropout = dropped;
  opened->config.residual_dropout = opened->config.embedding_dropout = 0;
  auto model = causal_lm<engine>::make(opened->config, std::move(opened->weights));
  REQUIRE(model);
  auto adapters = io::hf::load_adapters(folder + family + "/lora/adapter_init", *model);
  REQUIRE(adapters);
  for (module_adapter& m : adapters->set.modules) m.dropout = 0;
  REQUIRE(model->set_adapters(adapters->set));
  return std::move(*model);
}
std::vector<labeled_sequence> batch() {
  std::vector<labeled_sequence> all;
  for (const auto& s : data) all.push_back({s});
  return all;
}

}  // namespace

TEST_CASE("attention dropout: gradients are those of the loss that dropped the same probabilities") {
  for (const char* family : {"llama", "gpt2", "opt"})
    for (const bool checkpoint : {false, true}) {
      CAPTURE(family);
      causal_lm<engine> model = tuned(family, 0.4);
      auto run = training_run<engine>::make(model, {.checkpoint = checkpoint, .seed = 11});
      REQUIRE(run);
      const auto loss_now = [&] {  // of the same call again
        run->set_calls(4), run->clear();
        REQUIRE(run->parameters_changed());
        const auto loss = run->add(batch());
        REQUIRE(loss);
        return *loss;
      };
      const double first = loss_now();
      CHECK(loss_now() == first);
      const std::vector<trained_parameter> all = run->parameters();
      std::vector<std::vector<float>> gradients;
      for (const trained_parameter& p : all) {
        const auto* const g = static_cast<const float*>(p.gradient.data);
        gradients.emplace_back(g, g + p.gradient.count());
      }
      // Along the gradient of each of some parameters: its norm, squared.
      for (std::size_t k = 0; k < all.size(); k += 3) {
        auto* const values = static_cast<float*>(all[k].value.data);
        const std::vector<float> before(values, values + all[k].value.count());
        double norm = 0;
        for (const float g : gradients[k]) norm += static_cast<double>(g) * g;
        if (norm < 1e-8) continue;
        const double step = 2e-3 / std::sqrt(norm);
        double ends[2] = {0, 0};
        for (const int side : {0, 1}) {
          for (std::size_t i = 0; i < before.size(); ++i)
            values[i] = before[i] + static_cast<float>((side == 0 ? -step : step) * gradients[k][i]);
          ends[side] = loss_now();
        }
        std::copy(before.begin(), before.end(), values);
        CAPTURE(all[k].name);
        CHECK((ends[1] - ends[0]) / (2 * step) == doctest::Approx(norm).epsilon(0.02));
      }
    }
}

TEST_CASE("attention dropout: it follows from seed and call, and a look at the loss drops nothing") {
  causal_lm<engine> with = tuned("llama", 0.4), without = tuned("llama", 0);
  auto dropping = training_run<engine>::make(with, {.seed = 3}),
       plain = training_run<engine>::make(without, {.seed = 3});
  REQUIRE((dropping && plain));
  const auto first = dropping->add(batch()), second = dropping->add(batch()), usual = plain->add(batch());
  REQUIRE((first && second && usual));
  CHECK(*first != *usual);
  CHECK(*first != *second);
  const auto looked = dropping->loss(batch());
  REQUIRE(looked);
  CHECK(*looked == doctest::Approx(*usual).epsilon(1e-6));
  auto off = training_run<engine>::make(with, {.dropout = false, .seed = 3});
  REQUIRE(off);
  const auto none = off->add(batch());
  REQUIRE(none);
  CHECK(*none == doctest::Approx(*usual).epsilon(1e-6));
}
