// SPDX-License-Identifier: Apache-2.0
// Layers with one input in one launch give what each gives alone; activation and residual come after the product.
#include <doctest/doctest.h>
#include <graft/model/methods.h>

#include <cmath>
#include <random>

#include "../support/gpu_instances.h"
#include "../support/gpu_layer.h"

extern template graft::layer_graphs graft::graphs_for<void>(graft::layer_kind, graft::method, bool);

using namespace graft;

namespace {

using bf = __nv_bfloat16;

bool no_gpu() {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}

struct device_matrix {
  cuda::buffer memory;
  long long rows, cols;
  device_matrix(long long r, long long c, float scale) : rows(r), cols(c) {
    static std::mt19937 engine(7);
    std::normal_distribution<float> normal(0, scale);
    std::vector<bf> host(static_cast<std::size_t>(r * c));
    for (bf& v : host) v = __float2bfloat16(normal(engine));
    REQUIRE(bool(memory.reserve(r * c * 2)));
    REQUIRE(cudaMemcpy(memory.data(), host.data(), host.size() * 2, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  view seen() const { return {memory.data(), dtype::bf16, {rows, cols, 1, 1}, 2}; }
  mutable_view written() { return {memory.data(), dtype::bf16, {rows, cols, 1, 1}, 2}; }
  std::vector<float> read() const {
    std::vector<bf> host(static_cast<std::size_t>(rows * cols));
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(host.data(), memory.data(), host.size() * 2, cudaMemcpyDeviceToHost) == cudaSuccess);
    return {host.begin(), host.end()};
  }
};
struct lora_layer {
  cuda::executor<bf> layer{graphs_for(layer_kind::linear, method::lora, false)};
  device_matrix w, a, b;
  lora_layer(long long n, long long k, long long rank) : w(n, k, 0.05F), a(rank, k, 0.05F), b(n, rank, 0.3F) {}
  void prepare(const view& x) {
    REQUIRE(bool(layer.set("weight", w.seen())));
    REQUIRE(bool(layer.set("lora_A.weight", a.seen())));
    REQUIRE(bool(layer.set("lora_B.weight", b.seen())));
    REQUIRE(bool(layer.set("scaling", 1.5)));
    REQUIRE(bool(layer.prepare(nullptr, x)));
  }
};
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) d += std::pow(a[i] - b[i], 2), n += std::pow(b[i], 2);
  return std::isnan(d) ? INFINITY : std::sqrt(d / n);
}

}  // namespace

TEST_CASE("gpu: layers with one input in one launch") {
  if (no_gpu()) return;
  for (const long long tokens : {1, 16, 50}) {
    INFO(tokens, " tokens");
    const device_matrix x(tokens, 520, 1);
    lora_layer q(640, 520, 16), k(128, 520, 16), v(200, 520, 9);
    std::vector<device_matrix> alone, together;
    std::vector<cuda::projection<bf>> all;
    for (lora_layer* l : {&q, &k, &v}) {
      l->prepare(x.seen());
      alone.emplace_back(tokens, l->w.rows, 1.0F), together.emplace_back(tokens, l->w.rows, 1.0F);
      REQUIRE(bool(l->layer.forward(nullptr, x.seen(), alone.back().written())));
    }
    int i = 0;
    for (lora_layer* l : {&q, &k, &v}) all.push_back({&l->layer, together[static_cast<std::size_t>(i++)].written()});
    const status s = cuda::forward_together<bf>(nullptr, all, x.seen());
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    for (std::size_t j = 0; j < alone.size(); ++j) CHECK(distance(together[j].read(), alone[j].read()) < 4e-3);
  }
}
TEST_CASE("gpu: layers that cannot run together say why") {
  if (no_gpu()) return;
  const device_matrix x(4, 64, 1), long_x(65, 64, 1);
  lora_layer a(64, 64, 16), b(64, 64, 40);
  a.prepare(x.seen()), b.prepare(x.seen());
  device_matrix ya(4, 64, 1), yb(4, 64, 1);
  const status ranks =
      cuda::forward_together<bf>(nullptr, {{&a.layer, ya.written()}, {&b.layer, yb.written()}}, x.seen());
  CHECK(std::string(ranks.message()) ==
        "layer 1 has a padded rank of 64, layer 0 has 16; layers run together need the same");
  CHECK(!cuda::forward_together<bf>(nullptr, {{&a.layer, ya.written()}}, long_x.seen()));
  CHECK(!cuda::forward_together<bf>(nullptr, {}, x.seen()));
}
TEST_CASE("gpu: activation, then residual, in every family") {
  if (no_gpu()) return;
  for (const long long tokens : {4, 300})
    for (const long long n : {256, 36}) {
      INFO(tokens, " tokens, ", n, " outputs");
      const device_matrix x(tokens, 264, 1), residual(tokens, n, 1);
      lora_layer l(n, 264, 16);
      l.prepare(x.seen());
      device_matrix plain(tokens, n, 1), y(tokens, n, 1);
      REQUIRE(bool(l.layer.forward(nullptr, x.seen(), plain.written())));
      cuda::call_options options;
      options.residual = residual.memory.data(), options.act = cuda::activation::silu;
      const status s = l.layer.forward(nullptr, x.seen(), y.written(), options);
      INFO(std::string(s.message()));
      REQUIRE(bool(s));
      std::vector<float> expected = plain.read();
      const std::vector<float> add = residual.read();
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = expected[i] / (1 + std::exp(-expected[i])) + add[i];
      CHECK(distance(y.read(), expected) < 6e-3);
    }
}
