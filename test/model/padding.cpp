// SPDX-License-Identifier: Apache-2.0
// The row of the token that pads is not trained by lookups, as torch.nn.Embedding's padding_idx; all others are.
#include <doctest/doctest.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

using namespace graft;
using engine = cpu::engine<float>;

namespace {

causal_lm<engine> model_of(const char* name) {
  auto model = io::hf::load_model<engine>(std::string(GRAFT_GOLDEN_DIR "/models/") + name + "/base");
  REQUIRE(model);
  return std::move(*model);
}

// Is the gradient at (row, column) zero in the parameter whose name ends so, after a batch with this token?
struct gradients {
  causal_lm<engine> model;
  std::vector<trained_parameter> all{};
  std::optional<training_run<engine>> run{};

  gradients(const char* base, const char* adapter, std::int64_t token) : model(model_of(base)) {
    auto loaded =
        io::hf::load_adapters(std::string(GRAFT_GOLDEN_DIR "/models/") + base + "/" + adapter + "/adapter_init", model);
    REQUIRE(loaded);
    REQUIRE(model.set_adapters(loaded->set));
    auto made = training_run<engine>::make(model, {.dropout = false});
    REQUIRE(made);
    run.emplace(std::move(*made));
    const std::vector<std::int64_t> ids{7, token, 9, 5, token, 30};
    const labeled_sequence batch[] = {{ids}};
    run->clear();
    REQUIRE(run->add(batch));
    all = run->on_host();
  }
  double largest(const char* name, long long row, long long column) const {
    double found = -1;
    for (const trained_parameter& p : all) {
      if (!p.name.ends_with(name)) continue;
      const auto* const g = static_cast<const float*>(p.gradient.data);
      for (long long i = 0; i < p.gradient.count(); ++i)
        if ((row < 0 || i / p.gradient.size[1] == row) && (column < 0 || i % p.gradient.size[1] == column))
          found = std::max(found, std::abs(static_cast<double>(g[i])));
    }
    REQUIRE(found >= 0);
    return found;
  }
};

}  // namespace

TEST_CASE("a lookup of the token that pads trains the other factor only") {
  const gradients pads("llama", "lora_embedding", 0), other("llama", "lora_embedding", 8);
  CHECK(pads.largest("lora_embedding_A", -1, 0) == 0);
  CHECK(pads.largest("lora_embedding_A", -1, 7) > 0);
  CHECK(other.largest("lora_embedding_A", -1, 8) > 0);
  CHECK(other.largest("lora_embedding_A", -1, 0) == 0);
  CHECK(pads.largest("lora_embedding_B", -1, -1) > 0);
}

TEST_CASE("a table that is trained whole keeps the row of the token that pads") {
  const gradients pads("llama_tied_bias", "lora_saved_tied", 0), other("llama_tied_bias", "lora_saved_tied", 8);
  CHECK(pads.largest("embed_tokens.modules_to_save.weight", 0, -1) == 0);
  CHECK(pads.largest("embed_tokens.modules_to_save.weight", 7, -1) > 0);
  CHECK(other.largest("embed_tokens.modules_to_save.weight", 8, -1) > 0);
}
