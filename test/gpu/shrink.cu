// SPDX-License-Identifier: Apache-2.0
// The shrink kernel U = x Aᵀ that runs before quantized GEMMs: its result in memory against sums in double, for ragged
// tokens and inner sizes, of one layer, of several and of gate and up; and a GEMM that reads the result.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/quantized/launch.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>
#include <graft/targets.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;
using namespace graft::gpu;

namespace {

using bf = __nv_bfloat16;
const quant_format nf4_64{dtype::nf4, scale_granularity::flat_block, 64};

struct tensor_there {
  buffer memory;
  explicit tensor_there(long long bytes) {
    REQUIRE(bool(memory.reserve(bytes)));
    REQUIRE(cudaMemset(memory.data(), 0, static_cast<std::size_t>(bytes)) == cudaSuccess);
  }
  template <class V>
  explicit tensor_there(const std::vector<V>& from) : tensor_there(static_cast<long long>(from.size() * sizeof(V))) {
    REQUIRE(cudaMemcpy(memory.data(), from.data(), from.size() * sizeof(V), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  template <class V> std::vector<V> back(long long count) const {
    std::vector<V> to(static_cast<std::size_t>(count));
    REQUIRE(cudaMemcpy(to.data(), memory.data(), to.size() * sizeof(V), cudaMemcpyDeviceToHost) == cudaSuccess);
    return to;
  }
};
struct random_numbers {
  std::mt19937 engine{11};
  float operator()(float scale) {
    return __bfloat162float(__float2bfloat16(std::uniform_real_distribution<float>(-scale, scale)(engine)));
  }
};
std::vector<bf> in_bf16(const std::vector<float>& from) {
  std::vector<bf> to;
  for (const float v : from) to.push_back(__float2bfloat16(v));
  return to;
}
std::vector<float> drawn(random_numbers& next, long long count, float scale) {
  std::vector<float> v(static_cast<std::size_t>(count));
  for (float& one : v) one = next(scale);
  return v;
}
// A in tiles of [rank][64], swizzled (kernels/quantized/shrink.cuh).
std::vector<float> in_tiles(const std::vector<float>& a, int rank, int k) {
  std::vector<float> to(a.size());
  for (int r = 0; r < rank; ++r)
    for (int c = 0; c < k; ++c)
      to[static_cast<std::size_t>((c / 64 * rank + r) * 64 + ((c % 64 / 8) ^ (r % 8)) * 8 + c % 8)] =
          a[static_cast<std::size_t>(r * k + c)];
  return to;
}
// A layer of `n` rows with random quantized values, scales and adapter; rank 0: it has no adapter.
struct quantized_lora_layer {
  int n, k, rank;
  std::vector<float> a;
  tensor_there stored, scales, tiles, b;
  quant_state state{};
  quantized_lora_layer(random_numbers& next, int rows, int columns, int ranks)
      : n(rows),
        k(columns),
        rank(ranks),
        a(drawn(next, static_cast<long long>(ranks) * columns, 0.1F)),
        stored(std::vector<unsigned char>(static_cast<std::size_t>(rows) * columns / 2, 0x5A)),
        scales(drawn(next, static_cast<long long>(rows) * columns / 64, 0.1F)),
        tiles(ranks > 0 ? tensor_there(in_bf16(in_tiles(a, ranks, columns))) : tensor_there(16)),
        b(ranks > 0 ? tensor_there(in_bf16(drawn(next, static_cast<long long>(rows) * ranks, 0.5F)))
                    : tensor_there(16)) {
    state.format = nf4_64, state.scales = scales.memory.data();
  }
  quantized_operands operands() const {
    quantized_operands o;
    o.weight = {stored.memory.data(), dtype::nf4, {n, k, 1, 1}, 2}, o.weight.quant = &state, o.n = n, o.k = k;
    if (rank > 0) o.adapter.a_tiles = tiles.memory.data(), o.adapter.b = b.memory.data(), o.adapter.rank = rank;
    return o;
  }
};

void check(int m, int n, int k, const std::vector<int>& ranks, bool gated) {
  INFO(m, " tokens, ", n, " x ", k, ", ", ranks.size(), " layers", gated ? ", gated" : "", ", rank ", ranks[0]);
  const target device = device_target("", 90, 132, 66);
  static const quantized_kernels kernels = [] {
    quantized_kernels all;
    gpu::detail::add_quantized_kernels<bf, every_quantized_kernel(quant_layout::block_scales), 2>(all);
    return all;
  }();
  random_numbers next;
  std::vector<std::unique_ptr<quantized_lora_layer>> layers;
  std::vector<quantized_operands> operands;
  std::vector<gemm_problem> shapes;
  for (const int rank : ranks) {
    layers.push_back(std::make_unique<quantized_lora_layer>(next, n, k, rank));
    operands.push_back(layers.back()->operands());
    shapes.push_back({dtype::bf16, m, n, k, rank}), shapes.back().stored = nf4_64;
  }
  const auto count = static_cast<int>(ranks.size());
  const quantized_choice c = count > 1 ? choose_quantized_grouped(shapes.data(), count, gated, device)
                                       : choose_quantized(nf4_64, dtype::bf16, m, k, ranks[0], device);
  REQUIRE(c.groups > 0);
  REQUIRE(c.gated == gated);
  const std::vector<float> x = drawn(next, static_cast<long long>(m) * k, 1);
  const tensor_there x_there(in_bf16(x)), shrink_out(1 << 16), counters(256), y(4LL * m * n * 2);
  quantized_tensors with;
  with.x = x_there.memory.data(), with.shrink_out = static_cast<float*>(shrink_out.memory.data());
  with.counters = static_cast<std::uint32_t*>(counters.memory.data());
  for (int i = 0; i < count; ++i) with.y[i] = static_cast<bf*>(y.memory.data()) + (gated ? 0 : i * m * n);
  quantized_gemm calls(kernels, device, operands.data(), count);
  const auto run = [&] {
    const status ran = calls.run(nullptr, c, m, with, false, false);
    INFO(std::string(ran ? "" : ran.message()));
    REQUIRE(bool(ran));
    return y.back<std::uint16_t>(4LL * m * n);
  };
  const std::vector<std::uint16_t> first = run();
  const std::vector<float> s = shrink_out.back<float>((1 << 16) / 4);
  int all = 0, before = 0;
  for (const int rank : ranks) all += rank;
  for (int group = 0; group < c.groups; ++group)
    for (int i = 0; i < count; before += ranks[static_cast<std::size_t>(i++)])
      for (int t = 0; t < c.tokens; ++t)
        for (int r = 0; r < ranks[static_cast<std::size_t>(i)]; ++r) {
          double wanted = 0, size = 1e-6;
          for (int column = 0; group * c.tokens + t < m && column < k; ++column) {
            const double v =
                static_cast<double>(x[static_cast<std::size_t>((group * c.tokens + t) * k + column)]) *
                static_cast<double>(layers[static_cast<std::size_t>(i)]->a[static_cast<std::size_t>(r * k + column)]);
            wanted += v, size += std::abs(v);
          }
          const int at = gated ? t * all + before + r : before * c.tokens + t * ranks[static_cast<std::size_t>(i)] + r;
          REQUIRE(std::abs(static_cast<double>(s[static_cast<std::size_t>(at)]) - wanted) < 1e-6 * size);
        }
  REQUIRE(cudaMemset(y.memory.data(), 0, 4U * m * n * 2) == cudaSuccess);
  with.has_shrink = true;
  CHECK(run() == first);
}

}  // namespace

TEST_CASE("gpu: the shrink result of more than eight tokens is a launch, and a GEMM reads it in place") {
  if (!test::why_no_gpu().empty()) return;
  for (const auto& [m, k] : {std::pair{9, 64}, {16, 4096}, {13, 1088}, {16, 14336}, {27, 4096}})
    for (const int rank : {16, 64}) check(m, 208, k, {rank}, false);
  check(16, 208, 4096, {16, 48, 16}, false);
  check(11, 200, 1088, {16, 0, 32}, false);
  check(16, 208, 4096, {16, 32}, true);
  check(9, 208, 1024, {0, 16}, true);
}
