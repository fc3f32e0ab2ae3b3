// SPDX-License-Identifier: Apache-2.0
// A method of PEFT as data: what io/peft/NAME.h states, once, for reading and for writing.
//     keys        of its configuration, with defaults, ranges and rules
//     variants    which formula a configuration chooses: the first that exists on the kind of layer and whose `when` holds
//     places      of tensors that do not lie at base_model.model.<module>.<name of the leaf>
// What has to be computed are two functions: numbers that are no keys (scaling = alpha / r), and frozen tensors that PEFT
// draws again instead of storing them. A scalar or size of the formula that is called like a key is that key.
#pragma once
#include <graft/core/result.h>
#include <graft/io/peft/keys.h>

#include <span>
#include <vector>

namespace graft::io {

struct adapter_config;
struct loaded_tensor;
struct config_reader;
struct peft_source;
struct base_layer;

// What must hold between two keys.
struct peft_rule {
  enum class kind : unsigned char { one_is_zero, not_both, at_most, divides } what{};
  const char *a = "", *b = "";
};

struct peft_variant {
  const char* method = "";  // in graft/adapter/all.h
  bool (*when)(const peft_source&) = nullptr;
};
namespace peft {
template <class Adapter> constexpr peft_variant variant(bool (*when)(const peft_source&) = nullptr) {
  return {Adapter::method, when};
}
}  // namespace peft

// How the file shapes a leaf. A convolution's factors have the kernel's axes; a corner is the beginning of a larger tensor;
// flat are places as numbers of entries, row after row; parts are several tensors, NAME.0, NAME.1, …, one behind the
// other; a column has an axis for its one column.
enum class stored_as : unsigned char { itself, kernel, point, channel, corner, flat, parts, column };
struct peft_place {
  const char* leaf = "";
  stored_as shape = stored_as::itself;
  bool shared = false;  // by all modules, at base_model.<name>
  bool copied = false;  // PEFT writes what is shared into every module too
  const char* kinds = "linear embedding conv2d layer_norm rms_norm";
  // shared by this one of several groups: NAME.0
  long long (*group)(const adapter_config&, const base_layer&) = nullptr;
};
namespace peft {
constexpr peft_place on_conv2d(const char* leaf, stored_as shape) {
  return {.leaf = leaf, .shape = shape, .kinds = "conv2d"};
}
}  // namespace peft

struct peft_method {
  const char* type = "";            // value of "peft_type"
  const char* bias_only = nullptr;  // third value of "bias" beside none and all; null: the method has no such key
  const char* bias_also = nullptr;  // another word for it
  std::span<const peft_key> keys{};
  std::span<const peft_rule> rules{};
  std::span<const peft_variant> variants{};
  std::span<const peft_place> places{};
  status (*numbers)(peft_source&) = nullptr;
  status (*frozen)(peft_source&) = nullptr;
  double (*dropped)(const adapter_config&) = nullptr;              // how much of its dropouts acts; null: all of it
  void (*check)(config_reader&, const adapter_config&) = nullptr;  // rules that are none of the above
  result<std::vector<loaded_tensor>> (*begun)(const peft_source&) = nullptr;  // of a fresh adapter, beside beginnings.h
};

}  // namespace graft::io
