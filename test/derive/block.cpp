// SPDX-License-Identifier: Apache-2.0
// Blocks as formulas: their leaves have the paths of Hugging Face's files, and adapter rules select layers by pattern.
#include <graft/adapter/c3a.h>
#include <graft/adapter/dora.h>
#include <graft/block/gemma3.h>
#include <graft/block/gpt2.h>
#include <graft/block/granite.h>
#include <graft/block/olmo2.h>
#include <graft/block/opt.h>
#include <graft/block/phi3.h>
#include <graft/block/qwen2.h>
#include <graft/block/qwen3.h>
#include <graft/block/smollm3.h>

#include "../support/same_graph.h"
#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr adapter_rule mixed[] = {{"*_proj", formula_of<lora<>>()}, {"v_proj", formula_of<dora<>>()}};
constexpr const char* biased[] = {"attention_bias", "mlp_bias"};

constexpr bool has_leaf(const builder& g, const char* name) { return g.find(name) != none_id; }
constexpr bool llama_while_compiling() {
  const builder g = capture_forward(block_of<llama>(), {{mixed, 2}});
  return g.bad.what == formula_error::none && has_leaf(g, "self_attn.v_proj.lora_magnitude_vector") &&
         !has_leaf(g, "self_attn.q_proj.lora_magnitude_vector") && has_leaf(g, "mlp.down_proj.lora_A.weight");
}

}  // namespace

TEST_CASE("adapter_rule: patterns") {
  BOTH(fits("v_proj", "self_attn.v_proj"));
  BOTH(fits("self_attn.v_proj", "self_attn.v_proj"));
  BOTH(fits("*_proj", "self_attn.v_proj"));
  BOTH(fits("*", "lm_head"));
  BOTH(!fits("v_proj", "self_attn.kv_proj"));
  BOTH(!fits("self_attn", "self_attn.v_proj"));
  BOTH(!fits("*_projx", "self_attn.v_proj"));
  BOTH(fits("self*proj", "self_attn.v_proj"));
}

TEST_CASE("block: the last pattern that matches a layer gives its adapter, also while compiling") {
  BOTH(llama_while_compiling());
}

TEST_CASE("block: several adapters on one layer have names") {
  const adapter_rule two[] = {{"q_proj", formula_of<lora<>>(), "a"}, {"q_proj", formula_of<lora<>>(), "c"}};
  const builder g = capture_forward(block_of<llama>(), {{two, 2}});
  CHECK(has_leaf(g, "self_attn.q_proj.a.lora_A.weight"));
  CHECK(has_leaf(g, "self_attn.q_proj.c.lora_B.weight"));
}

TEST_CASE("block: the backward graph has the gradient of every adapter, by path, and none of the base") {
  const builder g = capture_backward(block_of<llama>(), {{mixed, 2}});
  CHECK(g.bad.what == formula_error::none);
  CHECK(g.out.size() == 1 + 7 * 2 + 1);
  CHECK(g.result("self_attn.v_proj.lora_magnitude_vector") != none_id);
  CHECK(g.result("mlp.gate_proj.lora_B.weight") != none_id);
  CHECK(g.result("mlp.gate_proj.weight") == none_id);
  CHECK(g.result("dx") != none_id);
}

TEST_CASE("block: a weight that only backward reads changes the gradient of the input and nothing else") {
  constexpr adapter_rule as_peft[] = {{"q_proj", formula_of<c3a<8>>()}},
                         exact[] = {{"q_proj", formula_of<c3a<8, c3a_gradient::exact>>()}};
  const builder forward = capture_forward(block_of<llama>(), {{as_peft, 1}}),
                as_written = capture_forward(block_of<llama>(), {{exact, 1}});
  CHECK(graph(forward).size == graph(as_written).size);
  for (id i = 0; i < graph(forward).size; ++i)
    CHECK(std::string(expression(forward, i).c_str()) == expression(as_written, i).c_str());
  const builder backward = capture_backward(block_of<llama>(), {{as_peft, 1}}),
                derivative = capture_backward(block_of<llama>(), {{exact, 1}});
  CHECK(!test::first_difference(backward, derivative, test::lines::may_differ).empty());
  CHECK(graph(backward).outs == graph(derivative).outs);
  for (const node& v : backward.n) CHECK((v.what != op::zero && v.what != op::detach));
}
TEST_CASE("block: biases where the configuration has them, and trained where a rule says") {
  CHECK(!has_leaf(capture_forward(block_of<llama>(), {}), "self_attn.q_proj.bias"));
  CHECK(has_leaf(capture_forward(block_of<llama>(), {{}, biased, 2}), "self_attn.q_proj.bias"));
  CHECK(has_leaf(capture_forward(block_of<qwen2>(), {}), "self_attn.q_proj.bias"));
  const adapter_rule trained[] = {{"q_proj", {}, "", true}};
  const builder g = capture_backward(block_of<qwen2>(), {{trained, 1}});
  CHECK(g.result("self_attn.q_proj.bias") != none_id);
  CHECK(g.result("self_attn.k_proj.bias") == none_id);
}

TEST_CASE("block: only a block for decoding has a KV cache, and only one with dropout has a seed") {
  block_options options;
  CHECK(!has_leaf(capture_forward(block_of<gpt2>(), options), "kv_cache"));
  CHECK(!has_leaf(capture_forward(block_of<gpt2>(), options), "seed"));
  options.cached = options.dropped = true;
  CHECK(has_leaf(capture_forward(block_of<gpt2>(), options), "kv_cache"));
  CHECK(has_leaf(capture_forward(block_of<gpt2>(), options), "seed"));
}

TEST_CASE("block: the leaves of every architecture") {
  struct expected {
    architecture model;
    const char *embed, *block, *head;
  };
  const expected all[] = {
      {architecture_of<llama>(), "model.embed_tokens.weight", "mlp.gate_proj.weight", "model.norm.weight"},
      {architecture_of<mistral>(), "model.embed_tokens.weight", "mlp.up_proj.weight", "lm_head.weight"},
      {architecture_of<qwen2>(), "model.embed_tokens.weight", "self_attn.k_proj.bias", "lm_head.weight"},
      {architecture_of<qwen3>(), "model.embed_tokens.weight", "self_attn.q_norm.weight", "lm_head.weight"},
      {architecture_of<gemma>(), "model.embed_tokens.weight", "post_attention_layernorm.weight", "model.norm.weight"},
      {architecture_of<gemma2>(), "model.embed_tokens.weight", "pre_feedforward_layernorm.weight", "model.norm.weight"},
      {architecture_of<gemma3>(), "model.embed_tokens.weight", "self_attn.k_norm.weight", "lm_head.weight"},
      {architecture_of<granite>(), "embedding_multiplier", "residual_multiplier", "logits_scaling"},
      {architecture_of<olmo2>(), "model.embed_tokens.weight", "post_feedforward_layernorm.weight", "lm_head.weight"},
      {architecture_of<phi3>(), "model.embed_tokens.weight", "mlp.gate_up_proj.weight", "model.norm.weight"},
      {architecture_of<smollm3>(), "model.embed_tokens.weight", "self_attn.o_proj.weight", "lm_head.weight"},
      {architecture_of<opt>(), "model.decoder.embed_positions.weight", "fc1.weight", "lm_head.weight"},
      {architecture_of<gpt2>(), "transformer.wpe.weight", "attn.c_attn.weight", "transformer.ln_f.bias"},
  };
  for (const expected& e : all) {
    INFO(std::string(e.model.name));
    CHECK(has_leaf(capture_forward(e.model.embed, {}), e.embed));
    CHECK(has_leaf(capture_forward(e.model.block, {}), e.block));
    CHECK(has_leaf(capture_forward(e.model.head, {}), e.head));
    const builder loss = capture_backward(with_loss(e.model.head), {});
    CHECK(has_leaf(loss, "labels"));
    CHECK(loss.result("y") != none_id);
    CHECK(loss.result("dx") != none_id);
  }
}
