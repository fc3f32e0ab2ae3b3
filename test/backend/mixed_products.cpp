// SPDX-License-Identifier: Apache-2.0
// Rows with records of their own, as the launches of a plan reach them.
#include <doctest/doctest.h>
#include <graft/backend/cpu/mixed_products.h>

using namespace graft;

TEST_CASE("mixed products: each row gets what its own record has, those of the base nothing") {
  const float a[] = {1, 2}, b[] = {3, 4, 5}, pre[] = {10, 100}, by[] = {1, 1, 1};
  cpu::mixed_products<float> products({-1, 0}, 1, 2);
  products.at(0, 0).sides.push_back({a, b, true, true, 1, 2});
  products.at(0, 1).pre = pre;
  products.at(0, 1).posts.push_back({op::add, by, false});
  const std::int64_t of_row[] = {0, -1, 1};
  products.point(of_row);
  cpu::mixed_rows<float>& rows = products;
  CHECK(rows.has(1));
  CHECK_FALSE(rows.has(0));
  const float x[] = {1, 1, 2, 2, 3, 3};
  const float* const scaled = rows.scaled(1, x, 2, 0, 3);
  CHECK(scaled[3] == 2);
  CHECK(scaled[4] == 30);
  CHECK(scaled[5] == 300);
  CHECK(rows.scaled(1, x, 2, 0, 2) == x);  // none of these has a factor
  float y[9] = {};
  rows.finish(1, x, 2, y, 3, 0, 3);
  const float expected[] = {18, 24, 30, 0, 0, 0, 1, 1, 1};  // 2 (1 + 2) b
  for (int i = 0; i < 9; ++i) CHECK(y[i] == expected[i]);
}
