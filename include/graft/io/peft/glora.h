// SPDX-License-Identifier: Apache-2.0
// GLoRA in PEFT's format (GLORA). config_A_B, config_C and config_D_E say whether A and B, C, D and E are low-rank,
// vectors, constants or absent. PEFT stores an absent one as zeros, which are checked and written again.
#pragma once
#include <graft/adapter/glora.h>
#include <graft/adapter/none.h>
#include <graft/io/peft/tensor_layout.h>

namespace graft::io::peft {

inline status glora_numbers(peft_layer_state& s) {
  const auto count = [&](const char* key) { return s.config.word(key) == "constant" ? 1 : s.base.out; };
  s.layer.sizes["glora_numbers"] = count("config_A_B");
  s.layer.sizes["glora_bias_numbers"] = count("config_D_E");
  return ok;
}
inline status glora_frozen(peft_layer_state& s) {
  const std::vector<long long> matrix{s.base.out, s.base.in}, column{s.base.in, 1}, numbers{s.base.out};
  for (const auto& [name, shape] : {std::pair{"glora_A.zeros", &matrix},
                                    {"glora_B.zeros", &matrix},
                                    {"glora_C.zeros", &column},
                                    {"glora_D.zeros", &numbers},
                                    {"glora_E.zeros", &numbers}}) {
    if (!s.has(name)) continue;
    result<loaded_tensor> zeros = s.read(s.prefix() + name);
    if (!zeros) return zeros.failure();
    if (status good = check_shape(*zeros, *shape, s.file.file); !good) return good;
    for (const float v : zeros->data)
      if (v != 0)
        return fail_in(s.file.file, "tensor ", in_quotes(zeros->key), " holds a number other than zero, expected none");
    s.layer.extra_tensors.push_back(std::move(*zeros));
  }
  return ok;
}

inline glora_part glora_part_of(const peft_layer_state& s, const char* key) {
  const std::string form = s.config.word(key);
  return form == "lora" ? glora_part::low_rank : form == "none" ? glora_part::none : glora_part::numbers;
}
template <class Form> bool is_glora(const peft_layer_state& s) {
  const auto of_bias = [&](const char* key) { return s.base.bias ? glora_part_of(s, key) : glora_part::none; };
  return glora_part_of(s, "config_A_B") == Form::of_weight && of_bias("config_C") == Form::of_both &&
         of_bias("config_D_E") == Form::of_bias;
}
template <class Forms> struct glora_variants;
template <class... Forms> struct glora_variants<adapter_list<Forms...>> {
  static constexpr peft_variant all[] = {variant<Forms>(is_glora<Forms>)..., variant<none>()};
};

inline constexpr peft_key glora_keys[] = {whole("r", 8), word("config_A_B", "lora", "lora vector constant none"),
                                          word("config_C", "lora", "lora vector none"),
                                          word("config_D_E", "constant", "vector constant none"),
                                          flag("init_weights", true)};
inline constexpr tensor_layout glora_layouts[] = {{"glora_A.X", tensor_shape_kind::column},
                                                  {"glora_B.X", tensor_shape_kind::column}};
inline constexpr peft_method glora_files{.type = "GLORA",
                                         .bias_only = "glora_only",
                                         .keys = glora_keys,
                                         .variants = glora_variants<glora_forms>::all,
                                         .layouts = glora_layouts,
                                         .numbers = glora_numbers,
                                         .frozen = glora_frozen};

}  // namespace graft::io::peft
