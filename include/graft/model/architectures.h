// SPDX-License-Identifier: Apache-2.0
// What the formulas of a family read of a model_config by name: facts, sizes and scalars, and the table of RoPE.
#pragma once
#include <graft/model/model_config.h>
#include <graft/run/named_tensors.h>

namespace graft {

// Returns the factor on the queries of a layer, in addition to the usual 1 / √head_dim.
inline double attention_factor(const model_config& c, int layer) {
  const double usual = 1 / std::sqrt(static_cast<double>(c.head_dim));
  return (c.attention_scale == usual ? 1 : c.attention_scale / usual) / (c.attention_scaled_by_layer ? layer + 1 : 1);
}

inline bool has_experts(const model_config& c, int layer) {
  return c.experts > 0 && layer >= 0 && (c.sparse.empty() || c.sparse[static_cast<std::size_t>(layer)]);
}
// Returns the switches that are on in the formulas of embedding and head (`layer` is ends_of_model) or of a layer.
inline constexpr int ends_of_model = -1;
inline std::vector<const char*> facts_of(const model_config& c, int layer) {
  std::vector<const char*> facts;
  for (const auto& [holds, name] :
       {std::pair{c.attention_bias, "attention_bias"},
        {c.output_bias, "output_bias"},
        {c.mlp_bias, "mlp_bias"},
        {c.norm_before, "norm_before"},
        {c.final_norm, "final_norm"},
        {c.embedding_width != c.hidden_size, "projected"},
        {attention_factor(c, 1) != 1, "attention_factor"},
        {c.attention_dropout > 0, "attention_dropout"},
        {c.logit_soft_cap > 0, "logit_soft_cap"},
        {rotary_dim(c) != c.head_dim, "partial_rotary"},
        {layer >= 0 && !c.no_rope.empty() && c.no_rope[static_cast<std::size_t>(layer)], "no_rope"},
        {stored_out_in(c), "stored_out_in"},
        {has_experts(c, layer), "sparse_layer"},
        {c.family->experts_in_out && !experts_in_out(c), "experts_out_in"},
        {c.experts > 0 && c.router_over_chosen, "router_over_chosen"}})
    if (holds) facts.push_back(name);
  return facts;
}

constexpr op operation_of(activation_kind a) {
  switch (a) {
    case activation_kind::silu: return op::silu;
    case activation_kind::gelu: return op::gelu;
    case activation_kind::gelu_tanh: return op::gelu_tanh;
    case activation_kind::relu: return op::relu;
  }
  return op::detach;
}

// Fails for a configuration that the formulas of its family do not support.
inline status check_supported(const model_config& c) {
  const int pairs = rotary_dim(c) / 2;
  for (const rope_settings* r : {&c.rope, c.sliding_rope ? &*c.sliding_rope : &c.rope})
    for (const std::vector<float>* divisors : {&r->divisors, &r->long_divisors}) {
      const auto given = static_cast<int>(divisors->size());
      if (given == pairs || (given == 0 && r->kind != rope_kind::longrope)) continue;
      return fail("rope.", divisors == &r->divisors ? "divisors" : "long_divisors", " has ", given, " numbers, and ",
                  pairs, " pairs of each head are rotated");
    }
  if (!c.no_rope.empty() && c.no_rope.size() != static_cast<std::size_t>(c.layers))
    return fail("no_rope has ", static_cast<int>(c.no_rope.size()), " entries for ", c.layers, " layers");
  if (c.embedding_width != c.hidden_size && !c.family->may_project_embedding)
    return fail("embeddings of ", c.embedding_width, " columns in a model of ", c.hidden_size, ": ", c.family->name,
                " does not project them");
  return c.family->check != nullptr ? c.family->check(c) : ok;
}

// Returns the sizes and scalars of every graph of the model. `context`: rows of the position tables.
inline named_values values_of(const model_config& c, int context) {
  named_values v;
  v.sizes = {{"hidden", c.hidden_size},
             {"heads", c.heads},
             {"kv_heads", c.kv_heads},
             {"head_dim", c.head_dim},
             {"intermediate", c.intermediate_size},
             {"vocab", c.vocabulary},
             {"context", context},
             {"embedding", c.embedding_width},
             {"rotary_dim", rotary_dim(c)}};
  if (c.experts > 0)
    for (const auto& [name, n] : {std::pair{"experts", c.experts},
                                  {"experts_per_token", c.experts_per_token},
                                  {"moe_intermediate", c.expert_intermediate_size},
                                  {"shared_intermediate", c.shared_expert_intermediate_size}})
      v.sizes[name] = n;
  v.scalars = {{"eps", c.norm_eps},
               {"logit_soft_cap", c.logit_soft_cap},
               {"embedding_multiplier", c.embedding_multiplier},
               {"residual_multiplier", c.residual_multiplier},
               {"logits_scaling", c.logits_scaling},
               {"swiglu_alpha", c.swiglu_alpha},
               {"swiglu_limit", c.swiglu_limit}};
  return v;
}

// Returns the longest sequence that a model is made for if none is asked for. Beyond the original positions LongRoPE
// has other angles, which are then those of all sequences.
inline int default_context(const model_config& c) {
  if (!c.family->has_rope) return c.positions;
  const int most = std::min(c.positions, 4096);
  const bool is_less = c.rope.kind == rope_kind::longrope && c.rope.original_positions < most;
  return is_less ? static_cast<int>(c.rope.original_positions) : most;
}

// Returns the RoPE table [context, rotary_dim]: row p has the cosines of position p for each pair of elements of a head
// that are rotated, then its sines.
inline std::vector<float> rope_table(const rope_settings& settings, int dim, int context) {
  const rope_frequencies r = make_rope_frequencies(settings, dim, context);
  const std::size_t half = r.frequencies.size();
  std::vector<float> table(static_cast<std::size_t>(context) * half * 2);
  for (std::size_t p = 0; p < static_cast<std::size_t>(context); ++p)
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * r.frequencies[i];
      table[p * half * 2 + i] = std::cos(angle) * r.factor;
      table[p * half * 2 + half + i] = std::sin(angle) * r.factor;
    }
  return table;
}

}  // namespace graft
