// SPDX-License-Identifier: Apache-2.0
// An adapter of a whole model as values: for every adapted module the formula, its tensors, scalars and sizes. A tensor
// that several modules share (VB-LoRA's bank) is one tensor here. A composition of several adapters
// (model/adapter_composition.h) is a set too, with several entries per module in the order in which they act.
#pragma once
#include <graft/adapter/adapter.h>
#include <graft/derive/dropout_kinds.h>
#include <graft/run/named_tensors.h>

#include <memory>
#include <vector>

namespace graft {

// One tensor of an adapter in host memory, in float.
struct adapter_tensor {
  std::string key;  // in the adapter's file
  std::shared_ptr<std::vector<float>> data;
  std::vector<long long> shape;
  bool stored = true;                                    // false: derived from the configuration and the base
  std::shared_ptr<std::vector<std::int64_t>> indices{};  // values of an index tensor, which has no data

  // Returns a view of the tensor; owner() keeps its memory alive.
  view value() const {
    const void* const at = indices != nullptr ? static_cast<const void*>(indices->data()) : data->data();
    view v{at, indices != nullptr ? dtype::i64 : dtype::f32, {1, 1, 1, 1}, static_cast<int>(shape.size())};
    for (std::size_t k = 0; k < shape.size() && k < 4; ++k) v.size[k] = shape[k];
    return v;
  }
  std::shared_ptr<const void> owner() const { return indices != nullptr ? std::shared_ptr<const void>(indices) : data; }
};

// The adapter of one module: a formula, and a value for each name that the formula declares.
struct module_adapter {
  std::string module;  // full path, "model.layers.0.self_attn.q_proj"
  formula of{};
  std::map<std::string, adapter_tensor, std::less<>> tensors;  // by their names in the formula
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes;
  std::map<std::string, adapter_tensor, std::less<>> base;  // tensors of the base layer that are replaced: "weight"
  bool trains_bias = false;                                 // the base layer's bias is trained
  // Dropout rates in training (derive/dropout_kinds.h): elements of x, output rows, the whole adapter, rotation blocks.
  double dropout = 0, rank_dropout = 0, module_dropout = 0, block_dropout = 0;
  bool rank_dropout_scale = false;
  dropout_kinds drops() const {
    return {dropout > 0, rank_dropout > 0, module_dropout > 0, block_dropout > 0, rank_dropout_scale};
  }
  bool table = false, transposed_storage = false;  // an embedding; a weight that is stored [in, out]
  std::string adapter_name{};                      // in a composition: path of its tensors below the module
  std::string tied_to{};  // module whose weight it shares (tied embeddings), and with it the adapter of that weight
};

// A reader stores here what it needs to write its adapter to a file again. `kind` identifies the reader without RTTI.
struct adapter_origin {
  virtual ~adapter_origin() = default;
  virtual const char* kind() const = 0;
};

// An adapter of a model: model.add("mine", set) registers it under a name, model.activate({"mine"}) activates it.
// Readers of files make one (io::hf::adapters_from), and a program can make its own:
//     module_adapter q;
//     q.module = "model.layers.0.self_attn.q_proj", q.of = formula_of<lora<>>(), q.scalars["scaling"] = 2;
//     q.tensors["lora_A.weight"] = {"", std::make_shared<std::vector<float>>(r * in), {r, in}};
//     q.tensors["lora_B.weight"] = {"", std::make_shared<std::vector<float>>(out * r), {out, r}};
//     adapter_set set;
//     set.modules.push_back(q);
struct adapter_set {
  std::vector<module_adapter> modules;
  std::shared_ptr<const adapter_origin> origin{};

  // Returns the adapter of this module, in a composition the one of this name; null if there is none.
  const module_adapter* find(std::string_view module, std::string_view adapter_name = {}) const {
    for (const module_adapter& m : modules)
      if (m.module == module && m.adapter_name == adapter_name) return &m;
    return nullptr;
  }
  // Returns the tensor of the base layer ("weight") that an adapter of this module replaces; null if none does.
  const adapter_tensor* replaced(std::string_view module, std::string_view name) const {
    for (const module_adapter& m : modules)
      if (m.module == module)
        if (const auto at = m.base.find(name); at != m.base.end()) return &at->second;
    return nullptr;
  }
};

// A module that is trained in full (modules_to_save): its own weight, and its own bias if it has one.
struct fully_trained_module {
  static constexpr const char* name = "whole module";
  static constexpr ex weight(scope p, ex W) { return p.param("modules_to_save.weight", W.rows(), W.cols()); }
};
struct fully_trained_module_with_bias : fully_trained_module {
  static constexpr const char* name = "whole module with bias";
  static constexpr ex bias(scope p, ex b) { return p.param("modules_to_save.bias", b.rows()); }
};

// A norm that is trained in full; its weight is a vector.
struct fully_trained_norm {
  static constexpr const char* name = "whole norm";
  static constexpr ex weight(scope p, ex w) { return p.param("modules_to_save.weight", w.rows()); }
};
struct fully_trained_norm_with_bias : fully_trained_norm {
  static constexpr const char* name = "whole norm with bias";
  static constexpr ex bias(scope p, ex b) { return p.param("modules_to_save.bias", b.rows()); }
};

}  // namespace graft
