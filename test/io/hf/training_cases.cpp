// SPDX-License-Identifier: Apache-2.0
// The training cases of PEFT's tests under torch.compile (tests/test_torch_compile.py), with PEFT's names: five steps
// of batches of four at a rate of 1e-3, with the library's loop and with a user's loop. Logits stay finite and change,
// the loss is that of a language model, and a base with the saved adapter gives the same logits and tokens.
#include <doctest/doctest.h>
#include <graft/io/hf/checkpoint.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <graft/run/cpu_layer.h>

#include "../support.h"

using namespace graft;

namespace {

using engine = cpu::engine<float>;

struct compiled_case {
  const char* name;    // PEFT's name of the setting
  const char* folder;  // the adapter that PEFT initialized
};
constexpr compiled_case cases[] = {
    {"adalora", "adalora"},
    {"boft", "boft"},
    {"dora", "dora"},
    {"ia3", "ia3"},
    {"ln_tuning", "ln_tuning"},
    {"loha", "loha"},
    {"lokr", "lokr"},
    {"lora", "lora"},
    {"lora-embedding", "lora_embedding"},
    {"lora-with-modules_to_save", "lora_modules_to_save"},
    {"oft", "oft_default"},
    {"vera", "vera"},
};

std::string models() { return std::string(GRAFT_GOLDEN_DIR) + "/models/llama/"; }

trainer<engine>::sequences texts() {
  trainer<engine>::sequences all;
  for (std::int64_t s = 0; s < 20; ++s) {
    all.emplace_back();
    for (std::int64_t t = 0; t < 12; ++t) all.back().push_back((17 * s + 5 * t + t * t) % 250);
  }
  return all;
}

std::vector<float> logits(causal_lm<engine>& model) {
  const std::vector<std::int64_t> ids{1, 5, 7, 90, 33};
  const sequence_chunk rows[] = {{ids, 0, 0}};
  std::vector<float> all(ids.size() * static_cast<std::size_t>(model.config().vocabulary));
  const status s = model.logits(rows, all);
  REQUIRE_MESSAGE(s, s.message());
  return all;
}
std::vector<std::int64_t> tokens(causal_lm<engine>& model) {
  generation_settings settings;
  settings.max_new_tokens = 10, settings.eos_tokens = no_eos_tokens;
  auto g = generator<engine>::make(model, settings, 1, 16);
  REQUIRE(g);
  const std::vector<std::vector<std::int64_t>> prompts{{1, 5, 7, 90, 33}};
  const auto made = g->run(prompts);
  REQUIRE(made);
  return (*made)[0].tokens;
}
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(std::isfinite(a[i]));
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

trainer_settings five_steps(const io::hf::loaded_adapters& adapters) {
  trainer_settings settings;
  settings.steps = 5, settings.batch = 4;
  settings.optimizer.rate = 1e-3;
  if (same_text(adapters.config.type->type, "ADALORA")) settings.adalora = io::hf::adalora_settings_of(adapters.config);
  return settings;
}
// A user's loop: forward, backward, AdamW and, for AdaLoRA, the allocation of ranks after each step.
std::vector<double> own_loop(causal_lm<engine>& model, const trainer_settings& settings) {
  auto run = training_run<engine>::make(model);
  REQUIRE_MESSAGE(run, run.message());
  auto optimizer = run->optimizer(settings.optimizer);
  REQUIRE(optimizer);
  std::optional<rank_allocator> ranks;
  if (settings.adalora) ranks = *rank_allocator::make(adalora_layers(run->parameters()), *settings.adalora);
  const auto data = texts();
  std::vector<double> losses;
  for (std::size_t step = 0; step < 5; ++step) {
    std::vector<labeled_sequence> batch;
    for (std::size_t i = 0; i < 4; ++i) batch.push_back({data[4 * step + i]});
    run->clear();
    const result<double> loss = run->add(batch);
    REQUIRE_MESSAGE(loss, loss.message());
    losses.push_back(*loss + (ranks ? ranks->orthogonal_regularization() : 0.0));
    REQUIRE(optimizer->step());
    if (ranks) ranks->allocate(static_cast<long long>(step));
    REQUIRE(run->parameters_changed());
  }
  return losses;
}
std::vector<double> ready_loop(causal_lm<engine>& model, const trainer_settings& settings) {
  const auto data = texts();
  auto t = trainer<engine>::make(model, data, settings);
  REQUIRE_MESSAGE(t, t.message());
  std::vector<double> losses;
  const status s = t->run([&](const step_report& r) { return losses.push_back(r.loss), true; });
  REQUIRE_MESSAGE(s, s.message());
  return losses;
}

template <class Loop> void train_save_load(const compiled_case& c, Loop loop) {
  CAPTURE(std::string(c.name));
  auto model = io::hf::load_model<engine>(models() + "base");
  REQUIRE_MESSAGE(model, model.message());
  auto adapters = io::hf::load_adapters(models() + c.folder + "/adapter_init", *model);
  REQUIRE_MESSAGE(adapters, adapters.message());
  REQUIRE(model->set_adapters(adapters->set));
  const std::vector<float> before = logits(*model);
  const std::vector<double> losses = loop(*model, five_steps(*adapters));
  REQUIRE(losses.size() == 5);
  for (const double loss : losses) CHECK((loss > 0 && loss < 20));
  REQUIRE(model->set_adapters(model->adapters()));
  const std::vector<float> after = logits(*model);
  CHECK(largest_difference(after, before) > 1e-4);

  const io::test::temp_folder folder;
  const std::string saved = folder.path.string() + "/adapter";
  const status written = io::hf::save_adapters(saved, *adapters);
  REQUIRE_MESSAGE(written, written.message());
  auto fresh = io::hf::load_model<engine>(models() + "base");
  REQUIRE(fresh);
  auto again = io::hf::load_adapters(saved, *fresh);
  REQUIRE_MESSAGE(again, again.message());
  REQUIRE(fresh->set_adapters(std::move(again->set)));
  CHECK(largest_difference(logits(*fresh), after) < 1e-4);
  CHECK(tokens(*fresh) == tokens(*model));
}

}  // namespace

TEST_CASE("test_causal_lm_training_trainer_compile: the library's loop, every setting") {
  for (const compiled_case& c : cases) train_save_load(c, ready_loop);
}
TEST_CASE("test_causal_lm_training_pytorch_compile: a user's loop, every setting") {
  for (const compiled_case& c : cases) train_save_load(c, own_loop);
}
