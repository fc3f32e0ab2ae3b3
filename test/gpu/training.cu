// SPDX-License-Identifier: Apache-2.0
// Training steps on the GPU as a program runs them: captured in a CUDA graph, after a change of tensors, and two layers
// on two streams at once. At these sizes wgrads are fused into the dgrad.
#include <doctest/doctest.h>
#include <graft/gpu.h>
#include <graft/model/method_table.h>

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>

#include "../support/gpu_layer.h"

namespace test {
graft::layer_graphs graphs_for(const char* kind, const char* method, bool bias);
}

using namespace graft;

namespace {

using bf = __nv_bfloat16;
constexpr long long tokens = 1100, out = 1024, in = 1792, fewer_in = 1024;

bool no_gpu() {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}
struct device_tensor {
  gpu::buffer memory;
  long long rows, cols;
  dtype type;
  device_tensor(long long r, long long c, float scale, unsigned seed) : rows(r), cols(c), type(dtype::bf16) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<bf> host(static_cast<std::size_t>(r * c));
    for (bf& v : host) v = __float2bfloat16(uniform(engine));
    REQUIRE(bool(memory.reserve(r * c * 2)));
    REQUIRE(cudaMemcpy(memory.data(), host.data(), host.size() * 2, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  device_tensor(long long r, long long c, dtype t) : rows(r), cols(c), type(t) {
    REQUIRE(bool(memory.reserve(bytes())));
    poison();
  }
  long long bytes() const { return rows * cols * bits_of(type) / 8; }
  void poison() { REQUIRE(cudaMemset(memory.data(), 0xff, static_cast<std::size_t>(bytes())) == cudaSuccess); }
  view seen() const { return {memory.data(), type, {rows, cols, 1, 1}, 2}; }
  mutable_view written() { return {memory.data(), type, {rows, cols, 1, 1}, 2}; }
  std::vector<char> read() const {
    std::vector<char> host(static_cast<std::size_t>(bytes()));
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(host.data(), memory.data(), host.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return host;
  }
};
struct step {
  gpu::executor<bf> layer;
  cudaStream_t stream = nullptr;
  device_tensor w, a, b, m, x, dy, y, dx, da, db, dm;
  bool with_magnitude;
  // With a large rank and fewer inputs than tokens the adapter is folded into a copy of the weight.
  step(const char* method, long long rank, unsigned seed, long long in = ::in)
      : layer(test::graphs_for("linear", method, false)),
        w(out, in, 0.03F, seed),
        a(rank, in, 0.03F, seed + 1),
        b(out, rank, 0.3F, seed + 2),
        m(out, 1, 1, seed + 3),
        x(tokens, in, 1, seed + 4),
        dy(tokens, out, 0.1F, seed + 5),
        y(tokens, out, dtype::bf16),
        dx(tokens, in, dtype::bf16),
        da(rank, in, dtype::f32),
        db(out, rank, dtype::f32),
        dm(out, 1, dtype::f32),
        with_magnitude(std::strcmp(method, "dora") == 0) {
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    layer.on(stream);
    REQUIRE(bool(layer.set("weight", w.seen())));
    REQUIRE(bool(layer.set("lora_A.weight", a.seen())));
    REQUIRE(bool(layer.set("lora_B.weight", b.seen())));
    if (with_magnitude) REQUIRE(bool(layer.set("lora_magnitude_vector", {m.memory.data(), dtype::bf16, {out}, 1})));
    REQUIRE(bool(layer.set("scaling", 1.5)));
    REQUIRE(bool(layer.bind({.tokens = tokens})));
    layer.train(true);
  }
  ~step() { static_cast<void>(cudaStreamDestroy(stream)); }
  void enqueue() {
    std::vector<gradient> gradients{{"lora_A.weight", da.written()}, {"lora_B.weight", db.written()}};
    if (with_magnitude) gradients.push_back({"lora_magnitude_vector", dm.written()});
    const status forth = layer.forward(x.seen(), y.written());
    INFO(std::string(forth.message()));
    REQUIRE(bool(forth));
    const status back = layer.backward(x.seen(), dy.seen(), dx.written(), gradients);
    INFO(std::string(back.message()));
    REQUIRE(bool(back));
  }
  void poison() {
    for (device_tensor* t : {&y, &dx, &da, &db, &dm}) t->poison();
  }
  std::vector<std::vector<char>> results() const { return {y.read(), dx.read(), da.read(), db.read(), dm.read()}; }
};

}  // namespace

TEST_CASE("gpu: a training step in a captured graph gives the same bits at every replay") {
  if (no_gpu()) return;
  for (const auto& [method, rank, inputs] :
       {std::tuple{"lora", 16, in}, std::tuple{"dora", 16, in}, std::tuple{"lora", 144, fewer_in}}) {
    INFO(std::string(method), ", rank ", rank);
    step s(method, rank, 1, inputs);
    s.enqueue();
    const auto first = s.results();
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t run = nullptr;
    REQUIRE(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    REQUIRE(bool(s.layer.parameters_changed()));
    s.enqueue();
    REQUIRE(cudaStreamEndCapture(s.stream, &captured) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&run, captured, 0) == cudaSuccess);
    for (int i = 0; i < 3; ++i) {
      s.poison();
      REQUIRE(cudaGraphLaunch(run, s.stream) == cudaSuccess);
      CHECK(s.results() == first);
    }
    static_cast<void>(cudaGraphExecDestroy(run));
    static_cast<void>(cudaGraphDestroy(captured));
  }
}
TEST_CASE("gpu: both passes of a layer in training see written parameters and a written weight") {
  if (no_gpu()) return;
  for (const auto& [method, rank, inputs] : {std::tuple{"dora", 16, in}, std::tuple{"lora", 144, fewer_in}}) {
    step s(method, rank, 1, inputs), like(method, rank, 21, inputs);
    s.enqueue(), like.enqueue();
    const auto write = [](device_tensor& to, const device_tensor& from) {
      REQUIRE(cudaMemcpy(to.memory.data(), from.memory.data(), static_cast<std::size_t>(to.bytes()),
                         cudaMemcpyDeviceToDevice) == cudaSuccess);
    };
    write(s.a, like.a), write(s.b, like.b), write(s.m, like.m), write(s.x, like.x), write(s.dy, like.dy);
    REQUIRE(bool(s.layer.parameters_changed()));
    s.enqueue();
    const auto other_weight = s.results(), want = like.results();
    CHECK(other_weight != want);
    write(s.w, like.w);
    REQUIRE(bool(s.layer.weight_changed()));
    s.poison(), s.enqueue();
    CHECK(s.results() == want);
  }
}
TEST_CASE("gpu: training steps of two layers on two streams at once") {
  if (no_gpu()) return;
  step one("lora", 16, 1), other("lora", 64, 11), third("lora", 144, 31, fewer_in);
  one.enqueue(), other.enqueue(), third.enqueue();
  const auto first = one.results(), second = other.results(), last = third.results();
  one.poison(), other.poison(), third.poison();
  for (int i = 0; i < 20; ++i) one.enqueue(), other.enqueue(), third.enqueue();
  CHECK(one.results() == first);
  CHECK(other.results() == second);
  CHECK(third.results() == last);
}
TEST_CASE("gpu: gradients in bf16, and accumulated gradients") {
  if (no_gpu()) return;
  step s("lora", 16, 1);
  s.enqueue();
  const std::vector<char> plain = s.db.read();
  device_tensor narrow(out, 16, dtype::bf16), sum(out, 16, dtype::f32), other(16, in, dtype::f32);
  REQUIRE(cudaMemset(sum.memory.data(), 0, static_cast<std::size_t>(sum.bytes())) == cudaSuccess);
  auto backward = [&](const gradient& b) {
    REQUIRE(bool(s.layer.backward(s.x.seen(), s.dy.seen(), s.dx.written(), {{"lora_A.weight", other.written()}, b})));
  };
  backward({"lora_B.weight", narrow.written()});
  for (int i = 0; i < 2; ++i) backward({"lora_B.weight", sum.written(), true});
  const std::vector<char> rounded = narrow.read(), added = sum.read();
  const auto* const exact = reinterpret_cast<const float*>(plain.data());
  const auto* const twice = reinterpret_cast<const float*>(added.data());
  const auto* const low = reinterpret_cast<const bf*>(rounded.data());
  bool equal = true, doubled = true;
  for (long long i = 0; i < out * 16; ++i) {
    equal = equal && __bfloat162float(low[i]) == __bfloat162float(__float2bfloat16(exact[i]));
    doubled = doubled && twice[i] == 2 * exact[i];
  }
  CHECK(equal);
  CHECK(doubled);
}
TEST_CASE("gpu: an adapter matrix in the layer's element type is read in place") {
  if (no_gpu()) return;
  constexpr long long rank = 16, bases = 64, wide = fewer_in;
  const device_tensor w(out, wide, 0.03F, 1), a(rank, wide, 1, 2), b(out, bases * rank, 0.03F, 3),
      lambda(rank, bases, 1, 4), gamma(bases, wide, 0.1F, 5), x(tokens, wide, 1, 6), dy(tokens, out, 0.1F, 7);
  device_tensor as_floats(out, bases * rank, dtype::f32);
  const std::vector<char> stored = b.read();
  std::vector<float> numbers(stored.size() / 2);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = __bfloat162float(reinterpret_cast<const bf*>(stored.data())[i]);
  REQUIRE(cudaMemcpy(as_floats.memory.data(), numbers.data(), numbers.size() * 4, cudaMemcpyHostToDevice) ==
          cudaSuccess);
  std::vector<std::vector<float>> found[2];
  for (int k = 0; k < 2; ++k) {  // in place, and as a copy
    gpu::executor<bf> layer(test::graphs_for("linear", "randlora", false));
    device_tensor y(tokens, out, dtype::bf16), dx(tokens, wide, dtype::bf16), d_lambda(rank, bases, dtype::f32),
        d_gamma(bases, wide, dtype::f32);
    REQUIRE(bool(layer.set("weight", w.seen())));
    REQUIRE(bool(layer.set("randlora_A", {a.memory.data(), dtype::bf16, {rank, 1, wide}, 3})));
    const device_tensor& as = k == 0 ? b : as_floats;
    REQUIRE(bool(layer.set("randlora_B", {as.memory.data(), as.type, {out, bases, rank}, 3})));
    REQUIRE(bool(layer.set("randlora_lambda", lambda.seen())));
    REQUIRE(bool(layer.set("randlora_gamma", gamma.seen())));
    REQUIRE(bool(layer.set("scaling", 1.5)));
    REQUIRE(bool(layer.bind({.tokens = tokens})));
    layer.train(true);
    REQUIRE(bool(layer.forward(x.seen(), y.written())));
    REQUIRE(bool(layer.backward(x.seen(), dy.seen(), dx.written(),
                                {{"randlora_lambda", d_lambda.written()}, {"randlora_gamma", d_gamma.written()}})));
    for (const device_tensor* t : {&y, &dx, &d_lambda, &d_gamma}) {
      const std::vector<char> bytes = t->read();
      std::vector<float>& to = found[k].emplace_back(static_cast<std::size_t>(t->rows * t->cols));
      for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = t->type == dtype::f32 ? reinterpret_cast<const float*>(bytes.data())[i]
                                      : __bfloat162float(reinterpret_cast<const bf*>(bytes.data())[i]);
    }
  }
  for (std::size_t t = 0; t < found[0].size(); ++t) {
    double off = 0, norm = 0;
    for (std::size_t i = 0; i < found[0][t].size(); ++i) {
      const double d = static_cast<double>(found[0][t][i]) - static_cast<double>(found[1][t][i]);
      off += d * d, norm += static_cast<double>(found[1][t][i]) * static_cast<double>(found[1][t][i]);
    }
    CHECK(std::sqrt(off / norm) < 3e-3);  // false for NaN
  }
}
