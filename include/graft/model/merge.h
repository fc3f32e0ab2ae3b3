// SPDX-License-Identifier: Apache-2.0
// Weights with the adapters in them: W' of every module that is changed, in the type and order of its base weight, and
// everything else where it was. The model that they were made from stays as it is.
//     auto merged = merged_weights(model);
//     auto plain = causal_lm<engine>::make(model.config(), *merged);
#pragma once
#include <graft/derive/derived.h>
#include <graft/model/causal_lm.h>

namespace graft {

namespace detail {

struct merged_memory {
  std::shared_ptr<const void> base;
  std::deque<std::vector<std::byte>> tensors;
};

// The kind of layer a weight belongs to, as far as merging cares: how many axes it has, and whether it is a table.
inline kind_rules merge_rules(const module_adapter& m, const view& weight, bool bias) {
  if (weight.rank == 1) return bias ? rules_of<norm_kind<false>>() : rules_of<norm_kind<true>>();
  return m.table ? rules_of<embedding_kind>() : rules_of<linear_kind>();
}

template <class Engine>
status merge_module(causal_lm<Engine>& model, const module_adapter& m, model_weights& out, merged_memory& memory) {
  const auto base = [&](const char* name) -> const view* {
    auto at = out.tensors.find(m.module + "." + name);
    if (at == out.tensors.end() && m.module == "lm_head" && model.config().tied && name[0] == 'w')
      at = out.tensors.find(token_table(model.config().family));
    return at != out.tensors.end() ? &at->second : nullptr;
  };
  for (const auto& [name, t] : m.base) out.tensors[m.module + "." + name] = t.value();
  if (m.of.weight == nullptr) return ok;
  const view *const weight = base("weight"), *const bias = base("bias");
  if (weight == nullptr) return fail(m.module.c_str(), ": the model has no such weight");
  const layer_formula f{merge_rules(m, *weight, bias != nullptr), m.of, bias != nullptr};
  const builder g = canonical(capture_weight(f));
  named_values values{{}, m.scalars, m.sizes};
  values.tensors["weight"] = m.turned ? weight->transposed() : *weight;
  if (bias != nullptr) values.tensors["bias"] = *bias;
  for (const auto& [name, t] : m.tensors) values.tensors[name] = t.value();
  const result<bound_leaves> bound = bind_named(g, values, {});
  if (!bound) return fail(m.module.c_str(), ": ", bound.message());
  std::vector<mutable_view> outputs(static_cast<std::size_t>(graph(g).outs));
  for (const auto& [name, from] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
    const int k = graph(g).find_output(name);
    if (k < 0 || from == nullptr) continue;
    memory.tensors.emplace_back(static_cast<std::size_t>(from->count() * bits_of(from->type) / 8));
    mutable_view to{memory.tensors.back().data(), from->type};
    to.rank = from->rank;
    std::copy_n(from->size, 4, to.size);
    view kept{to.data, to.type};
    kept.rank = to.rank;
    std::copy_n(to.size, 4, kept.size);
    const bool turned = m.turned && name[0] == 'w';
    if (turned) to = to.transposed(), std::fill_n(to.apart, 4, 0LL);
    outputs[static_cast<std::size_t>(k)] = to;
    // What was stored turned is stored turned again, by its strides.
    if (turned) kept = basic_view<const void>{to.data, to.type, {to.size[0], to.size[1], 1, 1}, 2}.transposed();
    out.tensors[m.module + "." + name] = kept;
  }
  return Engine::evaluate(model.programs().queue, g, bound->sizes, bound->leaf, outputs);
}

}  // namespace detail

template <class Engine> result<model_weights> merged_weights(causal_lm<Engine>& model) {
  model_weights out = model.weights();
  auto memory = std::make_shared<detail::merged_memory>();
  memory->base = out.owner;
  for (const module_adapter& m : model.adapters().modules)
    if (status s = detail::merge_module(model, m, out, *memory); !s) return s.failure();
  out.owner = std::move(memory);
  return out;
}

}  // namespace graft
