// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/runtime/convert.h>

#include "../../../support/tensors.h"

using namespace test;

TEST_CASE("convert: into and out of every element type") {
  const float numbers[] = {0.0F, -1.5F, 3.25F, 1e-20F};
  double wide[4];
  cpu::convert(numbers, dtype::f32, 0, 4, wide);
  for (int i = 0; i < 4; ++i) CHECK(wide[i] == static_cast<double>(numbers[i]));
  bf16 half[6]{};
  cpu::convert_to(numbers, 3, half, dtype::bf16, 2);  // with an offset
  CHECK(half[1].bits == 0);
  CHECK(half[2].bits == narrow(0.0F).bits);
  CHECK(half[4].bits == narrow(3.25F).bits);
  float back[2];
  cpu::convert(half, dtype::bf16, 3, 2, back);
  CHECK(back[0] == -1.5F);
  CHECK(back[1] == 3.25F);
  f16 ieee[3]{};
  cpu::convert_to(numbers, 3, ieee, dtype::f16, 0);
  CHECK(ieee[2].bits == narrow_to_f16(3.25F).bits);
  cpu::convert(ieee, dtype::f16, 1, 2, back);
  CHECK(back[0] == -1.5F);
  CHECK(back[1] == 3.25F);
  double large[2] = {0, 0};
  cpu::convert_to(numbers + 1, 2, large, dtype::f64, 0);
  CHECK(large[1] == 3.25);
}

TEST_CASE("convert: lengths around the number of elements that are converted at a time") {
  for (long long n = 0; n <= 100; ++n) {
    std::vector<bf16> stored(static_cast<std::size_t>(n));
    std::vector<float> to(stored.size() + 1, 77.0F);
    for (long long i = 0; i < n; ++i) stored[static_cast<std::size_t>(i)] = narrow(static_cast<float>(i) - 50);
    cpu::convert(stored.data(), dtype::bf16, 0, n, to.data());
    bool right = to.back() == 77.0F;
    for (long long i = 0; i < n; ++i) right = right && to[static_cast<std::size_t>(i)] == static_cast<float>(i) - 50;
    INFO("n ", n);
    CHECK(right);
  }
}

TEST_CASE("convert: a view of any strides is read row by row") {
  owned<double> a = random_tensor<double>({2, 3, 4, 5}, 1), flat(a.shape, NAN), permuted({2, 3, 5, 4}, NAN);
  const view v = view_of(a.v.data(), 2, 3, 4, 5);
  cpu::convert(v, flat.v.data());
  CHECK(flat.v == a.v);
  cpu::convert(v.transposed(), permuted.v.data());
  bool right = true;
  each_element(a.shape, [&](long long i, long long j, long long k, long long l) {
    right = right && permuted.at(i, j, l, k) == a.at(i, j, k, l);
  });
  CHECK(right);

  view part = view_of(a.v.data() + 1, 6, 4, 3);  // columns 1 to 3 of each row
  part.strides[0] = 20, part.strides[1] = 5;
  std::vector<double> columns(72, NAN);
  cpu::convert(part, columns.data());
  for (long long i = 0; i < 72; ++i)
    CHECK(columns[static_cast<std::size_t>(i)] == a.v[static_cast<std::size_t>(i / 3 * 5 + i % 3 + 1)]);
}

TEST_CASE("convert: tiles of rows of a weight, also of a column-major one") {
  std::vector<f16> codes(static_cast<std::size_t>(40 * 7));
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = narrow_to_f16(static_cast<float>(i));
  const weight_view by_rows = weight_of(view_of(codes.data(), 40, 7), 40, 7);
  const weight_view by_columns = weight_of(view_of(codes.data(), 7, 40).transposed(), 40, 7);
  std::vector<float> tile(static_cast<std::size_t>(33 * 7));
  for (const bool flipped : {false, true}) {
    cpu::convert(flipped ? by_columns : by_rows, 5, 33, tile.data());
    bool right = true;
    for (long long r = 0; r < 33; ++r)
      for (long long c = 0; c < 7; ++c)
        right = right && tile[static_cast<std::size_t>(r * 7 + c)] ==
                             static_cast<float>(flipped ? c * 40 + r + 5 : (r + 5) * 7 + c);
    CHECK(right);
  }
}
