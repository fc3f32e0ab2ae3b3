// SPDX-License-Identifier: Apache-2.0
// norm_between: an RMS norm that only products read, behind the product that writes what it reads. It may be part of their
// kernels, with no launch of its own: a norm is a factor for each column and one for each token,
//     norm(h) Wᵀ = (h ⊙ gain) Wᵀ / rms(h)
// so that the product before stores h ⊙ gain and what 1 / rms follows from, and those behind multiply their sums. What they
// do with x is linear: side branches and factors for each output follow. Where the norm reads the input of the graph, the
// product before stands in the graph ahead of it.
#pragma once
#include <graft/plan/product.h>
#include <graft/plan/row_launch.h>

namespace graft {

// A product whose kernel may have the norm of its result, or of its x, inside.
constexpr bool stands_by_norm(const product_slots& p) {
  return p.before_posts < 0 && !has_side_tensors(p) && p.weight_by_row && p.pre < 0;
}
// Is it such a norm, but for the product before it?
[[gnu::cold]] constexpr bool only_products_read(const graph& g, const row_launch& r, const sequence<int>& readers,
                                                const sequence<product_slots>& products) {
  if (r.norm < 0 || r.slope >= 0 || g[r.norm].k[0] != dim{1} || !detail::one_matrix(g[r.result])) return false;
  int reads = 0;
  for (const product_slots& p : products) {
    if (p.x != r.result) continue;
    if (!stands_by_norm(p)) return false;
    reads += 1 + p.sides.size();
  }
  return reads > 0 && reads == readers[r.result];
}

}  // namespace graft
