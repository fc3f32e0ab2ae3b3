// SPDX-License-Identifier: Apache-2.0
// A multi-LoRA batch on one layer on the GPU: each row has the result of its adapter.
#include <doctest/doctest.h>
#include <graft/gpu.h>
#include <graft/model/method_table.h>
#include <graft/run/multi_lora.h>

#include <cmath>
#include <cstdio>
#include <random>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

constexpr int rows = 9, out = 192, in = 256, rank = 16;

struct device_matrix {
  gpu::buffer memory;
  view seen;
  device_matrix(long long r, long long c, float scale, unsigned seed) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<float> host(static_cast<std::size_t>(r * c));
    for (float& v : host) v = uniform(engine);
    REQUIRE(bool(memory.reserve(r * c * 4)));
    REQUIRE(cudaMemcpy(memory.data(), host.data(), host.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
    seen = {memory.data(), dtype::f32, {r, c, 1, 1}, 2};
  }
  mutable_view written() { return {memory.data(), dtype::f32, {seen.size[0], seen.size[1], 1, 1}, 2}; }
  std::vector<float> read() const {
    std::vector<float> host(static_cast<std::size_t>(seen.count()));
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(host.data(), memory.data(), host.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    return host;
  }
};

}  // namespace

TEST_CASE("gpu multi-LoRA layer: each row has the result of its adapter") {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) return static_cast<void>(std::printf("no GPU: %s\n", why.c_str()));
  const result<layer_graphs> lora = built_in_methods().graphs("linear", "lora", false);
  REQUIRE(bool(lora));
  gpu::executor<float> layer(*lora);
  device_matrix w(out, in, 0.1F, 1), x(rows, in, 1, 2), y(rows, out, 1, 3), alone(rows, out, 1, 4);
  device_matrix a0(rank, in, 0.1F, 5), b0(out, rank, 0.5F, 6), a1(rank, in, 0.1F, 7), b1(out, rank, 0.5F, 8);
  REQUIRE(bool(layer.set("weight", w.seen)));
  const result<int> second = layer.add(*lora);
  REQUIRE(bool(second));
  for (const int k : {0, *second}) {
    REQUIRE(bool(layer.set("lora_A.weight", k == 0 ? a0.seen : a1.seen, k)));
    REQUIRE(bool(layer.set("lora_B.weight", k == 0 ? b0.seen : b1.seen, k)));
    REQUIRE(bool(layer.set("scaling", 0.7, k)));
  }
  REQUIRE(bool(layer.bind({.tokens = rows})));
  const std::vector<int> of_rows{1, 1, no_adapter, 0, 0, 1, no_adapter, 0, 1};
  const status s = forward_rows(layer, x.seen, y.written(), of_rows);
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  const std::vector<float> got = y.read();
  for (std::size_t r = 0; r < rows; ++r) {
    REQUIRE(bool(layer.enable(of_rows[r] != no_adapter)));
    if (of_rows[r] != no_adapter) REQUIRE(bool(layer.activate({of_rows[r]})));
    REQUIRE(bool(layer.forward(x.seen, alone.written())));
    const std::vector<float> want = alone.read();
    double most = 0;
    for (std::size_t c = r * out; c < (r + 1) * out; ++c)
      most = std::max(most, std::abs(static_cast<double>(got[c]) - static_cast<double>(want[c])));
    CHECK(most < 1e-5);
  }
}
