// SPDX-License-Identifier: Apache-2.0
// A target whose GEMM launches have prologue, low-rank branches and epilogue, for tests of the plans that a GPU gets.
#pragma once
#include <graft/plan/fuse_products.h>

namespace test {

constexpr graft::target gpu_target_that(const char* name, bool reads_nn_weight) {
  graft::target to{.name = name,
                   .granularity = graft::target::work::by_products,
                   .fuse_products = &graft::fuse_products,
                   .capability = 90};
  to.can<graft::gemm_launch>().max_branch_rank = 64;
  to.can<graft::gemm_launch>().reads_nn_weight = reads_nn_weight;
  to.can<graft::nodes_launch>().flop_factor = 64;
  return to;
}
inline constexpr graft::target gpu_target = gpu_target_that("gpu", false);
inline constexpr graft::target gpu_target_nn = gpu_target_that("gpu that reads a weight either way", true);

}  // namespace test
