// SPDX-License-Identifier: Apache-2.0
// OSF in PEFT's format: the file holds the trained singular triplets; the frozen ones follow from the base weight.
//     effective_rank    number of frozen triplets: an integer, a fraction of min(out, in), or by default half of it
#pragma once
#include <graft/adapter/osf.h>
#include <graft/io/peft/base_matrix.h>
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/svd/principal.h>

namespace graft::io::peft {

inline long long osf_rank(const json* stated, long long smaller) {
  if (stated == nullptr) return smaller / 2;
  const bool fraction = stated->what == json::kind::real && stated->real > 0 && stated->real <= 1;
  const double rank = fraction ? static_cast<double>(smaller) * stated->real : stated->real;
  return rank < static_cast<double>(smaller) ? static_cast<long long>(rank) : smaller;
}
inline status osf_numbers(peft_layer_state& s) {
  const long long smaller = std::min(s.base.out, s.base.in);
  long long frozen_rank = osf_rank(s.config.set("effective_rank"), smaller);
  if (const json* patterns = s.config.set("rank_pattern"))
    for (std::size_t i = 0; i < patterns->keys.size(); ++i) {
      const result<bool> hit = full_match(".*(" + patterns->keys[i] + ").*", s.base.module);
      if (!hit) return fail_in(s.file.file, hit.message());
      if (!*hit) continue;
      frozen_rank = osf_rank(&patterns->items[i], smaller);
      break;
    }
  if (frozen_rank < 1 || frozen_rank >= smaller)
    return fail_in(s.file.file, "of the ", smaller, " singular pairs of ", s.base.module.c_str(), " ", frozen_rank,
                   " stay as they are, expected at least one and one less than all: see effective_rank");
  s.layer.sizes["frozen_rank"] = frozen_rank, s.layer.sizes["trainable_rank"] = smaller - frozen_rank;
  return ok;
}

struct osf_factors {
  loaded_tensor left, values, right;
};
// The triplets first … last − 1 as U [out, n], S [n] and Vᵀ [n, in].
inline osf_factors osf_pairs(const svd::singular_triplets& p, std::size_t first, std::size_t last,
                             const base_layer& base) {
  const auto n = static_cast<long long>(last - first);
  osf_factors f{{"", {}, {base.out, n}}, {"", {}, {n}}, {"", {}, {n, base.in}}};
  f.left.data.resize(static_cast<std::size_t>(base.out * n));
  for (std::size_t k = first; k < last; ++k) {
    f.values.data.push_back(static_cast<float>(p.values[k]));
    for (const double v : p.right[k]) f.right.data.push_back(static_cast<float>(v));
    for (std::size_t i = 0; i < p.left[k].size(); ++i)
      f.left.data[i * (last - first) + k - first] = static_cast<float>(p.left[k][i]);
  }
  return f;
}

inline status osf_frozen(peft_layer_state& s) {
  const auto frozen_rank = static_cast<std::size_t>(s.layer.sizes.at("frozen_rank"));
  result<svd::matrix> w = base_matrix(s, "OSF's frozen factors");
  if (!w) return w.failure();
  osf_factors high = osf_pairs(svd::largest_singular_triplets(std::move(*w), frozen_rank), 0, frozen_rank, s.base);
  for (const auto& [name, t] :
       {std::pair{"osf_U_high", &high.left}, {"osf_S_high", &high.values}, {"osf_V_high", &high.right}})
    t->key = s.prefix() + name, t->stored = false, s.layer.tensors[name] = std::move(*t);
  return ok;
}
inline result<std::vector<loaded_tensor>> osf_initial_tensors(const peft_layer_state& s) {
  const long long frozen_rank = s.layer.sizes.at("frozen_rank"), all = frozen_rank + s.layer.sizes.at("trainable_rank");
  result<svd::matrix> w = base_matrix(s, "OSF's factors");
  if (!w) return w.failure();
  osf_factors low = osf_pairs(svd::largest_singular_triplets(std::move(*w), static_cast<std::size_t>(all)),
                              static_cast<std::size_t>(frozen_rank), static_cast<std::size_t>(all), s.base);
  const std::string under = s.prefix() + "osf_svd_params.";
  low.left.key = under + "U_low", low.values.key = under + "S_low", low.right.key = under + "V_low";
  std::vector<loaded_tensor> initial_tensors;
  for (loaded_tensor* t : {&low.left, &low.values, &low.right}) initial_tensors.push_back(std::move(*t));
  return initial_tensors;
}

inline constexpr peft_key osf_keys[] = {or_null(real("effective_rank", 0)), reals_by_module("rank_pattern"),
                                        or_null(flag("init_weights", true)), unread("target_svd_config")};
inline constexpr peft_variant osf_variants[] = {variant<osf<>>()};
inline constexpr peft_method osf_files{.type = "OSF",
                                       .keys = osf_keys,
                                       .variants = osf_variants,
                                       .numbers = osf_numbers,
                                       .frozen = osf_frozen,
                                       .initial_tensors = osf_initial_tensors};

}  // namespace graft::io::peft
