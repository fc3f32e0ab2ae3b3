// SPDX-License-Identifier: Apache-2.0
// What the CPU kernels work on: a pointer and four numbers, row-major and contiguous; or a weight as it is stored,
// which products and look-ups decode a panel of rows at a time.
#pragma once
#include <graft/core/encoding.h>
#include <graft/graph/graph.h>

namespace graft::cpu {

// Which weights a program has compiled products of: numbers as wide as those it computes with, or however they are stored.
enum class weights : unsigned char { as_wide, any };

template <class Real> struct tensor {
  Real* p = nullptr;
  long long d[4] = {1, 1, 1, 1};
  const weight_view* stored = nullptr;  // instead of p

  long long count() const { return d[0] * d[1] * d[2] * d[3]; }
  long long matrices() const { return d[0] * d[1]; }
  long long area() const { return d[2] * d[3]; }
};

template <class Real> [[gnu::noinline]] tensor<Real> shaped(const graph& g, id i, const size_values& s, Real* p) {
  tensor<Real> t;
  t.p = p;
  for (int k = 0; k < 4; ++k) t.d[k] = g.sizes.value(g[i].d[k], s);
  return t;
}

}  // namespace graft::cpu
