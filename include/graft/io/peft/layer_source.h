// SPDX-License-Identifier: Apache-2.0
// peft_layer_state: the state of reading one layer of a PEFT folder, which is configuration, file, base layer, and what
// has been read so far under the formula's names. Tensors must be finite, and all tensors of the layer must be used.
// Keys are `base_model.model.<module>.<name>`, or `base_model.<name>` for tensors that all layers share.
#pragma once
#include <graft/io/peft/layer_values.h>
#include <graft/io/peft/target_modules.h>
#include <graft/io/safetensors/convert.h>
#include <graft/io/safetensors/reader.h>
#include <graft/run/bind.h>

#include <bit>
#include <cmath>

namespace graft::io {

// Tests the bits of a float, so that it works under -ffinite-math-only too.
inline bool finite_bits(float v) { return (std::bit_cast<std::uint32_t>(v) & 0x7f800000U) != 0x7f800000U; }

// Reads a tensor of floats, all of them finite.
inline result<std::vector<float>> read_factor(const tensor_view& t, std::string_view file) {
  switch (t.type) {
    case safetensors_type::boolean:
    case safetensors_type::u8:
    case safetensors_type::i8:
    case safetensors_type::i16:
    case safetensors_type::u16:
    case safetensors_type::i32:
    case safetensors_type::u32:
    case safetensors_type::i64:
    case safetensors_type::u64:
      return fail_in(file, "tensor ", in_quotes(t.name), " is ", name_of(t.type),
                     ", expected floats (F32, F16 or BF16); save the adapter unquantized");
    default: break;
  }
  result<std::vector<float>> values = to_float(t);
  if (!values) return fail_in(file, values.message());
  for (const float v : *values)
    if (!finite_bits(v)) return fail_in(file, "tensor ", in_quotes(t.name), " holds a value that is not finite");
  return values;
}

struct peft_layer_state {
  const adapter_config& config;
  const safetensors& file;
  const base_layer& base;
  peft_layer layer{};
  std::vector<std::string> used{};
  std::map<std::string, loaded_tensor, std::less<>> made{};  // cache of once() if base.all_targets is null

  bool on(const char* key) const { return config.on(key); }
  std::string prefix() const { return "base_model.model." + base.file_path() + "."; }
  bool has(const char* name) const { return file.get(prefix() + name) != nullptr; }
  result<int> rank() const { return rank_of(config, base.module); }

  result<loaded_tensor> read(const std::string& key) {
    const result<tensor_view> t = file.find(key);
    if (!t) return t.failure();
    result<std::vector<float>> values = read_factor(*t, file.file);
    if (!values) return values.failure();
    loaded_tensor l{key, std::move(*values), {}, t->type};
    for (const std::uint64_t n : t->shape) l.shape.push_back(static_cast<long long>(n));
    used.push_back(key);
    return l;
  }
  // Reads indices; PEFT on Windows may have stored them as floats.
  result<loaded_tensor> read_indices(const std::string& key) {
    const result<tensor_view> t = file.find(key);
    if (!t) return t.failure();
    loaded_tensor l{key, {}, {}, t->type};
    for (const std::uint64_t n : t->shape) l.shape.push_back(static_cast<long long>(n));
    used.push_back(key);
    if (t->type == safetensors_type::f32) {
      const result<std::vector<float>> values = to_float(*t);
      if (!values) return values.failure();
      for (const float v : *values) {
        if (!(v >= 0 && v < 0x1p31F) || v != std::floor(v))
          return fail_in(file.file, "tensor ", in_quotes(key), " holds an index that is no whole number");
        l.indices.push_back(static_cast<std::int64_t>(v));
      }
      return l;
    }
    result<std::vector<std::int64_t>> values = to_int64(*t);
    if (!values) return fail_in(file.file, values.message());
    l.indices = std::move(*values);
    return l;
  }
  status take(const std::string& name, const std::string& key, bool is_index = false) {
    result<loaded_tensor> t = is_index ? read_indices(key) : read(key);
    if (!t) return t.failure();
    layer.tensors[name] = std::move(*t);
    return ok;
  }
  // Reads NAME.0, NAME.1, … and concatenates them: as rows of one matrix, or as one list of numbers.
  status read_parts(const std::string& name, const std::string& key, bool as_matrix) {
    loaded_tensor all{key, {}, {}};
    long long rows = 0;
    for (int k = 0; k == 0 || has((name + "." + std::to_string(k)).c_str()); ++k) {
      result<loaded_tensor> part = read(key + "." + std::to_string(k));
      if (!part) return part.failure();
      if (part->shape.size() != 2 || (as_matrix && k > 0 && part->shape[1] != all.parts[0][1]))
        return fail_in(file.file, "tensor ", in_quotes(part->key), " is no matrix of as many columns as ",
                       in_quotes(key + ".0"));
      rows += part->shape[0];
      all.type = part->type;
      all.parts.push_back(part->shape);
      all.data.insert(all.data.end(), part->data.begin(), part->data.end());
    }
    all.shape = {as_matrix ? rows : static_cast<long long>(all.data.size())};
    if (as_matrix) all.shape.push_back(all.parts[0][1]);
    layer.tensors[name] = std::move(all);
    return ok;
  }
  // Returns a tensor that several layers share, made at its first use; `what` must identify everything it depends on.
  template <class Make> const loaded_tensor& once(const std::string& what, Make make) {
    auto& all = base.all_targets != nullptr ? base.all_targets->made : made;
    const auto at = all.find(what);
    return at != all.end() ? at->second : all.emplace(what, make()).first->second;
  }
  status all_keys_used() const {
    const std::string inner = prefix() + "base_layer.";  // another parameter of the same module
    for (const tensor_view& t : file.tensors)
      if (t.name.rfind(prefix(), 0) == 0 && (base.wrapped_module.empty() || t.name.rfind(inner, 0) != 0) &&
          std::find(used.begin(), used.end(), t.name) == used.end())
        return fail_in(file.file, "tensor ", in_quotes(t.name), " is not part of this adapter (", config.type_name(),
                       ")");
    return ok;
  }
};

}  // namespace graft::io
