// SPDX-License-Identifier: Apache-2.0
// Grouped GEMMs: layers with one input in one launch give their separate results, with activation and residual.
#include <doctest/doctest.h>
#include <graft/gpu.h>
#include <graft/model/method_table.h>

#include <cmath>
#include <random>

#include "../support/gpu_layer.h"

namespace test {
graft::layer_graphs graphs_for(const char* kind, const char* method, bool bias);
}

using namespace graft;

namespace {

using bf = __nv_bfloat16;

bool no_gpu() {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}

struct device_matrix {
  gpu::buffer memory;
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
  gpu::executor<bf> layer{test::graphs_for("linear", "lora", false)};
  device_matrix w, a, b;
  lora_layer(long long n, long long k, long long rank) : w(n, k, 0.05F), a(rank, k, 0.05F), b(n, rank, 0.3F) {}
  void prepare(const view& x) {
    REQUIRE(bool(layer.set("weight", w.seen())));
    REQUIRE(bool(layer.set("lora_A.weight", a.seen())));
    REQUIRE(bool(layer.set("lora_B.weight", b.seen())));
    REQUIRE(bool(layer.set("scaling", 1.5)));
    REQUIRE(bool(layer.bind({.tokens = x.size[0]})));
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
    std::vector<gpu::projection<bf>> all;
    for (lora_layer* l : {&q, &k, &v}) {
      l->prepare(x.seen());
      alone.emplace_back(tokens, l->w.rows, 1.0F), together.emplace_back(tokens, l->w.rows, 1.0F);
      REQUIRE(bool(l->layer.forward(x.seen(), alone.back().written())));
    }
    int i = 0;
    for (lora_layer* l : {&q, &k, &v}) all.push_back({&l->layer, together[static_cast<std::size_t>(i++)].written()});
    const status s = gpu::forward_grouped<bf>(nullptr, all, x.seen());
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    for (std::size_t j = 0; j < alone.size(); ++j) CHECK(distance(together[j].read(), alone[j].read()) < 4e-3);
  }
}
// Thread blocks that reduce with each other split by tokens if there are more than eight, and by rows otherwise.
TEST_CASE("gpu: a token's outputs have the same bits in every batch") {
  if (no_gpu()) return;
  constexpr int depth = 328, rank = 16;
  for (const int n : {4096, 6144, 4100})  // tiles of 64 rows and of 96, and a ragged one
    for (const long long tokens : {9, 16, 17, 24, 33, 57, 64}) {
      INFO(n, " outputs, ", tokens, " tokens");
      const auto shape = [&](long long m) { return gpu::choose_skinny(&n, 1, m, depth, rank, 132); };
      REQUIRE(shape(tokens).rows == shape(1).rows);
      REQUIRE(shape(tokens).splits == 2);
      const device_matrix x(tokens, depth, 1);
      lora_layer l(n, depth, rank);
      l.prepare(x.seen());
      device_matrix all(tokens, n, 1);
      REQUIRE(bool(l.layer.forward(x.seen(), all.written())));
      const std::vector<float> together = all.read();
      for (long long token = 0; token < tokens; ++token) {
        view one = x.seen();
        one.data = static_cast<const bf*>(one.data) + token * depth, one.size[0] = 1;
        device_matrix y(1, n, 1);
        REQUIRE(bool(l.layer.forward(one, y.written())));
        const std::vector<float> own(together.begin() + token * n, together.begin() + (token + 1) * n);
        CHECK(own == y.read());
      }
    }
}
TEST_CASE("gpu: layers that cannot be grouped give a reason") {
  if (no_gpu()) return;
  const device_matrix x(4, 64, 1), long_x(65, 64, 1);
  lora_layer a(64, 64, 16), b(64, 64, 40);
  a.prepare(x.seen()), b.prepare(x.seen());
  device_matrix ya(4, 64, 1), yb(4, 64, 1);
  const status ranks =
      gpu::forward_grouped<bf>(nullptr, {{&a.layer, ya.written()}, {&b.layer, yb.written()}}, x.seen());
  CHECK(std::string(ranks.message()) ==
        "layer 1 has a padded rank of 64, layer 0 has 16; grouped layers need the same");
  CHECK(!gpu::forward_grouped<bf>(nullptr, {{&a.layer, ya.written()}}, long_x.seen()));
  CHECK(!gpu::forward_grouped<bf>(nullptr, {}, x.seen()));
}
TEST_CASE("gpu: a call launches the stated kernels, whatever calls came before") {
  if (no_gpu()) return;
  lora_layer l(512, 512, 16);
  const device_matrix most(300, 512, 1);
  l.prepare(most.seen());
  std::vector<device_matrix> first;
  for (int round = 0; round < 3; ++round) {
    int i = 0;
    for (const long long tokens : {1, 16, 300, 7, 40, 200}) {  // more than the cache of launches holds
      INFO(tokens, " tokens");
      view x = most.seen();
      x.size[0] = tokens;
      device_matrix y(tokens, 512, 1);
      const long long before = gpu::launch_count();
      REQUIRE(bool(l.layer.forward(x, y.written())));
      const bool two = std::string(l.layer.describe(tokens).c_str()).find("2 launches") != std::string::npos;
      CHECK(gpu::launch_count() - before == (two ? 2 : 1));
      if (round == 0) first.push_back(std::move(y));
      if (round > 0) CHECK(distance(y.read(), first[static_cast<std::size_t>(i)].read()) == 0);
      ++i;
    }
  }
}
// y = residual + silu(x W'), with the residual as another input.
struct finished_kind : linear_kind {
  static constexpr const char* name = "finished linear";
  static constexpr ex run(scope p, ex M, ex b, ex x, lowering how) {
    const ex residual = p.leaf(op::input, "residual", 2, 1, 1, p.tokens(), M.rows());
    return residual + silu(linear_kind::run(p, M, b, x, how));
  }
};
TEST_CASE("gpu: activation and residual are fused into the GEMM, in every family") {
  if (no_gpu()) return;
  const layer_graphs graphs = capture_graphs(layer_of<finished_kind, lora<>, false>());
  for (const long long tokens : {4, 17, 33, 64, 300, 2100})  // the last one has several tiles per thread block
    for (const long long n : {256, 36, 4168, 6150, 14338}) {
      if (tokens * n > 10000000) continue;
      INFO(tokens, " tokens, ", n, " outputs");
      const device_matrix x(tokens, 264, 1), residual(tokens, n, 1);
      lora_layer l(n, 264, 16);
      l.prepare(x.seen());
      device_matrix plain(tokens, n, 1), y(tokens, n, 1);
      REQUIRE(bool(l.layer.forward(x.seen(), plain.written())));
      gpu::engine<bf>::queue q;
      q.kernels = gpu::every_kernel_of<bf>();
      gpu::engine<bf>::shared none;
      REQUIRE(bool(gpu::engine<bf>::open(q)));
      gpu::program<bf> made(graphs.forward, fuse(graphs.forward, q.where));
      gpu::binding<bf> with;
      CHECK(made.launches().launches.size() == 1);
      layer_state state(graphs);
      REQUIRE(bool(state.set("weight", l.w.seen())));
      REQUIRE(bool(state.set("lora_A.weight", l.a.seen())));
      REQUIRE(bool(state.set("lora_B.weight", l.b.seen())));
      REQUIRE(bool(state.set("scaling", 1.5)));
      const result<bound_leaves> leaves = state.bind(graphs.forward);
      REQUIRE(bool(leaves));
      REQUIRE(bool(gpu::engine<bf>::bind(q, made, with, leaves->sizes, leaves->leaf, {.tokens = tokens}, none)));
      program_call c(graphs.forward);
      c.begin(leaves->sizes);
      graphs.forward.sizes.set_tokens(c.sizes, tokens);
      c.data[graphs.forward.find("x")] = x.seen();
      c.data[graphs.forward.find("residual")] = residual.seen();
      c.outputs[0] = y.written();
      const long long before = gpu::launch_count();
      const status s = gpu::engine<bf>::run(q, made, with, c);
      INFO(std::string(s.message()));
      REQUIRE(bool(s));
      CHECK(gpu::launch_count() - before <= 2);
      std::vector<float> expected = plain.read();
      const std::vector<float> add = residual.read();
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = expected[i] / (1 + std::exp(-expected[i])) + add[i];
      CHECK(distance(y.read(), expected) < 6e-3);
    }
}
