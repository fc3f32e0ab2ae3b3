// SPDX-License-Identifier: Apache-2.0
// The life-cycle cases of PEFT's tests under torch.compile (tests/test_torch_compile.py), with PEFT's names, on a plain
// base. Nothing is compiled at run time, whatever adapter is added.
#include <doctest/doctest.h>
#include <graft/io/hf/combine_adapters.h>
#include <graft/model/on_cpu.h>

using namespace graft;
using namespace graft::io;

namespace {

using engine = cpu::engine<float>;

const std::string models = std::string(GRAFT_GOLDEN_DIR) + "/models/opt/";

struct tiny_opt {
  causal_lm<engine> model = [] {
    auto m = hf::load_model<engine>(models + "base");
    REQUIRE_MESSAGE(m, m.message());
    return std::move(*m);
  }();

  void load(const std::string& name, const std::string& folder) {
    const status s = hf::load_adapter(model, name, models + "multi/" + folder);
    REQUIRE_MESSAGE(s, s.message());
  }
  std::vector<float> logits(const std::vector<adapter_registry::names>& chunk_adapters = {}) {
    const std::vector<std::int64_t> ids{1, 5, 7, 90, 33};
    std::vector<sequence_chunk> runs(chunk_adapters.empty() ? 1 : chunk_adapters.size(), sequence_chunk{ids});
    std::vector<float> out(runs.size() * ids.size() * static_cast<std::size_t>(model.config().vocabulary));
    const status s = model.logits(runs, out, false, chunk_adapters);
    REQUIRE_MESSAGE(s, s.message());
    return out;
  }
  std::vector<float> with(const adapter_registry::names& active) {
    REQUIRE(model.activate(active));
    return logits();
  }
};
double largest_difference(std::span<const float> a, std::span<const float> b) {
  double most = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double(a[i]) - double(b[i])));
  return most;
}
constexpr double equal = 1e-4, different = 1e-3;

}  // namespace

TEST_CASE("test_causal_lm_multiple_lora_adapter_compile: a second adapter, switched to and deleted") {
  tiny_opt m;
  const std::vector<float> base = m.logits();
  m.load("default", "a");
  const std::vector<float> first = m.with({"default"});
  m.load("other", "b");  // while the model is in use
  const std::vector<float> second = m.with({"other"});
  CHECK(largest_difference(base, first) > different);
  CHECK(largest_difference(base, second) > different);
  CHECK(largest_difference(first, second) > different);
  REQUIRE(m.model.remove("other"));
  CHECK(largest_difference(m.with({"default"}), first) == 0);
}
TEST_CASE("test_causal_lm_disable_lora_adapter_compile: the base alone within a scope") {
  tiny_opt m;
  const std::vector<float> base = m.logits();
  m.load("default", "a");
  const std::vector<float> with = m.with({"default"});
  {
    const auto scope = m.model.disabled();
    CHECK(largest_difference(m.logits(), base) == 0);
  }
  CHECK(largest_difference(m.logits(), with) == 0);
  CHECK(largest_difference(with, base) > different);
}
TEST_CASE("test_causal_lm_merging_lora_adapter_compile: merged is the adapter") {
  tiny_opt m;
  m.load("default", "a");
  const std::vector<float> with = m.with({"default"});
  REQUIRE(m.model.merge({"default"}));
  CHECK(largest_difference(m.logits(), with) < equal);
}
TEST_CASE("test_causal_lm_merging_multiple_lora_adapters_compile: two at once") {
  tiny_opt m;
  const std::vector<float> base = m.logits();
  m.load("default", "a"), m.load("other", "c");
  const std::vector<float> first = m.with({"default"}), second = m.with({"other"}), both = m.with({"default", "other"});
  REQUIRE(m.model.merge({"default", "other"}));
  CHECK(largest_difference(m.logits(), base) > different);
  CHECK(largest_difference(m.logits(), first) > different);
  CHECK(largest_difference(m.logits(), second) > different);
  CHECK(largest_difference(m.logits(), both) < equal);
}
TEST_CASE("test_causal_lm_merge_and_unload_lora_adapter_compile: a model without adapters") {
  tiny_opt m;
  m.load("default", "a");
  const std::vector<float> with = m.with({"default"});
  REQUIRE(m.model.merge_and_unload({"default"}));
  CHECK(m.model.all_names().empty());
  CHECK(largest_difference(m.logits(), with) < equal);
}
TEST_CASE("test_causal_lm_mixed_batch_lora_adapter_compile: base, first and second in one batch") {
  tiny_opt m;
  const std::vector<float> base = m.logits();
  m.load("default", "a"), m.load("other", "c");
  const std::vector<float> first = m.with({"default"}), second = m.with({"other"});
  const std::vector<float> mixed = m.logits({{}, {"default"}, {"other"}});
  const std::size_t each = base.size();
  CHECK(largest_difference(std::span(mixed).first(each), base) < equal);
  CHECK(largest_difference(std::span(mixed).subspan(each, each), first) < equal);
  CHECK(largest_difference(std::span(mixed).last(each), second) < equal);
}
TEST_CASE("test_causal_lm_add_weighted_adapter_lora_adapter_compile: half and half, by the default type") {
  tiny_opt m;
  const std::vector<float> base = m.logits();
  m.load("default", "a"), m.load("other", "b");
  const std::vector<float> first = m.with({"default"}), second = m.with({"other"});
  REQUIRE(hf::combine(m.model, "combined", {"default", "other"}, {0.5, 0.5}));
  const std::vector<float> combined = m.with({"combined"});
  CHECK(largest_difference(combined, base) > different);
  CHECK(largest_difference(combined, first) > different);
  CHECK(largest_difference(combined, second) > different);
}
TEST_CASE("hot swapping: the same rank, a smaller and a larger one, and other modules, in one model") {
  tiny_opt m;
  m.load("default", "a");
  m.load("larger", "c");
  const std::vector<float> first = m.with({"default"}), larger = m.with({"larger"});
  REQUIRE(m.model.activate({"default"}));
  for (const char* other : {"c", "a", "b", "a"}) {
    const status s = hf::replace_adapter(m.model, "default", models + "multi/" + other);
    REQUIRE_MESSAGE(s, s.message());
    if (other[0] == 'a') CHECK(largest_difference(m.logits(), first) == 0);
    if (other[0] == 'c') CHECK(largest_difference(m.logits(), larger) == 0);
  }
  REQUIRE(hf::replace_adapter(m.model, "default", models + "lora_embedding/adapter_init"));
  CHECK(largest_difference(m.logits(), first) > different);
}
