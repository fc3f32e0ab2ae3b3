// SPDX-License-Identifier: Apache-2.0
// A matrix product whose inner sizes differ, in a layer object of the CPU backend.
// expected: graft: this matrix product does not fit: make the columns of the left operand equal to the rows of
// expected: B @ A with B\[out, 8\] and A\[16, in\]|'B', ' ', '@', ' ', 'A', ' ', 'w', 'i', 't', 'h', ' ', 'B', '\[',
// expected: low_rank
// expected-gcc: >, 21, 8, 16>'
// expected-clang: >, 21, 8, 16>'
// expected-nvcc: formula_line=21, left_columns=8LL, right_rows=16LL
#include <graft/cpu.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int rank = 8;
#else
constexpr int rank = 16;
#endif

struct low_rank {
  static constexpr const char* name = "low rank";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("A", 16, W.cols()), B = p.param("B", W.rows(), rank);
    return W + B * A;
  }
};

struct q_proj : graft::linear<64, 32, float, low_rank> {};
int main() {
  graft::cpu::layer<q_proj, graft::fullgraph> q;
  return q.enable(false) ? 0 : 1;
}
