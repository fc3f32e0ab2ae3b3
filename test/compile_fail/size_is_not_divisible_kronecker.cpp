// SPDX-License-Identifier: Apache-2.0
// A Kronecker product with a fixed factor. graft::lokr cannot fail like this, because it uses the nearest divisor.
// expected: graft: this division leaves a remainder: choose a block size or factor that divides the size of the layer
// expected: size_is_not_divisible<
// expected: out / 6|'o', 'u', 't', ' ', '/', ' ', '6'
// expected: q_proj
// expected: kronecker
// expected-gcc: >, 22, 64, 6>'
// expected-clang: >, 22, 64, 6>'
// expected-nvcc: formula_line=22, size=64LL, divisor=6LL
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int factor = 6;
#else
constexpr int factor = 8;
#endif

struct kronecker {
  static constexpr const char* name = "Kronecker";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto w2 = p.param("w2", W.rows() / p.size("a", factor), W.cols() / p.size("c", 4));
    return W + kron(p.param("w1", factor, 4), w2);
  }
};

struct q_proj : graft::linear<64, 32, float, kronecker> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels == 1);
static_assert(graft::compile<graft::linear<64, 32, float, graft::lokr<4, 6>>, graft::fullgraph>::kernels == 1);
