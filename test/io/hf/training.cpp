// SPDX-License-Identifier: Apache-2.0
// Training of whole models: the guarantees of a run. `golden` compares losses and gradients with PEFT's.
#include <doctest/doctest.h>
#include <graft/io/hf/checkpoint.h>
#include <graft/model/on_cpu.h>

#include <fstream>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;
using engine = cpu::engine<float>;

namespace {

const std::filesystem::path golden = GRAFT_GOLDEN_DIR "/models";

struct tuned {
  causal_lm<engine> model;
  hf::loaded_adapters adapters;

  static tuned load(const std::string& name, const std::string& adapter, double dropout = 0) {
    auto model = hf::load_model<engine>(golden / name / "base");
    REQUIRE(model);
    auto adapters = hf::load_adapters((golden / name / adapter / "adapter_init").string(), *model);
    CAPTURE(std::string(adapters.message()));
    REQUIRE(adapters);
    for (module_adapter& m : adapters->set.modules) m.dropout = dropout;
    REQUIRE(model->set_adapters(adapters->set));
    return {std::move(*model), std::move(*adapters)};
  }
  std::vector<float> values() const {
    std::vector<float> all;
    for (const module_adapter& m : model.adapters().modules)
      for (const auto& [name, t] : m.tensors) all.insert(all.end(), t.data->begin(), t.data->end());
    return all;
  }
};
trainer<engine>::sequences data() {
  trainer<engine>::sequences all;
  for (std::int64_t s = 0; s < 7; ++s) {
    all.emplace_back();
    for (std::int64_t t = 0; t < 5 + s; ++t) all.back().push_back((s * 31 + t * t * 7) % 199);
  }
  return all;
}
trainer_settings settings(long long steps) {
  trainer_settings run_settings;
  run_settings.steps = steps, run_settings.batch = 3, run_settings.accumulate = 2, run_settings.seed = 5;
  run_settings.optimizer.rate = 5e-3;
  run_settings.rate = {schedule_kind::cosine, 2, 8};
  return run_settings;
}
const auto always = [](const step_report&) { return true; };

}  // namespace

TEST_CASE("training: the loss falls, and only trained parameters change") {
  tuned t = tuned::load("llama", "lora");
  const auto sequences = data();
  auto run = trainer<engine>::make(t.model, sequences, settings(30));
  REQUIRE(run);
  const auto before = run->evaluate(sequences);
  REQUIRE(before);
  const view weight = t.model.weights().tensors.at("model.layers.0.mlp.up_proj.weight");
  const std::vector<float> base(static_cast<const float*>(weight.data),
                                static_cast<const float*>(weight.data) + weight.count());
  long long reports = 0;
  REQUIRE(run->run([&](const step_report& r) {
    CHECK(r.step == ++reports);
    CHECK(r.norm > 0);
    return true;
  }));
  CHECK(reports == 30);
  const auto after = run->evaluate(sequences);
  REQUIRE(after);
  CHECK(*after < 0.9 * *before);
  CHECK(std::equal(base.begin(), base.end(), static_cast<const float*>(weight.data)));
}

TEST_CASE("training: a saved and resumed run gives the bits of an uninterrupted one") {
  const auto sequences = data();
  for (const auto& [model, adapter, dropout] :
       {std::tuple{"llama", "dora", 0.0}, std::tuple{"llama", "lora", 0.2}, std::tuple{"opt", "adalora", 0.0},
        std::tuple{"llama", "lora_modules_to_save", 0.0}}) {
    const std::string which = adapter;
    CAPTURE(which);
    temp_folder dir;
    const std::string folder = dir.path / "checkpoint-3";
    trainer_settings run_settings = settings(6);
    if (std::string(adapter) == "adalora") run_settings.adalora = {4, 1, 1, 1, 6, 0.85, 0.85, 0.5};
    tuned whole = tuned::load(model, adapter, dropout), second = tuned::load(model, adapter, dropout);
    {
      auto run = trainer<engine>::make(whole.model, sequences, run_settings);
      CAPTURE(std::string(run.message()));
      REQUIRE(run);
      REQUIRE(run->run([](const step_report& r) { return r.step < 3; }));
      const status saved = hf::save_checkpoint(folder, whole.adapters, *run);
      CAPTURE(std::string(saved.message()));
      REQUIRE(saved);
      std::ofstream(folder + "/notes.txt") << "mine";
      REQUIRE(hf::save_checkpoint(folder, whole.adapters, *run));  // overwrites the checkpoint
      const std::string notes = folder + "/notes.txt";
      CHECK(std::filesystem::file_size(notes) == 4);
      CHECK(std::string(hf::save_checkpoint(notes, whole.adapters, *run).message()).find("this is a file") !=
            std::string::npos);
      CHECK(std::filesystem::file_size(notes) == 4);
      CHECK(dir.files() == 1);
      REQUIRE(run->run(always));
    }
    auto run = trainer<engine>::make(second.model, sequences, run_settings);
    REQUIRE(run);
    const status resumed = hf::resume(folder, second.model, *run);
    CAPTURE(std::string(resumed.message()));
    REQUIRE(resumed);
    CHECK(run->optimizer().steps() == 3);
    REQUIRE(run->run(always));
    CHECK(whole.values() == second.values());
  }
}

TEST_CASE("training: saved tensors and recomputation give the same gradients") {
  const auto sequences = data();
  for (const double dropout : {0.0, 0.2}) {
    const std::string method = dropout > 0 ? "lora" : "dora";
    tuned a = tuned::load("llama", method, dropout), b = tuned::load("llama", method, dropout);
    trainer_settings run_settings = settings(3);
    auto kept = trainer<engine>::make(a.model, sequences, run_settings);
    run_settings.checkpoint = true;
    auto again = trainer<engine>::make(b.model, sequences, run_settings);
    REQUIRE(kept);
    REQUIRE(again);
    REQUIRE(kept->run(always));
    REQUIRE(again->run(always));
    const std::vector<float> x = a.values(), y = b.values();
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == doctest::Approx(y[i]).epsilon(1e-4).scale(1));
    const auto first = kept->evaluate(sequences), second = again->evaluate(sequences);
    REQUIRE((first && second));
    CHECK(*first == doctest::Approx(*second).epsilon(1e-4));
  }
}

TEST_CASE("training: the bytes saved for backward are known before the first step and not exceeded") {
  const auto sequences = data();
  long long planned[2] = {};
  for (const bool again : {false, true}) {
    tuned t = tuned::load("llama", "lora");
    trainer_settings run_settings = settings(8);
    run_settings.checkpoint = again;
    auto run = trainer<engine>::make(t.model, sequences, run_settings);
    REQUIRE(run);
    const auto bytes = run->saved_bytes();
    REQUIRE(bytes);
    planned[again] = *bytes;
    CHECK(run->saved_allocation_bytes() == 0);
    REQUIRE(run->run(always));
    CHECK(run->saved_allocation_bytes() > 0);
    CHECK(run->saved_allocation_bytes() <= *bytes);
  }
  CHECK(planned[1] < planned[0]);
}
TEST_CASE("training: dropout follows from the seed, and evaluation has none") {
  const auto sequences = data();
  const auto losses = [&](std::uint64_t seed, double dropout) {
    tuned t = tuned::load("llama", "lora", dropout);
    trainer_settings run_settings = settings(2);
    run_settings.seed = seed, run_settings.batch = 7, run_settings.accumulate = 1, run_settings.rate = {};
    run_settings.optimizer.rate = 0;
    auto run = trainer<engine>::make(t.model, sequences, run_settings);
    REQUIRE(run);
    std::vector<double> all;
    REQUIRE(run->run([&](const step_report& r) { return all.push_back(r.loss), true; }));
    all.push_back(*run->evaluate(sequences));
    return all;
  };
  const auto none = losses(1, 0), some = losses(1, 0.3), other = losses(2, 0.3);
  CHECK(some == losses(1, 0.3));
  CHECK(some[0] != doctest::Approx(none[0]).epsilon(1e-6));
  CHECK(some[0] != some[1]);  // each step drops other elements
  CHECK(some[0] != other[0]);
  CHECK(some[2] == doctest::Approx(none[2]).epsilon(1e-6));
}

TEST_CASE("training: dropout of PiSSA and OLoRA does not apply to the factors that were subtracted from the base") {
  const std::vector<std::int64_t> tokens{5, 9, 17, 3, 8, 30, 77};
  for (const char* init : {"pissa", "olora"})
    for (const bool with_dora : {false, true}) {
      CAPTURE(std::string(init));
      CAPTURE(with_dora);
      auto m = hf::load_model<engine>(golden / "llama" / "base");
      REQUIRE(m);
      const auto config = make_adapter_config("LORA", {"q_proj", "down_proj"},
                                              {{"r", json_number(4)},
                                               {"lora_dropout", json_number(0.5)},
                                               {"init_lora_weights", json_string(init)},
                                               {"use_dora", json_bool(with_dora)}});
      REQUIRE(config);
      REQUIRE(hf::add_adapter(*m, "a", *config));
      REQUIRE(m->activate({"a"}));
      const auto loss = [&](bool dropout) {
        training_settings run_settings;
        run_settings.dropout = dropout;
        auto run = training_run<engine>::make(*m, run_settings);
        REQUIRE_MESSAGE(run, std::string(run.message()));
        const labeled_sequence batch{tokens};
        const auto sum = run->add(std::span(&batch, 1));
        REQUIRE(sum);
        return *sum;
      };
      CHECK(loss(true) != doctest::Approx(loss(false)).epsilon(1e-4));
      // With B = 0 the adapter adds nothing to the reduced base, and DoRA's magnitudes are its norms.
      for (const module_adapter& a : m->find("a")->modules) {
        std::fill(a.tensors.at("lora_B.weight").data->begin(), a.tensors.at("lora_B.weight").data->end(), 0.0F);
        if (!with_dora) continue;
        const std::vector<float>&A = *a.tensors.at("initial_A").data, &B = *a.tensors.at("initial_B").data;
        const view w = m->weights().tensors.at(a.module + ".weight");
        std::vector<float>& norms = *a.tensors.at("lora_magnitude_vector").data;
        const auto in = static_cast<std::size_t>(w.size[1]);
        for (std::size_t i = 0; i < norms.size(); ++i) {
          double sum = 0;
          for (std::size_t j = 0; j < in; ++j) {
            double left = static_cast<const float*>(w.data)[i * in + j];
            for (std::size_t k = 0; k < 4; ++k)
              left -= a.scalars.at("scaling") * double(B[i * 4 + k]) * double(A[k * in + j]);
            sum += left * left;
          }
          norms[i] = static_cast<float>(std::sqrt(sum));
        }
      }
      REQUIRE(m->adapters_changed());
      CHECK(loss(true) == doctest::Approx(loss(false)).epsilon(1e-5));
    }
}

TEST_CASE("training: ignored labels, and batches that cannot be trained on") {
  tuned t = tuned::load("llama", "lora");
  auto run = training_run<engine>::make(t.model);
  REQUIRE(run);
  const std::vector<std::int64_t> tokens{5, 9, 17, 3}, labels{-100, -100, 17, 3}, all{5, 9, 17, 3};
  const std::vector<std::int64_t> prefix{5, 9, 17}, last{-100, -100, 17};
  const auto loss = [&](std::vector<labeled_sequence> batch) {
    const auto r = run->loss(batch);
    CAPTURE(std::string(r.message()));
    REQUIRE(r);
    return *r;
  };
  CHECK(loss({{tokens, all}}) == loss({{tokens}}));
  CHECK(loss({{tokens, labels}}) != loss({{tokens}}));
  CHECK(loss({{prefix, last}}) != loss({{tokens, labels}}));
  const std::vector<std::int64_t> nothing{-100, -100, -100, -100}, few{1, 2}, outside{5, 9999, 17, 3};
  const auto message = [&](labeled_sequence s) { return std::string(run->add(std::span(&s, 1)).message()); };
  CHECK(message({tokens, nothing}).find("no token of the batch has a label that counts") != std::string::npos);
  CHECK(message({tokens, few}).find("a sequence of 4 tokens has 2 labels") != std::string::npos);
  CHECK(message({outside}).find("9999") != std::string::npos);
  CHECK(message({}).find("a sequence has no tokens") != std::string::npos);
  auto bare = hf::load_model<engine>(golden / "llama" / "base");
  REQUIRE(bare);
  const auto refused = [&] { return std::string(training_run<engine>::make(*bare).message()); };
  CHECK(refused() ==
        "the model has no adapters, so there is nothing to train; load_adapter() or add_adapter() one, and activate() "
        "it");
  REQUIRE(hf::load_adapter(*bare, "sql", golden / "llama" / "lora" / "adapter_init"));
  REQUIRE(hf::load_adapter(*bare, "chat", golden / "llama" / "dora" / "adapter_init"));
  CHECK(refused() ==
        "none of the model's adapters is active, so there is nothing to train; activate() one of sql, chat");
  REQUIRE(bare->activate({"sql"}));
  bare->enable(false);
  CHECK(refused() == "the model's adapters are disabled, so there is nothing to train; enable(true) them");
  bare->enable(true);
  REQUIRE(bare->merge({"sql"}));
  CHECK(refused() == "adapter 'sql' is merged into the weights, so there is nothing to train; unmerge() it");
  REQUIRE(bare->unmerge());
  CHECK(bool(training_run<engine>::make(*bare)));
}

TEST_CASE("adapters: folders for another model are refused and change nothing") {
  tuned t = tuned::load("llama", "lora");
  const auto logits = [&] {
    const std::vector<std::int64_t> ids{1, 2, 3};
    const sequence_chunk run{ids};
    std::vector<float> out(3 * 256);
    REQUIRE(t.model.logits(std::span(&run, 1), out));
    return out;
  };
  const auto before = logits();
  const auto wrong = hf::load_adapters((golden / "opt" / "lora" / "adapter_init").string(), t.model);
  CHECK_FALSE(wrong);
  adapter_set broken = t.model.adapters();
  auto& tensor = broken.modules[0].tensors.begin()->second;
  tensor.shape = {3, 5};
  CHECK_FALSE(t.model.set_adapters(broken));
  CHECK(logits() == before);
  temp_folder dir;
  const std::string folder = dir.path / "a";
  std::filesystem::copy(golden / "llama" / "lora" / "adapter_init", folder);
  const auto file = read_safetensors(folder + "/adapter_model.safetensors");
  REQUIRE(file);
  auto tensors = file->tensors;
  tensors.push_back(tensors[0]);
  tensors.back().name = "base_model.model.model.norm.lora_A.weight";
  REQUIRE(write_safetensors(folder + "/adapter_model.safetensors", tensors));
  CHECK(contains(hf::load_adapters(folder, t.model).message(),
                 "tensor 'base_model.model.model.norm.lora_A.weight' belongs to no module that this adapter changes"));
}
