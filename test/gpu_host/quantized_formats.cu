// SPDX-License-Identifier: Apache-2.0
// Every quantization format by the functions that kernels call, run on the host: the same bits as the CPU's dequantizer
// in float, whole weights, rows and columns of tables, stacks of experts, and sizes that no vector divides.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/quantized/dequantize_parts.cuh>

#include <cstring>
#include <string>
#include <vector>

#include "../support/quantized.h"

using namespace test;
using namespace graft::gpu;

namespace {

std::vector<named_quant_format> every_format() {
  std::vector<named_quant_format> all = every_quant_format();
  for (const auto* more : {&every_wide_quant_format(), &every_checkpoint_format()})
    all.insert(all.end(), more->begin(), more->end());
  return all;
}
bool has_separate_groups(const quant_format& e) { return has_zero_points(e) || e.type == dtype::f4_e2m1; }

quantized_and_plain weight_in(const quant_format& format, long long rows, long long cols) {
  return {normal_numbers(rows * cols, static_cast<unsigned>(rows + cols)), rows, cols, format};
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// What the kernel for parts does, part by part.
std::vector<float> by_parts(const quantized_weight& w, long long n) {
  std::vector<float> all;
  for (long long part = 0; part < n / part_size; ++part) {
    float v[part_size];
    const auto at = static_cast<unsigned>(part);
    switch (w.format.type) {
      case dtype::u2: dequantize_row_part<dtype::u2>(w, at, v); break;
      case dtype::u3: dequantize_row_part<dtype::u3>(w, at, v); break;
      case dtype::u4: dequantize_row_part<dtype::u4>(w, at, v); break;
      case dtype::u8: dequantize_row_part<dtype::u8>(w, at, v); break;
      case dtype::f4_e2m1: dequantize_row_part<dtype::f4_e2m1>(w, at, v); break;
      default: REQUIRE(w.format.type == dtype::ggml); dequantize_block_part(w, part, v);
    }
    all.insert(all.end(), v, v + part_size);
  }
  return all;
}
std::vector<float> by_elements(const quantized_weight& w, long long n) {
  std::vector<float> all(static_cast<std::size_t>(n));
  const dequantized_elements f{w, element_ptr<float>(all.data()), n};
  for (long long vec = 0; vec < (n + 7) / 8; ++vec) f(vec);
  return all;
}

}  // namespace

TEST_CASE("quantized formats: kernels read what the CPU reads, bit for bit") {
  int parts = 0, elements = 0;
  for (const named_quant_format& e : every_format())
    for (const long long cols : {32, 96, 256, 768, 1024}) {
      if (!exists_on(e.format, cols)) continue;
      INFO(e.name, ", ", cols, " columns");
      const quantized_and_plain made = weight_in(e.format, 5, cols);
      const quantized_weight w = quantized_weight_of(made.quantized.as_view());
      const long long n = 5 * cols;
      const bool in_parts = has_parts(w, n);
      CHECK(in_parts == (e.format.block_bytes > 0 || has_separate_groups(e.format)));
      parts += in_parts ? 1 : 0;
      if (in_parts) CHECK(same_bits(by_parts(w, n), made.numbers));
      elements += e.format.block_bytes == 0 ? 1 : 0;
      if (e.format.block_bytes == 0) CHECK(same_bits(by_elements(w, n), made.numbers));
    }
  CHECK(parts > 100);
  CHECK(elements > 100);
}
TEST_CASE("quantized formats: rows and weights that vectors do not divide are read element by element") {
  for (const named_quant_format& e : every_format())
    for (const long long cols : {8, 40, 200, 264}) {
      if (e.format.block_bytes > 0 || e.format.type == dtype::f4_e2m1) continue;  // rows are whole blocks
      INFO(e.name, ", ", cols, " columns");
      const quantized_and_plain made = weight_in(e.format, 3, cols);
      const quantized_weight w = quantized_weight_of(made.quantized.as_view());
      CHECK(!has_parts(w, 3 * cols));
      CHECK(same_bits(by_elements(w, 3 * cols), made.numbers));
    }
  const quantized_and_plain odd = weight_in({dtype::int8, scale_granularity::row}, 3, 7);
  CHECK(same_bits(by_elements(quantized_weight_of(odd.quantized.as_view()), 21), odd.numbers));
}
TEST_CASE("quantized formats: a table is looked up by rows and by columns, also in shards") {
  constexpr long long rows = 6, cols = 256;
  const std::vector<std::int64_t> ids{4, 0, 5, 4, 11, 3};
  for (const named_quant_format& e : every_format())
    for (const bool by_column : {false, true})
      for (const long long first : {0, 3}) {
        INFO(e.name, by_column ? ", columns" : ", rows", " from ", first);
        const quantized_and_plain made = weight_in(e.format, rows, cols);
        const long long width = by_column ? rows : cols;
        std::vector<float> got(ids.size() * static_cast<std::size_t>(width), -77.0F);
        const gathered_dequantized f{
            {element_ptr<float>(got.data()), {1, 1, static_cast<long long>(ids.size()), width}},
            quantized_weight_of(made.quantized.as_view()),
            rows,
            ids.data(),
            by_column,
            {first > 0, first}};
        if (e.format.block_bytes > 0)
          for (long long i = 0; i < f.out.count() / gathered_parts::width(by_column); ++i) gathered_parts{f}(i);
        else
          for (long long i = 0; i < f.out.count(); ++i) f(i);
        bool same = true;
        for (std::size_t k = 0; k < ids.size(); ++k)
          for (long long c = 0; c < width; ++c) {
            const long long row = ids[k] - first;
            const float v = got[k * static_cast<std::size_t>(width) + static_cast<std::size_t>(c)];
            if (row < 0 || row >= (by_column ? cols : rows))
              same = same && (first > 0 ? v == 0.0F : std::isnan(v));
            else
              same = same && v == made.numbers[static_cast<std::size_t>(by_column ? c * cols + row : row * cols + c)];
          }
        CHECK(same);
      }
}
TEST_CASE("quantized formats: a stack of experts is one matrix with all rows of all experts") {
  constexpr long long experts = 3, rows = 4, cols = 256;
  for (const named_quant_format& e : every_format()) {
    if (e.format.block_bytes == 0 && e.format.type != dtype::f4_e2m1) continue;
    INFO(e.name);
    const quantized_and_plain made = weight_in(e.format, experts * rows, cols);
    const view matrix = made.quantized.as_view();
    view stack = matrix;
    stack.rank = 3, stack.size[0] = experts, stack.size[1] = rows, stack.size[2] = cols;
    REQUIRE(bool(check_quantized("weight", stack)));
    const quantized_weight w = quantized_weight_of(stack);
    CHECK(w.scale_count == quantized_weight_of(matrix).scale_count);
    CHECK(same_bits(by_parts(w, stack.count()), made.numbers));
    const quant_planes all = planes_of(stack), one = planes_of(matrix);
    CHECK(all.values.bytes == static_cast<long long>(made.quantized.data.size()));
    CHECK(all.values.bytes == one.values.bytes);
    CHECK(all.scales.bytes == one.scales.bytes);
  }
}
TEST_CASE("quantized formats: a weight is placed with everything that belongs to it") {
  for (const named_quant_format& e : every_format()) {
    INFO(e.name);
    const quantized_and_plain made = weight_in(e.format, 5, 768);
    const cpu::quantized_weight& q = made.quantized;
    const quant_planes p = planes_of(q.as_view());
    const auto size_of = [](const auto& v) { return static_cast<long long>(v.size() * sizeof(v[0])); };
    CHECK(p.values.bytes == size_of(q.data));
    CHECK(p.scales.bytes == size_of(q.scales) + size_of(q.quantized_scales));
    CHECK(p.second_scales.bytes == size_of(q.second_scales));
    CHECK(p.second_codebook.bytes == (e.format.second_block > 0 ? 1024 : 0));
    CHECK(p.zeros.bytes == (has_zero_points(e.format) ? size_of(q.zeros) : 0));
    CHECK(p.column_group.bytes == (e.format.scaled == scale_granularity::column_group ? 768 * 4 : 0));
    for (const quant_plane& one : {p.values, p.scales, p.second_scales, p.second_codebook, p.zeros, p.column_group})
      CHECK((one.bytes == 0 || one.from != nullptr));
    CHECK(p.padded_bytes() % quant_planes::alignment == 0);
    CHECK(p.padded_bytes() >= p.values.bytes + p.scales.bytes + p.second_scales.bytes + p.second_codebook.bytes +
                                  p.zeros.bytes + p.column_group.bytes);
  }
}
TEST_CASE("quantized formats: six-bit scales and minimums are read four at a time") {
  std::mt19937 engine(5);
  for (int time = 0; time < 100; ++time) {
    unsigned char bytes[12];
    for (unsigned char& b : bytes) b = static_cast<unsigned char>(engine());
    std::uint32_t word[3];
    std::memcpy(word, bytes, sizeof word);
    for (const bool upper : {false, true}) {
      const quant_formats::four_six_bits four(word[0], word[1], word[2], upper);
      for (int j = 0; j < 4; ++j) {
        const int r = upper ? 4 + j : j;
        CHECK(static_cast<int>(four.scales >> 8 * j & 255U) == quant_formats::six_bit_scale(bytes, r));
        CHECK(static_cast<int>(four.minimums >> 8 * j & 255U) == quant_formats::six_bit_minimum(bytes, r));
      }
    }
  }
}
TEST_CASE("quantized formats: the numbers of E2M1 and of tables follow from bits") {
  for (unsigned code = 0; code < 16; ++code)
    CHECK(std::bit_cast<std::uint32_t>(quant_formats::e2m1::value(code)) ==
          std::bit_cast<std::uint32_t>(quant_formats::e2m1::table[code]));
  for (const auto* table : {&quant_formats::iq4_table, &quant_formats::mxfp4_table})
    for (int k = 0; k < 16; ++k) CHECK(quant_formats::byte_table(*table)[k] == (*table)[k]);
}
TEST_CASE("quantized formats: a layer type has no kernels for the blocks of files, and says so") {
  const quantized_and_plain made = weight_in(quant_formats::q4_k_format::format(), 2, 256);
  const quantized_weight w = quantized_weight_of(made.quantized.as_view());
  float to[512];
  const status done = dequantize_weight<float>(nullptr, w, 512, element_ptr<float>(to));
  REQUIRE(!done);
  CHECK(std::string(done.message()).find("this layer has no kernels for its format") != std::string::npos);
  CHECK(!gather_dequantized(nullptr, gathered_dequantized{{}, w, 2, nullptr, false}));
}
