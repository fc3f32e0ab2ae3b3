// SPDX-License-Identifier: Apache-2.0
// A GEMM y = x Wᵀ of quantized 4096 x 4096 weights, of halves and of floats, for 1 to 16 tokens, on all threads, which
// is the cost of a token of a quantized model. Bytes are those of the weight.
#include <benchmark/benchmark.h>
#include <graft/backend/cpu/gemm/matmul.h>
#include <graft/backend/cpu/quantized/quantize.h>

#include <random>

namespace {

using namespace graft;
constexpr long long size = 4096;

std::vector<float> numbers(long long n) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = normal(engine);
  return v;
}
// A weight in a format that is only read. All bytes are 0x3c, which is a half of about 1 wherever there is one.
cpu::quantized_weight filled(const quant_format& format) {
  cpu::quantized_weight w;
  const scale_counts n = scale_counts_of(format, size, size);
  w.quant->format = format, w.rows = w.cols = size;
  w.data.assign(static_cast<std::size_t>(quantized_bytes(format, size, size)), 0x3c);
  w.quantized_scales.assign(static_cast<std::size_t>(n.scales * bits_of(format.scales) / 8), 0x3c);
  w.zeros.assign(static_cast<std::size_t>(n.scales), 8);
  for (long long c = 0; c < size; ++c)
    w.column_group.push_back(static_cast<std::int32_t>(c * 37 % size / (format.block > 0 ? format.block : size)));
  w.quant->scales = w.quantized_scales.data(), w.quant->zeros = w.zeros.data();
  w.quant->column_group = w.column_group.data();
  return w;
}
void timed(benchmark::State& state, const view& weight, long long tokens, long long bytes) {
  std::vector<float> x = numbers(tokens * size), y(x.size());
  const weight_view w = weight_of(weight, size, size);
  for (auto _ : state) {
    cpu::weight_gemm<float>({y.data(), {1, 1, tokens, size}}, {x.data(), {1, 1, tokens, size}}, w, {false, true});
    benchmark::DoNotOptimize(y.data());
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::vector<float> w = numbers(size * size);
  quant_format doubled{dtype::nf4, scale_granularity::flat_block, 64};
  doubled.scales = dtype::u8, doubled.second_block = quant_formats::double_quant_block;
  std::vector<cpu::quantized_weight> quantized_weights;
  for (const quant_format& format :
       {quant_format{dtype::nf4, scale_granularity::flat_block, 64}, doubled,
        quant_format{dtype::int8, scale_granularity::row}, quant_formats::q8_0_format::format(),
        quant_formats::q4_0_format::format(), quant_formats::q4_1_format::format(),
        quant_formats::mxfp4_format::format(), quant_formats::nvfp4_format::format()})
    quantized_weights.push_back(std::move(*cpu::quantize(w.data(), size, size, format)));
  quant_format groups{dtype::u4, scale_granularity::block, 128};
  groups.scales = dtype::f16;
  quant_format any_order = groups;
  any_order.scaled = scale_granularity::column_group;
  for (const quant_format& format :
       {quant_formats::q4_k_format::format(), quant_formats::q6_k_format::format(), groups, any_order})
    quantized_weights.push_back(filled(format));
  std::vector<bf16> halves(w.size());
  std::vector<f16> half_precision(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) halves[i] = narrow(w[i]), half_precision[i] = narrow_to_f16(w[i]);
  auto add = [](const std::string& name, const view& v, long long bytes) {
    for (const long long tokens : {1LL, 4LL, 16LL})
      benchmark::RegisterBenchmark((name + "/tokens:" + std::to_string(tokens)).c_str(),
                                   [=](benchmark::State& state) { timed(state, v, tokens, bytes); })
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime();
  };
  add("float", view_of(w.data(), size, size), 4 * size * size);
  add("bf16", view_of(halves.data(), size, size), 2 * size * size);
  add("f16", view_of(half_precision.data(), size, size), 2 * size * size);
  for (const cpu::quantized_weight& c : quantized_weights)
    add(std::string(name_of(c.quant->format)) + (c.quant->format.second_block > 0 ? " double"
                                                 : c.quant->format.scaled == scale_granularity::column_group
                                                     ? " in any order"
                                                     : ""),
        c.as_view(), bytes_of(c.quant->format, size, size));
  benchmark::RunSpecifiedBenchmarks();
}
