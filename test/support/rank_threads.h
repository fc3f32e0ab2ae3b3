// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of a test, for graphs with collectives on the CPU.
#pragma once
#include <graft/backend/cpu/runtime/tensor.h>
#include <graft/core/text.h>
#include <graft/graph/op.h>

#include <algorithm>
#include <barrier>
#include <vector>

namespace test {

using namespace graft;

// The collectives of the ranks: each contributes its numbers and reads those of all in the order of the ranks.
struct rank_threads {
  std::barrier<> all;
  std::vector<std::vector<double>> contributions;
  explicit rank_threads(int n) : all(n), contributions(static_cast<std::size_t>(n)) {}

  void reduce(int rank, const char* operation, cpu::tensor<double> in, cpu::tensor<double> out) {
    contributions[static_cast<std::size_t>(rank)].assign(in.p, in.p + in.count());
    all.arrive_and_wait();
    for (long long k = 0; k < out.count(); ++k) {
      const auto at = static_cast<std::size_t>(k);
      out.p[k] = contributions[0][at];
      for (std::size_t r = 1; r < contributions.size(); ++r)
        out.p[k] = same_text(operation, traits_of(op::all_reduce_sum).name) ? out.p[k] + contributions[r][at]
                                                                            : std::max(out.p[k], contributions[r][at]);
    }
    all.arrive_and_wait();
  }
};

}  // namespace test
