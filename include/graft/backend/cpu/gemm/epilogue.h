// SPDX-License-Identifier: Apache-2.0
// The epilogue of a GEMM: a low-rank branch that is added to the result, then elementwise steps with a value per column
// or one number. With x [tokens, in], the shrink result U [tokens, rank] and y [tokens, out],
//   y = (x Wᵀ ± U Bᵀ) ⊙ factor + bias,   U = x Aᵀ
// All threads compute U first. A thread that has computed a rectangle of x Wᵀ then finishes it while it is in its
// cache, which needs no second parallel region and no second pass over y. Sums are those of separate products.
#pragma once
#include <graft/backend/cpu/gemm/problem.h>
#include <graft/backend/cpu/ops/elementwise.h>

namespace graft::cpu {

template <class Real> struct gemm_epilogue {
  struct step {
    packet_function<Real> f;
    const Real* by;
    bool wide;  // a value per column of y, which is a row of gemm_problem
  };
  static constexpr int max_steps = 4;
  gemm_problem<Real> branch{};  // ± U Bᵀ, added to y; rows == 0: no branch
  gemm_problem<Real> first{};   // U = x Aᵀ, which the branch reads; rows == 0: U is computed already
  step steps[max_steps] = {};
  int count = 0;

  bool has_branch() const { return branch.rows > 0; }
  bool has_shrink() const { return first.rows > 0; }
  gemm_epilogue without_branch() const {
    gemm_epilogue e = *this;
    e.branch.rows = e.first.rows = 0;
    return e;
  }
  // Applies the steps to a share of the product; `row` is the first row of the share.
  template <class Share> void apply_epilogue(const Share& share, long long row) const {
    for (long long j = 0; j < share.cols; ++j)
      for (int s = 0; s < count; ++s)
        each_row(steps[s].f, share.out + j * share.stride, share.out + j * share.stride, true,
                 steps[s].by + (steps[s].wide ? row : 0), steps[s].wide, share.rows);
  }
};

}  // namespace graft::cpu
