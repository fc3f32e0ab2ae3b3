// SPDX-License-Identifier: Apache-2.0
// Weights with adapters in them: W' of every module that is changed, in the type and order of its base weight, and
// everything else where it was; where several change a module each reads what the one before it wrote. The base stays as
// it is: what is new lies in memory of its own, so that the way back is to forget it. A weight that is not finite is an
// error.
#pragma once
#include <graft/derive/derived.h>
#include <graft/model/block_stack.h>

#include <bit>

namespace graft {

namespace detail {

struct merged_memory {
  std::shared_ptr<const void> base;
  std::deque<std::vector<std::byte>> tensors;
};

// By the bits of the exponent: also where the compiler was told that there are no infinities.
template <class Bits> bool finite_bits(const std::vector<std::byte>& bytes, Bits exponent) {
  for (std::size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits v{};
    std::copy_n(bytes.data() + at, sizeof(Bits), reinterpret_cast<std::byte*>(&v));
    if ((v & exponent) == exponent) return false;
  }
  return true;
}
inline bool all_finite(const std::vector<std::byte>& bytes, dtype type) {
  switch (type) {
    case dtype::f32: return finite_bits(bytes, std::uint32_t{0x7f800000});
    case dtype::f64: return finite_bits(bytes, std::uint64_t{0x7ff0000000000000});
    case dtype::bf16: return finite_bits(bytes, std::uint16_t{0x7f80});
    case dtype::f16: return finite_bits(bytes, std::uint16_t{0x7c00});
    default: return true;
  }
}

// The kind of layer a weight belongs to, as far as merging cares: how many axes it has, and whether it is a table.
inline kind_rules merge_rules(const module_adapter& m, const view& weight, bool bias) {
  if (weight.rank == 1) return bias ? rules_of<norm_kind<false>>() : rules_of<norm_kind<true>>();
  return m.table ? rules_of<embedding_kind>() : rules_of<linear_kind>();
}

template <class Engine>
status merge_module(typename Engine::queue& queue, const model_config& config, const module_adapter& m,
                    model_weights& out, merged_memory& memory) {
  const auto base = [&](const char* name) -> const view* {
    auto at = out.tensors.find(m.module + "." + name);
    if (at == out.tensors.end() && m.module == "lm_head" && config.tied && name[0] == 'w')
      at = out.tensors.find(token_table(config.family));
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
  std::vector<dtype> made;
  for (const auto& [name, from] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
    const int k = graph(g).find_output(name);
    if (k < 0 || from == nullptr) continue;
    memory.tensors.emplace_back(static_cast<std::size_t>(from->count() * bits_of(from->type) / 8));
    made.push_back(from->type);
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
  const std::size_t before = memory.tensors.size() - made.size();
  if (status s = Engine::evaluate_in_host_memory(queue, g, bound->sizes, bound->leaf, outputs); !s) return s;
  for (std::size_t k = 0; k < made.size(); ++k)
    if (!all_finite(memory.tensors[before + k], made[k]))
      return fail(m.module.c_str(), ": the merged weight is not finite; nothing was merged");
  return ok;
}

}  // namespace detail

struct merged_model {
  model_weights weights;
  long long bytes = 0;  // of memory beside the base's
};

template <class Engine>
result<merged_model> merge_into(typename Engine::queue& queue, const model_config& config, const model_weights& base,
                                const adapter_set& adapters) {
  merged_model out{base};
  auto memory = std::make_shared<detail::merged_memory>();
  memory->base = base.owner;
  for (const module_adapter& m : adapters.modules)
    if (m.follows.empty())
      if (status s = detail::merge_module<Engine>(queue, config, m, out.weights, *memory); !s) return s.failure();
  for (const std::vector<std::byte>& t : memory->tensors) out.bytes += static_cast<long long>(t.size());
  out.weights.owner = std::move(memory);
  return out;
}

}  // namespace graft
