// SPDX-License-Identifier: Apache-2.0
// Calls on the GPU allocate nothing, neither on the host nor on the device, after the first one with a number of
// tokens.
#include <doctest/doctest.h>
#include <graft/gpu.h>

#include <cstdio>

#include "../support/gpu_layer.h"

namespace test {
long long allocations();  // counted_new.cpp
}
namespace test {
graft::layer_graphs graphs_for(const char* kind, const char* method, bool bias);
}

using namespace graft;

TEST_CASE("gpu: a call allocates nothing") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) {
    std::printf("no GPU: %s\n", why.c_str());
    return;
  }
  using bf = __nv_bfloat16;
  constexpr long long n = 512, k = 256, r = 8, most = 300;
  gpu::buffer memory;
  REQUIRE(bool(memory.reserve((n * k + r * k + n * r + n + most * (n + k)) * 4)));
  REQUIRE(cudaMemset(memory.data(), 0, static_cast<std::size_t>(memory.bytes())) == cudaSuccess);
  bf* const p = memory.as<bf>();
  for (const char* method : {"lora", "dora", "oft"}) {
    INFO(std::string(method));
    gpu::executor<bf> layer(test::graphs_for("linear", method, false));
    REQUIRE(bool(layer.set("weight", view{p, dtype::bf16, {n, k, 1, 1}, 2})));
    if (std::string(method) == "oft") {
      REQUIRE(bool(layer.size("b", 8)));
      REQUIRE(bool(layer.set("oft_R.weight", view{p, dtype::f32, {k / 8, 28, 1, 1}, 2})));
    } else {
      REQUIRE(bool(layer.set("lora_A.weight", view{p, dtype::bf16, {r, k, 1, 1}, 2})));
      REQUIRE(bool(layer.set("lora_B.weight", view{p, dtype::bf16, {n, r, 1, 1}, 2})));
      REQUIRE(bool(layer.set("scaling", 1.0)));
    }
    if (std::string(method) == "dora")
      REQUIRE(bool(layer.set("lora_magnitude_vector", view{p, dtype::f32, {n, 1, 1, 1}, 1})));
    REQUIRE(bool(layer.bind({.tokens = most})));
    bf *const x = p + n * k, *const y = x + most * k;
    auto call = [&](long long tokens) {
      return layer.forward({x, dtype::bf16, {tokens, k, 1, 1}, 2}, {y, dtype::bf16, {tokens, n, 1, 1}, 2});
    };
    for (const long long tokens : {16, 300}) REQUIRE(bool(call(tokens)));
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    const long long before = test::allocations(), on_device = gpu::device_memory.allocations;
    for (int i = 0; i < 10; ++i)
      for (const long long tokens : {16, 300})
        if (!call(tokens)) FAIL("a call failed");
    const long long after = test::allocations();
    CHECK(after - before == 0);
    CHECK(gpu::device_memory.allocations - on_device == 0);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
}
TEST_CASE("gpu: the training passes of a layer share one memory for their values, and captured graphs stay valid") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) {
    std::printf("no GPU: %s\n", why.c_str());
    return;
  }
  using bf = __nv_bfloat16;
  constexpr long long n = 1024, tokens = 8192, b = 32, parameters = n / b * b * (b - 1) / 2;
  std::vector<bf> numbers(static_cast<std::size_t>(n * n + parameters + 2 * tokens * n));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = __float2bfloat16(static_cast<float>(static_cast<int>(i * 7919 % 201) - 100) * 3e-4F);
  gpu::buffer given, made, gradients;
  REQUIRE(bool(given.reserve(static_cast<long long>(numbers.size()) * 2)));
  REQUIRE(bool(made.reserve(2 * tokens * n * 2)));
  REQUIRE(bool(gradients.reserve(parameters * 4)));
  REQUIRE(cudaMemcpy(given.data(), numbers.data(), numbers.size() * 2, cudaMemcpyHostToDevice) == cudaSuccess);
  const bf *const w = given.as<bf>(), *const v = w + n * n, *const x = v + parameters, *const dy = x + tokens * n;
  bf *const y = made.as<bf>(), *const dx = y + tokens * n;
  const auto rows = [](const bf* p) { return view{p, dtype::bf16, {tokens, n, 1, 1}, 2}; };
  const auto into = [](bf* p) { return mutable_view{p, dtype::bf16, {tokens, n, 1, 1}, 2}; };
  const auto fetched = [&] {
    std::vector<unsigned short> all(static_cast<std::size_t>(tokens * n));
    REQUIRE(cudaMemcpy(all.data(), y, all.size() * 2, cudaMemcpyDeviceToHost) == cudaSuccess);
    return all;
  };
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  {
    const long long before = gpu::device_memory.bytes;
    gpu::executor<bf> layer(test::graphs_for("linear", "oft_neumann", false));
    layer.on(stream).train(true);
    REQUIRE(bool(layer.size("b", b)));
    REQUIRE(bool(layer.size("terms", 5)));
    REQUIRE(bool(layer.set("weight", view{w, dtype::bf16, {n, n, 1, 1}, 2})));
    REQUIRE(bool(layer.set("oft_R.weight", view{v, dtype::bf16, {n / b, b * (b - 1) / 2, 1, 1}, 2})));
    REQUIRE(bool(layer.bind({.tokens = tokens})));
    REQUIRE(bool(layer.forward(rows(x), into(y))));
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    const std::vector<unsigned short> expected = fetched();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    const status queued = layer.forward(rows(x), into(y));
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(bool(queued));
    REQUIRE(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
    const mutable_view of_parameters{gradients.data(), dtype::f32, {parameters, 1, 1, 1}, 1};
    REQUIRE(bool(layer.backward(rows(x), rows(dy), into(dx), {{"oft_R.weight", of_parameters}})));
    REQUIRE(cudaMemsetAsync(y, 0, tokens * n * 2, stream) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(replay, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(fetched() == expected);
    constexpr long long one_value = tokens * n * 2;  // rotated x in forward, dy W before its rotation in backward
    CHECK(gpu::device_memory.bytes > before);
    CHECK(gpu::device_memory.bytes - before < one_value + (8LL << 20));
    cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}
