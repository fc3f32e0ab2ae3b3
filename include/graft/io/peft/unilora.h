// SPDX-License-Identifier: Apache-2.0
// UNILORA in PEFT's files. θ is one for all layers. Where in it a layer looks is in the file only with save_indices; else it
// is drawn again from proj_seed, for all layers at once: every number as often as the others, in an order that is shuffled.
#pragma once
#include <graft/adapter/unilora.h>
#include <graft/io/numpy_random.h>
#include <graft/io/peft/places.h>

namespace graft::io::peft {

// For all targets, A before B.
inline std::vector<std::uint32_t> unilora_places(std::uint32_t length, std::uint64_t count, std::uint64_t seed) {
  pcg64 rng(seed);
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < length; ++i) all.insert(all.end(), static_cast<std::size_t>(count / length), i);
  const std::vector<std::uint32_t> more = draw_choice(rng, length, static_cast<std::uint32_t>(count % length));
  all.insert(all.end(), more.begin(), more.end());
  shuffle_list(rng, all);
  return all;
}

// Row numbers of the column θ.
inline loaded_tensor in_theta(std::vector<std::int64_t> rows) {
  loaded_tensor t{"", {}, {2, static_cast<long long>(rows.size())}, safetensors_type::i64, false};
  t.places = std::move(rows);
  t.places.resize(2 * t.places.size());
  return t;
}

inline status unilora_drawn(peft_source& s) {
  const long long r = s.config.whole("r"), length = s.config.whole("theta_d_length");
  std::vector<target_layers::sizes> layers{{s.base.out, s.base.in}};
  if (s.base.among != nullptr) layers = s.base.among->all;
  long long count = 0, first = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (s.base.among != nullptr && i == s.base.number) first = count;
    count += r * (layers[i].out + layers[i].in);
  }
  const loaded_tensor& all = s.once("indices and scales of all layers", [&] {
    loaded_tensor t;
    t.data.resize(static_cast<std::size_t>(length));
    for (const std::uint32_t v : unilora_places(static_cast<std::uint32_t>(length), static_cast<std::uint64_t>(count),
                                                s.config.seed("proj_seed")))
      t.places.push_back(v), ++t.data[v];
    for (float& times : t.data) times = 1 / std::sqrt(times);
    return t;
  });
  const auto take = [&](const char* at, const char* scales, long long rows, long long cols) {
    const auto from = all.places.begin() + first;
    s.layer.tensors[at] = in_theta({from, from + rows * cols});
    s.layer.tensors[at].key = s.prefix() + at;
    loaded_tensor scale{s.prefix() + scales, {}, {rows, cols}, safetensors_type::f32, false};
    for (auto i = from; i != from + rows * cols; ++i)  // of each number, how often it is looked up
      scale.data.push_back(all.data[static_cast<std::size_t>(*i)]);
    s.layer.tensors[scales] = std::move(scale);
    first += rows * cols;
  };
  take("unilora_indices_A", "unilora_scales_A", r, s.base.in);
  take("unilora_indices_B", "unilora_scales_B", s.base.out, r);
  return ok;
}

inline status unilora_frozen(peft_source& s) {
  const loaded_tensor& theta = s.layer.tensors.at("unilora_theta_d");
  const long long length = s.config.whole("theta_d_length");
  if (status good = check_shape(theta, {length}, s.file.file); !good) return good;
  if (!s.on("save_indices")) return unilora_drawn(s);
  const auto take = [&](const char* name, const std::vector<long long>& shape) -> status {
    result<loaded_tensor> t = s.read_places(s.prefix() + name);
    if (!t) return t.failure();
    if (status good = check_shape(*t, shape, s.file.file); !good) return good;
    s.layer.tensors[name] = in_theta(t->places);
    s.layer.tensors[name].key = t->key;
    s.layer.beside.push_back(std::move(*t));
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
inline constexpr peft_place unilora_places_of[] = {{.leaf = "unilora_theta_d", .shared = true}};
inline constexpr peft_method unilora_files{.type = "UNILORA",
                                           .bias_only = "unilora_only",
                                           .keys = unilora_keys,
                                           .variants = unilora_variants,
                                           .places = unilora_places_of,
                                           .frozen = unilora_frozen};

}  // namespace graft::io::peft
