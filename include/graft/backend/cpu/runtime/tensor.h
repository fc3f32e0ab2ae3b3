// SPDX-License-Identifier: Apache-2.0
// The operand of a CPU kernel: a pointer and four sizes, row-major and contiguous; or a weight as it is stored, which
// GEMMs and look-ups dequantize one tile of rows at a time.
#pragma once
#include <graft/core/quant_format.h>
#include <graft/graph/graph.h>

namespace graft::cpu {

// The weights for which a program has compiled GEMMs: those of type Real only (as_wide), or any stored type and format.
enum class weights : unsigned char { as_wide, any };

template <class Real> struct tensor {
  Real* p = nullptr;
  long long d[4] = {1, 1, 1, 1};
  const weight_view* stored = nullptr;  // the weight as it is stored, instead of p

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
