// SPDX-License-Identifier: Apache-2.0
// One layer's share of a PEFT folder while it is read: the configuration, the file, the base layer, and what has been
// gathered so far under the names of the formula. Tensors are finite and none is left over. Keys are
// `base_model.model.<module>.<name>`, or `base_model.<name>` where all layers share one.
#pragma once
#include <graft/io/peft/layer_values.h>
#include <graft/io/safetensors.h>
#include <graft/io/target.h>
#include <graft/io/tensor_values.h>
#include <graft/run/bind.h>

#include <bit>
#include <cmath>

namespace graft::io {

// A float of a file, by its bits: also where the compiler was told that there are no infinities.
inline bool finite_bits(float v) { return (std::bit_cast<std::uint32_t>(v) & 0x7f800000U) != 0x7f800000U; }

struct peft_source {
  const adapter_config& config;
  const safetensors& file;
  const base_layer& base;
  const method_table& methods;
  peft_layer layer{};
  std::vector<std::string> used{};
  std::map<std::string, loaded_tensor, std::less<>> made{};  // where the layer stands alone

  bool on(const char* key) const { return config.on(key); }
  std::string prefix() const { return "base_model.model." + base.module + "."; }
  bool has(const char* name) const { return static_cast<bool>(file.find(prefix() + name)); }
  result<int> rank() const { return rank_of(config, base.module); }

  result<loaded_tensor> read(const std::string& key) {
    const result<tensor_view> t = file.find(key);
    if (!t) return t.failure();
    result<std::vector<float>> values = to_float(*t);
    if (!values) return values.failure();
    for (const float v : *values)
      if (!finite_bits(v)) return fail_in(file.file, "tensor ", in_quotes(key), " holds a value that is not finite");
    loaded_tensor l{key, std::move(*values), {}, t->type};
    for (const std::uint64_t n : t->shape) l.shape.push_back(static_cast<long long>(n));
    used.push_back(key);
    return l;
  }
  // Whole numbers, also where they were stored as floats (PEFT on Windows).
  result<loaded_tensor> read_places(const std::string& key) {
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
          return fail_in(file.file, "tensor ", in_quotes(key), " holds a place that is no whole number");
        l.places.push_back(static_cast<std::int64_t>(v));
      }
      return l;
    }
    result<std::vector<std::int64_t>> values = to_int64(*t);
    if (!values) return fail_in(file.file, values.message());
    l.places = std::move(*values);
    return l;
  }
  status take(const std::string& name, const std::string& key, bool is_index = false) {
    result<loaded_tensor> t = is_index ? read_places(key) : read(key);
    if (!t) return t.failure();
    layer.tensors[name] = std::move(*t);
    return ok;
  }
  // NAME.0, NAME.1, … one behind the other: matrices of as many columns as a matrix, or all their numbers.
  status take_parts(const std::string& name, const std::string& key, bool as_matrix) {
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
  // What is the same for several layers is made once for all of them; `what` says of what it depends.
  template <class Make> const loaded_tensor& once(const std::string& what, Make make) {
    auto& all = base.among != nullptr ? base.among->made : made;
    const auto at = all.find(what);
    return at != all.end() ? at->second : all.emplace(what, make()).first->second;
  }
  status all_keys_used() const {
    for (const tensor_view& t : file.tensors)
      if (t.name.rfind(prefix(), 0) == 0 && std::find(used.begin(), used.end(), t.name) == used.end())
        return fail_in(file.file, "tensor ", in_quotes(t.name), " is not part of this adapter (", config.type_name(),
                       ")");
    return ok;
  }
};

}  // namespace graft::io
