// SPDX-License-Identifier: Apache-2.0
// LoRA in PEFT's format (LORA), with rsLoRA, DoRA, and LoRA with a bias.
//     scaling = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora, where patterns may override r and lora_alpha
// PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA subtract their initial factors from the base weight, so that the saved adapter
// alone is wrong on the original base. PEFT can convert it while saving, and then writes true in init_lora_weights. For
// PiSSA and OLoRA without conversion, the initial factors are recomputed from the base weight; those of the other
// methods depend on data or random numbers that no file holds.
#pragma once
#include <graft/adapter/residual.h>
#include <graft/io/json/config_reader.h>
#include <graft/io/peft/base_matrix.h>
#include <graft/io/svd/low_rank.h>

#include <cmath>

namespace graft::io::peft {

enum class initial_decomposition : unsigned char { nothing, singular_pairs, columns };

// Which decomposition of the base weight gives the initial factors. PEFT compares "olora" without regard to case.
inline initial_decomposition initial_decomposition_of(const adapter_config& c) {
  const json* v = c.set("init_lora_weights");
  if (v == nullptr || !v->is_string()) return initial_decomposition::nothing;
  std::string lower = v->word;
  for (char& ch : lower) ch = ch >= 'A' && ch <= 'Z' ? static_cast<char>(ch + ('a' - 'A')) : ch;
  return v->word == "pissa" ? initial_decomposition::singular_pairs
         : lower == "olora" ? initial_decomposition::columns
                            : initial_decomposition::nothing;
}
inline bool has_residual(const peft_layer_state& s) {
  return s.base.kind == "linear" && initial_decomposition_of(s.config) != initial_decomposition::nothing;
}

inline void check_init_lora_weights(config_reader& in, const adapter_config& c) {
  const auto* v = in.at("init_lora_weights");
  if (v == nullptr || v->is_boolean()) return;
  if (initial_decomposition_of(c) != initial_decomposition::nothing) {
    if (c.on("lora_bias"))
      in.reject("'lora_bias' is true and 'init_lora_weights' is ", found(*v), ", expected at most one, as in PEFT");
    return;
  }
  if (v->is_string()) {
    const std::string& name = v->word;
    for (const char* harmless : {"gaussian", "eva", "orthogonal", "mica"})
      if (name == harmless) return;
    if (name.starts_with("pissa_niter_"))
      return in.expected(
          "init_lora_weights", *v,
          "\"pissa\" or a converted adapter: PEFT draws the start of this decomposition at random, so that "
          "the base weight it leaves cannot be made again; save it with "
          "path_initial_model_for_weight_conversion");
    for (const char* changes : {"corda", "loftq", "lora_ga"})
      if (name.starts_with(changes))
        return in.expected("init_lora_weights", *v,
                           "an adapter for the original base weights; this one changed them: save "
                           "it with path_initial_model_for_weight_conversion");
  }
  in.expected("init_lora_weights", *v,
              "true, false, \"gaussian\", \"eva\", \"orthogonal\", \"mica\", \"pissa\" or \"olora\"");
}

// The scaling of this module: alpha / r, or alpha / sqrt(r) with use_rslora.
inline result<double> alpha_over_rank(const peft_layer_state& s) {
  const result<int> r = s.rank();
  if (!r) return r.failure();
  result<double> alpha = alpha_of(s.config, s.base.module);
  if (!alpha) return alpha;
  return *alpha / (s.on("use_rslora") ? std::sqrt(*r) : *r);
}
inline status scaled_by_rank(peft_layer_state& s) {
  const result<double> scaling = alpha_over_rank(s);
  if (!scaling) return scaling.failure();
  s.layer.scalars["scaling"] = *scaling;
  return ok;
}

// The initial factors of PiSSA and OLoRA, A₀ [r, in] and B₀ [out, r].
struct initial_factors {
  loaded_tensor A, B;
};
inline result<initial_factors> initial_factors_of(const peft_layer_state& s) {
  const bool pissa = initial_decomposition_of(s.config) == initial_decomposition::singular_pairs;
  const char* const what = pissa ? "PiSSA's first factors" : "OLoRA's first factors";
  const auto refuse = [&](const auto&... why) { return fail_in(s.file.file, s.base.module.c_str(), ": ", why...); };
  const result<int> rank = s.rank();
  if (!rank) return rank.failure();
  const double scaling = s.layer.scalars.at("scaling");
  if (*rank > s.base.out || *rank > s.base.in)
    return refuse(what, " are ", *rank, " pairs of a weight that has ", std::min(s.base.out, s.base.in));
  if (pissa && scaling == 0) return refuse(what, " are divided by the scaling, and 'lora_alpha' is 0");
  if (!pissa && s.config.fan_in_fan_out)
    return refuse("PEFT has no OLoRA of a weight that is stored [in, out] (fan_in_fan_out)");
  if (s.base.weight.quant != nullptr)
    return refuse(what, " follow from the base weight, and this one is quantized; save the adapter with ",
                  "path_initial_model_for_weight_conversion");
  result<svd::matrix> w = base_matrix(s, what);
  if (!w) return w.failure();
  const auto r = static_cast<std::size_t>(*rank);
  const std::size_t out = w->rows, in = w->cols;
  initial_factors f{{"", std::vector<float>(r * in), {*rank, s.base.in}},
                    {"", std::vector<float>(out * r), {s.base.out, *rank}}};
  if (pissa) {
    const svd::singular_triplets p = svd::largest_singular_triplets(std::move(*w), r);
    for (std::size_t k = 0; k < r; ++k) {
      const double root = std::sqrt(p.values[k] / scaling);
      for (std::size_t j = 0; j < in; ++j) f.A.data[k * in + j] = static_cast<float>(p.right[k][j] * root);
      for (std::size_t i = 0; i < out; ++i) f.B.data[i * r + k] = static_cast<float>(p.left[k][i] * root);
    }
    return f;
  }
  svd::matrix first(out, r);  // the first r columns of Q depend only on the first r of W
  std::copy(w->a.begin(), w->a.begin() + static_cast<std::ptrdiff_t>(first.a.size()), first.a.begin());
  const svd::matrix Q = svd::orthonormal(std::move(first)), R = svd::product(svd::transposed(Q), *w);
  for (std::size_t k = 0; k < r; ++k) {
    for (std::size_t j = 0; j < in; ++j) f.A.data[k * in + j] = static_cast<float>(R(k, j));
    for (std::size_t i = 0; i < out; ++i) f.B.data[i * r + k] = static_cast<float>(Q(i, k));
  }
  return f;
}
inline status lora_numbers(peft_layer_state& s) {
  if (initial_decomposition_of(s.config) != initial_decomposition::nothing && s.base.kind != "linear")
    return fail_in(s.file.file, "'init_lora_weights' of adapter_config.json is ",
                   in_quotes(s.config.set("init_lora_weights")->word), ", which PEFT has for linear layers alone, and ",
                   in_quotes(s.base.module), " is of the kind ", s.base.kind.c_str());
  return scaled_by_rank(s);
}
inline status lora_frozen(peft_layer_state& s) {
  if (!has_residual(s)) return ok;
  result<initial_factors> f = initial_factors_of(s);
  if (!f) return f.failure();
  for (const auto& [name, t] : {std::pair{"initial_A", &f->A}, {"initial_B", &f->B}})
    t->key = s.prefix() + name, t->stored = false, s.layer.tensors[name] = std::move(*t);
  return ok;
}
inline result<std::vector<loaded_tensor>> lora_initial_tensors(const peft_layer_state& s) {
  if (!has_residual(s)) return std::vector<loaded_tensor>{};
  result<initial_factors> f = initial_factors_of(s);
  if (!f) return f.failure();
  f->A.key = s.prefix() + "lora_A.weight", f->B.key = s.prefix() + "lora_B.weight";
  return std::vector<loaded_tensor>{std::move(f->A), std::move(f->B)};
}

inline constexpr peft_key lora_keys[] = {whole("r", 8),
                                         real("lora_alpha", 8),
                                         dropout("lora_dropout"),
                                         flag("use_rslora"),
                                         flag("use_dora"),
                                         flag("lora_bias"),
                                         integers_by_module("rank_pattern"),
                                         reals_by_module("alpha_pattern"),
                                         unread("init_lora_weights"),
                                         unread("megatron_core"),
                                         unread("loftq_config"),
                                         unread("eva_config"),
                                         unread("corda_config"),
                                         unread("lora_ga_config"),
                                         unread("runtime_config"),
                                         unread("qalora_group_size")};
inline constexpr peft_rule lora_rules[] = {{peft_rule::kind::not_both, "use_dora", "lora_bias"}};
inline constexpr peft_variant lora_variants[] = {
    variant<residual_dora<>>([](const peft_layer_state& s) { return has_residual(s) && s.on("use_dora"); }),
    variant<residual_lora<>>(has_residual),
    variant<dora<>>([](const peft_layer_state& s) { return s.on("use_dora"); }),
    variant<dora_embedding<>>([](const peft_layer_state& s) { return s.on("use_dora"); }),
    variant<lora_with_bias<>>([](const peft_layer_state& s) { return s.on("lora_bias"); }),
    variant<lora<>>(),
    variant<lora_embedding<>>(),
    variant<lora_on_experts<>>()};
inline constexpr tensor_layout lora_layouts[] = {on_conv2d("lora_A.weight", tensor_shape_kind::kernel),
                                                 on_conv2d("lora_B.weight", tensor_shape_kind::point),
                                                 on_conv2d("lora_magnitude_vector", tensor_shape_kind::channel)};
inline constexpr peft_method lora_files{.type = "LORA",
                                        .bias_only = "lora_only",
                                        .keys = lora_keys,
                                        .rules = lora_rules,
                                        .variants = lora_variants,
                                        .layouts = lora_layouts,
                                        .numbers = lora_numbers,
                                        .frozen = lora_frozen,
                                        .check = check_init_lora_weights,
                                        .initial_tensors = lora_initial_tensors};

}  // namespace graft::io::peft
