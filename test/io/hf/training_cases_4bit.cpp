// SPDX-License-Identifier: Apache-2.0
// The cases of PEFT's tests under torch.compile that load their base in 4 bits (tests/test_torch_compile.py), with
// PEFT's names.
#include <doctest/doctest.h>
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/combine_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_cpu.h>
#include <graft/run/cpu_layer.h>

#include "../support.h"

using namespace graft;

namespace {

using engine = cpu::engine<float>;
using names = adapter_registry::names;

std::string base() { return std::string(GRAFT_GOLDEN_DIR) + "/quantized/models/llama_nf4_double/base"; }

causal_lm<engine> bare() {
  auto model = io::hf::load_model<engine>(base());
  REQUIRE_MESSAGE(model, model.message());
  for (const auto& [name, v] : model->weights().tensors)
    if (name.find("_proj") != name.npos) REQUIRE(v.quant != nullptr);
  return std::move(*model);
}
result<io::hf::loaded_adapters> fresh_lora(causal_lm<engine>& model, int rank) {
  const auto config = io::make_adapter_config("LORA", {},
                                              {{"target_modules", io::json_string("all-linear")},
                                               {"r", io::json_number(rank)},
                                               {"lora_alpha", io::json_number(2.0 * rank)}});
  REQUIRE(config);
  return io::hf::new_adapter(model, *config);
}
// A LoRA whose B is not zero, so that it changes the results.
adapter_set lora_of(causal_lm<engine>& model, float size) {
  auto made = fresh_lora(model, 4);
  REQUIRE_MESSAGE(made, made.message());
  for (module_adapter& m : made->set.modules)
    for (auto& [name, t] : m.tensors)
      for (std::size_t i = 0; i < t.data->size(); ++i)
        if (name.find("lora_B") != name.npos) (*t.data)[i] = size * static_cast<float>(static_cast<int>(i % 7) - 3);
  return std::move(*made).with_origin();
}
causal_lm<engine> with_two() {
  causal_lm<engine> model = bare();
  REQUIRE(model.add("default", lora_of(model, 0.004F)));
  REQUIRE(model.add("other", lora_of(model, -0.006F)));
  return model;
}
std::vector<float> logits(causal_lm<engine>& model, std::span<const names> chunk_adapters = {}) {
  const std::vector<std::int64_t> ids{1, 5, 7, 90, 33};
  const std::vector<sequence_chunk> rows(chunk_adapters.empty() ? 1 : chunk_adapters.size(), sequence_chunk{ids, 0, 0});
  std::vector<float> all(rows.size() * ids.size() * static_cast<std::size_t>(model.config().vocabulary));
  const status s = model.logits(rows, all, false, chunk_adapters);
  REQUIRE_MESSAGE(s, s.message());
  return all;
}
double largest_difference(std::span<const float> a, std::span<const float> b) {
  double most = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(std::isfinite(a[i]));
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}
// The difference relative to the largest logit. PEFT allows a tenth after a weight was requantized; the golden cases
// check that the rounding equals PEFT's.
double difference_to(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (const float v : b) largest = std::max(largest, std::abs(static_cast<double>(v)));
  return largest_difference(a, b) / largest;
}
std::vector<float> logits_of(causal_lm<engine>& model, const names& active) {
  REQUIRE(model.activate(active));
  return logits(model);
}

}  // namespace

TEST_CASE("test_causal_lm_training_lora_bnb_compile: a user's loop on a 4-bit base") {
  causal_lm<engine> model = bare();
  auto adapters = fresh_lora(model, 8);
  REQUIRE(adapters);
  REQUIRE(model.set_adapters(adapters->set));
  const std::vector<float> before = logits(model);
  auto run = training_run<engine>::make(model);
  REQUIRE_MESSAGE(run, run.message());
  adamw_settings settings;
  settings.rate = 1e-3;
  auto optimizer = run->optimizer(settings);
  REQUIRE(optimizer);
  for (std::int64_t step = 0; step < 5; ++step) {
    std::vector<std::vector<std::int64_t>> texts(4);
    std::vector<labeled_sequence> batch;
    for (std::int64_t i = 0; i < 4; ++i)
      for (std::int64_t t = 0; t < 12; ++t)
        texts[static_cast<std::size_t>(i)].push_back((17 * (4 * step + i) + 5 * t + t * t) % 250);
    for (const auto& t : texts) batch.push_back({t});
    run->clear();
    const result<double> loss = run->add(batch);
    REQUIRE_MESSAGE(loss, loss.message());
    CHECK((*loss > 0 && *loss < 15));
    REQUIRE(optimizer->step());
    REQUIRE(run->parameters_changed());
  }
  REQUIRE(model.set_adapters(model.adapters()));
  const std::vector<float> after = logits(model);
  CHECK(largest_difference(after, before) > 1e-4);
  const io::test::temp_folder folder;
  const std::string saved = folder.path.string() + "/adapter";
  REQUIRE(io::hf::save_adapters(saved, *adapters));
  causal_lm<engine> fresh = bare();
  auto again = io::hf::load_adapters(saved, fresh);
  REQUIRE_MESSAGE(again, again.message());
  REQUIRE(fresh.set_adapters(std::move(again->set)));
  CHECK(largest_difference(logits(fresh), after) < 5e-4);
}

TEST_CASE("test_model_add_and_set_adapters: a second adapter is added, switched to and deleted, 4-bit base") {
  causal_lm<engine> model = bare();
  const std::vector<float> of_base = logits(model);
  REQUIRE(model.add("default", lora_of(model, 0.004F)));
  const std::vector<float> first = logits_of(model, {"default"});
  REQUIRE(model.add("other", lora_of(model, -0.006F)));
  const std::vector<float> second = logits_of(model, {"other"});
  CHECK(largest_difference(of_base, first) > 1e-3);
  CHECK(largest_difference(of_base, second) > 1e-3);
  CHECK(largest_difference(first, second) > 1e-3);
  REQUIRE(model.activate({"default"}));
  REQUIRE(model.remove("other"));
  CHECK(largest_difference(logits(model), first) < 1e-4);
}
TEST_CASE("test_model_disable_lora_adapter: the base in a scope, 4-bit base") {
  causal_lm<engine> model = bare();
  const std::vector<float> of_base = logits(model);
  REQUIRE(model.add("default", lora_of(model, 0.004F)));
  const std::vector<float> adapted = logits_of(model, {"default"});
  model.enable(false);
  CHECK(largest_difference(logits(model), of_base) < 1e-4);
  CHECK(largest_difference(logits(model), adapted) > 1e-3);
  model.enable(true);
  CHECK(largest_difference(logits(model), adapted) < 1e-4);
}
TEST_CASE("test_model_merge_lora_adapter: one adapter, requantized, and unmerged") {
  causal_lm<engine> model = with_two();
  const std::vector<float> adapted = logits_of(model, {"default"});
  REQUIRE(model.merge({"default"}));
  CHECK(difference_to(logits(model), adapted) < 1e-1);
  const auto rounding = model.merge_quantization_error();
  CHECK(rounding.size() == 14);
  for (const auto& one : rounding) {
    INFO(one.first);
    CHECK((one.second > 0 && one.second < 0.2));
  }
  REQUIRE(model.unmerge());
  CHECK(largest_difference(logits_of(model, {"default"}), adapted) == 0);
}
TEST_CASE("test_model_merge_multiple_lora_adapters: two at once") {
  causal_lm<engine> model = with_two();
  const std::vector<float> first = logits_of(model, {"default"}), second = logits_of(model, {"other"});
  model.enable(false);
  const std::vector<float> of_base = logits(model);
  model.enable(true);
  REQUIRE(model.merge({"default", "other"}));
  const std::vector<float> both = logits(model);
  CHECK(largest_difference(both, of_base) > 1e-3);
  CHECK(largest_difference(both, first) > 1e-3);
  CHECK(largest_difference(both, second) > 1e-3);
}
TEST_CASE("test_model_merge_and_unload: requantized, or in full width") {
  causal_lm<engine> model = with_two();
  const std::vector<float> adapted = logits_of(model, {"default"});
  for (const merged_format as : {merged_format::quantized, merged_format::f32, merged_format::bf16}) {
    auto weights = model.merged_weights({"default"}, as);
    REQUIRE_MESSAGE(weights, weights.message());
    for (const auto& [name, v] : weights->tensors)
      if (name.find("_proj") != name.npos) CHECK((v.quant != nullptr) == (as == merged_format::quantized));
    auto plain = causal_lm<engine>::make(model.config(), std::move(*weights));
    REQUIRE_MESSAGE(plain, plain.message());
    CHECK(difference_to(logits(*plain), adapted) < (as == merged_format::quantized ? 1e-1
                                                    : as == merged_format::bf16    ? 1e-2
                                                                                   : 1e-5));
  }
}
TEST_CASE("test_model_mixed_batch_lora: the base and two adapters in one call") {
  causal_lm<engine> model = with_two();
  const std::vector<float> first = logits_of(model, {"default"}), second = logits_of(model, {"other"});
  model.enable(false);
  const std::vector<float> of_base = logits(model);
  model.enable(true);
  const std::vector<names> rows{{}, {"default"}, {"other"}};
  const std::vector<float> all = logits(model, rows);
  const std::size_t n = of_base.size();
  CHECK(largest_difference(std::span(all).subspan(0, n), of_base) < 1e-4);
  CHECK(largest_difference(std::span(all).subspan(n, n), first) < 1e-4);
  CHECK(largest_difference(std::span(all).subspan(2 * n, n), second) < 1e-4);
}
TEST_CASE("test_add_weighted_adapter_lora: half of each") {
  causal_lm<engine> model = with_two();
  const std::vector<float> first = logits_of(model, {"default"}), second = logits_of(model, {"other"});
  const status made = io::hf::combine(model, "combined", {"default", "other"}, {0.5, 0.5}, {});
  REQUIRE_MESSAGE(made, made.message());
  const std::vector<float> combined = logits_of(model, {"combined"});
  CHECK(largest_difference(combined, first) > 1e-3);
  CHECK(largest_difference(combined, second) > 1e-3);
}
