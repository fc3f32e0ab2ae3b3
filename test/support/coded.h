// SPDX-License-Identifier: Apache-2.0
// Every encoding there is, and a weight in one of them beside the numbers that its codes mean.
#pragma once
#include <doctest/doctest.h>
#include <graft/backend/cpu/decode.h>
#include <graft/backend/cpu/quantize.h>

#include <random>
#include <string>

namespace test {

using namespace graft;

struct named_encoding {
  std::string name;
  encoding how;
};
inline const std::vector<named_encoding>& every_encoding() {
  static const std::vector<named_encoding> all = [] {
    std::vector<named_encoding> e;
    for (const dtype four : {dtype::nf4, dtype::fp4})
      for (const int block : {32, 64, 4096}) {
        encoding how{four, scaled_by::run, block};
        e.push_back({std::string(name_of(four)) + " " + std::to_string(block), how});
        how.scales = dtype::u8, how.second_block = encodings::nested_block;
        e.push_back({e.back().name + " double", how});
        how.scaled = scaled_by::row_run;
        e.push_back({e.back().name + " by rows", how});
      }
    e.push_back({"int8", {dtype::int8, scaled_by::row}});
    e.push_back({"fp8 by tensor", {dtype::f8_e4m3, scaled_by::tensor}});
    e.push_back({"fp8 by row", {dtype::f8_e4m3, scaled_by::row}});
    e.push_back({"q8_0", encodings::q8_0_codes::how()});
    e.push_back({"q4_0", encodings::q4_0_codes::how()});
    return e;
  }();
  return all;
}
inline bool exists_on(const encoding& e, long long cols) { return e.block_bytes == 0 || cols % e.block == 0; }

struct coded_and_plain {
  cpu::coded_weight codes;
  std::vector<float> numbers;

  coded_and_plain(const std::vector<float>& from, long long rows, long long cols, const encoding& how) {
    auto made = cpu::quantize(from.data(), rows, cols, how);
    INFO(std::string(made ? "" : made.message()));
    REQUIRE(bool(made));
    codes = std::move(*made);
    numbers.resize(from.size());
    cpu::decode(codes.as_view(), numbers.data());
  }
  weight_view as_weight() const { return weight_of(codes.as_view(), codes.rows, codes.cols); }
};
inline std::vector<float> normal_numbers(long long n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = normal(engine);
  return v;
}

}  // namespace test
