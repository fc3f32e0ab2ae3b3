// SPDX-License-Identifier: Apache-2.0
// Computes precomputed values: what follows from weights and parameters alone, at bind time and after every optimizer
// step. Elementwise chains run as one expression kernel each (plan/launch/expression.h), every other node as a kernel
// of its own, and a stored weight times a narrow matrix (DoRA's norm) by the shrink kernel.
#pragma once
#include <graft/backend/gpu/dispatch/launchers.cuh>
#include <graft/backend/gpu/dispatch/precompute.h>
#include <graft/backend/gpu/runtime/values.cuh>
#include <graft/core/algorithm.h>

namespace graft::gpu {

class parameter_expressions {
 public:
  void find(const graph& g, const stages& when, const sequence<int>& readers, const node_set& changing) {
    found_.find(g, when, readers, changing);
  }
  // Computes the nodes of `wanted` in topological order.
  status compute(cudaStream_t stream, const graph& g, const launchers& by, values& v, const node_set& wanted) const {
    for (id i = 0; i < g.size; ++i) {
      const int e = by.precomputed_expression != nullptr ? found_.of[i] : -1;
      if (!wanted[i] || (e >= 0 && found_.all[e][0] != i)) continue;
      const result<bool> narrow = is_weight_shrink(g, i) ? shrink(stream, g, by, v, i) : result<bool>(false);
      if (!narrow) return narrow.failure();
      if (*narrow) continue;
      if (status s = e < 0 ? v.compute_node(stream, i) : compute(stream, g, by, v, found_.all[e]); !s) return s;
    }
    return ok;
  }

 private:
  // Computes node i = W·Aᵀ by the shrink kernel. Returns false, without the node computed, if the kernel does not fit
  // the sizes.
  static result<bool> shrink(cudaStream_t stream, const graph& g, const launchers& by, values& v, id i) {
    const node& n = g[i];
    const result<tensor<float>> weight = v.numbers(stream, n.a);
    if (!weight) return weight.failure();
    const tensor<float> factor = v[n.b];
    dropout_gemm_args with;
    with.wide = weight->p, with.rows = weight->d[2], with.columns = static_cast<int>(weight->d[3]);
    dropout_branch& a = with.branch;
    a.factor = factor.p, a.rank = static_cast<int>(factor.d[n.tb ? 2 : 3]);
    a.rank_step = n.tb ? factor.d[3] : 1, a.column_step = n.tb ? 1 : factor.d[3];
    const result<element_ptr<float>> storage = v.allocate(i);
    if (!storage) return storage.failure();
    with.out = *storage;
    const auto multiply = by.shrink[a.rank <= 16 ? 0 : a.rank <= 32 ? 1 : 2];
    if (multiply == nullptr || !with.fits()) return false;
    if (status s = multiply(stream, with); !s) return s.failure();
    return true;
  }
  static status compute(cudaStream_t stream, const graph& g, const launchers& by, values& v,
                        const sequence<id>& nodes) {
    const id root = nodes[0], of = g[root].what == op::sum_to ? g[root].a : root;
    if (const auto storage = v.allocate(root); !storage) return storage.failure();
    status found = ok;
    expression_writer writer(
        g, [&](id i) { return is_one_of(nodes.begin(), nodes.end(), i); },
        [&](id i) {
          const result<tensor<float>> read = v.numbers(stream, i);
          if (!read) found = read.failure();
          return read ? *read : tensor<float>{};
        });
    const expression e = writer.write(of);
    if (!found) return found;
    return by.precomputed_expression(stream, by.sums, e, shaped(g, of, v.sizes(), element_ptr<float>{}), v[root]);
  }

  precomputed_expressions found_;
};

}  // namespace graft::gpu
