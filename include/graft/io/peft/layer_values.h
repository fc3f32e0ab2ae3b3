// SPDX-License-Identifier: Apache-2.0
// One layer of a PEFT folder as values: tensors, scalars and sizes by the formula's names, and the base layer.
#pragma once
#include <graft/io/safetensors/tensor_view.h>
#include <graft/model/method_table.h>
#include <graft/run/named_tensors.h>

#include <map>
#include <memory>
#include <optional>

namespace graft::io {

struct loaded_tensor {
  std::string key;  // key in the file
  std::vector<float> data;
  std::vector<long long> shape;
  safetensors_type type = safetensors_type::f32;  // type in the file
  bool stored = true;                             // false: derived from configuration and base weight, and in no file
  std::shared_ptr<const loaded_tensor> whole{};   // the shared tensor of which this is the leading corner
  std::vector<std::int64_t> indices{};            // an index has these instead of data
  std::vector<std::vector<long long>> parts{};  // shapes of the tensors NAME.0, NAME.1, … that the file stores it as
};
struct peft_layer {
  method formula;
  std::map<std::string, loaded_tensor, std::less<>> tensors;
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes;
  std::string file;
  // Tensors of the base layer that the file replaces: an embedding's table (after a vocabulary resize) or a trained
  // bias. The layer's owner sets them; a trained bias is also a parameter of `formula`, base_layer.bias.
  std::optional<loaded_tensor> base_weight, base_bias;
  std::vector<loaded_tensor> extra_tensors{};  // tensors of the file that no leaf of the formula reads
};

// All layers that an adapter targets, in the model's order, for methods that draw for all of them at once; and tensors
// that several layers share, by everything they depend on.
struct target_layers {
  struct sizes {
    long long out = 0, in = 0;
  };
  std::vector<sizes> all;
  std::map<std::string, loaded_tensor, std::less<>> made;
};

// The base layer that an adapter is read for: module path and sizes. A convolution has channels · kh · kw inputs.
struct base_layer {
  std::string kind = "linear";  // as in graft/model/methods.h
  std::string module;
  long long out = 0, in = 0;
  std::vector<long long> shape;
  bool bias = false;
  // Sizes of the largest target layer (0: this one); shared projections have that size.
  long long largest_out = 0, largest_in = 0;
  view weight{};                                 // [out, in]; methods derive frozen factors from it (PSOFT)
  view bias_values{};                            // [out]; AdaMSS decomposes weight and bias
  std::shared_ptr<target_layers> all_targets{};  // null: the adapter has no other layers
  std::size_t number = 0;                        // index in all_targets->all
  bool stored_in_out = false;                    // experts: the weight is [experts, in, out]
  // For a parameter that target_parameters names this is the path of the module in adapter files that has it, with
  // `base_layer` once for each further parameter of that module (io/hf/target_parameters.h). Empty: `module` is that
  // path.
  std::string wrapped_module{};
  const std::string& file_path() const { return wrapped_module.empty() ? module : wrapped_module; }
};

}  // namespace graft::io
