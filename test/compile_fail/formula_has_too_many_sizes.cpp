// SPDX-License-Identifier: Apache-2.0
// A formula that names more sizes than a graph can bind.
// expected: graft: this formula names more sizes than a graph holds: express some of them by others
// expected-gcc: formula_has_too_many_sizes<q_proj, parts, 192>'
// expected-clang: formula_has_too_many_sizes<q_proj, parts, 192>'
// expected-nvcc: Layer=q_proj, Adapter=parts, names=192
#include <graft/graft.h>

#ifdef GRAFT_SHOULD_FAIL
constexpr int most = 200;
#else
constexpr int most = 8;
#endif

struct table {
  char names[most][4]{};
  constexpr table() {
    for (int i = 0; i < most; ++i) {
      names[i][0] = 'n';
      names[i][1] = static_cast<char>('A' + i / 20);
      names[i][2] = static_cast<char>('a' + i % 20);
    }
  }
};
constexpr table sizes;

struct parts {
  static constexpr const char* name = "parts";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    graft::extent last = W.cols();
    for (const auto& size : sizes.names) last = p.size(size);
    return W + detach(row_norm(p.param("A", W.rows(), last)));
  }
};

struct q_proj : graft::linear<64, 32, float, parts> {};
static_assert(graft::compile<q_proj, graft::fullgraph>::kernels > 0);
