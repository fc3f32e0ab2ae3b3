// SPDX-License-Identifier: Apache-2.0
// A machine that runs products with their slots as one launch each, for tests of the plans that a GPU gets.
#pragma once
#include <graft/plan/fuse_products.h>

namespace test {

inline constexpr graft::target gpu{.name = "gpu",
                                   .gathers = graft::target::work::by_products,
                                   .gather_products = &graft::gather_products,
                                   .capability = 90,
                                   .largest_branch_rank = 64};
inline constexpr graft::target either_way_gpu{.name = "gpu that reads a weight either way",
                                              .gathers = graft::target::work::by_products,
                                              .gather_products = &graft::gather_products,
                                              .capability = 90,
                                              .largest_branch_rank = 64,
                                              .weight_either_way = true};

}  // namespace test
