// SPDX-License-Identifier: Apache-2.0
// What the formulas read of a configuration: facts of each layer, tables of RoPE, which sizes ranks divide; and
// configurations that are refused.
#include <doctest/doctest.h>
#include <graft/model/architectures.h>
#include <graft/model/tensor_parallel.h>

#include <algorithm>

using namespace graft;

namespace {

model_config small(const model_family& family) {
  model_config c;
  c.family = &family, c.vocabulary = 20, c.hidden_size = c.embedding_width = 16, c.intermediate_size = 24;
  c.layers = 4, c.heads = 4, c.kv_heads = 2, c.head_dim = 4, c.positions = 10000;
  c.window.assign(4, 0), c.attention_scale = 0.5;
  return c;
}
bool has_fact(const model_config& c, int layer, const char* name) {
  const std::vector<const char*> facts = facts_of(c, layer);
  return std::any_of(facts.begin(), facts.end(), [&](const char* fact) { return same_text(fact, name); });
}
// A communicator of one of two ranks that exchange nothing.
struct silent_ranks : communicator {
  int rank() const override { return 0; }
  int size() const override { return 2; }
  status all_reduce(const mutable_view&, reduction) override { return ok; }
  status begin_all_reduce(const mutable_view&) override { return ok; }
  status wait() override { return ok; }
  status all_gather(const view&, const mutable_view&) override { return ok; }
  status reduce_scatter(const view&, const mutable_view&) override { return ok; }
  status broadcast(const mutable_view&, int) override { return ok; }
  status barrier() override { return ok; }
};

}  // namespace

TEST_CASE("families: facts of each layer, and of the ends of the model") {
  model_config c = small(families::smollm3);
  c.no_rope = {false, true, false, true};
  for (int l = 0; l < 4; ++l) CHECK(has_fact(c, l, "no_rope") == (l % 2 == 1));
  CHECK_FALSE(has_fact(c, ends_of_model, "no_rope"));
  c = small(families::phi3);
  CHECK_FALSE(has_fact(c, 0, "partial_rotary"));
  c.rope.partial = 0.5;
  CHECK(has_fact(c, 0, "partial_rotary"));
  c = small(families::gemma2);
  CHECK_FALSE(has_fact(c, ends_of_model, "logit_soft_cap"));
  c.logit_soft_cap = 30;
  CHECK(has_fact(c, ends_of_model, "logit_soft_cap"));
}

TEST_CASE("families: a configuration that the formulas do not support is refused with a sentence") {
  const auto message_of = [](const model_config& c) { return std::string(check_supported(c).message()); };
  model_config c = small(families::llama);
  CHECK(bool(check_supported(c)));
  c.rope.divisors = {1};
  CHECK(message_of(c) == "rope.divisors has 1 numbers, and 2 pairs of each head are rotated");
  c.rope.divisors = {1, 2}, c.rope.kind = rope_kind::longrope;
  CHECK(message_of(c) == "rope.long_divisors has 0 numbers, and 2 pairs of each head are rotated");
  c = small(families::gemma3);
  c.sliding_rope.emplace().divisors = {1, 2, 3};
  CHECK(message_of(c) == "rope.divisors has 3 numbers, and 2 pairs of each head are rotated");
  c = small(families::smollm3);
  c.no_rope = {true};
  CHECK(message_of(c) == "no_rope has 1 entries for 4 layers");
  c = small(families::granite);
  c.embedding_width = 8;
  CHECK(message_of(c) == "embeddings of 8 columns in a model of 16: granite does not project them");
  c = small(families::opt);
  c.embedding_width = 8;
  CHECK(bool(check_supported(c)));
  c.mlp_bias = true;
  CHECK(message_of(c) == "OPT has all biases or none");
}

TEST_CASE("families: LongRoPE keeps to its original positions unless a longer context is asked for") {
  model_config c = small(families::phi3);
  CHECK(default_context(c) == 4096);
  c.rope.kind = rope_kind::longrope, c.rope.original_positions = 300;
  CHECK(default_context(c) == 300);
  c.rope.original_positions = 1e6;
  CHECK(default_context(c) == 4096);
  c = small(families::gpt2);
  CHECK(default_context(c) == 10000);  // the rows of its table of positions
}

TEST_CASE("families: ranks divide the heads where queries, keys and values are layers of their own") {
  const silent_ranks ranks;
  for (const model_family* family : {&families::llama, &families::gemma2, &families::olmo2, &families::smollm3,
                                     &families::granite, &families::phi3, &families::opt, &families::gpt2}) {
    CAPTURE(std::string(family->name));
    const auto made = sharding_for(small(*family), ranks);
    REQUIRE(made);
    const bool divides = family != &families::phi3 && family != &families::opt && family != &families::gpt2;
    CHECK(made->divides("kv_heads") == divides);
    CHECK(made->divides("intermediate"));
  }
}
