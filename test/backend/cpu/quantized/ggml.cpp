// SPDX-License-Identifier: Apache-2.0
// ggml's block formats against the numbers of llama.cpp's gguf package and the blocks of llama.cpp itself
// (golden/ggml/make.py, make_k_quants.py), and products from blocks of 256 elements against those of the numbers that
// they mean.
#include <doctest/doctest.h>
#include <graft/backend/cpu/gemm/matmul.h>
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/safetensors/convert.h>
#include <graft/io/safetensors/reader.h>

#include <cmath>

#include "../../../support/quantized.h"

using namespace test;

namespace {

io::safetensors golden_blocks(const char* name) {
  auto file = io::read_safetensors(std::string(GRAFT_GOLDEN_DIR "/ggml/") + name);
  REQUIRE_MESSAGE(file, file.message());
  return std::move(*file);
}
io::tensor_view tensor_of(const io::safetensors& file, const std::string& name) {
  const auto t = file.find(name);
  REQUIRE_MESSAGE(t, t.message());
  return *t;
}
std::vector<float> floats_of(const io::safetensors& file, const std::string& name) {
  auto values = io::to_float(tensor_of(file, name));
  REQUIRE_MESSAGE(values, values.message());
  return std::move(*values);
}
cpu::quantized_weight weight_of_bytes(const io::tensor_view& bytes, const quant_format& format) {
  cpu::quantized_weight w;
  const auto* const from = reinterpret_cast<const unsigned char*>(bytes.data.data());
  w.data.assign(from, from + bytes.data.size());
  w.quant->format = format, w.rows = static_cast<long long>(bytes.shape[0]);
  w.cols = static_cast<long long>(bytes.shape[1]) / format.block_bytes * format.block;
  return w;
}
template <class Real> double worst_difference(const std::vector<Real>& a, const std::vector<Real>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = d <= worst ? worst : d;
  }
  return worst;
}

}  // namespace

TEST_CASE("ggml: every format means the numbers that the gguf package reads") {
  const io::safetensors file = golden_blocks("blocks.safetensors");
  int formats = 0;
  quant_formats::ggml_formats::for_each([&](auto format) {
    const std::string name = format.name;
    INFO(name);
    const cpu::quantized_weight w = weight_of_bytes(tensor_of(file, name + ".bytes"), format.format());
    const std::vector<float> expected = floats_of(file, name + ".values");
    std::vector<float> found(static_cast<std::size_t>(w.rows * w.cols), 77.0F);
    cpu::convert(w.as_view(), found.data());
    CHECK(found == expected);
    CHECK(std::string(name_of(format.format())) == name);
    ++formats;
  });
  CHECK(formats == 13);
}

TEST_CASE("ggml: what can be quantized has the bytes of the gguf package, K-quants those of llama.cpp") {
  const io::safetensors narrow = golden_blocks("blocks.safetensors"), wide = golden_blocks("k_quants.safetensors");
  int formats = 0;
  quant_formats::ggml_formats::for_each([&](auto format) {
    CHECK(can_quantize(format.format()) == quant_formats::quantizable<decltype(format)>);
    if (!can_quantize(format.format())) return;
    INFO(std::string(format.name));
    const io::safetensors& file = format.block == 32 ? narrow : wide;
    const std::vector<float> numbers = floats_of(file, "numbers");
    const long long rows = static_cast<long long>(tensor_of(file, "numbers").shape[0]);
    const auto made =
        cpu::quantize(numbers.data(), rows, static_cast<long long>(numbers.size()) / rows, format.format());
    REQUIRE_MESSAGE(made, made.message());
    const io::tensor_view expected = tensor_of(file, std::string(format.name) + ".quantized");
    REQUIRE(made->data.size() == expected.data.size());
    CHECK(std::memcmp(made->data.data(), expected.data.data(), made->data.size()) == 0);
    ++formats;
  });
  CHECK(formats == 8);
}

TEST_CASE("ggml: any part of blocks of 256 is dequantized as it is in the whole") {
  for (const named_quant_format& e : every_wide_quant_format()) {
    INFO(e.name);
    const quantized_and_plain w({}, 3, 512, e.format);
    bool right = true;
    for (const long long first : {0LL, 1LL, 15LL, 100LL, 255LL, 256LL, 257LL, 511LL, 512LL, 900LL})
      for (const long long n : {0LL, 1LL, 16LL, 31LL, 256LL, 300LL, 600LL}) {
        std::vector<float> part(static_cast<std::size_t>(n) + 1, 77.0F);
        cpu::dequantize(w.as_weight(), first, n, part.data());
        right = right && part.back() == 77.0F &&
                std::equal(part.begin(), part.end() - 1, w.numbers.begin() + static_cast<std::ptrdiff_t>(first));
      }
    CHECK(right);
    std::vector<double> wide(w.numbers.size());
    cpu::read(w.quantized.as_view(), 0, 3 * 512, wide.data());
    CHECK(std::equal(wide.begin(), wide.end(), w.numbers.begin()));
  }
}

TEST_CASE("ggml: products from blocks of 256, in both directions, of few and of many rows") {
  for (const named_quant_format& e : every_wide_quant_format())
    for (const long long rows : {1LL, 7LL, 131LL}) {
      const long long cols = 768;
      const quantized_and_plain w({}, rows, cols, e.format);
      const weight_view plain = weight_of(view_of(w.numbers.data(), rows, cols), rows, cols);
      for (const long long m : {1LL, 3LL, 4LL, 5LL, 17LL, 70LL})
        for (const bool tb : {true, false})
          for (const int accumulate : {0, -1}) {
            INFO(e.name, ", ", rows, " rows of the weight, ", m, " tokens, NN layout ", !tb);
            const long long k = tb ? cols : rows, n = tb ? rows : cols;
            std::vector<float> x = normal_numbers(m * k, 4), y(static_cast<std::size_t>(m * n), 2.0F), expected = y;
            const cpu::tensor<float> a{x.data(), {1, 1, m, k}};
            cpu::weight_gemm<float>({y.data(), {1, 1, m, n}}, a, w.as_weight(), {false, tb, false, accumulate});
            cpu::weight_gemm<float>({expected.data(), {1, 1, m, n}}, a, plain, {false, tb, false, accumulate});
            double size = 0;
            for (const float v : expected) size = std::max(size, std::abs(static_cast<double>(v)));
            CHECK(worst_difference(y, expected) < 1e-6 * size * std::sqrt(static_cast<double>(k)));
          }
    }
}

TEST_CASE("ggml: a product in double is that of the numbers in double") {
  for (const named_quant_format& e : every_wide_quant_format()) {
    INFO(e.name);
    const quantized_and_plain w({}, 5, 512, e.format);
    std::vector<double> numbers(w.numbers.begin(), w.numbers.end()), x(512 * 2), y(10), expected(10);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<double>(i));
    for (std::size_t t = 0; t < 2; ++t)
      for (std::size_t r = 0; r < 5; ++r)
        for (std::size_t k = 0; k < 512; ++k) expected[t * 5 + r] += numbers[r * 512 + k] * x[t * 512 + k];
    cpu::weight_gemm<double>({y.data(), {1, 1, 2, 5}}, {x.data(), {1, 1, 2, 512}}, w.as_weight(), {false, true});
    CHECK(worst_difference(y, expected) < 1e-11);
  }
}

TEST_CASE("ggml: a scale that is not finite makes its own block not finite, and the outputs of its row") {
  for (const std::vector<named_quant_format>* list : {&every_quant_format(), &every_wide_quant_format()})
    for (const named_quant_format& e : *list) {
      if (e.format.block_bytes == 0 || halves_of(e.format).empty()) continue;  // MXFP4's scales are powers of two
      INFO(e.name);
      for (const unsigned bits : {0x7e00U, 0x7c00U, 0xfc00U}) {
        quantized_and_plain w(normal_numbers(5 * 512, 6), 5, 512, e.format);
        const std::size_t row = w.quantized.data.size() / 5;
        w.quantized.data[2 * row + static_cast<std::size_t>(halves_of(e.format)[0])] =
            static_cast<unsigned char>(bits & 255U);
        w.quantized.data[2 * row + static_cast<std::size_t>(halves_of(e.format)[0]) + 1] =
            static_cast<unsigned char>(bits >> 8U);
        std::vector<float> found(5 * 512);
        cpu::convert(w.quantized.as_view(), found.data());
        long long changed = 0;
        bool others = true;
        for (std::size_t i = 0; i < found.size(); ++i) {
          const bool inside = i >= 1024 && i < 1024 + static_cast<std::size_t>(e.format.block);
          changed += inside && !std::isfinite(found[i]) ? 1 : 0;
          others = others && (inside || found[i] == w.numbers[i]);
        }
        CHECK(changed > 0);
        CHECK(others);
        for (const long long m : {1LL, 5LL, 20LL}) {
          std::vector<float> x(static_cast<std::size_t>(m * 512), 1.0F), y(static_cast<std::size_t>(m * 5));
          cpu::weight_gemm<float>({y.data(), {1, 1, m, 5}}, {x.data(), {1, 1, m, 512}}, w.as_weight(), {false, true});
          for (std::size_t i = 0; i < y.size(); ++i) CHECK(std::isfinite(y[i]) == (i % 5 != 2));
        }
      }
    }
}

TEST_CASE("ggml: blocks that no format describes are refused by their number") {
  const quantized_and_plain w({}, 2, 256, quant_formats::q4_k_format::format());
  quant_state other = *w.quantized.quant;
  view v = w.quantized.as_view();
  v.quant = &other;
  const auto error_text = [&] { return std::string(check_quantized("weight", v).message()); };
  CHECK(error_text().empty());
  other.format.block_type = 16;
  CHECK(error_text() ==
        "tensor 'weight' has ggml's type 16 in blocks of 256 elements and 144 bytes, which is not supported");
  other.format = w.quantized.quant->format, other.format.block_bytes = 143;
  CHECK(error_text() ==
        "tensor 'weight' has ggml's type 12 in blocks of 256 elements and 143 bytes, which is not supported");
  other.format = w.quantized.quant->format, v.size[1] = 250;
  CHECK(error_text() == "tensor 'weight' has rows of 250 elements, expected a multiple of the block size 256");
  CHECK_FALSE(can_dequantize(quant_formats::ggml_block(256, 144, 16)));
  CHECK(std::string(name_of(quant_formats::ggml_block(256, 144, 16))) == "ggml");
}
