// SPDX-License-Identifier: Apache-2.0
// Super-Tuning in PEFT's format (SUPERTUNING). The file holds the row-major indices of the trained entries; with
// save_precomputed_indices false they follow from the base weight.
//     scaling = lora_alpha / r
#pragma once
#include <graft/adapter/supertuning.h>
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/random/torch_topk.h>

namespace graft::io::peft {

inline status supertuning_numbers(peft_layer_state& s) {
  const double sparsity = s.config.number("sparsity");
  const long long all = s.base.out * s.base.in;
  const auto n = static_cast<long long>(static_cast<double>(all) * (1 - sparsity));
  if (n < 1)
    return fail_in(s.file.file, "'sparsity' leaves none of the ", all, " entries of ", s.base.module.c_str(),
                   " to train, expected a smaller number");
  s.layer.sizes["num_indices"] = n;
  const double r = s.config.number("r");
  const bool stated = s.config.set("lora_alpha") != nullptr;
  s.layer.scalars["scaling"] = stated ? s.config.number("lora_alpha") / r : 2;
  return ok;
}
inline void check_supertuning(config_reader& in, const adapter_config& c) {
  for (const char* key : {"sparsity", "lora_dropout"})
    if (c.number(key) >= 1) in.reject("'", key, "' is ", found(*in.at(key)), ", expected a number below 1");
  if (c.set("r") == nullptr && c.set("lora_alpha") != nullptr)
    in.reject("'lora_alpha' is set and 'r' is not, expected both or none");
}

inline status supertuning_frozen(peft_layer_state& s) {
  if (s.has("supertuning_indices")) return ok;
  const long long n = s.layer.sizes.at("num_indices");
  const view& w = s.base.weight;
  if (w.data == nullptr || !is_floating(w.type) || w.rank != 2 || w.size[0] != s.base.out || w.size[1] != s.base.in)
    return fail_in(s.file.file,
                   "the indices of the largest entries follow from the base weight: give it to read_peft_layer as "
                   "base_layer::weight, [",
                   s.base.out, ", ", s.base.in, "]");
  std::vector<float> sizes(static_cast<std::size_t>(s.base.out * s.base.in));
  cpu::read(w, 0, s.base.out * s.base.in, sizes.data());
  for (float& v : sizes) v = std::abs(v);
  loaded_tensor at{s.prefix() + "supertuning_indices", {}, {n}, safetensors_type::i32};
  at.indices = topk_indices(sizes, static_cast<std::size_t>(n), s.on("select_top"));
  if (!s.on("save_precomputed_indices"))
    at.stored = false, at.shape = {2, n}, at.indices = split_indices(at.indices, s.base.in);
  s.layer.tensors["supertuning_indices"] = std::move(at);
  return ok;
}

// Only the form with a LoRA has inputs to drop.
inline double supertuning_dropout_factor(const adapter_config& c) { return c.set("r") == nullptr ? 0 : 1; }

inline constexpr peft_key supertuning_keys[] = {real("sparsity", 0.99),
                                                flag("select_top", true),
                                                or_null(whole("r", 1)),
                                                or_null(real("lora_alpha", 0)),
                                                dropout("lora_dropout"),
                                                flag("init_weights", true),
                                                flag("save_precomputed_indices", true)};
inline constexpr peft_variant supertuning_variants[] = {
    variant<supertuning<>>([](const peft_layer_state& s) { return s.config.set("r") == nullptr; }),
    variant<supertuning_with_lora<>>()};
inline constexpr tensor_layout supertuning_layouts[] = {
    {.leaf = "supertuning_indices", .shape = tensor_shape_kind::flat}};
inline constexpr peft_method supertuning_files{.type = "SUPERTUNING",
                                               .keys = supertuning_keys,
                                               .variants = supertuning_variants,
                                               .layouts = supertuning_layouts,
                                               .numbers = supertuning_numbers,
                                               .frozen = supertuning_frozen,
                                               .dropout_factor = supertuning_dropout_factor,
                                               .check = check_supertuning};

}  // namespace graft::io::peft
