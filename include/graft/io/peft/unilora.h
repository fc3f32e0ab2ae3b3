// SPDX-License-Identifier: Apache-2.0
// Uni-LoRA in PEFT's format (UNILORA). All layers share the vector θ. The indices into θ are in the file only with
// save_indices; otherwise proj_seed determines them for all layers at once: each about equally often, then shuffled.
#pragma once
#include <graft/adapter/unilora.h>
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/random/numpy.h>

namespace graft::io::peft {

// The indices of all target layers, for each layer A's before B's.
inline std::vector<std::uint32_t> unilora_indices(std::uint32_t length, std::uint64_t count, std::uint64_t seed) {
  pcg64 rng(seed);
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < length; ++i) all.insert(all.end(), static_cast<std::size_t>(count / length), i);
  const std::vector<std::uint32_t> more = draw_choice(rng, length, static_cast<std::uint32_t>(count % length));
  all.insert(all.end(), more.begin(), more.end());
  shuffle_list(rng, all);
  return all;
}

// Row and column indices into θ, which is one column.
inline loaded_tensor in_theta(std::vector<std::int64_t> rows) {
  loaded_tensor t{"", {}, {2, static_cast<long long>(rows.size())}, safetensors_type::i64, false};
  t.indices = std::move(rows);
  t.indices.resize(2 * t.indices.size());
  return t;
}

inline status unilora_drawn(peft_layer_state& s) {
  const long long r = s.config.whole("r"), length = s.config.whole("theta_d_length");
  std::vector<target_layers::sizes> layers{{s.base.out, s.base.in}};
  if (s.base.all_targets != nullptr) layers = s.base.all_targets->all;
  // No tensor of such a file tells r. PEFT allows an r above the shorter side of a layer, which adds no rank.
  long long longest = 0;
  for (const target_layers::sizes& t : layers) longest = std::max({longest, t.out, t.in});
  if (r > longest)
    return fail_in(s.file.file, "'r' is ", r, ", expected at most ", longest,
                   ", the longest side of the layers that it targets");
  long long count = 0, first = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (s.base.all_targets != nullptr && i == s.base.number) first = count;
    count += r * (layers[i].out + layers[i].in);
  }
  constexpr long long most = 0xffffffffLL;  // numpy shuffles longer lists with 64-bit numbers
  if (count > most)
    return fail_in(s.file.file, "'r' is ", r, ", with which ", count,
                   " numbers of all layers would be drawn, expected fewer than ", most + 1);
  const loaded_tensor& all = s.once("indices and scales of all layers", [&] {
    loaded_tensor t;
    t.data.resize(static_cast<std::size_t>(length));
    for (const std::uint32_t v : unilora_indices(static_cast<std::uint32_t>(length), static_cast<std::uint64_t>(count),
                                                 s.config.seed("proj_seed")))
      t.indices.push_back(v), ++t.data[v];
    for (float& times : t.data) times = 1 / std::sqrt(times);
    return t;
  });
  const auto take = [&](const char* at, const char* scales, long long rows, long long cols) {
    const auto from = all.indices.begin() + first;
    s.layer.tensors[at] = in_theta({from, from + rows * cols});
    s.layer.tensors[at].key = s.prefix() + at;
    loaded_tensor scale{s.prefix() + scales, {}, {rows, cols}, safetensors_type::f32, false};
    for (auto i = from; i != from + rows * cols; ++i)  // 1 / sqrt(number of look-ups of the entry)
      scale.data.push_back(all.data[static_cast<std::size_t>(*i)]);
    s.layer.tensors[scales] = std::move(scale);
    first += rows * cols;
  };
  take("unilora_indices_A", "unilora_scales_A", r, s.base.in);
  take("unilora_indices_B", "unilora_scales_B", s.base.out, r);
  return ok;
}

inline status unilora_frozen(peft_layer_state& s) {
  if (!s.on("save_indices")) return unilora_drawn(s);
  const auto take = [&](const char* name, const std::vector<long long>& shape) -> status {
    result<loaded_tensor> t = s.read_indices(s.prefix() + name);
    if (!t) return t.failure();
    if (status good = check_shape(*t, shape, s.file.file); !good) return good;
    s.layer.tensors[name] = in_theta(t->indices);
    s.layer.tensors[name].key = t->key;
    s.layer.extra_tensors.push_back(std::move(*t));
    return ok;
  };
  const long long r = s.config.whole("r");
  if (status got = take("unilora_indices_A", {r, s.base.in}); !got) return got;
  return take("unilora_indices_B", {s.base.out, r});
}

inline constexpr peft_key unilora_keys[] = {whole("r", 4),
                                            seed("proj_seed", 42),
                                            whole("theta_d_length", 256),
                                            dropout("unilora_dropout"),
                                            real("init_theta_d_bound", 0.02),
                                            flag("init_weights", true),
                                            flag("save_indices")};
inline constexpr peft_variant unilora_variants[] = {variant<unilora<>>()};
inline constexpr tensor_layout unilora_layouts[] = {{.leaf = "unilora_theta_d", .shared = true}};
inline constexpr peft_method unilora_files{.type = "UNILORA",
                                           .bias_only = "unilora_only",
                                           .keys = unilora_keys,
                                           .variants = unilora_variants,
                                           .layouts = unilora_layouts,
                                           .frozen = unilora_frozen};

}  // namespace graft::io::peft
