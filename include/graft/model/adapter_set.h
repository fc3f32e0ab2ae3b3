// SPDX-License-Identifier: Apache-2.0
// An adapter of a whole model as values: for every module that is changed the formula, its tensors, numbers and sizes.
// Tensors that several modules share (VB-LoRA's bank) are one tensor here. Several adapters that act together are one set
// too (model/together.h), with more than one entry for a module, in the order in which they act.
#pragma once
#include <graft/adapter/adapter.h>
#include <graft/run/named.h>

#include <memory>
#include <vector>

namespace graft {

struct adapter_tensor {
  std::string key;  // in the file
  std::shared_ptr<std::vector<float>> data;
  std::vector<long long> shape;
  bool stored = true;                                   // false: it follows from the configuration and the base
  std::shared_ptr<std::vector<std::int64_t>> places{};  // of an index, which has them instead of data

  view value() const {
    const void* const at = places != nullptr ? static_cast<const void*>(places->data()) : data->data();
    view v{at, places != nullptr ? dtype::i64 : dtype::f32, {1, 1, 1, 1}, static_cast<int>(shape.size())};
    for (std::size_t k = 0; k < shape.size() && k < 4; ++k) v.size[k] = shape[k];
    return v;
  }
  std::shared_ptr<const void> owner() const { return places != nullptr ? std::shared_ptr<const void>(places) : data; }
};

struct module_adapter {
  std::string module;  // its whole path
  formula of{};
  std::map<std::string, adapter_tensor, std::less<>> tensors;  // by the formula's names
  std::map<std::string, double, std::less<>> scalars;
  size_map sizes;
  std::map<std::string, adapter_tensor, std::less<>> base;  // tensors of the base layer that are replaced: "weight"
  bool trains_bias = false;                                 // the layer's own bias is a parameter
  // What is left out in training, as derive/left_out.h says: elements of x, outputs, all of it, blocks.
  double dropout = 0, rank_dropout = 0, module_dropout = 0, block_dropout = 0;
  bool rank_dropout_scale = false;
  left_out drops() const {
    return {dropout > 0, rank_dropout > 0, module_dropout > 0, block_dropout > 0, rank_dropout_scale};
  }
  bool table = false, turned = false;  // an embedding; a weight that is stored [in, out]
  std::string among{};    // where several adapters act: the word that its tensors lie under, below the module
  std::string follows{};  // the module whose weight it shares, and with it what this adapter does to the weight
};

// What is needed to write an adapter into a file again; who read it knows.
struct adapter_origin {
  virtual ~adapter_origin() = default;
};

struct adapter_set {
  std::vector<module_adapter> modules;
  std::shared_ptr<const adapter_origin> origin{};

  const module_adapter* find(std::string_view module, std::string_view among = {}) const {
    for (const module_adapter& m : modules)
      if (m.module == module && m.among == among) return &m;
    return nullptr;
  }
  // A tensor of the base layer that one of them replaces.
  const adapter_tensor* replaced(std::string_view module, std::string_view name) const {
    for (const module_adapter& m : modules)
      if (m.module == module)
        if (const auto at = m.base.find(name); at != m.base.end()) return &at->second;
    return nullptr;
  }
};

// A module that is trained whole: its own weight, and its own bias where it has one.
struct whole_module {
  static constexpr const char* name = "whole module";
  static constexpr ex weight(scope p, ex W) { return p.param("modules_to_save.weight", W.rows(), W.cols()); }
};
struct whole_module_with_bias : whole_module {
  static constexpr const char* name = "whole module with bias";
  static constexpr ex bias(scope p, ex b) { return p.param("modules_to_save.bias", b.rows()); }
};

struct whole_norm {
  static constexpr const char* name = "whole norm";
  static constexpr ex weight(scope p, ex w) { return p.param("modules_to_save.weight", w.rows()); }
};
struct whole_norm_with_bias : whole_norm {
  static constexpr const char* name = "whole norm with bias";
  static constexpr ex bias(scope p, ex b) { return p.param("modules_to_save.bias", b.rows()); }
};

}  // namespace graft
