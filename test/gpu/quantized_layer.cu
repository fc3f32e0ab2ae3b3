// SPDX-License-Identifier: Apache-2.0
// A layer type with a quantized weight on the GPU: it computes in bf16 and instantiates the kernels of its format.
#include <doctest/doctest.h>
#include <graft/gpu.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

constexpr long long rank = 16;
using of_nf4 = linear<200, 256, nf4<64>, lora<rank>>;
using of_int8 = linear<200, 256, int8, lora<rank>>;
using of_units = linear<2128, 4096, nf4<64>, lora<rank>>;
using bf = __nv_bfloat16;

static_assert(compile<of_nf4, fullgraph, for_target<sm_90>>::kernels_at(8) == 1);
static_assert(compile<of_int8, fullgraph, for_target<sm_90>>::kernels_at(16) ==
              2);  // one kernel computes the shrink result

// Numbers that are exact in bf16, on the host and on the device.
template <class T> struct numbers {
  std::vector<T> host;
  gpu::buffer on_device;
  numbers(long long n, float scale, unsigned seed) : host(static_cast<std::size_t>(n)) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> any(-scale, scale);
    for (T& v : host) v = T(__bfloat162float(__float2bfloat16(any(engine))));
    place();
  }
  explicit numbers(std::vector<T> from) : host(std::move(from)) { place(); }
  void place() {
    const auto bytes = host.size() * sizeof(T);
    REQUIRE(bool(on_device.reserve(static_cast<long long>(bytes))));
    REQUIRE(cudaMemcpy(on_device.data(), host.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
};
std::vector<unsigned char> random_bytes(long long n) {
  std::mt19937 engine(3);
  std::vector<unsigned char> v(static_cast<std::size_t>(n));
  for (unsigned char& b : v) b = static_cast<unsigned char>(engine() >> 5U);
  return v;
}

// Compares y of the layer with its formula in double; value(row, column) is the dequantized W.
template <class Layer, class Value>
void check(const view& weight, std::initializer_list<long long> counts, Value value) {
  const long long out = weight.size[0], in = weight.size[1];
  const numbers<float> a(rank * in, 0.1F, 1), b(out * rank, 0.3F, 2);
  for (const long long tokens : counts) {
    const numbers<bf> x(tokens * in, 1, 4);
    gpu::buffer y;
    REQUIRE(bool(y.reserve(tokens * out * 2)));
    gpu::layer<Layer> q;
    REQUIRE(bool(q.set("weight", weight)));
    REQUIRE(bool(q.set("lora_A.weight", view_of(a.on_device.template as<float>(), rank, in))));
    REQUIRE(bool(q.set("lora_B.weight", view_of(b.on_device.template as<float>(), out, rank))));
    REQUIRE(bool(q.set("scaling", 2.0)));
    REQUIRE(bool(q.bind({.tokens = tokens})));
    const bool reads_quantized = tokens <= 32, shrink_is_ready = tokens > 8;
    const std::string said(q.describe(tokens).c_str());
    CHECK((said == "quantized skinny GEMM, 1 launch") == (reads_quantized && !shrink_is_ready));
    CHECK((said == "quantized skinny GEMM, 2 launches") == (reads_quantized && shrink_is_ready));
    for (int time = 0; time < 3; ++time) {  // a launch may begin while the previous one ends
      const status ran = q.forward({x.on_device.data(), dtype::bf16, {tokens, in, 1, 1}, 2},
                                   {y.data(), dtype::bf16, {tokens, out, 1, 1}, 2});
      INFO(std::string(ran ? "" : ran.message()));
      REQUIRE(bool(ran));
    }
    std::vector<bf> got(static_cast<std::size_t>(tokens * out));
    REQUIRE(cudaMemcpy(got.data(), y.data(), got.size() * 2, cudaMemcpyDeviceToHost) == cudaSuccess);
    double wrong = 0, all = 0;
    for (long long t = 0; t < tokens; ++t) {
      const auto x_at = [&](long long c) {
        return static_cast<double>(__bfloat162float(x.host[static_cast<std::size_t>(t * in + c)]));
      };
      double s[rank] = {};
      for (long long r = 0; r < rank; ++r)
        for (long long c = 0; c < in; ++c)
          s[r] += x_at(c) * static_cast<double>(a.host[static_cast<std::size_t>(r * in + c)]);
      for (long long o = 0; o < out; ++o) {
        double expected = 0;
        for (long long c = 0; c < in; ++c) expected += x_at(c) * value(o, c);
        for (long long r = 0; r < rank; ++r)
          expected += 2 * s[r] * static_cast<double>(b.host[static_cast<std::size_t>(o * rank + r)]);
        const double d = static_cast<double>(__bfloat162float(got[static_cast<std::size_t>(t * out + o)])) - expected;
        wrong += d * d, all += expected * expected;
      }
    }
    INFO(tokens, " tokens");
    CHECK(std::sqrt(wrong / all) < 1e-2);
  }
}
// Runs check() for NF4 weights with blocks of 64 columns.
template <class Layer> void check_nf4(long long out, long long in, std::initializer_list<long long> counts) {
  const numbers<unsigned char> stored(random_bytes(out * in / 2));
  const numbers<float> scales(out * in / 64, 0.1F, 5);
  quant_state state;
  state.format = quant_format_of<nf4<64>>(), state.scales = scales.on_device.data();
  view weight{stored.on_device.data(), dtype::nf4, {out, in, 1, 1}, 2};
  weight.quant = &state;
  check<Layer>(weight, counts, [&](long long row, long long column) {
    const long long i = row * in + column;
    return static_cast<double>(quant_formats::nf4_format::table[quant_formats::nibble_at(stored.host.data(), i)]) *
           static_cast<double>(scales.host[static_cast<std::size_t>(i / 64)]);
  });
}

}  // namespace

TEST_CASE("gpu: a layer type of NF4, with few tokens and many") {
  if (!test::why_no_gpu().empty()) return;
  check_nf4<of_nf4>(200, 256, {1, 11, 90});
}
TEST_CASE("gpu: a layer type of NF4 with two units of rows on some multiprocessors and one on the others") {
  if (!test::why_no_gpu().empty()) return;
  check_nf4<of_units>(2128, 4096, {1, 8});
}
TEST_CASE("gpu: a layer type of int8") {
  if (!test::why_no_gpu().empty()) return;
  constexpr long long out = 200, in = 256;
  const numbers<unsigned char> stored(random_bytes(out * in));
  const numbers<float> scales(out, 8, 6);
  quant_state state;
  state.format = quant_format_of<int8>(), state.scales = scales.on_device.data();
  view weight{stored.on_device.data(), dtype::int8, {out, in, 1, 1}, 2};
  weight.quant = &state;
  check<of_int8>(weight, {1, 11, 90}, [&](long long row, long long column) {
    const auto code = static_cast<signed char>(stored.host[static_cast<std::size_t>(row * in + column)]);
    return static_cast<double>(
        quant_formats::int8_format::dequantize(code, scales.host[static_cast<std::size_t>(row)]));
  });
}
