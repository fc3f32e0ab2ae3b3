// SPDX-License-Identifier: Apache-2.0
// layer_spec: what an adapted layer computes, without its tensors. The operators receive it as JSON text, which layers
// of one configuration share:
//     {"bias": true, "adapters": [{"method": "lora", "trains_bias": false, "scalars": {"scaling": 2.0},
//                                  "sizes": {"r": 8}, "tensors": ["lora_A.weight", "lora_B.weight"]}]}
// The tensors of an operator call are the weight, the bias where there is one, and those of the adapters in this order.
// With "kind": "embedding" the weight is a table [vocab, dim] and x are int64 indices of its rows, [tokens].
// With "branch": {"out": 32, "in": 16} the layer is what its one adapter adds to a base layer, y = x (W' - W)ᵀ + b' - b,
// and the call brings neither weight nor bias. Another function computes the base layer: on an input without the
// adapter's dropout, for all rows of a batch whose rows have different adapters, or with a weight of its own format.
#pragma once
#include <graft/core/result.h>
#include <graft/derive/saved_tensors.h>
#include <graft/run/layer_graphs.h>
#include <graft/run/named_tensors.h>

#include <memory>
#include <string>
#include <vector>

namespace graft::pytorch {

struct layer_spec {
  layer_graphs graphs;
  // The variants of a training step (graft/run/training_variants.h): forward with the values that backward reads, and
  // the backward pass that reads them. They compute the same gradients.
  std::vector<saved_pair> training;
  std::vector<std::string> names;  // of the tensors, in the order of a call
  std::vector<bool> trained;       // by tensor: a parameter of the adapter
  std::vector<std::pair<std::string, double>> scalars;
  std::vector<std::pair<std::string, long long>> sizes;
  bool is_table = false;        // of kind "embedding"
  long long out = -1, in = -1;  // of a branch, dim and vocab of one on a table; -1: those of the weight
  bool is_branch() const { return out >= 0; }
};

// Parses a text, or returns what an earlier call made of it; thread-safe.
result<std::shared_ptr<const layer_spec>> layer_spec_of(const std::string& text);

// Describes a layer of PEFT to the caller, who then finds its tensors: the formula that the configuration selects, its
// numbers, and the name, role and layout of every tensor, as JSON. `tensors` is a JSON object of the layer's tensors
// and their shapes, because some methods choose their formula by them. `kind` is "linear" or "embedding"; an embedding
// has `out` rows of `in` numbers.
result<std::string> describe_layer(const std::string& config, const std::string& kind, const std::string& module,
                                   long long out, long long in, bool bias, const std::string& tensors);

}  // namespace graft::pytorch
