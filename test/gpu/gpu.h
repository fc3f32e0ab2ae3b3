// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the GPU backend: skipping without a GPU, shapes, and distances.
#pragma once
#include <doctest/doctest.h>
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/run/cpu_layer.h>

#include <cstdio>

#include "../support/gpu_layer.h"
#include "../support/random_layer.h"

namespace test {

// True if there is no GPU; prints the reason once, in words that make the test runner skip the test.
inline bool no_gpu() {
  static const std::string why = why_no_gpu();
  static const bool said = !why.empty() && std::printf("no GPU: %s\n", why.c_str()) > 0;
  return said;
}

inline float rounded(float v, dtype t) {
  return t == dtype::bf16 ? widen(narrow(v)) : t == dtype::f16 ? widen(narrow_to_f16(v)) : v;
}

// ‖a - b‖ / ‖b‖; infinite if a value is NaN.
inline double distance(const std::vector<float>& a, const std::vector<double>& b) {
  double d = 0, n = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    d += (a[i] - b[i]) * (a[i] - b[i]);
    n += b[i] * b[i];
  }
  return std::isnan(d) ? INFINITY : std::sqrt(d / n);
}

inline sizes with(sizes s, const sizes& changed) {
  for (const auto& [name, n] : changed) s[name] = n;
  return s;
}

// A layer whose base tensors and x are exactly representable in `type`, scaled so that y stays of order one.
inline random_layer<float> representable(const layer_graphs& g, const sizes& s, dtype type, unsigned seed = 1) {
  random_layer<float> l(g, s, seed);
  const auto in = static_cast<float>(s.contains("in") ? s.at("in") : 32);
  for (auto& [name, values] : l.data) {
    const bool base = name == "weight" || name == "bias" || name == "x";
    const float scale = name == "weight" ? 1.7F / std::sqrt(in) : name == "lora_A.weight" ? 1.7F / std::sqrt(in) : 1.0F;
    for (float& v : values) v = base ? rounded(v * scale, type) : v * scale;
  }
  return l;
}
// y in double by the CPU's eager graph.
inline std::vector<double> reference(const random_layer<float>& l, bool adapter = true) {
  random_layer<double> d(l.graphs, l.shape);
  for (auto& [name, values] : d.data) std::copy(l.data.at(name).begin(), l.data.at(name).end(), values.begin());
  d.ids = l.ids;
  if (d.views.at("x").type == dtype::i64) d.views.at("x").data = d.ids.data();
  cpu::executor<double> e(l.graphs, execution_mode::eager);
  REQUIRE(bool(d.bind(e)));
  REQUIRE(bool(e.enable(adapter)));
  std::vector<double> y = d.buffer_for("y", l.graphs.literal);
  REQUIRE(bool(e.forward(d.x(), into(y))));
  return y;
}
inline std::vector<float> to_float(const std::vector<double>& v) { return {v.begin(), v.end()}; }

}  // namespace test
