// SPDX-License-Identifier: Apache-2.0
// Taking the tensors of one layer out of a PEFT file: each by its key, finite, under the name the formula gives it, and
// none left over. Keys are `base_model.model.<module>.<name>`.
#pragma once
#include <graft/io/adapter_config.h>
#include <graft/io/tensor_values.h>
#include <graft/model/table.h>
#include <graft/run/bind.h>

#include <cmath>
#include <optional>

namespace graft::io {

struct loaded_tensor {
  std::string key;  // as in the file
  std::vector<float> data;
  std::vector<long long> shape;
};
struct peft_layer {
  method formula;
  std::map<std::string, loaded_tensor, std::less<>> tensors;
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes;
  std::string file;
  // PEFT may save an embedding's base table with the adapter (a resized vocabulary): the layer's owner decides.
  std::optional<loaded_tensor> base_weight;
};

// The base layer an adapter is read for: its module path and its sizes (a convolution's inputs are channels kh kw).
struct base_layer {
  std::string kind = "linear";  // as in graft/model/methods.h
  std::string module;
  long long out = 0, in = 0;
  std::vector<long long> shape;
  bool bias = false;
  // The largest layer the adapter targets, where that is another one: VeRA draws its shared projections at this size.
  long long largest_out = 0, largest_in = 0;
};

struct peft_source {
  const adapter_config& config;
  const safetensors& file;
  const base_layer& base;
  const method_table& methods;
  peft_layer layer{};
  std::vector<std::string> used{};

  void choose(const char* name) { layer.formula = *methods.find(name); }
  std::string prefix() const { return "base_model.model." + base.module + "."; }
  bool has(const char* name) const { return static_cast<bool>(file.find(prefix() + name)); }

  status take(const char* name, const std::string& key) {
    const result<tensor_view> t = file.find(key);
    if (!t) return t.failure();
    result<std::vector<float>> values = to_float(*t);
    if (!values) return values.failure();
    for (const float v : *values)
      if (!std::isfinite(v)) return fail_in(file.file, "tensor ", in_quotes(key), " holds a value that is not finite");
    loaded_tensor& l = layer.tensors[name];
    l = {key, std::move(*values), {}};
    for (const std::uint64_t n : t->shape) l.shape.push_back(static_cast<long long>(n));
    used.push_back(key);
    return ok;
  }
  status take(const char* name) { return take(name, prefix() + name); }
  status take_all(std::initializer_list<const char*> names) {
    for (const char* n : names)
      if (status s = take(n); !s) return s;
    return ok;
  }
  // A convolution's factor is stored as [rows, channels, kh, kw] and used as the matrix [rows, channels kh kw].
  status flatten(const char* name, std::vector<long long> kernel) {
    loaded_tensor& t = layer.tensors[name];
    const bool fits = t.shape.size() == 4 && t.shape[2] == kernel[0] && t.shape[3] == kernel[1];
    if (!fits)
      return fail_in(file.file, "tensor ", in_quotes(t.key), " has ", static_cast<long long>(t.shape.size()),
                     " dimensions, expected [rows, channels, ", kernel[0], ", ", kernel[1], "]");
    t.shape = {t.shape[0], t.shape[1] * t.shape[2] * t.shape[3]};
    return ok;
  }
  status all_keys_used() const {
    for (const tensor_view& t : file.tensors)
      if (t.name.rfind(prefix(), 0) == 0 && std::find(used.begin(), used.end(), t.name) == used.end())
        return fail_in(file.file, "tensor ", in_quotes(t.name), " is not part of this adapter (",
                       config.type == peft_type::own ? config.own.c_str() : name_of(config.type), ")");
    return ok;
  }
};

}  // namespace graft::io
