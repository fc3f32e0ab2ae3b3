// SPDX-License-Identifier: Apache-2.0
// One layer's share of a PEFT folder while it is read: the configuration, the file, the base layer, and what has been
// gathered so far under the names of the formula. Tensors are finite and none is left over. Keys are
// `base_model.model.<module>.<name>`, or `base_model.<name>` where all layers share one.
#pragma once
#include <graft/io/safetensors.h>
#include <graft/io/target.h>
#include <graft/io/tensor_values.h>
#include <graft/model/table.h>
#include <graft/run/bind.h>

#include <bit>
#include <memory>
#include <optional>

namespace graft::io {

struct loaded_tensor {
  std::string key;  // as in the file
  std::vector<float> data;
  std::vector<long long> shape;
  dtype type = dtype::f32;                       // in the file
  bool stored = true;                            // false: it follows from the configuration, no file holds it
  std::shared_ptr<const loaded_tensor> whole{};  // where this is the corner of a tensor that layers share
};
struct peft_layer {
  method formula;
  std::map<std::string, loaded_tensor, std::less<>> tensors;
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes;
  std::string file;
  // Tensors of the base layer that the file brings: an embedding's table (a resized vocabulary), a bias that was trained.
  // The layer's owner sets them in place of its own; a trained bias is also a parameter of `formula`, base_layer.bias.
  std::optional<loaded_tensor> base_weight, base_bias;
};

// The base layer an adapter is read for: its module path and its sizes (a convolution's inputs are channels kh kw).
struct base_layer {
  std::string kind = "linear";  // as in graft/model/methods.h
  std::string module;
  long long out = 0, in = 0;
  std::vector<long long> shape;
  bool bias = false;
  // The largest layer the adapter targets, where that is another one: projections that all layers share have its size.
  long long largest_out = 0, largest_in = 0;
  view weight{};  // [out, in], for methods whose frozen factors follow from it (PSOFT)
};

// A float of a file, by its bits: also where the compiler was told that there are no infinities.
inline bool finite_bits(float v) { return (std::bit_cast<std::uint32_t>(v) & 0x7f800000U) != 0x7f800000U; }

struct peft_source {
  const adapter_config& config;
  const safetensors& file;
  const base_layer& base;
  const method_table& methods;
  peft_layer layer{};
  std::vector<std::string> used{};

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
  status take(const std::string& name, const std::string& key) {
    result<loaded_tensor> t = read(key);
    if (!t) return t.failure();
    layer.tensors[name] = std::move(*t);
    return ok;
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
