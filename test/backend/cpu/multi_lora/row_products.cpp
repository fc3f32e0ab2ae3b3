// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA rows, called through the interface that the launches of a plan use.
#include <doctest/doctest.h>
#include <graft/backend/cpu/multi_lora/row_products.h>

using namespace graft;

TEST_CASE("row products: each row uses its own record, and rows of the base use none") {
  const float a[] = {1, 2}, b[] = {3, 4, 5}, input_scale[] = {10, 100}, by[] = {1, 1, 1};
  cpu::row_products<float> products({-1, 0}, 1, 2);
  products.at(0, 0).branches.push_back({a, b, true, true, 1, 2});
  products.at(0, 1).input_scale = input_scale;
  products.at(0, 1).epilogue.push_back({op::add, by, false});
  const std::int64_t of_row[] = {0, -1, 1};
  products.set_row_slots(of_row);
  cpu::multi_lora_rows<float>& rows = products;
  CHECK(rows.has(1));
  CHECK_FALSE(rows.has(0));
  const float x[] = {1, 1, 2, 2, 3, 3};
  const float* const scaled = rows.scaled(1, x, 2, 0, 3);
  CHECK(scaled[3] == 2);
  CHECK(scaled[4] == 30);
  CHECK(scaled[5] == 300);
  CHECK(rows.scaled(1, x, 2, 0, 2) == x);  // these rows have no input scale
  float y[9] = {};
  rows.add_adapters(1, x, 2, y, 3, 0, 3);
  const float expected[] = {18, 24, 30, 0, 0, 0, 1, 1, 1};  // 2 (1 + 2) b
  for (int i = 0; i < 9; ++i) CHECK(y[i] == expected[i]);
}
