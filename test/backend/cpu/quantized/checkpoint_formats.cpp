// SPDX-License-Identifier: Apache-2.0
// The formats of GPTQ, AWQ, MXFP4 and NVFP4 on the CPU: what their codes mean, element by element, any part of a
// weight, products in both directions, and the rounding of the two that numbers are quantized to.
#include <doctest/doctest.h>
#include <graft/backend/cpu/gemm/matmul.h>
#include <graft/backend/cpu/runtime/storage.h>

#include <cmath>

#include "../../../support/quantized.h"

using namespace test;

namespace {

// Element (r, c) from the definition of its format.
double meaning_of(const cpu::quantized_weight& w, long long r, long long c) {
  const quant_state& p = *w.quant;
  const quant_format& e = p.format;
  const auto scale = [&](long long k) { return static_cast<double>(cpu::scale_at(p, k)); };
  if (e.type == dtype::f4_e2m1) {
    const unsigned code = quant_formats::e2m1::code_at(w.data.data(), r * w.cols + c);
    return static_cast<double>(quant_formats::e2m1::table[code]) * scale((r * w.cols + c) / e.block);
  }
  const int bits = bits_of(e.type);
  const long long groups = (w.cols + e.block - 1) / e.block,
                  g = r * groups + (e.scaled == scale_granularity::block ? c / e.block : p.column_group[c]);
  const int code = quant_formats::grouped_uint::code(w.data.data() + r * w.cols * bits / 8, c, bits);
  return (code - static_cast<int>(p.zeros[g])) * scale(g);
}

}  // namespace

TEST_CASE("checkpoint formats: every element means what its format says, and any part of a weight the same") {
  for (const named_quant_format& e : every_checkpoint_format()) {
    INFO(e.name);
    const quantized_and_plain w(normal_numbers(5 * 96, 3), 5, 96, e.format);
    bool right = true;
    for (long long r = 0; r < 5; ++r)
      for (long long c = 0; c < 96; ++c)
        right = right &&
                w.numbers[static_cast<std::size_t>(r * 96 + c)] == static_cast<float>(meaning_of(w.quantized, r, c));
    CHECK(right);
    bool parts = true;
    for (long long first = 0; first < 200; first += 3)
      for (const long long n : {0LL, 1LL, 7LL, 16LL, 33LL, 64LL, 150LL}) {
        std::vector<float> part(static_cast<std::size_t>(n) + 1, 77.0F);
        cpu::dequantize(w.as_weight(), first, n, part.data());
        parts = parts && part.back() == 77.0F &&
                std::equal(part.begin(), part.end() - 1, w.numbers.begin() + static_cast<std::ptrdiff_t>(first));
      }
    CHECK(parts);
    std::vector<double> wide(w.numbers.size());
    cpu::read(w.quantized.as_view(), 0, 5 * 96, wide.data());
    CHECK(std::equal(wide.begin(), wide.end(), w.numbers.begin()));
  }
}

TEST_CASE("checkpoint formats: rows that end inside a chunk of 32, as AWQ may have them") {
  for (const long long cols : {8LL, 40LL, 56LL}) {
    const quantized_and_plain w({}, 3, cols, {.type = dtype::u4, .scaled = scale_granularity::block, .block = 16});
    for (long long r = 0; r < 3; ++r)
      for (long long c = 0; c < cols; ++c)
        CHECK(w.numbers[static_cast<std::size_t>(r * cols + c)] == static_cast<float>(meaning_of(w.quantized, r, c)));
  }
}

TEST_CASE("checkpoint formats: products, in both directions, of few and of many rows") {
  for (const named_quant_format& e : every_checkpoint_format())
    for (const long long rows : {1LL, 7LL, 131LL}) {
      const long long cols = 544;
      const quantized_and_plain w(normal_numbers(rows * cols, 2), rows, cols, e.format);
      const weight_view plain = weight_of(view_of(w.numbers.data(), rows, cols), rows, cols);
      for (const long long m : {1LL, 4LL, 5LL, 70LL})
        for (const bool tb : {true, false})
          for (const int accumulate : {0, -1}) {
            INFO(e.name, ", ", rows, " rows of the weight, ", m, " tokens, NN layout ", !tb);
            const long long k = tb ? cols : rows, n = tb ? rows : cols;
            std::vector<float> x = normal_numbers(m * k, 4), y(static_cast<std::size_t>(m * n), 2.0F), expected = y;
            const cpu::tensor<float> a{x.data(), {1, 1, m, k}};
            cpu::weight_gemm<float>({y.data(), {1, 1, m, n}}, a, w.as_weight(), {false, tb, false, accumulate});
            cpu::weight_gemm<float>({expected.data(), {1, 1, m, n}}, a, plain, {false, tb, false, accumulate});
            double size = 0, worst = 0;
            for (std::size_t i = 0; i < y.size(); ++i) {
              size = std::max(size, std::abs(static_cast<double>(expected[i])));
              worst = std::max(worst, std::abs(static_cast<double>(y[i]) - static_cast<double>(expected[i])));
            }
            CHECK(worst < 1e-6 * size * std::sqrt(static_cast<double>(k)));
          }
    }
}

TEST_CASE("mxfp4 and nvfp4: numbers become the nearest code of their block, and codes stay what they are") {
  for (const quant_format& format : {quant_formats::mxfp4_format::format(), quant_formats::nvfp4_format::format()}) {
    INFO(std::string(name_of(format)));
    std::vector<float> from = normal_numbers(8 * 128, 3);
    std::fill_n(from.begin(), 128, 0.0F);                       // a row of zeros
    for (std::size_t i = 128; i < 256; ++i) from[i] *= 1e-20F;  // and one of tiny numbers
    const quantized_and_plain once(from, 8, 128, format), again(once.numbers, 8, 128, format);
    CHECK(once.numbers == again.numbers);
    const bool is_mx = format.block == 32;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const float scale = cpu::scale_at(*once.quantized.quant, static_cast<long long>(i) / format.block),
                  x = from[i] / scale, size = std::abs(x);
      const float step = size < 2 ? 0.5F : size < 4 ? 1.0F : 2.0F;
      // The scale of NVFP4 is rounded, so that its largest number may be a little above 6.
      if (is_mx || i >= 256) CHECK(std::abs(once.numbers[i] / scale - x) <= 0.501F * step);
      if (is_mx) CHECK(size <= 6.0F);
    }
  }
}

TEST_CASE("checkpoint formats: what GPTQ and AWQ chose is not rounded again, and rows are whole blocks") {
  const std::vector<float> w = normal_numbers(64, 1);
  const auto made =
      cpu::quantize(w.data(), 2, 32, {.type = dtype::u4, .scaled = scale_granularity::block, .block = 32});
  CHECK(std::string(made.message()) == "weights in u4 are read and not written; keep a merged weight as f32 or bf16");
  CHECK(std::string(cpu::quantize(w.data(), 4, 16, quant_formats::mxfp4_format::format()).message()) ==
        "rows of 16 elements are no multiple of the block size 32 of mxfp4");
}
