// SPDX-License-Identifier: Apache-2.0
// TinyLoRA in PEFT's format (TINYLORA). The file holds A and B, and P unless it is drawn from projection_seed and the
// number of the layer. Each group of layers shares a vector v: weight_tying 0 makes every layer a group, 1 makes one.
#pragma once
#include <graft/adapter/tinylora.h>
#include <graft/io/peft/base_matrix.h>
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/random/torch.h>
#include <graft/io/svd/principal.h>

namespace graft::io::peft {

inline long long tinylora_group(const adapter_config& c, const base_layer& base) {
  const long long layers = base.all_targets != nullptr ? static_cast<long long>(base.all_targets->all.size()) : 1;
  const double unrounded = static_cast<double>(layers) * (1 - c.number("weight_tying"));
  const long long groups = std::max(1LL, std::llrint(unrounded));  // rounds halves to even, as Python does
  return std::min(static_cast<long long>(base.number) / std::max(1LL, layers / groups), groups - 1);
}

inline status tinylora_numbers(peft_layer_state& s) {
  s.layer.sizes["r"] = std::min({static_cast<long long>(s.config.whole("r")), s.base.out, s.base.in});
  if (s.base.all_targets == nullptr && s.file.get("base_model.tinylora_v.1") != nullptr)
    return fail_in(s.file.file, "it holds a vector for each of several groups of layers, and which of them is that of ",
                   s.base.module.c_str(), " depends on all targets: give them as base_layer::all_targets");
  return ok;
}

inline status tinylora_frozen(peft_layer_state& s) {
  if (s.on("save_projection") && s.has("tinylora_P")) return ok;
  const long long r = s.layer.sizes.at("r"), u = s.config.whole("u");
  // A's shape confirms r. It is checked before P, which has r² numbers for each of u, is drawn.
  if (status got = s.take("tinylora_A", s.prefix() + "tinylora_A"); !got) return got;
  if (status good = check_shape(s.layer.tensors.at("tinylora_A"), {r, s.base.in}, s.file.file); !good) return good;
  mersenne_twister engine(static_cast<std::uint32_t>(s.config.seed("projection_seed") + s.base.number));
  loaded_tensor P{s.prefix() + "tinylora_P",
                  draw_normal(engine, static_cast<std::size_t>(u * r * r), 1 / std::sqrt(static_cast<double>(r))),
                  {u, r, r},
                  safetensors_type::f32,
                  s.on("save_projection")};
  s.layer.tensors["tinylora_P"] = std::move(P);
  return ok;
}

inline result<std::vector<loaded_tensor>> tinylora_initial_tensors(const peft_layer_state& s) {
  const long long r = s.layer.sizes.at("r");
  const auto rank = static_cast<std::size_t>(r);
  result<svd::matrix> w = base_matrix(s, "TinyLoRA's frozen factors");
  if (!w) return w.failure();
  const svd::singular_triplets p = svd::largest_singular_triplets(std::move(*w), rank);
  loaded_tensor A{s.prefix() + "tinylora_A", {}, {r, s.base.in}};
  loaded_tensor B{
      s.prefix() + "tinylora_B", std::vector<float>(static_cast<std::size_t>(s.base.out * r)), {s.base.out, r}};
  for (std::size_t k = 0; k < rank; ++k) {
    const double root = std::sqrt(p.values[k]);
    for (const double v : p.right[k]) A.data.push_back(static_cast<float>(v * root));
    for (std::size_t i = 0; i < p.left[k].size(); ++i) B.data[i * rank + k] = static_cast<float>(p.left[k][i] * root);
  }
  std::vector<loaded_tensor> both;
  both.push_back(std::move(A)), both.push_back(std::move(B));
  return both;
}

inline constexpr peft_key tinylora_keys[] = {whole("r", 2),
                                             whole("u", 64),
                                             fraction("weight_tying"),
                                             seed("projection_seed", 42),
                                             flag("save_projection", true),
                                             real("init_v_bound", 0.02),
                                             dropout("tinylora_dropout"),
                                             word("init_weights", "true", "true false uniform")};
inline constexpr peft_variant tinylora_variants[] = {variant<tinylora<>>()};
inline constexpr tensor_layout tinylora_layouts[] = {{.leaf = "tinylora_v", .shared = true, .group = tinylora_group}};
inline constexpr peft_method tinylora_files{.type = "TINYLORA",
                                            .bias_only = "tinylora_only",
                                            .keys = tinylora_keys,
                                            .variants = tinylora_variants,
                                            .layouts = tinylora_layouts,
                                            .numbers = tinylora_numbers,
                                            .frozen = tinylora_frozen,
                                            .initial_tensors = tinylora_initial_tensors};

}  // namespace graft::io::peft
