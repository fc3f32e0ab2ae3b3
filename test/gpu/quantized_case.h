// SPDX-License-Identifier: Apache-2.0
// A random layer whose base weight is quantized, with the weight's numbers for the reference.
#pragma once
#include "../support/quantized.h"
#include "gpu.h"

namespace test {

struct quantized_case {
  random_layer<float> layer;
  quantized_and_plain weight;
  view stored;

  // The weight of experts [experts, out, in] is quantized as one matrix with all their rows.
  quantized_case(const layer_graphs& g, const sizes& s, const quant_format& how)
      : layer(representable(g, s, dtype::bf16)),
        weight(layer.data.at("weight"), rows_of(layer.views.at("weight")), columns_of(layer.views.at("weight")), how),
        stored(weight.quantized.as_view()) {
    layer.data.at("weight") = weight.numbers;
    view& plain = layer.views.at("weight");
    plain.data = layer.data.at("weight").data();
    stored.rank = plain.rank;
    for (int k = 0; k < 4; ++k) stored.size[k] = plain.size[k];
  }
  quantized_case(const quantized_case&) = delete;
  quantized_case& operator=(const quantized_case&) = delete;

  gpu_layer bound(dtype type, execution_mode how = execution_mode::fused) const {
    gpu_layer g(layer.graphs, type, how);
    REQUIRE(bool(layer.bind(g)));
    const status set = g.set("weight", stored);
    INFO(std::string(set ? "" : set.message()));
    REQUIRE(bool(set));
    return g;
  }

 private:
  static long long columns_of(const view& v) { return v.size[v.rank - 1]; }
  static long long rows_of(const view& v) { return v.count() / columns_of(v); }
};

}  // namespace test
