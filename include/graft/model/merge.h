// SPDX-License-Identifier: Apache-2.0
// Weights with adapters in them: W' of every module that is changed, in the type and order of its base weight, and
// everything else where it was; where several change a module each reads what the one before it wrote. The base stays as
// it is: what is new lies in memory of its own, so that the way back is to forget it. A weight that is not finite is an
// error. A base that is codes becomes codes again, rounded as PEFT rounds it after every adapter, or numbers where one
// asks for them; `rounding` says by how much.
#pragma once
#include <graft/backend/cpu/quantize.h>
#include <graft/derive/derived.h>
#include <graft/model/block_stack.h>

#include <bit>

namespace graft {

// What a merged weight is stored as where its base is codes.
enum class merged_as : unsigned char { codes, f32, bf16 };

struct merged_model {
  model_weights weights;
  long long bytes = 0;  // of memory beside the base's
  std::map<std::string, double>
      rounding{};  // by module: how far elements were moved to codes, over the largest of them
};

namespace detail {

struct merged_memory {
  std::shared_ptr<const void> base;
  std::deque<std::vector<std::byte>> tensors;
  std::deque<cpu::coded_weight> coded;
};

// A weight in the encoding of its base, and how far its elements were moved, over the largest of them.
inline result<double> as_codes(const std::vector<std::byte>& numbers, const view& base, merged_memory& memory) {
  const auto* const from = reinterpret_cast<const float*>(numbers.data());
  result<cpu::coded_weight> made = cpu::quantize(from, base.size[0], base.size[1], base.beside->how);
  if (!made) return made.failure();
  memory.coded.push_back(std::move(*made));
  const view v = memory.coded.back().as_view();
  std::vector<float> row(static_cast<std::size_t>(v.size[1]));
  double most = 0, step = 0;
  for (long long r = 0; r < v.size[0]; ++r) {
    cpu::decode_codes(weight_of(v, v.size[0], v.size[1]), r * v.size[1], v.size[1], row.data());
    for (long long c = 0; c < v.size[1]; ++c) {
      const auto was = static_cast<double>(from[r * v.size[1] + c]);
      most = std::max(most, std::abs(was));
      step = std::max(step, std::abs(was - static_cast<double>(row[static_cast<std::size_t>(c)])));
    }
  }
  return most > 0 ? step / most : 0;
}

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

// W' and b' of a method that reads the base layer's tensors beside what other adapters made of them.
inline builder capture_on_base(const formula& of, bool bias) {
  builder g;
  const scope p{&g};
  const extent out = p.size("out"), in = p.size("in");
  const ex W = p.leaf(op::base, "weight", 2, 1, 1, out, in),
           base = p.leaf(op::base, "base_layer.weight", 2, 1, 1, out, in);
  g.give(of.weight_on(p, W, base).i, "weight");
  if (bias && of.bias != nullptr) {
    const ex b = p.leaf(op::base, "bias", 1, 1, 1, out, 1),
             unmerged = p.leaf(op::base, "unmerged.bias", 1, 1, 1, out, 1);
    g.give(of.adapted_bias(p, b, {base, unmerged}).i, "bias");
  }
  return canonical(g);
}

template <class Engine>
status merge_module(typename Engine::queue& queue, const model_config& config, const module_adapter& m, merged_as as,
                    const model_weights& unmerged, merged_model& merged, merged_memory& memory) {
  model_weights& out = merged.weights;
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
  // A tied table that was saved whole is no longer the head's, which stays what it was.
  if (config.tied && m.module + ".weight" == token_table(config.family) && m.tensors.contains("modules_to_save.weight"))
    out.tensors.try_emplace("lm_head.weight", *weight);
  const layer_formula f{merge_rules(m, *weight, bias != nullptr), m.of, bias != nullptr};
  const builder g = m.of.weight_on != nullptr ? capture_on_base(m.of, bias != nullptr) : canonical(capture_weight(f));
  named_values values{{}, m.scalars, m.sizes};
  values.tensors["weight"] = m.turned ? weight->transposed() : *weight;
  if (bias != nullptr) {
    const auto unmerged_bias = unmerged.tensors.find(m.module + ".bias");
    values.tensors["bias"] = *bias;
    values.tensors["unmerged.bias"] = unmerged_bias != unmerged.tensors.end() ? unmerged_bias->second : *bias;
  }
  if (const auto at = unmerged.tensors.find(m.module + ".weight"); at != unmerged.tensors.end())
    values.tensors["base_layer.weight"] = m.turned ? at->second.transposed() : at->second;
  else
    values.tensors["base_layer.weight"] = values.tensors["weight"];
  for (const auto& [name, t] : m.tensors) values.tensors[name] = t.value();
  const result<bound_leaves> bound = bind_named(g, values, {});
  if (!bound) return fail(m.module.c_str(), ": ", bound.message());
  std::vector<mutable_view> outputs(static_cast<std::size_t>(graph(g).outs));
  std::vector<dtype> made;
  const view before_merging = *weight;
  for (const auto& [name, from] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
    const int k = graph(g).find_output(name);
    if (k < 0) continue;
    if (from == nullptr)
      return fail(m.module.c_str(),
                  ": the adapter brings a bias, and the layer has none to merge it into; run it unmerged");
    const dtype type = from->beside == nullptr ? from->type : as == merged_as::bf16 ? dtype::bf16 : dtype::f32;
    memory.tensors.emplace_back(static_cast<std::size_t>(from->count() * bits_of(type) / 8));
    made.push_back(type);
    mutable_view to{memory.tensors.back().data(), type};
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
  if (before_merging.beside == nullptr || as != merged_as::codes) return ok;
  const result<double> moved = as_codes(memory.tensors[before], before_merging, memory);
  if (!moved) return fail(m.module.c_str(), ": ", moved.message());
  merged.rounding[m.module] = std::max(merged.rounding[m.module], *moved);
  out.tensors[m.module + ".weight"] = memory.coded.back().as_view();
  memory.tensors.erase(memory.tensors.begin() + static_cast<std::ptrdiff_t>(before));
  return ok;
}

}  // namespace detail

template <class Engine>
result<merged_model> merge_into(typename Engine::queue& queue, const model_config& config, const model_weights& base,
                                const adapter_set& adapters, merged_as as = merged_as::codes) {
  merged_model out{base};
  auto memory = std::make_shared<detail::merged_memory>();
  memory->base = base.owner;
  for (const module_adapter& m : adapters.modules)
    if (m.follows.empty())
      if (status s = detail::merge_module<Engine>(queue, config, m, as, base, out, *memory); !s) return s.failure();
  for (const std::vector<std::byte>& t : memory->tensors) out.bytes += static_cast<long long>(t.size());
  for (const cpu::coded_weight& w : memory->coded) out.bytes += graft::bytes_of(w.beside->how, w.rows, w.cols);
  out.weights.owner = std::move(memory);
  return out;
}

}  // namespace graft
