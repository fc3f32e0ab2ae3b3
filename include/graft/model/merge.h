// SPDX-License-Identifier: Apache-2.0
// Merging adapters into a model's weights: W' of every adapted module in the type and layout of its base weight; all
// other tensors are shared with the base. Where several adapters change a module, each reads the result of the one
// before it. The base is not written, so unmerging is dropping the merged copies. A result that is not finite is an
// error. A quantized base is quantized again after every adapter with PEFT's rounding, or becomes bf16 or f32 on
// request.
#pragma once
#include <graft/backend/cpu/quantized/quantize.h>
#include <graft/derive/derived.h>
#include <graft/model/block_stack.h>

#include <bit>

namespace graft {

// The format of a merged weight whose base is quantized.
enum class merged_format : unsigned char { quantized, f32, bf16 };

struct merged_model {
  model_weights weights;
  long long bytes = 0;  // size of the merged copies
  // By module: the largest rounding error of quantizing the merged weight, relative to its largest element.
  std::map<std::string, double> rounding{};
};

namespace detail {

struct merged_memory {
  std::shared_ptr<const void> base;
  std::deque<std::vector<std::byte>> tensors;
  std::deque<cpu::quantized_weight> quantized;
};

// Quantizes a merged weight in the format of its base; returns the largest rounding error over the largest element.
inline result<double> requantize(const std::vector<std::byte>& numbers, const view& base, merged_memory& memory) {
  const auto* const from = reinterpret_cast<const float*>(numbers.data());
  const weight_view matrix = weight_of(base);
  result<cpu::quantized_weight> made = cpu::quantize(from, matrix.rows, matrix.cols, base.quant->format);
  if (!made) return made.failure();
  memory.quantized.push_back(std::move(*made));
  const view v = memory.quantized.back().as_view();
  std::vector<float> row(static_cast<std::size_t>(v.size[1]));
  double most = 0, step = 0;
  for (long long r = 0; r < v.size[0]; ++r) {
    cpu::dequantize(weight_of(v), r * v.size[1], v.size[1], row.data());
    for (long long c = 0; c < v.size[1]; ++c) {
      const auto was = static_cast<double>(from[r * v.size[1] + c]);
      most = std::max(most, std::abs(was));
      step = std::max(step, std::abs(was - static_cast<double>(row[static_cast<std::size_t>(c)])));
    }
  }
  return most > 0 ? step / most : 0;
}

// Tests the bits of the exponent, which also works under -ffast-math.
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

// Returns the kind of layer that a weight belongs to, as far as merging depends on it: norm, embedding or linear.
inline kind_rules merge_rules(const module_adapter& m, const view& weight, bool bias) {
  if (weight.rank == 3) return m.transposed_storage ? rules_of<experts_kind<true>>() : rules_of<experts_kind<false>>();
  if (weight.rank == 1) return bias ? rules_of<norm_kind<false>>() : rules_of<norm_kind<true>>();
  return m.table ? rules_of<embedding_kind>() : rules_of<linear_kind>();
}

// The leaf of the unmerged weight, with the shape of the weight that earlier adapters produced.
inline ex base_weight_like(scope p, ex weight) {
  const node v = *weight;
  return {p.g, p.g->leaf(op::base, "base_layer.weight", 0, v.rank, v.d[0], v.d[1], v.d[2], v.d[3])};
}
// Captures W' and b' of a method that reads both the unmerged tensors of the base layer and those that earlier adapters
// produced.
inline builder capture_on_base(const kind_rules& kind, const formula& of, bool bias) {
  builder g;
  const scope p{&g};
  const extent out = p.size("out");
  const ex W = kind.matrix(p, kind.weight(p)),
           base = kind.matrix(p.in("base_layer"), base_weight_like(p, kind.weight(p)));
  g.add_output(kind.stored(p, of.weight_with_base(p, W, base)).i, "weight");
  if (bias && of.bias != nullptr) {
    const ex b = p.leaf(op::base, "bias", 1, 1, 1, out, 1),
             unmerged = p.leaf(op::base, "unmerged.bias", 1, 1, 1, out, 1);
    g.add_output(of.adapted_bias(p, b, {base, unmerged}).i, "bias");
  }
  return canonical(g);
}

template <class Engine>
status merge_module(typename Engine::queue& queue, const model_config& config, const module_adapter& m,
                    merged_format as, const model_weights& unmerged, merged_model& merged, merged_memory& memory) {
  model_weights& out = merged.weights;
  const auto experts = out.tensors.find(m.module);  // the weights of experts are parameters and no modules
  const bool of_experts = experts != out.tensors.end() && experts->second.rank == 3;
  const auto full_name = [&](const char* name) { return of_experts ? m.module : m.module + "." + name; };
  const auto base = [&](const char* name) -> const view* {
    if (of_experts && name[0] != 'w') return nullptr;
    auto at = out.tensors.find(full_name(name));
    if (at == out.tensors.end() && m.module == "lm_head" && config.tied && name[0] == 'w')
      at = out.tensors.find(config.family->token_embedding);
    return at != out.tensors.end() ? &at->second : nullptr;
  };
  for (const auto& [name, t] : m.base) out.tensors[m.module + "." + name] = t.value();
  if (m.of.weight == nullptr) return ok;
  const view *const weight = base("weight"), *const bias = base("bias");
  if (weight == nullptr) return fail(m.module.c_str(), ": the model has no such weight");
  // A tied embedding that was trained in full is untied: the head keeps the base's table.
  if (config.tied && m.module + ".weight" == config.family->token_embedding &&
      m.tensors.contains("modules_to_save.weight"))
    out.tensors.try_emplace("lm_head.weight", *weight);
  if (as == merged_format::quantized && weight->quant != nullptr && !can_quantize(weight->quant->format))
    return fail(m.module.c_str(), ": weights in ", name_of(weight->quant->format),
                " are read and not written; take the merged weights as f32 or bf16");
  const layer_formula f{merge_rules(m, *weight, bias != nullptr), m.of, bias != nullptr};
  const builder g =
      m.of.weight_with_base != nullptr ? capture_on_base(f.kind, m.of, bias != nullptr) : canonical(capture_weight(f));
  const bool transposed_matrix = m.transposed_storage && !of_experts;
  named_values values{{}, m.scalars, m.sizes};
  values.tensors["weight"] = transposed_matrix ? weight->transposed() : *weight;
  if (bias != nullptr) {
    const auto unmerged_bias = unmerged.tensors.find(m.module + ".bias");
    values.tensors["bias"] = *bias;
    values.tensors["unmerged.bias"] = unmerged_bias != unmerged.tensors.end() ? unmerged_bias->second : *bias;
  }
  if (const auto at = unmerged.tensors.find(full_name("weight")); at != unmerged.tensors.end())
    values.tensors["base_layer.weight"] = transposed_matrix ? at->second.transposed() : at->second;
  else
    values.tensors["base_layer.weight"] = values.tensors["weight"];
  for (const auto& [name, t] : m.tensors) values.tensors[name] = t.value();
  const result<bound_leaves> bound = bind_named(g, values, {});
  if (!bound) return fail(m.module.c_str(), ": ", bound.message());
  std::vector<mutable_view> outputs(static_cast<std::size_t>(graph(g).outs));
  std::vector<dtype> made;
  const view unmerged_weight = *weight;
  for (const auto& [name, from] : {std::pair{"weight", weight}, std::pair{"bias", bias}}) {
    const int k = graph(g).find_output(name);
    if (k < 0) continue;
    if (from == nullptr)
      return fail(m.module.c_str(),
                  ": the adapter brings a bias, and the layer has none to merge it into; run it unmerged");
    const dtype type = from->quant == nullptr ? from->type : as == merged_format::bf16 ? dtype::bf16 : dtype::f32;
    memory.tensors.emplace_back(static_cast<std::size_t>(from->count() * bits_of(type) / 8));
    made.push_back(type);
    mutable_view to{memory.tensors.back().data(), type};
    to.rank = from->rank;
    std::copy_n(from->size, 4, to.size);
    view merged_view{to.data, to.type};
    merged_view.rank = to.rank;
    std::copy_n(to.size, 4, merged_view.size);
    const bool transposed_storage = transposed_matrix && name[0] == 'w';
    if (transposed_storage) to = to.transposed(), std::fill_n(to.strides, 4, 0LL);
    outputs[static_cast<std::size_t>(k)] = to;
    // A weight that is stored [in, out] is merged into that layout, by strides.
    if (transposed_storage)
      merged_view = basic_view<const void>{to.data, to.type, {to.size[0], to.size[1], 1, 1}, 2}.transposed();
    out.tensors[full_name(name)] = merged_view;
  }
  const std::size_t before = memory.tensors.size() - made.size();
  if (status s = Engine::evaluate_in_host_memory(queue, g, bound->sizes, bound->leaf, outputs); !s) return s;
  for (std::size_t k = 0; k < made.size(); ++k)
    if (!all_finite(memory.tensors[before + k], made[k]))
      return fail(m.module.c_str(), ": the merged weight is not finite; nothing was merged");
  if (unmerged_weight.quant == nullptr || as != merged_format::quantized) return ok;
  const result<double> rounding_error = requantize(memory.tensors[before], unmerged_weight, memory);
  if (!rounding_error) return fail(m.module.c_str(), ": ", rounding_error.message());
  merged.rounding[m.module] = std::max(merged.rounding[m.module], *rounding_error);
  view merged_weight = memory.quantized.back().as_view();
  merged_weight.rank = unmerged_weight.rank;  // the matrices of experts were quantized as one
  std::copy_n(unmerged_weight.size, 4, merged_weight.size);
  out.tensors[full_name("weight")] = merged_weight;
  memory.tensors.erase(memory.tensors.begin() + static_cast<std::ptrdiff_t>(before));
  return ok;
}

}  // namespace detail

template <class Engine>
result<merged_model> merge_adapters(typename Engine::queue& queue, const model_config& config,
                                    const model_weights& base, const adapter_set& adapters,
                                    merged_format as = merged_format::quantized) {
  merged_model out{base};
  auto memory = std::make_shared<detail::merged_memory>();
  memory->base = base.owner;
  for (const module_adapter& m : adapters.modules)
    if (m.tied_to.empty())
      if (status s = detail::merge_module<Engine>(queue, config, m, as, base, out, *memory); !s) return s.failure();
  for (const std::vector<std::byte>& t : memory->tensors) out.bytes += static_cast<long long>(t.size());
  for (const cpu::quantized_weight& w : memory->quantized)
    out.bytes += graft::bytes_of(w.quant->format, w.rows, w.cols);
  out.weights.owner = std::move(memory);
  return out;
}

}  // namespace graft
