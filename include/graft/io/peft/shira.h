// SPDX-License-Identifier: Apache-2.0
// SHiRA in PEFT's format (SHIRA). If the file lacks the indices of the trained entries, they are drawn like PEFT's
// random mask.
#pragma once
#include <graft/adapter/shira.h>
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/random/torch.h>

namespace graft::io::peft {

inline status shira_numbers(peft_layer_state& s) {
  const long long r = s.config.whole("r"), all = s.base.out * s.base.in, n = r * (s.base.out + s.base.in);
  if (n > all)
    return fail_in(s.file.file, "'r' is ", r, ", with which ", n, " entries of ", s.base.module.c_str(),
                   " would be trained, expected at most all ", all);
  s.layer.sizes["num_indices"] = n;
  return ok;
}

inline status shira_frozen(peft_layer_state& s) {
  if (s.has("shira_indices")) return ok;
  const long long n = s.layer.sizes.at("num_indices"), all = s.base.out * s.base.in;
  if (all >= largest_permutation)
    return fail_in(s.file.file, s.base.module.c_str(), " has ", all, " entries, expected fewer than ",
                   largest_permutation, " where the file has no 'shira_indices'");
  constexpr std::uint64_t unseeded = 67280421310721;  // PyTorch's default seed of a generator
  const bool given = s.config.set("random_seed") != nullptr;
  mersenne_twister engine(static_cast<std::uint32_t>(given ? s.config.seed("random_seed") : unseeded));
  std::vector<std::int64_t> drawn = draw_permutation(engine, all, n);
  std::sort(drawn.begin(), drawn.end());
  loaded_tensor at{s.prefix() + "shira_indices", {}, {2, n}, safetensors_type::i32};
  at.indices = split_indices(drawn, s.base.in);
  s.layer.tensors["shira_indices"] = std::move(at);
  return ok;
}

inline constexpr peft_key shira_keys[] = {whole("r", 32), unread("mask_type"), or_null(seed("random_seed")),
                                          flag("init_weights", true)};
inline constexpr peft_variant shira_variants[] = {variant<shira<>>()};
inline constexpr peft_method shira_files{
    .type = "SHIRA", .keys = shira_keys, .variants = shira_variants, .numbers = shira_numbers, .frozen = shira_frozen};

}  // namespace graft::io::peft
