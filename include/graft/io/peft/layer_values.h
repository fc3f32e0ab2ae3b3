// SPDX-License-Identifier: Apache-2.0
// What one layer has of a PEFT folder: tensors, numbers and sizes under the names of its formula, and the base layer that
// they are read for.
#pragma once
#include <graft/io/tensor_view.h>
#include <graft/model/table.h>
#include <graft/run/given.h>

#include <map>
#include <memory>
#include <optional>

namespace graft::io {

struct loaded_tensor {
  std::string key;  // as in the file
  std::vector<float> data;
  std::vector<long long> shape;
  safetensors_type type = safetensors_type::f32;  // in the file
  bool stored = true;                             // false: it follows from the configuration, no file holds it
  std::shared_ptr<const loaded_tensor> whole{};   // where this is the corner of a tensor that layers share
  std::vector<std::int64_t> places{};             // of an index, which has them instead of data
  std::vector<std::vector<long long>> parts{};    // where the file holds it as several tensors: their shapes
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
  std::vector<loaded_tensor> beside{};  // what the file holds that no leaf of the formula reads
};

// All layers that an adapter targets, in the model's order, for methods that draw for all of them at once; and what was
// made for several of them, under a name that says of what it depends.
struct target_layers {
  struct sizes {
    long long out = 0, in = 0;
  };
  std::vector<sizes> all;
  std::map<std::string, loaded_tensor, std::less<>> made;
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
  view weight{};                           // [out, in], for methods whose frozen factors follow from it (PSOFT)
  view bias_values{};                      // [out], where the decomposition is of both (AdaMSS)
  std::shared_ptr<target_layers> among{};  // null: this one alone
  std::size_t number = 0;                  // in there
};

}  // namespace graft::io
