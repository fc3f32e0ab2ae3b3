// SPDX-License-Identifier: Apache-2.0
// PEANuT in PEFT's format (PEANUT). The supported activations, under their names in transformers, are the formula's.
#pragma once
#include <graft/adapter/peanut.h>
#include <graft/io/peft/layer_source.h>

namespace graft::io::peft {

constexpr peanut_activation peanut_activation_named(std::string_view name) {
  if (name == "gelu") return peanut_activation::gelu;
  if (name == "silu" || name == "swish") return peanut_activation::silu;
  if (name == "tanh") return peanut_activation::tanh;
  return name == "relu" ? peanut_activation::relu : peanut_activation::gelu_tanh;
}
template <int Depth, peanut_activation Activation> constexpr peft_variant peanut_variant() {
  return variant<peanut<dyn, Depth, Activation>>([](const peft_layer_state& s) {
    return s.config.whole("depth") == Depth && peanut_activation_named(s.config.word("act_fn")) == Activation;
  });
}

inline constexpr peft_key peanut_keys[] = {
    whole("r", 32), whole("depth", 0, 0, 2), real("scaling", 1),
    word("act_fn", "relu", "relu gelu gelu_new gelu_fast gelu_pytorch_tanh silu swish tanh"),
    word("init_weights", "true", "true false")};
inline constexpr peft_variant peanut_variants[] = {
    peanut_variant<0, peanut_activation::relu>(),      peanut_variant<1, peanut_activation::relu>(),
    peanut_variant<2, peanut_activation::relu>(),      peanut_variant<0, peanut_activation::gelu>(),
    peanut_variant<1, peanut_activation::gelu>(),      peanut_variant<2, peanut_activation::gelu>(),
    peanut_variant<0, peanut_activation::gelu_tanh>(), peanut_variant<1, peanut_activation::gelu_tanh>(),
    peanut_variant<2, peanut_activation::gelu_tanh>(), peanut_variant<0, peanut_activation::silu>(),
    peanut_variant<1, peanut_activation::silu>(),      peanut_variant<2, peanut_activation::silu>(),
    peanut_variant<0, peanut_activation::tanh>(),      peanut_variant<1, peanut_activation::tanh>(),
    peanut_variant<2, peanut_activation::tanh>()};
inline constexpr peft_method peanut_files{.type = "PEANUT", .keys = peanut_keys, .variants = peanut_variants};

}  // namespace graft::io::peft
