// SPDX-License-Identifier: Apache-2.0
// RandLoRA in PEFT's format (RANDLORA). All layers share one pair of bases with the sizes of the largest layer, and
// each layer uses their leading corner. With save_projection the file holds them, also once per module; otherwise they
// are drawn from projection_prng_key.
//     scaling = randlora_alpha / r
#pragma once
#include <graft/adapter/randlora.h>
#include <graft/io/peft/layer_source.h>
#include <graft/io/random/torch.h>

#include <algorithm>
#include <limits>

namespace graft::io::peft {

// The frozen bases, drawn from projection_prng_key as PEFT does if a checkpoint does not hold them
// (peft/tuners/randlora/model.py): A [r, 1, shorter], then B [longer, n, r] slice after slice of n, in bfloat16, and
// divided by their standard deviation. Sparse bases are drawn in float, B at once; their entries are −1 or 1, each with
// probability 1/6 (sparse) or 1 / (2 sqrt(shorter)) (very sparse), and otherwise 0.
enum class sparsity : unsigned char { none, some, very };
struct randlora_bases {
  std::vector<float> A;  // row-major [r, 1, shorter]
  std::vector<float> B;  // row-major [longer, n, r]
};

inline double deviation(const std::vector<float>& v) {
  double mean = 0, sum = 0;
  for (const float x : v) mean += x;
  mean /= static_cast<double>(v.size());
  for (const float x : v) sum += (x - mean) * (x - mean);
  return std::sqrt(sum / (static_cast<double>(v.size()) - 1));
}
inline void draw_sparse(mersenne_twister& engine, std::vector<float>& out, double share) {
  const float low = static_cast<float>(1 / (2 * share)), high = static_cast<float>(1 - 1 / (2 * share));
  for (float& v : out) {
    const float u = unit_float(engine);
    v = u < low ? -1.0F : u > high ? 1.0F : 0.0F;
  }
  const float by = static_cast<float>(deviation(out));
  for (float& v : out) v /= by;
}
inline void divide_in_bf16(std::vector<float>& out) {
  const float by = widen(narrow(static_cast<float>(deviation(out))));
  for (float& v : out) v = widen(narrow(v / by));
}

inline result<randlora_bases> make_randlora_bases(std::uint64_t key, long long r, long long out, long long in,
                                                  sparsity zeros) {
  const long long shorter = std::min(out, in), longer = std::max(out, in),
                  most = std::numeric_limits<std::int32_t>::max();
  if (r < 1 || shorter < 1 || longer > most || r > most)
    return fail("RandLoRA bases: the sizes are ", r, ", ", shorter, " and ", longer, ", expected 1 to ", most);
  return guarded("RandLoRA bases", [&]() -> result<randlora_bases> {
    const long long n = (shorter + r - 1) / r;
    const auto count = [](long long a, long long b) {
      return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
    };
    mersenne_twister engine(static_cast<std::uint32_t>(key & 0xffffffff));
    randlora_bases made{std::vector<float>(count(r, shorter)), std::vector<float>(count(longer, n * r))};
    if (zeros != sparsity::none) {
      const double share = zeros == sparsity::some ? 3.0 : std::sqrt(static_cast<double>(shorter));
      draw_sparse(engine, made.A, share);
      draw_sparse(engine, made.B, share);
      return made;
    }
    made.A = draw_bf16_uniform(engine, made.A.size(), static_cast<double>(shorter));
    for (long long base = 0; base < n; ++base) {
      const std::vector<float> slice = draw_bf16_uniform(engine, count(longer, r), static_cast<double>(r));
      for (long long i = 0; i < longer; ++i) std::copy_n(slice.begin() + i * r, r, made.B.begin() + (i * n + base) * r);
    }
    divide_in_bf16(made.A);
    divide_in_bf16(made.B);
    return made;
  });
}

inline status randlora_numbers(peft_layer_state& s) {
  const long long r = s.config.whole("r"), shorter = std::min(s.base.out, s.base.in);
  s.layer.sizes["num_bases"] = (shorter + r - 1) / r;
  s.layer.scalars["scaling"] = s.config.number("randlora_alpha") / static_cast<double>(r);
  return ok;
}

inline status randlora_frozen(peft_layer_state& s) {
  if (s.on("save_projection")) return ok;
  const long long r = s.config.whole("r"), out = std::max(s.base.out, s.base.largest_out),
                  in = std::max(s.base.in, s.base.largest_in);
  const sparsity zeros = s.on("very_sparse") ? sparsity::very : s.on("sparse") ? sparsity::some : sparsity::none;
  result<randlora_bases> made = make_randlora_bases(s.config.seed("projection_prng_key"), r, out, in, zeros);
  if (!made) return made.failure();
  const long long shorter = std::min(out, in), n = (shorter + r - 1) / r;
  s.layer.tensors["randlora_A"] = {
      "randlora_A from projection_prng_key", std::move(made->A), {r, 1, shorter}, safetensors_type::f32, false};
  s.layer.tensors["randlora_B"] = {"randlora_B from projection_prng_key",
                                   std::move(made->B),
                                   {std::max(out, in), n, r},
                                   safetensors_type::f32,
                                   false};
  return ok;
}

inline constexpr peft_key randlora_keys[] = {whole("r", 32),
                                             real("randlora_alpha", 640),
                                             seed("projection_prng_key"),
                                             flag("save_projection", true),
                                             flag("sparse"),
                                             flag("very_sparse"),
                                             dropout("randlora_dropout"),
                                             word("init_weights", "true", "true false")};
inline constexpr peft_variant randlora_variants[] = {
    variant<randlora<>>([](const peft_layer_state& s) { return s.base.in <= s.base.out; }),
    variant<randlora<dyn, randlora_shape::wide>>()};
inline constexpr tensor_layout randlora_layouts[] = {
    {.leaf = "randlora_A", .shape = tensor_shape_kind::corner, .shared = true, .copied = true},
    {.leaf = "randlora_B", .shape = tensor_shape_kind::corner, .shared = true, .copied = true}};
inline constexpr peft_method randlora_files{.type = "RANDLORA",
                                            .bias_only = "randlora_only",
                                            .keys = randlora_keys,
                                            .variants = randlora_variants,
                                            .layouts = randlora_layouts,
                                            .numbers = randlora_numbers,
                                            .frozen = randlora_frozen};

}  // namespace graft::io::peft
