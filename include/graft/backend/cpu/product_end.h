// SPDX-License-Identifier: Apache-2.0
// What follows a product in its place: another product that is added to it, and steps on its elements with a value for each
// column, or one for all:   y = (x Wᵀ ± S Bᵀ) ⊙ factor + bias,   S = x Aᵀ
// All threads make S first. Then one that has made a rectangle of y goes on with it while it is in its cache: that takes
// no other region of threads and no other pass over y. The sums are those of one product after the other.
#pragma once
#include <graft/backend/cpu/by_columns.h>
#include <graft/backend/cpu/pointwise.h>

namespace graft::cpu {

template <class Real> struct product_end {
  struct step {
    packet_function<Real> f;
    const Real* by;
    bool wide;  // a value for each column of y, which is a row of the kernels' roles
  };
  static constexpr int most_steps = 4;
  by_columns<Real> side{};   // into the same memory; without rows: none
  by_columns<Real> first{};  // what the side reads; without rows: it is there
  step steps[most_steps] = {};
  int count = 0;

  bool has_side() const { return side.rows > 0; }
  bool has_first() const { return first.rows > 0; }
  product_end without_side() const {
    product_end e = *this;
    e.side.rows = e.first.rows = 0;
    return e;
  }
  // `row`: the first of the share.
  template <class Share> void take_steps(const Share& share, long long row) const {
    for (long long j = 0; j < share.cols; ++j)
      for (int s = 0; s < count; ++s)
        each_row(steps[s].f, share.out + j * share.stride, share.out + j * share.stride, true,
                 steps[s].by + (steps[s].wide ? row : 0), steps[s].wide, share.rows);
  }
};

}  // namespace graft::cpu
