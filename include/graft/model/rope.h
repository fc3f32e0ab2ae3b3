// SPDX-License-Identifier: Apache-2.0
// RoPE (rotary position embedding) frequencies: position p rotates pair i of a head by the angle p f_i, and cos and sin
// are multiplied by one factor. Without scaling f_i = theta^(-2i/n), n the number of elements that are rotated; the
// scaled kinds change f as transformers does (modeling_rope_utils.py): linear interpolation, Llama 3's bands, YaRN
// (arXiv:2309.00071), and LongRoPE (arXiv:2402.13753), which has a divisor for each frequency.
#pragma once
#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <vector>

namespace graft {

enum class rope_kind : unsigned char { plain, linear, llama3, yarn, longrope };

struct rope_settings {
  rope_kind kind = rope_kind::plain;
  double theta = 10000, factor = 1;
  double partial = 1;                            // the part of each head that is rotated, its first elements
  double original_positions = 0;                 // context length of the pre-training: llama3, yarn and longrope
  double low_frequency = 1, high_frequency = 4;  // llama3
  double beta_fast = 32, beta_slow = 1, mscale = 0, mscale_all = 0;  // yarn
  std::optional<double> attention_factor{};
  bool truncate = true;
  std::vector<float> divisors{};       // divide the frequencies: longrope's short_factor, or what a file states (GGUF)
  std::vector<float> long_divisors{};  // longrope, for contexts that are longer than the original positions
};

struct rope_frequencies {
  std::vector<float> frequencies;  // one for each pair of elements
  float factor = 1;                // factor of cos and sin
};

// Long wavelengths are interpolated, short ones are unchanged, and those in between are blended.
inline double llama3_frequency(const rope_settings& r, double f) {
  const double rotations = r.original_positions * f / (2 * std::numbers::pi);
  if (rotations < r.low_frequency) return f / r.factor;
  if (rotations > r.high_frequency) return f;
  const double unscaled = (rotations - r.low_frequency) / (r.high_frequency - r.low_frequency);
  return (1 - unscaled) * f / r.factor + unscaled * f;
}

// Returns the (fractional) index of the pair that rotates by this many full turns over the original positions.
inline double yarn_pair(const rope_settings& r, double rotations, int dim) {
  return dim * std::log(r.original_positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(r.theta));
}

inline double yarn_attention_factor(const rope_settings& r) {
  const auto scale = [&](double m) { return r.factor <= 1 ? 1.0 : 0.1 * m * std::log(r.factor) + 1; };
  if (r.attention_factor) return *r.attention_factor;
  return r.mscale != 0 && r.mscale_all != 0 ? scale(r.mscale) / scale(r.mscale_all) : scale(1);
}

inline double longrope_attention_factor(const rope_settings& r) {
  if (r.attention_factor) return *r.attention_factor;
  return r.factor <= 1 ? 1 : std::sqrt(1 + std::log(r.factor) / std::log(r.original_positions));
}

// `context` is the longest sequence that positions are computed for. LongRoPE has one table per model, so that cached
// keys stay valid while a sequence grows beyond the original positions.
inline rope_frequencies make_rope_frequencies(const rope_settings& r, int dim, int context) {
  rope_frequencies out;
  double low = 0, high = 0;
  if (r.kind == rope_kind::yarn) {
    low = yarn_pair(r, r.beta_fast, dim), high = yarn_pair(r, r.beta_slow, dim);
    if (r.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, dim - 1.0);
    if (low == high) high += 0.001;
    out.factor = static_cast<float>(yarn_attention_factor(r));
  }
  if (r.kind == rope_kind::longrope) out.factor = static_cast<float>(longrope_attention_factor(r));
  const bool is_long = r.kind == rope_kind::longrope && context > r.original_positions;
  const std::vector<float>& divisors = is_long ? r.long_divisors : r.divisors;
  for (int i = 0; i < (dim + 1) / 2; ++i) {
    double f = std::pow(r.theta, -2.0 * i / dim);
    switch (r.kind) {
      case rope_kind::plain:
      case rope_kind::longrope: break;
      case rope_kind::linear: f /= r.factor; break;
      case rope_kind::llama3: f = llama3_frequency(r, f); break;
      case rope_kind::yarn: {
        const double stretched = std::clamp((i - low) / (high - low), 0.0, 1.0);
        f = stretched * f / r.factor + (1 - stretched) * f;
        break;
      }
    }
    if (!divisors.empty()) f /= static_cast<double>(divisors[static_cast<std::size_t>(i)]);
    out.frequencies.push_back(static_cast<float>(f));
  }
  return out;
}

}  // namespace graft
