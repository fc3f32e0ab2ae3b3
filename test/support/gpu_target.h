// SPDX-License-Identifier: Apache-2.0
// A target whose GEMM launches have prologue, low-rank branches and epilogue, for tests of the plans that a GPU gets.
#pragma once
#include <graft/plan/fuse_gemms.h>

namespace test {

inline constexpr graft::target gpu_target{.name = "gpu",
                                          .granularity = graft::target::work::by_products,
                                          .fuse_gemms = &graft::fuse_gemms,
                                          .capability = 90,
                                          .max_branch_rank = 64};
inline constexpr graft::target gpu_target_nn{.name = "gpu that reads a weight either way",
                                             .granularity = graft::target::work::by_products,
                                             .fuse_gemms = &graft::fuse_gemms,
                                             .capability = 90,
                                             .max_branch_rank = 64,
                                             .reads_nn_weight = true};

}  // namespace test
