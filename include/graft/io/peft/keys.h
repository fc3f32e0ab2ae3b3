// SPDX-License-Identifier: Apache-2.0
// One key of an adapter_config.json as data: its name, what may stand there, and what stands there where it is absent
// (PEFT's own default, peft/tuners/*/config.py). A file io/peft/NAME.h is mostly a list of these,
//     whole("r", 8), real("lora_alpha", 8), dropout("lora_dropout"), flag("use_dora"),
// and everything that reads, checks, suggests or writes a key walks the list.
#pragma once
#include <graft/core/text.h>

#include <limits>

namespace graft::io {

enum class key_form : unsigned char {
  flag,       // true or false
  whole,      // an integer
  seed,       // an integer from 0 to 2^64-1
  real,       // a number
  word,       // one of a few words; true and false may be among them
  by_module,  // an object: a number for every pattern of module paths
  names,      // a list of module names, or a regular expression
  unread,     // PEFT has it, and nothing here depends on it
};

// What a rate leaves out of an adapter in training, as derive/left_out.h says.
enum class rate_of : unsigned char { nothing, inputs, ranks, the_whole, blocks };

struct peft_key {
  const char* name = "";
  key_form form = key_form::unread;
  double otherwise = 0;  // where the key is absent
  double least = 0, most = std::numeric_limits<double>::max();
  const char* words = "";          // of a word: all that may stand there, with spaces between them
  const char* word = "";           // and the one that stands for an absent key
  bool nullable = false;           // null is the same as absent
  const char* required = nullptr;  // there is no default: why
  bool integers = false;           // of by_module
  rate_of leaves_out = rate_of::nothing;
};

namespace peft {

inline constexpr double largest_int = std::numeric_limits<int>::max();

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
constexpr peft_key real(const char* name, double otherwise, double most = std::numeric_limits<double>::max()) {
  return {.name = name, .form = key_form::real, .otherwise = otherwise, .most = most};
}
constexpr peft_key fraction(const char* name) { return real(name, 0, 1); }
constexpr peft_key dropout(const char* name, rate_of leaves_out = rate_of::inputs) {
  peft_key k = fraction(name);
  return k.leaves_out = leaves_out, k;
}
constexpr peft_key word(const char* name, const char* otherwise, const char* words) {
  return {.name = name,
          .form = key_form::word,
          .otherwise = same_text(otherwise, "true") ? 1.0 : 0.0,
          .words = words,
          .word = otherwise};
}
constexpr peft_key wholes_by_module(const char* name) {
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
}  // namespace graft::io
