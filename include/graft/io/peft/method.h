// SPDX-License-Identifier: Apache-2.0
// peft_method: a PEFT method as data, which io/peft/METHOD.h states once for reading, checking and writing:
//     keys        names, types, ranges and PEFT's defaults (peft/tuners/*/config.py), and rules between them
//     variants    the formula that a configuration selects: the first that exists for the layer and whose `when` holds
//     layouts     keys and shapes of tensors that are not stored as base_model.model.<module>.<name of the leaf>
// Most keys are one call each: whole("r", 8), real("lora_alpha", 8), dropout("lora_dropout"), flag("use_dora").
// Functions compute the rest: numbers that are no keys (scaling = alpha / r), and frozen tensors that PEFT recomputes
// instead of storing. A scalar or size of the formula with the name of a key has the value of that key.
#pragma once
#include <graft/core/result.h>
#include <graft/core/text.h>

#include <limits>
#include <span>
#include <vector>

namespace graft::io {

enum class key_form : unsigned char {
  flag,       // true or false
  whole,      // an integer
  seed,       // an integer from 0 to 2^64-1
  real,       // a number
  word,       // a word of a list, which may contain true and false
  by_module,  // an object: a number per pattern of module paths
  names,      // a list of module names, or a regular expression
  unread,     // a key of PEFT on which nothing depends here
};

// What a dropout rate drops in training (derive/dropout_kinds.h): elements of the input, rows of the update (PEFT's
// rank_dropout), the whole update (module_dropout), or blocks of a rotation.
enum class dropout_target : unsigned char { nothing, inputs, ranks, the_whole, blocks };

// The largest number allowed, since numbers of a configuration become floats.
inline constexpr double largest_real = std::numeric_limits<float>::max();

// One key of a method's adapter_config.json.
struct peft_key {
  const char* name = "";
  key_form form = key_form::unread;
  double otherwise = 0;  // PEFT's default
  double least = 0, most = largest_real;
  const char* words = "";          // for `word`: all allowed words, separated by spaces
  const char* word = "";           // for `word`: PEFT's default
  bool nullable = false;           // JSON null counts as absent
  const char* required = nullptr;  // why the key must be present; null: it has a default
  bool integers = false;           // for `by_module`: the numbers are integers
  dropout_target dropout_kind = dropout_target::nothing;
};

namespace peft {

inline constexpr double largest_int = std::numeric_limits<int>::max();
// Largest number of terms or iterations: no tensor bounds it, a file must not keep a program busy for hours, and series
// and iterations converge long before.
inline constexpr double max_iterations = 1000;

constexpr peft_key flag(const char* name, bool otherwise = false) {
  return {.name = name, .form = key_form::flag, .otherwise = otherwise ? 1.0 : 0.0};
}
constexpr peft_key whole(const char* name, int otherwise, int least = 1, double most = largest_int) {
  return {.name = name,
          .form = key_form::whole,
          .otherwise = static_cast<double>(otherwise),
          .least = static_cast<double>(least),
          .most = most};
}
constexpr peft_key seed(const char* name, int otherwise = 0) {
  return {.name = name, .form = key_form::seed, .otherwise = static_cast<double>(otherwise)};
}
constexpr peft_key real(const char* name, double otherwise, double most = largest_real) {
  return {.name = name, .form = key_form::real, .otherwise = otherwise, .most = most};
}
constexpr peft_key fraction(const char* name) { return real(name, 0, 1); }
constexpr peft_key dropout(const char* name, dropout_target dropout_kind = dropout_target::inputs) {
  peft_key k = fraction(name);
  return k.dropout_kind = dropout_kind, k;
}
constexpr peft_key word(const char* name, const char* otherwise, const char* words) {
  return {.name = name,
          .form = key_form::word,
          .otherwise = same_text(otherwise, "true") ? 1.0 : 0.0,
          .words = words,
          .word = otherwise};
}
constexpr peft_key integers_by_module(const char* name) {
  return {
      .name = name, .form = key_form::by_module, .least = 1, .most = largest_int, .nullable = true, .integers = true};
}
constexpr peft_key reals_by_module(const char* name) {
  return {.name = name, .form = key_form::by_module, .nullable = true};
}
constexpr peft_key names(const char* name) { return {.name = name, .form = key_form::names, .nullable = true}; }
constexpr peft_key unread(const char* name) { return {.name = name}; }
constexpr peft_key or_null(peft_key k) { return k.nullable = true, k; }
constexpr peft_key required(peft_key k, const char* why) { return k.required = why, k; }

}  // namespace peft

struct adapter_config;
struct loaded_tensor;
struct config_reader;
struct peft_layer_state;
struct base_layer;

// A condition on two keys.
struct peft_rule {
  enum class kind : unsigned char { one_is_zero, not_both, at_most, divides } what{};
  const char *a = "", *b = "";
};

struct peft_variant {
  const char* method = "";  // adapter::method, see graft/adapter/all.h
  bool (*when)(const peft_layer_state&) = nullptr;
};
namespace peft {
template <class Adapter> constexpr peft_variant variant(bool (*when)(const peft_layer_state&) = nullptr) {
  return {Adapter::method, when};
}
}  // namespace peft

// How the file shapes a leaf (io/peft/tensor_layout.h): as it is; with a kernel's axes (kernel, point, channel); as the
// leading corner of a larger shared tensor; as flat row-major indices; as several tensors NAME.0, NAME.1, …; as a
// column with an axis for its only column.
enum class tensor_shape_kind : unsigned char { itself, kernel, point, channel, corner, flat, parts, column };
struct tensor_layout {
  const char* leaf = "";
  tensor_shape_kind shape = tensor_shape_kind::itself;
  bool shared = false;  // one tensor base_model.<name> for all modules
  bool copied = false;  // PEFT also writes the shared tensor into every module
  const char* kinds = "linear embedding conv2d layer_norm rms_norm";
  // Number k of the group of modules that shares NAME.k.
  long long (*group)(const adapter_config&, const base_layer&) = nullptr;
};
namespace peft {
constexpr tensor_layout on_conv2d(const char* leaf, tensor_shape_kind shape) {
  return {.leaf = leaf, .shape = shape, .kinds = "conv2d"};
}
}  // namespace peft

struct peft_method {
  const char* type = "";            // value of "peft_type"
  const char* bias_only = nullptr;  // value of "bias" besides none and all; null: no such key
  const char* bias_also = nullptr;  // another name for bias_only
  std::span<const peft_key> keys{};
  std::span<const peft_rule> rules{};
  std::span<const peft_variant> variants{};
  std::span<const tensor_layout> layouts{};
  status (*numbers)(peft_layer_state&) = nullptr;
  status (*frozen)(peft_layer_state&) = nullptr;
  double (*dropout_factor)(const adapter_config&) = nullptr;       // factor on the dropout rates; null: 1
  void (*check)(config_reader&, const adapter_config&) = nullptr;  // further checks of a configuration
  result<std::vector<loaded_tensor>> (*initial_tensors)(const peft_layer_state&) =
      nullptr;  // initial tensors that peft/initializers.h does not cover
};

}  // namespace graft::io
