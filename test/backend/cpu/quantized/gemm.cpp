// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/gemm/matmul.h>
#include <graft/backend/cpu/runtime/storage.h>

#include <cmath>
#include <cstring>

#include "../../../support/quantized.h"

using namespace test;

namespace {

// The largest distance between neighboring numbers of an encoding that has the scale of element `at`.
double step_at(const weight_view& w, long long at) {
  const quant_format& format = w.format;
  if (format.block_bytes > 0) {
    f16 half;
    std::memcpy(&half, static_cast<const unsigned char*>(w.data) + at / format.block * format.block_bytes, 2);
    return std::abs(static_cast<double>(widen(half)));
  }
  const long long k = is_four_bit(format)                          ? cpu::detail::scale_span_at(w, at).scale
                      : format.scaled == scale_granularity::tensor ? 0
                                                                   : at / w.cols;
  const double scale = static_cast<double>(cpu::scale_at(*w.quant, k));
  if (is_four_bit(format)) return scale * (format.type == dtype::nf4 ? 0.3038072 : 0.3333334);
  return format.type == dtype::int8 ? scale / 127 : scale * 32;
}

}  // namespace

TEST_CASE("quantized: numbers become the nearest code, within half a step of their block") {
  for (const named_quant_format& e : every_quant_format()) {
    if (e.format.scales == dtype::u8 || e.format.scaled == scale_granularity::row_flat_block || !can_quantize(e.format))
      continue;  // their scales are rounded too
    INFO(e.name);
    const std::vector<float> from = normal_numbers(40 * 96, 3);
    const quantized_and_plain w(from, 40, 96, e.format);
    double worst = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const double away = std::abs(static_cast<double>(from[i]) - static_cast<double>(w.numbers[i]));
      worst = std::max(worst, away / step_at(w.as_weight(), static_cast<long long>(i)));
    }
    // The largest number of the other sign is a step away from the last code of Q4_0 and Q5_0. int8 rounds the numbers
    // to half precision before, Q8_0 the scale after it: up to 127 units of 2^-11 more, and up to 31 with the minimum's
    // as much again in Q4_1 and Q5_1.
    const bool middle = e.name == "q4_0" || e.name == "q5_0", minimum = e.name == "q4_1" || e.name == "q5_1";
    const bool halved = e.name == "int8" || e.name == "q8_0";
    CHECK(worst <= (middle ? 1.01 : minimum ? 0.5 + 62.0 / 2048 : halved ? 0.5 + 127.0 / 2048 : 0.501));
  }
}

TEST_CASE("quantized: what was dequantized is quantized to the same numbers") {
  for (const named_quant_format& e : every_quant_format()) {
    if (e.format.scales == dtype::u8 || e.format.scaled == scale_granularity::row_flat_block || e.name == "int8" ||
        !can_quantize(e.format))
      continue;  // rounded twice
    INFO(e.name);
    const quantized_and_plain once(normal_numbers(64 * 64, 5), 64, 64, e.format), again(once.numbers, 64, 64, e.format);
    double most = 0;
    for (std::size_t i = 0; i < once.numbers.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(once.numbers[i] - again.numbers[i])));
    CHECK(most <= 1e-6);
    if (e.format.type != dtype::fp4) CHECK(once.quantized.data == again.quantized.data);  // whose zero has two codes
  }
}

TEST_CASE("quantized: any part of a weight is dequantized as it is in the whole") {
  for (const named_quant_format& e : every_quant_format()) {
    INFO(e.name);
    const long long rows = 9, cols = e.format.block_bytes > 0 ? 96 : 45;
    const quantized_and_plain w(normal_numbers(rows * cols, 7), rows, cols, e.format);
    bool right = true;
    for (long long first = 0; first < 70; ++first)
      for (const long long n : {0LL, 1LL, 5LL, 16LL, 33LL, 64LL, 150LL}) {
        std::vector<float> part(static_cast<std::size_t>(n) + 1, 77.0F);
        cpu::dequantize(w.as_weight(), first, n, part.data());
        right = right && part.back() == 77.0F &&
                std::equal(part.begin(), part.end() - 1, w.numbers.begin() + static_cast<std::ptrdiff_t>(first));
      }
    CHECK(right);
    std::vector<double> wide(w.numbers.size());
    cpu::read(w.quantized.as_view(), 0, rows * cols, wide.data());
    CHECK(std::equal(wide.begin(), wide.end(), w.numbers.begin()));
  }
}

TEST_CASE("quantized: products are those of the dequantized numbers") {
  for (const named_quant_format& e : every_quant_format())
    for (const long long m : {1LL, 2LL, 3LL, 4LL, 5LL, 17LL, 70LL})
      for (const bool tb : {true, false})
        for (const int accumulate : {0, 1, -1}) {
          const long long rows = 151, cols = e.format.block_bytes > 0 ? 544 : 531;
          static const std::vector<float> numbers = normal_numbers(151 * 544, 9), x = normal_numbers(70 * 544, 10);
          const quantized_and_plain w({numbers.begin(), numbers.begin() + rows * cols}, rows, cols, e.format);
          const long long k = tb ? cols : rows, n = tb ? rows : cols;
          std::vector<float> from(x.begin(), x.begin() + m * k), y(static_cast<std::size_t>(m * n), 2.0F), expected = y;
          cpu::tensor<float> a{from.data(), {1, 1, m, k}}, out{y.data(), {1, 1, m, n}},
              to{expected.data(), {1, 1, m, n}};
          const weight_view plain = weight_of(view_of(w.numbers.data(), rows, cols), rows, cols);
          cpu::weight_gemm(out, a, w.as_weight(), {false, tb, false, accumulate});
          cpu::weight_gemm(to, a, plain, {false, tb, false, accumulate});
          double worst = 0;
          for (std::size_t i = 0; i < y.size(); ++i)
            worst = std::max(worst, std::abs(static_cast<double>(y[i] - expected[i])));
          INFO(e.name, ", ", m, " rows, NN layout ", !tb);
          CHECK(worst < 1e-3 / 16);
        }
}

namespace {

// How far y = x wᵀ is from the sum in double, over what is added up: the largest of all rows and tokens.
double worst_of_size(const quantized_and_plain& w, const std::vector<float>& x, const std::vector<float>& y) {
  const std::size_t rows = static_cast<std::size_t>(w.quantized.rows),
                    cols = static_cast<std::size_t>(w.quantized.cols);
  double worst = 0;
  for (std::size_t t = 0; t < x.size() / cols; ++t)
    for (std::size_t r = 0; r < rows; ++r) {
      double sum = 0, size = 0;
      for (std::size_t i = 0; i < cols; ++i) {
        const double v = static_cast<double>(w.numbers[r * cols + i]) * static_cast<double>(x[t * cols + i]);
        sum += v, size += std::abs(v);
      }
      const double away = std::abs(static_cast<double>(y[t * rows + r]) - sum) / (size > 0 ? size : 1);
      worst = away <= worst ? worst : away;
    }
  return worst;
}
std::vector<float> product_of(const quantized_and_plain& w, std::vector<float> x) {
  const long long rows = w.quantized.rows, cols = w.quantized.cols, m = static_cast<long long>(x.size()) / cols;
  std::vector<float> y(static_cast<std::size_t>(m * rows));
  cpu::weight_gemm<float>({y.data(), {1, 1, m, rows}}, {x.data(), {1, 1, m, cols}}, w.as_weight(), {false, true});
  return y;
}

}  // namespace

TEST_CASE("quantized: few tokens on rows of whole blocks, whatever the sizes of their numbers") {
  for (const named_quant_format& e : every_quant_format())
    for (const long long cols : {8192LL, 352LL}) {
      const long long rows = cols > 4096 ? 7 : 11;
      const quantized_and_plain w(normal_numbers(rows * cols, 13), rows, cols, e.format);
      for (const long long m : {1LL, 2LL, 3LL, 4LL, 5LL, 16LL})
        for (const float least : {1.0F, 1e-6F, 1e-30F, 0.0F}) {
          INFO(e.name, ", ", cols, " columns, ", m, " tokens, down to ", least);
          std::vector<float> x = normal_numbers(m * cols, 14);
          for (long long i = 0; i < m * cols; ++i)  // half of a token is small, and one token is larger than the other
            x[static_cast<std::size_t>(i)] *= (i % cols < cols / 2 ? 1.0F : least) * (i / cols == 1 ? 1e3F : 1.0F);
          CHECK(worst_of_size(w, x, product_of(w, x)) < 1e-6);
          x[70] = INFINITY;
          CHECK_FALSE(std::isfinite(product_of(w, x)[0]));
        }
    }
}

// Limbs that are bytes must not add up to more than a register holds: here all are as large as they can be. Floats
// that are rounded the same way at every addition may be 1e-5 away.
TEST_CASE("quantized: numbers of one size and sign, and of which one is larger") {
  const long long rows = 5, cols = 8192;
  for (const named_quant_format& e : every_quant_format())
    for (const float sign : {1.0F, -1.0F}) {
      const quantized_and_plain w(std::vector<float>(static_cast<std::size_t>(rows * cols), sign), rows, cols,
                                  e.format);
      for (const long long m : {1LL, 2LL})
        for (const float part : {1.0F, 126.498F / 127, 126.502F / 127, 0.5F / 127}) {
          INFO(e.name, ", ", m, " tokens, ", sign, " and ", part);
          std::vector<float> x(static_cast<std::size_t>(m * cols), -part);
          for (std::size_t i = 0; i < x.size(); i += 32) x[i] = -1;
          CHECK(worst_of_size(w, x, product_of(w, x)) < 1e-4);
        }
    }
}

TEST_CASE("quantized: rows of a batch-invariant product have the same bits among any number of rows") {
  const cpu::batch_invariant_scope on(true);
  const long long rows = 101, cols = 512, most = 90;
  for (const named_quant_format& e : every_quant_format()) {
    INFO(e.name);
    const quantized_and_plain w(normal_numbers(rows * cols, 17), rows, cols, e.format);
    const std::vector<float> x = normal_numbers(most * cols, 18), all = product_of(w, x);
    for (const long long m : {1LL, 2LL, 5LL, 16LL, 17LL, 64LL, 65LL}) {
      const std::vector<float> some = product_of(w, {x.end() - m * cols, x.end()});
      CHECK(std::equal(some.begin(), some.end(), all.end() - m * rows));
    }
  }
}
TEST_CASE("quantized: rows of a batch-invariant product with half-precision weights have the same bits, too") {
  const cpu::batch_invariant_scope on(true);
  const long long rows = 101, most = 90;
  for (const long long cols : {40LL, 200LL})
    for (const dtype type : {dtype::bf16, dtype::f16}) {
      const std::vector<float> numbers = normal_numbers(rows * cols, 17), x = normal_numbers(most * cols, 18);
      std::vector<std::uint16_t> stored(numbers.size());
      cpu::write(numbers.data(), 0, rows * cols, mutable_view{stored.data(), type, {rows, cols, 1, 1}, 2});
      const weight_view w = weight_of(view{stored.data(), type, {rows, cols, 1, 1}, 2}, rows, cols);
      const auto product = [&](std::vector<float> from) {
        const long long m = static_cast<long long>(from.size()) / cols;
        std::vector<float> y(static_cast<std::size_t>(m * rows));
        cpu::weight_gemm<float>({y.data(), {1, 1, m, rows}}, {from.data(), {1, 1, m, cols}}, w, {false, true});
        return y;
      };
      const std::vector<float> all = product(x);
      for (const long long m : {1LL, 2LL, 4LL, 5LL, 17LL, 65LL}) {
        const std::vector<float> some = product({x.end() - m * cols, x.end()});
        CHECK(std::equal(some.begin(), some.end(), all.end() - m * rows));
      }
    }
}

TEST_CASE("quantized: a product has the same bits wherever x and the weight lie, and whichever rows are asked for") {
  const long long rows = 13, cols = 512;
  for (const named_quant_format& e : every_quant_format()) {
    INFO(e.name);
    if (e.format.scaled == scale_granularity::tensor || cols % std::max(1, e.format.block) != 0) continue;
    const quantized_and_plain w(normal_numbers(rows * cols, 17), rows, cols, e.format);
    for (const long long m : {1LL, 3LL, 4LL}) {
      const std::vector<float> x = normal_numbers(m * cols, 18), y = product_of(w, x);
      for (const std::size_t away : {1U, 3U}) {
        std::vector<unsigned char> bytes(w.quantized.data.size() + away);
        std::copy(w.quantized.data.begin(), w.quantized.data.end(), bytes.begin() + static_cast<std::ptrdiff_t>(away));
        std::vector<float> moved(x.size() + away), again(y.size());
        std::copy(x.begin(), x.end(), moved.begin() + static_cast<std::ptrdiff_t>(away));
        weight_view view = w.as_weight();
        view.data = bytes.data() + away;
        cpu::weight_gemm<float>({again.data(), {1, 1, m, rows}}, {moved.data() + away, {1, 1, m, cols}}, view,
                                {false, true});
        CHECK(again == y);
        view.rows = 3;  // fewer than are multiplied at a time
        cpu::weight_gemm<float>({again.data(), {1, 1, m, 3}}, {moved.data() + away, {1, 1, m, cols}}, view,
                                {false, true});
        for (std::size_t t = 0; t < static_cast<std::size_t>(m); ++t)
          for (std::size_t r = 0; r < 3; ++r) CHECK(again[t * 3 + r] == y[t * static_cast<std::size_t>(rows) + r]);
      }
    }
  }
}

TEST_CASE("quantized: few tokens on rows of whole blocks") {
  const long long rows = 71, cols = 512;
  const std::vector<float> x = normal_numbers(64 * cols, 15);
  for (const named_quant_format& e : every_quant_format()) {
    const quantized_and_plain w(normal_numbers(rows * cols, 16), rows, cols, e.format);
    for (const long long m : {1LL, 2LL, 3LL, 4LL, 7LL, 16LL, 17LL, 33LL, 64LL}) {
      std::vector<float> from(x.begin(), x.begin() + m * cols), y(static_cast<std::size_t>(m * rows), 2.0F);
      cpu::weight_gemm<float>({y.data(), {1, 1, m, rows}}, {from.data(), {1, 1, m, cols}}, w.as_weight(),
                              {false, true, false, -1});
      double worst = 0;
      for (long long t = 0; t < m; ++t)
        for (long long r = 0; r < rows; ++r) {
          double sum = 2;
          for (long long k = 0; k < cols; ++k)
            sum -= static_cast<double>(w.numbers[static_cast<std::size_t>(r * cols + k)]) *
                   static_cast<double>(from[static_cast<std::size_t>(t * cols + k)]);
          worst = std::max(worst, std::abs(static_cast<double>(y[static_cast<std::size_t>(t * rows + r)]) - sum));
        }
      INFO(e.name, ", ", m, " tokens");
      CHECK(worst < 1e-4);
    }
  }
}

TEST_CASE("quantized: every code of FP8 is its number, and what is none makes its own row none") {
  const float scale = 0.0123F;
  std::vector<unsigned char> codes(4 * 256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<unsigned char>(i * 167);
  const quant_state quant{.format = {dtype::f8_e4m3, scale_granularity::tensor}, .scales = &scale};
  weight_view w{quant.format, 4, 256, 256, 1, codes.data(), &quant};
  std::vector<float> numbers(codes.size());
  cpu::dequantize(w, 0, 4 * 256, numbers.data());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float expected = quant_formats::fp8_format::value(codes[i]) * scale;
    CHECK((numbers[i] == expected || (std::isnan(numbers[i]) && std::isnan(expected))));
    if (std::isnan(expected) && i / 256 != 2) codes[i] = 0x7e;  // from here on row 2 alone has such codes
  }
  for (const long long m : {1LL, 2LL, 3LL, 4LL, 5LL}) {
    std::vector<float> x(static_cast<std::size_t>(m * 256), 0.0F), y(static_cast<std::size_t>(m * 4));
    cpu::weight_gemm<float>({y.data(), {1, 1, m, 4}}, {x.data(), {1, 1, m, 256}}, w, {false, true});
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (i % 4 == 2));
  }
}

TEST_CASE("quantized: a weight on the left, in NN layout too, and the sums of squares of its rows") {
  for (const named_quant_format& e : every_quant_format())
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        INFO(e.name);
        const long long rows = 150, cols = 96, r = 7, inner = ta ? rows : cols, out_rows = ta ? cols : rows;
        const quantized_and_plain w(normal_numbers(rows * cols, 11), rows, cols, e.format);
        std::vector<float> b = normal_numbers(inner * r, 12), y(static_cast<std::size_t>(out_rows * r)), expected = y;
        std::vector<float> plain = w.numbers;
        const weight_view stored = w.as_weight();
        cpu::tensor<float> left{nullptr, {1, 1, rows, cols}, &stored}, numbers{plain.data(), {1, 1, rows, cols}};
        cpu::tensor<float> right{b.data(), {1, 1, tb ? r : inner, tb ? inner : r}};
        cpu::matmul({y.data(), {1, 1, out_rows, r}}, left, right, {ta, tb, false, 0});
        cpu::matmul({expected.data(), {1, 1, out_rows, r}}, numbers, right, {ta, tb, false, 0});
        double worst = 0;
        for (std::size_t i = 0; i < y.size(); ++i)
          worst = std::max(worst, std::abs(static_cast<double>(y[i] - expected[i])));
        CHECK(worst < 1e-4);
        std::vector<float> norms(static_cast<std::size_t>(rows));
        cpu::weight_row_dot<float>({norms.data(), {1, 1, rows, 1}}, stored);
        double sum = 0;
        for (long long c = 0; c < cols; ++c)
          sum += static_cast<double>(plain[static_cast<std::size_t>(3 * cols + c)]) *
                 static_cast<double>(plain[static_cast<std::size_t>(3 * cols + c)]);
        CHECK(static_cast<double>(norms[3]) == doctest::Approx(sum).epsilon(1e-5));
      }
}

TEST_CASE("quantized: numbers that are not finite and rows that are no whole blocks are refused") {
  std::vector<float> w = normal_numbers(64, 1);
  CHECK_FALSE(bool(cpu::quantize(w.data(), 2, 30, quant_formats::q8_0_format::format())));
  CHECK_FALSE(bool(cpu::quantize(w.data(), 2, 32, {dtype::nf4, scale_granularity::flat_block, 48})));
  CHECK_FALSE(bool(cpu::quantize(w.data(), 2, 32, {dtype::f8_e5m2, scale_granularity::row})));
  const auto read_only = cpu::quantize(w.data(), 2, 32, quant_formats::iq4_nl_format::format());
  CHECK(std::string(read_only.message()) ==
        "weights in iq4_nl are read and not written; keep a merged weight as f32 or bf16");
  w[40] = NAN;
  for (const named_quant_format& e : every_quant_format()) CHECK_FALSE(bool(cpu::quantize(w.data(), 2, 32, e.format)));
  w[40] = INFINITY;
  CHECK_FALSE(bool(cpu::quantize(w.data(), 2, 32, {dtype::int8, scale_granularity::row})));
}
