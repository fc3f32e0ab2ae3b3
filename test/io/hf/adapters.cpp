// SPDX-License-Identifier: Apache-2.0
// Several named adapters on one model: properties that hold for all adapters. `golden` compares the numbers with
// PEFT's.
#include <doctest/doctest.h>
#include <graft/io/hf/combine_adapters.h>
#include <graft/model/generate.h>
#include <graft/model/multi_lora_training.h>
#include <graft/model/on_cpu.h>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;
using engine = cpu::engine<float>;
using names = adapter_registry::names;

namespace {

const std::filesystem::path golden = GRAFT_GOLDEN_DIR "/models/llama";

struct sample {
  causal_lm<engine> model;

  static causal_lm<engine> base(const model_options& options = {}) {
    auto m = hf::load_model<engine>(golden / "base", options);
    REQUIRE_MESSAGE(m, m.message());
    return std::move(*m);
  }
  // Loads adapters by the names of their folders.
  static sample with(const names& adapters, const model_options& options = {}) {
    sample s{base(options)};
    for (const std::string& a : adapters) s.load(a);
    return s;
  }
  void load(const std::string& name) {
    const status s = hf::load_adapter(model, name, golden / name / "adapter_init");
    REQUIRE_MESSAGE(s, s.message());
  }
  std::vector<float> logits(const std::vector<names>& chunk_adapters = {}) {
    static const std::vector<std::int64_t> ids[] = {{1, 5, 7, 90, 33}, {2, 3}, {9, 8, 7, 6}};
    std::vector<sequence_chunk> runs;
    std::size_t rows = 0;
    for (const auto& i : ids) runs.push_back({i}), rows += i.size();
    std::vector<float> out(rows * static_cast<std::size_t>(model.config().vocabulary));
    const status s = model.logits(runs, out, false, chunk_adapters);
    REQUIRE_MESSAGE(s, s.message());
    return out;
  }
  std::vector<float> logits_with(const names& active) {
    REQUIRE(model.activate(active));
    return logits();
  }
};
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}
const names every_method{
    "lora",    "dora",        "adalora",       "ia3",    "oft",  "boft",      "hra",
    "loha",    "lokr",        "vera",          "vblora", "miss", "ln_tuning", "lora_modules_to_save",
    "lora_qv", "oft_default", "lora_embedding"};

}  // namespace

TEST_CASE("adapters: activate(a) after any operations gives the bits of a fresh model with a") {
  sample many = sample::with(every_method);
  const std::vector<float> bare = many.logits();
  for (const std::string& a : every_method) {
    CAPTURE(a);
    const std::vector<float> now = many.logits_with({a});
    CHECK(now == sample::with({a}).logits_with({a}));
    CHECK(largest_difference(now, bare) > 1e-4);
    CHECK(many.model.active() == names{a});
    const auto off = many.model.disabled();
    CHECK(many.logits() == bare);
  }
  CHECK(many.model.enabled());
  CHECK(many.logits_with({}) == bare);
  CHECK(many.model.all_names() == every_method);
}

TEST_CASE("adapters: low-rank branches commute, factors and rotations are applied in the order of activation") {
  sample s = sample::with({"lora", "lora_qv", "ia3", "oft", "oft_default"});
  CHECK(largest_difference(s.logits_with({"lora", "lora_qv"}), s.logits_with({"lora_qv", "lora"})) < 1e-5);
  CHECK(largest_difference(s.logits_with({"lora", "ia3"}), s.logits_with({"ia3", "lora"})) > 1e-4);
  CHECK(largest_difference(s.logits_with({"oft", "oft_default"}), s.logits_with({"oft_default", "oft"})) > 1e-4);
}

TEST_CASE("adapters: two adapters that train the same token cannot be active at once") {
  sample s = sample::with({"trainable_tokens", "lora_trainable_tokens_head", "lora"});
  REQUIRE(hf::load_adapter(s.model, "again", golden / "trainable_tokens" / "adapter_trained"));
  const status both = s.model.activate({"trainable_tokens", "again"});
  CHECK_FALSE(both);
  CHECK_MESSAGE(std::string(both.message()).find("train token") != std::string::npos, both.message());
  CHECK(s.model.active().empty());
  CHECK(s.model.activate({"trainable_tokens", "lora"}));
  CHECK(s.model.activate({"again"}));
}

TEST_CASE("adapters: with composition::exact forward of several adapters is the merged model") {
  const names all{"dora", "lora_qv", "oft", "ia3", "oft_default", "boft", "hra", "loha", "lokr"};
  model_options exact;
  exact.several = composition::exact;
  sample s = sample::with(all, exact);
  const std::vector<float> now = s.logits_with(all);
  REQUIRE(s.model.merge(all));
  CHECK(largest_difference(s.logits(), now) < 1e-4);
  // With PEFT's composition the forward pass applies two rotations in another order than their merge.
  sample peft = sample::with({"oft", "oft_default"});
  const std::vector<float> two = peft.logits_with({"oft", "oft_default"});
  REQUIRE(peft.model.merge({"oft", "oft_default"}));
  CHECK(largest_difference(peft.logits(), two) > 1e-4);
  // In both compositions DoRA's norm is that of the base.
  REQUIRE(hf::load_adapter(peft.model, "dora", golden / "dora" / "adapter_init"));
  REQUIRE(hf::load_adapter(peft.model, "lora_qv", golden / "lora_qv" / "adapter_init"));
  const std::vector<float> after = peft.logits_with({"lora_qv", "dora"});
  REQUIRE(peft.model.merge({"lora_qv", "dora"}));
  CHECK(largest_difference(peft.logits(), after) < 1e-4);
  CHECK(largest_difference(s.logits_with({"lora_qv", "dora"}), after) > 1e-4);
}

TEST_CASE("adapters: unmerge restores the bits, and merged adapters stay merged until then") {
  sample s = sample::with({"lora", "dora", "oft"});
  const std::vector<float> bare = s.logits(), lora = s.logits_with({"lora"});
  REQUIRE(s.model.merge({"lora"}));
  CHECK(s.model.merged() == names{"lora"});
  CHECK(s.model.merged_bytes() > 0);
  CHECK(largest_difference(s.logits(), lora) < 1e-4);
  const std::vector<float> one = s.logits();
  REQUIRE(s.model.merge({"dora", "lora"}));
  CHECK(s.model.merged() == names{"lora", "dora"});
  CHECK(largest_difference(s.logits(), one) > 1e-4);
  {
    const auto off = s.model.disabled();
    CHECK(s.logits() == bare);
  }
  CHECK_FALSE(s.model.remove("dora"));
  CHECK_FALSE(s.model.replace("lora", *s.model.find("lora")));
  CHECK(s.model.rename("dora", "other"));
  CHECK(s.model.remove("oft"));
  REQUIRE(s.model.unmerge());
  CHECK(s.model.merged_bytes() == 0);
  CHECK(s.logits() == lora);
  REQUIRE(s.model.merge({"lora"}));
  CHECK(s.logits_with({}) == bare);  // activate() ends the merge
  REQUIRE(s.model.merge_and_unload({"lora"}));
  CHECK(s.logits() == one);
  CHECK(s.model.all_names().empty());
}

TEST_CASE("adapters: a multi-LoRA batch gives the results of its rows one by one") {
  sample s = sample::with(every_method);
  for (const std::string& a : every_method) {
    CAPTURE(a);
    const std::vector<float> mixed = s.logits({{a}, {}, {"lora", "ia3"}});
    const auto vocabulary = static_cast<std::size_t>(s.model.config().vocabulary);
    const auto part = [&](const std::vector<float>& v, std::size_t first, std::size_t rows) {
      const auto at = v.begin() + static_cast<std::ptrdiff_t>(first * vocabulary);
      return std::vector<float>(at, at + static_cast<std::ptrdiff_t>(rows * vocabulary));
    };
    CHECK(largest_difference(part(mixed, 0, 5), part(s.logits_with({a}), 0, 5)) < 1e-5);
    CHECK(largest_difference(part(mixed, 5, 2), part(s.logits_with({}), 5, 2)) < 1e-5);
    CHECK(largest_difference(part(mixed, 7, 4), part(s.logits_with({"lora", "ia3"}), 7, 4)) < 1e-5);
  }
}

TEST_CASE("adapters: rows whose adapters fit the GEMM slots share one pass over the weights, others run as groups") {
  const names slots{"lora", "dora", "adalora", "ia3", "hra", "vera", "vblora", "loha", "lora_qv"};
  names all = slots;
  all.insert(all.end(), {"oft", "boft", "ln_tuning"});
  sample s = sample::with(all);
  const auto launched_by = [&](const std::vector<names>& chunk_adapters) {
    const auto launched = [&] {
      long long n = 0;
      for (int k = 0; k < s.model.programs().count(); ++k) n += s.model.programs()[k].launched();
      return n;
    };
    static_cast<void>(s.logits(chunk_adapters));  // binds the programs of the batch
    const long long before = launched();
    static_cast<void>(s.logits(chunk_adapters));
    return launched() - before;
  };
  const long long once = launched_by({{}, {}, {}});
  CHECK(once > 0);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    CAPTURE(slots[i]);
    CHECK(launched_by({{slots[i]}, {}, {slots[(i + 1) % slots.size()]}}) == once);
  }
  CHECK(launched_by({{"lora"}, {"oft"}, {"dora"}}) > once);
  for (const std::string& a : all) {
    const auto told = s.model.explain_multi_lora(std::vector<names>{{a}});
    REQUIRE_MESSAGE(told, told.message());
    const bool in_slots = std::find(slots.begin(), slots.end(), a) != slots.end();
    CAPTURE(*told);
    CHECK((told->find("fused into the base's launches (multi-LoRA batch)") != std::string::npos) == in_slots);
    CHECK((told->find("a batch of their own") != std::string::npos) == !in_slots);
  }
}

TEST_CASE("adapters: prompts with different adapters in one batch generate what each generates alone") {
  sample s = sample::with({"lora", "dora", "oft", "ln_tuning"});
  const std::vector<std::vector<std::int64_t>> prompts{{1, 5, 7}, {1, 5, 7}, {1, 5, 7}, {2, 9}, {1, 5, 7}};
  const std::vector<names> of{{"lora"}, {}, {"oft"}, {"dora", "oft"}, {"ln_tuning"}};
  generation_settings options;
  options.max_new_tokens = 12, options.eos_tokens = no_eos_tokens;
  auto g = generator<engine>::make(s.model, options, 5, 20);
  REQUIRE(g);
  const auto made = g->run(
      prompts, [](std::size_t, std::int64_t) { return true; }, of);
  REQUIRE_MESSAGE(made, made.message());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    REQUIRE(s.model.activate(of[i]));
    auto one = generator<engine>::make(s.model, options, 1, 20);
    const auto alone = one->run(std::span(&prompts[i], 1));
    REQUIRE(alone);
    CHECK((*alone)[0].tokens == (*made)[i].tokens);
  }
}

TEST_CASE("adapters: invalid operations are refused with a sentence and change nothing") {
  model_options options;
  options.adapters = {3, 40};
  sample s = sample::with({"lora", "dora"}, options);
  const std::vector<float> before = s.logits_with({"lora"});
  names resident{"lora", "dora"};
  const auto refused = [&](const status& done, const char* why) {
    CHECK_MESSAGE(std::string(done.message()).find(why) != std::string::npos, std::string(done.message()));
    CHECK(s.logits() == before);
    CHECK(s.model.active() == names{"lora"});
    CHECK(s.model.all_names() == resident);
  };
  const std::string good = golden / "ia3" / "adapter_init";
  refused(hf::load_adapter(s.model, "lora", good), "there is an adapter 'lora' already");
  refused(hf::load_adapter(s.model, "", good), "needs a name");
  refused(hf::load_adapter(s.model, "x", golden / "nowhere"), "nowhere");
  refused(hf::load_adapter(s.model, "x", golden.parent_path() / "opt" / "lora" / "adapter_init"), "");
  refused(s.model.activate({"lora", "nobody"}), "there is no adapter 'nobody'; there are lora, dora");
  refused(s.model.activate({"dora", "dora"}), "named twice");
  refused(s.model.remove("nobody"), "there is no adapter");
  refused(s.model.rename("lora", "dora"), "cannot be the name");
  refused(hf::replace_adapter(s.model, "lora", good), "remove() it and load the other one");
  adapter_set wrong = *s.model.find("lora");
  wrong.modules[0].tensors.begin()->second.shape = {3, 5};
  refused(s.model.add("x", wrong), "");
  refused(s.model.replace("lora", wrong), "");
  adapter_set large = *s.model.find("lora");
  for (module_adapter& m : large.modules) m.sizes["r"] = 100;
  refused(s.model.add("x", large), "larger adapter_capacity::rank");
  static_assert(std::is_same_v<decltype(model_options::adapters), adapter_capacity>);
  adapter_set broken = *s.model.find("lora");
  auto& t = broken.modules[0].tensors.begin()->second;
  t.data = std::make_shared<std::vector<float>>(*t.data);
  (*t.data)[0] = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(s.model.add("broken", broken));
  CHECK(std::string(s.model.merge({"broken"}).message()).find("not finite; nothing was merged") != std::string::npos);
  CHECK(s.model.merged().empty());
  resident.emplace_back("broken");
  refused(s.model.add("y", *s.model.find("lora")), "larger adapter_capacity::adapters");
}

TEST_CASE("adapters: two adapters that replace the same module cannot be active at once") {
  sample s = sample::with({"lora_modules_to_save", "ln_tuning", "lora"});
  REQUIRE(hf::load_adapter(s.model, "again", golden / "ln_tuning" / "adapter_init"));
  CHECK(std::string(s.model.activate({"ln_tuning", "again"}).message()).find("replaces it (modules_to_save)") !=
        std::string::npos);
  CHECK(s.model.active().empty());
  CHECK(s.model.activate({"ln_tuning", "lora", "lora_modules_to_save"}));
}

TEST_CASE("adapters: an adapter is replaced and saved by its name") {
  sample s = sample::with({"lora", "oft"});
  const temp_folder dir;
  const std::vector<float> first = s.logits_with({"lora"});
  REQUIRE(hf::save_adapter(dir.path / "lora", s.model, "lora"));
  REQUIRE(hf::replace_adapter(s.model, "lora", golden / "lora_qv" / "adapter_init"));
  CHECK(s.logits() == sample::with({"lora_qv"}).logits_with({"lora_qv"}));
  REQUIRE(hf::replace_adapter(s.model, "lora", dir.path / "lora"));
  CHECK(s.logits() == first);
  REQUIRE(s.model.remove("lora"));
  CHECK(s.model.active().empty());
  CHECK(s.model.all_names() == names{"oft"});
}

TEST_CASE("adapters: several adapters trained in one batch get the bits of training one by one") {
  const names all{"lora", "dora", "oft", "ia3"};
  const std::vector<std::vector<std::int64_t>> text{{1, 5, 7, 9}, {2, 4, 6}, {3, 3, 8, 1, 2},
                                                    {9, 7, 5},    {4, 4, 1}, {8, 2, 6, 6}};
  const std::vector<names> of{{"lora"}, {"dora"}, {"oft"}, {"ia3"}, {"lora"}, {}};
  std::vector<labeled_sequence> batch;
  for (const auto& t : text) batch.push_back({t});
  sample together = sample::with(all);
  auto mixed = multi_lora_training_run<engine>::make(together.model, {{"lora"}, {"dora"}, {"oft"}, {"ia3"}, {}});
  REQUIRE_MESSAGE(mixed, mixed.message());
  auto optimizer = mixed->optimizer({5e-3, 0.9, 0.999, 1e-8, 0.01});
  REQUIRE(optimizer);
  for (int step = 0; step < 3; ++step) {
    mixed->clear();
    const auto losses = mixed->add(batch, of);
    REQUIRE_MESSAGE(losses, losses.message());
    CHECK((*losses)[4] > 0);
    REQUIRE(optimizer->step());
    REQUIRE(mixed->parameters_changed());
  }
  REQUIRE(together.model.adapters_changed());
  for (const std::string& name : all) {
    CAPTURE(name);
    sample alone = sample::with({name});
    REQUIRE(alone.model.activate({name}));
    auto run = training_run<engine>::make(alone.model);
    auto own = run->optimizer({5e-3, 0.9, 0.999, 1e-8, 0.01});
    std::vector<labeled_sequence> mine;
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (of[i] == names{name}) mine.push_back(batch[i]);
    for (int step = 0; step < 3; ++step) {
      run->clear();
      REQUIRE(run->add(mine));
      REQUIRE(own->step());
      REQUIRE(run->parameters_changed());
    }
    REQUIRE(alone.model.adapters_changed());
    CHECK(alone.logits() == together.logits_with({name}));
  }
  CHECK_FALSE(mixed->add(batch, std::vector<names>(6, names{"nobody"})));
}

TEST_CASE("adapters: sequences with two adapters give gradients to both") {
  sample s = sample::with({"lora", "ia3"});
  auto mixed = multi_lora_training_run<engine>::make(s.model, {{"lora"}, {"lora", "ia3"}});
  REQUIRE_MESSAGE(mixed, mixed.message());
  std::size_t tensors = 0;
  for (const char* name : {"lora", "ia3"})
    for (const module_adapter& m : s.model.find(name)->modules) tensors += m.tensors.size();
  CHECK(mixed->parameters().size() == tensors);
  const std::vector<std::int64_t> ids{1, 2, 3, 4};
  const std::vector<labeled_sequence> batch{{ids}, {ids}};
  const std::vector<names> of{{"lora"}, {"lora", "ia3"}};
  REQUIRE(mixed->add(batch, of));
  for (const trained_parameter& p : mixed->parameters()) {
    const auto* g = static_cast<const float*>(p.gradient.data);
    CHECK(std::any_of(g, g + p.gradient.count(), [](float v) { return v != 0; }));
  }
}

TEST_CASE("combinations: linear of [1, 0] is the first adapter; cat is the weighted sum of the updates") {
  sample s = sample::with({"lora", "lora_qv"});
  combination_settings options;
  options.type = combination::linear;
  REQUIRE(hf::load_adapter(s.model, "other", golden / "lora" / "adapter_init"));
  const status made = hf::combine(s.model, "first", {"lora", "other"}, {1, 0}, options);
  REQUIRE_MESSAGE(made, made.message());
  CHECK(largest_difference(s.logits_with({"first"}), s.logits_with({"lora"})) < 1e-5);
  options.type = combination::cat;
  REQUIRE(hf::combine(s.model, "sum", {"lora", "lora_qv"}, {1, 1}, options));
  CHECK(largest_difference(s.logits_with({"sum"}), s.logits_with({"lora", "lora_qv"})) < 1e-4);
  REQUIRE(hf::combine(s.model, "less", {"sum", "lora_qv"}, {1, -1}, options));
  CHECK(largest_difference(s.logits_with({"less"}), s.logits_with({"lora"})) < 1e-4);
  options = {combination::svd, 1, majority::total, scaling::exact, 64};
  REQUIRE(hf::combine(s.model, "svd", {"lora", "lora_qv"}, {1, 1}, options));
  CHECK(largest_difference(s.logits_with({"svd"}), s.logits_with({"sum"})) < 1e-3);
}

TEST_CASE("combinations: updates of other methods are folded") {
  sample s = sample::with({"lora", "dora", "loha", "oft", "ia3"});
  combination_settings options{combination::svd, 1, majority::total, scaling::exact, 64};
  const status made = hf::combine(s.model, "as LoRA", {"oft"}, {1}, options);
  REQUIRE_MESSAGE(made, made.message());
  CHECK(largest_difference(s.logits_with({"as LoRA"}), s.logits_with({"oft"})) < 1e-3);
  REQUIRE(hf::combine(s.model, "both", {"dora", "loha"}, {0.5, -0.5}, options));
  options.type = combination::cat;
  CHECK(std::string(hf::combine(s.model, "x", {"dora", "lora"}, {1, 1}, options).message()).find("end in svd") !=
        std::string::npos);
  options.type = combination::linear;
  REQUIRE(hf::combine(s.model, "same", {"ia3"}, {1}, options));
  CHECK(s.logits_with({"same"}) == s.logits_with({"ia3"}));
  const temp_folder dir;
  REQUIRE(hf::save_adapter(dir.path / "both", s.model, "both"));
  REQUIRE(hf::load_adapter(s.model, "again", dir.path / "both"));
  CHECK(s.logits_with({"again"}) == s.logits_with({"both"}));
}

TEST_CASE("combinations: the dropped elements follow from the seed; invalid combinations are refused") {
  sample s = sample::with({"lora", "lora_qv"});
  const auto logits_of = [&](const char* name, combination type, std::uint64_t seed) {
    combination_settings options{type, 0.7};
    options.seed = seed, options.sign = majority::frequency;
    const status made = hf::combine(s.model, name, {"lora", "lora"}, {0.5, 0.5}, options);
    REQUIRE_MESSAGE(made, made.message());
    return s.logits_with({name});
  };
  CHECK(logits_of("a", combination::dare_linear, 1) == logits_of("b", combination::dare_linear, 1));
  CHECK(logits_of("c", combination::dare_ties, 1) != logits_of("d", combination::dare_ties, 2));
  CHECK(logits_of("e", combination::dare_ties_svd, 1) == logits_of("f", combination::dare_ties_svd, 1));
  CHECK(logits_of("g", combination::dare_linear_svd, 1) != logits_of("h", combination::magnitude_prune, 1));
  const names before = s.model.all_names();
  CHECK_FALSE(hf::combine(s.model, "x", {"lora", "nobody"}, {1, 1}));
  CHECK_FALSE(hf::combine(s.model, "x", {"lora"}, {1, 1}));
  CHECK_FALSE(hf::combine(s.model, "x", {}, {}));
  CHECK_FALSE(hf::combine(s.model, "a", {"lora"}, {1}));
  CHECK_FALSE(hf::combine(s.model, "x", {"lora"}, {std::numeric_limits<double>::infinity()}));
  CHECK(s.model.all_names() == before);
}
