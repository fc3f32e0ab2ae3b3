// SPDX-License-Identifier: Apache-2.0
// A call on the GPU allocates nothing, neither on the host nor on the device, once its number of tokens was seen.
#include <doctest/doctest.h>
#include <graft/cuda.h>

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
  cuda::buffer memory;
  REQUIRE(bool(memory.reserve((n * k + r * k + n * r + n + most * (n + k)) * 4)));
  REQUIRE(cudaMemset(memory.data(), 0, static_cast<std::size_t>(memory.bytes())) == cudaSuccess);
  bf* const p = memory.as<bf>();
  for (const char* method : {"lora", "dora", "oft"}) {
    INFO(std::string(method));
    cuda::executor<bf> layer(test::graphs_for("linear", method, false));
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
    std::size_t free_before = 0, free_after = 0, total = 0;
    REQUIRE(cudaMemGetInfo(&free_before, &total) == cudaSuccess);
    const long long before = test::allocations();
    for (int i = 0; i < 10; ++i)
      for (const long long tokens : {16, 300})
        if (!call(tokens)) FAIL("a call failed");
    const long long after = test::allocations();
    REQUIRE(cudaMemGetInfo(&free_after, &total) == cudaSuccess);
    CHECK(after - before == 0);
    CHECK(free_after == free_before);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
}
