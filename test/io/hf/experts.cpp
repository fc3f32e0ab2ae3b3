// SPDX-License-Identifier: Apache-2.0
// Models with experts from files and as a whole: stacks of expert weights, configurations, PEFT's target_parameters,
// and that generation, merging, switching and rows with adapters of their own give what the formulas give.
#include <doctest/doctest.h>
#include <graft/io/hf/expert_weights.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/hf/save_model.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

#include <fstream>

#include "expert_models.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {
std::string message(const std::string& content) { return hf::parse_config(content, "config.json").message(); }
}  // namespace

TEST_CASE("experts: configurations") {
  const model_config qwen2 = config_of(configs[1]), qwen3 = config_of(configs[2]);
  CHECK(qwen2.sparse == std::vector<bool>{false, true, false});
  CHECK(qwen3.sparse == std::vector<bool>{false, true, true});
  CHECK(!qwen2.router_over_chosen);
  CHECK(qwen3.router_over_chosen);
  CHECK(config_of(configs[0]).expert_intermediate_size == 40);
  CHECK(config_of(configs[3]).window == std::vector<int>{3, 0, 3});
  CHECK(config_of(config_text("gpt_oss")).rope.kind == rope_kind::yarn);
  CHECK(config_of(config_text("mixtral", R"(, "output_router_logits": true)")).router_loss == 0.001);
  CHECK(config_of(config_text("mixtral", R"(, "router_aux_loss_coef": 0.5)")).router_loss == 0);
  CHECK(config_of(config_text("qwen2_moe", R"(, "output_router_logits": true, "router_aux_loss_coef": 0.5)"))
            .router_loss == 0.5);
  CHECK(message(config_text("mixtral", R"(, "router_aux_loss_coef": -1)")).find("router_aux_loss_coef") !=
        std::string::npos);
  CHECK(message(config_text("mixtral", R"(, "router_jitter_noise": 0.1)")).find("router_jitter_noise") !=
        std::string::npos);
  CHECK(message(config_text("qwen2_moe", R"(, "decoder_sparse_step": 0)")).find("decoder_sparse_step") !=
        std::string::npos);
  CHECK(message(config_text("qwen3_moe", R"(, "mlp_only_layers": [-1])")).find("mlp_only_layers") != std::string::npos);
  std::string six = config_text("mixtral");
  six.replace(six.find("\"num_experts_per_tok\": 2"), 24, "\"num_experts_per_tok\": 6");
  CHECK(message(six).find("'num_experts_per_tok' is 6, and there are 5 experts") != std::string::npos);
}

TEST_CASE("experts: files with a tensor per expert are stacked, and stored as they were") {
  for (const std::string& text : configs) {
    const model_config c = config_of(text);
    const model_weights w = random_weights(c);
    model_weights in_files;
    in_files.owner = w.owner;
    for (const auto& [name, v] : w.tensors)
      for (const hf::stored_tensor& t : hf::stored_tensors_of(c, name, v)) in_files.tensors[t.name] = t.of;
    const bool stacked = c.family == &families::gpt_oss;
    CHECK(in_files.tensors.contains("model.layers.1.block_sparse_moe.experts.4.w2.weight") ==
          (c.family == &families::mixtral));
    CHECK((in_files.tensors.size() == w.tensors.size()) == stacked);
    must(hf::stack_experts(in_files, "folder"));
    REQUIRE(in_files.tensors.size() == w.tensors.size());
    for (const auto& [name, v] : w.tensors) {
      const view& t = in_files.tensors.at(name);
      REQUIRE(t.count() == v.count());
      CHECK(std::equal(t.size, t.size + 4, v.size));
      CHECK(std::memcmp(t.data, v.data, static_cast<std::size_t>(v.count()) * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("experts: incomplete and unequal stacks are refused") {
  const std::vector<float> numbers(64);
  const auto with = [&](const std::string& left_out, long long rows_of_last, dtype type_of_last) {
    model_weights w;
    for (int e = 0; e < 3; ++e)
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = "model.layers.0.mlp.experts." + std::to_string(e) + "." + part + ".weight";
        const bool last = e == 2 && std::string(part) == "up_proj";
        if (name.find(left_out) == name.npos)
          w.tensors[name] = {numbers.data(), last ? type_of_last : dtype::f32, {last ? rows_of_last : 4, 8, 1, 1}, 2};
      }
    return std::string(hf::stack_experts(w, "folder").message());
  };
  CHECK(with("nothing", 4, dtype::f32).empty());
  const std::string incomplete = "'model.layers.0.mlp.experts' does not have gate, up and down of every expert";
  CHECK(with("1.up_proj", 4, dtype::f32).find(incomplete) != std::string::npos);
  CHECK(with("experts.0.", 4, dtype::f32).find(incomplete) != std::string::npos);
  CHECK(with("down_proj", 4, dtype::f32).find(incomplete) != std::string::npos);
  const std::string unequal = "the tensors of expert 2 of 'model.layers.0.mlp.experts' are not of the type and shape";
  CHECK(with("nothing", 5, dtype::f32).find(unequal) != std::string::npos);
  CHECK(with("nothing", 4, dtype::bf16).find(unequal) != std::string::npos);
  CHECK(with("nothing", 4, dtype::i64).find("is quantized") != std::string::npos);
}

TEST_CASE("experts: generation over the KV cache") {
  for (const std::string& text : configs) {
    causal_lm<engine> m = model_of(text);
    generation_settings settings;
    settings.max_new_tokens = 6, settings.eos_tokens = no_eos_tokens;
    auto g = generator<engine>::make(m, settings, 1, 32);
    REQUIRE(g);
    const auto made = g->run(std::vector<std::vector<std::int64_t>>{prompt});
    REQUIRE(made);
    std::vector<std::int64_t> tokens = prompt;
    for (int step = 0; step < 6; ++step) {
      const sequence_chunk all[] = {{tokens}};
      std::vector<float> out(99);
      must(m.logits(all, out, true));
      tokens.push_back(std::max_element(out.begin(), out.end()) - out.begin());
    }
    CHECK((*made)[0].tokens == tokens);
  }
}

TEST_CASE("experts: the auxiliary loss of routers is part of the loss, whatever backward saves") {
  for (const std::string& text : configs) {
    model_config c = config_of(text);
    const model_weights w = random_weights(c);
    const std::vector<labeled_sequence> batch{{prompt}, {prompt}};
    const auto train = [&](double factor, bool checkpoint) {
      c.router_loss = factor;
      auto m = causal_lm<engine>::make(c, w);
      REQUIRE(m);
      must(m->set_adapters(adapter_on_experts(c, w, 1)));
      auto t = training_run<engine>::make(*m, {.checkpoint = checkpoint});
      REQUIRE(t);
      const auto alone = t->loss(batch), loss = t->add(batch, 0.5);
      REQUIRE(alone);
      REQUIRE(loss);
      CHECK(*alone == doctest::Approx(*loss).epsilon(1e-6));
      std::vector<float> all{static_cast<float>(*loss)};
      for (const trained_parameter& p : t->parameters())
        all.insert(all.end(), static_cast<const float*>(p.gradient.data),
                   static_cast<const float*>(p.gradient.data) + p.gradient.count());
      return all;
    };
    const std::vector<float> without = train(0, false), with = train(0.4, false), twice = train(0.8, false);
    CHECK(train(0.4, true)[0] == with[0]);
    close(train(0.4, true), with);
    const float balance = (with[0] - without[0]) / 0.4F;  // E Σ C S / T² is k where all experts have equal shares
    CHECK(balance > 1);
    REQUIRE(twice.size() == without.size());
    bool differs = false;
    for (std::size_t i = 0; i < without.size(); ++i) {
      const auto step = static_cast<double>(with[i] - without[i]), both = static_cast<double>(twice[i] - without[i]);
      CHECK(both == doctest::Approx(2 * step).epsilon(1e-3).scale(1e-2));
      differs = differs || (i > 0 && std::abs(step) > 1e-5);
    }
    CHECK(differs);  // through the rows that earlier layers give the router
  }
}

TEST_CASE("experts: rows with adapters on attention alone share the launches of the base") {
  causal_lm<engine> m = model_of(configs[2]);
  const std::vector<float> base = logits_of(m);
  adapter_set on_queries = adapter_on_experts(m.config(), m.weights(), 4);
  std::erase_if(on_queries.modules,
                [](const module_adapter& a) { return a.module.find("experts") != std::string::npos; });
  must(m.add("queries", on_queries));
  must(m.add("experts", adapter_on_experts(m.config(), m.weights(), 5)));
  const causal_lm<engine>::names sets[] = {{"queries"}, {"experts"}};
  const auto explained = m.explain_multi_lora(sets);
  REQUIRE(explained);
  CHECK(explained->starts_with("queries: fused into the base's launches"));
  CHECK(explained->find("experts: an adapter needs other launches than the base") != std::string::npos);
  must(m.activate({"queries"}));
  const std::vector<float> alone = logits_of(m);
  const causal_lm<engine>::names rows[] = {{}, {"queries"}};
  const std::vector<float> each = logits_of(m, rows);
  const auto half = each.begin() + static_cast<std::ptrdiff_t>(base.size());
  close({each.begin(), half}, base);
  close({half, each.end()}, alone);
}

TEST_CASE("experts: a model is saved and loaded, and a new adapter of parameters of experts") {
  for (const std::string& text : configs) {
    temp_folder from, to, adapter;
    std::ofstream(from.path / "config.json") << text;
    causal_lm<engine> m = model_of(text);
    must(hf::save_model(to.path / "model", m.weights(), from.path));
    auto again = hf::load_model<engine>(to.path / "model");
    INFO(std::string(again.message()));
    REQUIRE(again);
    const std::vector<float> base = logits_of(*again);
    CHECK(base == logits_of(m));

    json parameters, rank = json_number(3);
    parameters.what = json::kind::list;
    parameters.items = {json_string("experts.gate_up_proj"), json_string("experts.down_proj")};
    const auto config = make_adapter_config("LORA", {"q_proj"}, {{"target_parameters", parameters}, {"r", rank}});
    INFO(std::string(config.message()));
    REQUIRE(config);
    auto made = hf::new_adapter(*again, *config, 7);
    INFO(std::string(made.message()));
    REQUIRE(made);
    for (module_adapter& a : made->set.modules)  // B begins with zeros
      for (auto& [name, t] : a.tensors)
        for (std::size_t i = 0; i < t.data->size(); ++i) (*t.data)[i] += 0.01F * static_cast<float>(i % 7);
    must(again->set_adapters(made->set));
    const std::vector<float> adapted = logits_of(*again);
    CHECK(adapted != base);
    must(hf::save_adapters(adapter.path / "a", *made));
    const auto read = hf::load_adapters(adapter.path / "a", *again);
    INFO(std::string(read.message()));
    REQUIRE(read);
    must(again->set_adapters(read->set));
    CHECK(logits_of(*again) == adapted);
    const auto file = read_safetensors((adapter.path / "a" / "adapter_model.safetensors").string());
    REQUIRE(file);
    const std::string experts = "base_model.model.model.layers.1.mlp.experts.";
    REQUIRE(file->get(experts + "base_layer.lora_A.weight") != nullptr);
    CHECK(file->get(experts + "base_layer.lora_A.weight")->shape == std::vector<std::uint64_t>{15, 32});
    CHECK(file->get(experts + "lora_B.weight")->shape == std::vector<std::uint64_t>{32, 15});
  }
}

TEST_CASE("experts: a single parameter has no base_layer in its path, and bad target_parameters are refused") {
  causal_lm<engine> m = model_of(configs[0]);
  const auto list = [](const std::vector<const char*>& names) {
    json l;
    l.what = json::kind::list;
    for (const char* n : names) l.items.push_back(json_string(n));
    return l;
  };
  const auto one = make_adapter_config("LORA", {}, {{"target_parameters", list({"experts.gate_up_proj"})}});
  REQUIRE(one);
  auto made = hf::new_adapter(m, *one, 7);
  REQUIRE(made);
  CHECK(made->set.modules.size() == 3);
  CHECK(made->set.modules[0].tensors.at("lora_A.weight").key ==
        "base_model.model.model.layers.0.mlp.experts.lora_A.weight");

  const auto wrong = make_adapter_config("LORA", {}, {{"target_parameters", list({"experts.gate_proj"})}});
  REQUIRE(wrong);
  CHECK(std::string(hf::new_adapter(m, *wrong, 7).message())
            .find("names 'experts.gate_proj', expected parameters of "
                  "experts, which are here") != std::string::npos);
  const auto refused = [&](const char* type, const char* key, json v) {
    const auto c =
        make_adapter_config(type, {"q_proj"}, {{"target_parameters", list({"experts.down_proj"})}, {key, v}});
    return std::string(c.message());
  };
  CHECK(refused("IA3", "task_type", {}).find("which PEFT has for LORA alone") != std::string::npos);
  CHECK(refused("LORA", "use_dora", json_bool(true)).find("'use_dora' is true and 'target_parameters' is set") !=
        std::string::npos);
  CHECK(refused("LORA", "lora_dropout", json_number(0.1)).find("'lora_dropout' is 0.1") != std::string::npos);
}

TEST_CASE("experts: methods that do not exist on them are refused by name") {
  causal_lm<engine> m = model_of(configs[0]);
  adapter_set set = adapter_on_experts(m.config(), m.weights(), 1);
  for (module_adapter& a : set.modules)
    if (a.module.find("experts") != std::string::npos) a.of = formula_of<oft<>>();
  CHECK(std::string(m.add("a", set).message()).find("method 'OFT (Cayley)' does not exist on the experts") !=
        std::string::npos);
  CHECK(m.all_names().empty());
}

TEST_CASE("experts: MXFP4 experts are saved as they were, and merged in full width as the family stores them") {
  const std::string from = std::string(GRAFT_GOLDEN_DIR) + "/checkpoints/models/gpt_oss_mxfp4/base";
  temp_folder to;
  auto m = hf::load_model<engine>(from);
  INFO(std::string(m.message()));
  REQUIRE(m);
  const std::string experts = "model.layers.1.mlp.experts.down_proj";
  CHECK(m->weights().tensors.at(experts).quant != nullptr);
  const auto logits = [&](causal_lm<engine>& of) {
    const std::vector<std::int64_t> ids{3, 17, 9, 8, 5};
    const sequence_chunk one[] = {{ids}};
    std::vector<float> out(ids.size() * 32);
    must(of.logits(one, out));
    return out;
  };
  const std::vector<float> base = logits(*m);

  must(hf::save_model(to.path / "same", m->weights(), from));
  const auto was = read_safetensors(from + "/model.safetensors");
  const auto is = read_safetensors((to.path / "same" / "model.safetensors").string());
  REQUIRE(was);
  REQUIRE(is);
  REQUIRE(was->tensors.size() == is->tensors.size());
  for (const tensor_view& t : *was) {
    const tensor_view* const saved = is->get(t.name);
    REQUIRE(saved != nullptr);
    CHECK(saved->shape == t.shape);
    CHECK(std::ranges::equal(saved->data, t.data));
  }
  auto same = hf::load_model<engine>(to.path / "same");
  REQUIRE(same);
  CHECK(logits(*same) == base);

  adapter_set on_experts = adapter_on_experts(m->config(), m->weights(), 3);
  std::erase_if(on_experts.modules, [](const module_adapter& a) { return a.module.ends_with("q_proj"); });
  must(m->add("a", on_experts));
  must(m->activate({"a"}));
  const std::vector<float> adapted = logits(*m);
  CHECK(adapted != base);
  const auto wide = m->merged_weights({"a"}, merged_format::f32);
  REQUIRE(wide);
  must(hf::save_model(to.path / "wide", *wide, from));
  auto merged = hf::load_model<engine>(to.path / "wide");
  INFO(std::string(merged.message()));
  REQUIRE(merged);
  CHECK(!merged->config().quantized);
  CHECK(merged->weights().tensors.at(experts).size[1] == 32);  // [experts, in, out]
  close(logits(*merged), adapted);
  must(m->merge({"a"}));  // in the blocks of the base, which are coarse
  CHECK(m->merge_quantization_error().at(experts) > 0);
  must(m->unmerge()), must(m->activate({}));
  CHECK(logits(*m) == base);

  // Experts of one layer in full width are no model that the family can store.
  model_weights some = *wide;
  some.tensors[experts] = m->weights().tensors.at(experts);
  CHECK(std::string(hf::save_model(to.path / "some", some, from).message())
            .find("some experts are quantized and others are not") != std::string::npos);
}
