// SPDX-License-Identifier: Apache-2.0
// Values that follow from the parameters, computed again after each step of training: node by node, but for what is computed
// element by element, which is joined to expressions of one kernel each (plan/expression.h). DoRA's factor is so six
// kernels behind a product with W instead of fourteen.
#pragma once
#include <graft/backend/cuda/launchers.cuh>
#include <graft/backend/cuda/values.cuh>
#include <graft/core/few_numbers.h>

namespace graft::cuda {

class parameter_expressions {
 public:
  void find(const graph& g, const stages& when, const sequence<int>& readers, const node_set& changing) {
    found_.find(g, when, readers, changing);
  }
  // The nodes of `wanted` in their order.
  status compute(cudaStream_t stream, const graph& g, const launchers& by, values& v, const node_set& wanted) const {
    for (id i = 0; i < g.size; ++i) {
      const int e = by.known_expression != nullptr ? found_.of[i] : -1;
      if (!wanted[i] || (e >= 0 && found_.all[e][0] != i)) continue;
      const result<bool> narrow = meets_weight(g, i) ? shrink(stream, g, by, v, i) : result<bool>(false);
      if (!narrow) return narrow.failure();
      if (*narrow) continue;
      if (status s = e < 0 ? v.compute_node(stream, i) : compute(stream, g, by, v, found_.all[e]); !s) return s;
    }
    return ok;
  }

 private:
  // False where it does not take them, and nothing was computed.
  static result<bool> shrink(cudaStream_t stream, const graph& g, const launchers& by, values& v, id i) {
    const node& n = g[i];
    const result<tensor<float>> weight = v.numbers(stream, n.a);
    if (!weight) return weight.failure();
    const tensor<float> factor = v[n.b];
    dropped_args with;
    with.wide = weight->p, with.rows = weight->d[2], with.columns = static_cast<int>(weight->d[3]);
    dropped_branch& a = with.term[0];
    a.factor = factor.p, a.rank = static_cast<int>(factor.d[n.tb ? 2 : 3]);
    a.rank_step = n.tb ? factor.d[3] : 1, a.column_step = n.tb ? 1 : factor.d[3];
    const result<cells<float>> room = v.own_room(i);
    if (!room) return room.failure();
    with.out = *room;
    const auto multiply = by.shrink[a.rank <= 16 ? 0 : a.rank <= 32 ? 1 : 2];
    if (multiply == nullptr || !with.fits()) return false;
    if (status s = multiply(stream, with); !s) return s.failure();
    return true;
  }
  static status compute(cudaStream_t stream, const graph& g, const launchers& by, values& v,
                        const sequence<id>& nodes) {
    const id root = nodes[0], of = g[root].what == op::sum_to ? g[root].a : root;
    if (const auto room = v.own_room(root); !room) return room.failure();
    status found = ok;
    expression_writer writer(
        g, [&](id i) { return is_among(nodes.begin(), nodes.end(), i); },
        [&](id i) {
          const result<tensor<float>> read = v.numbers(stream, i);
          if (!read) found = read.failure();
          return read ? *read : tensor<float>{};
        });
    const expression e = writer.write(of);
    if (!found) return found;
    return by.known_expression(stream, by.sums, e, shaped(g, of, v.sizes(), cells<float>{}), v[root]);
  }

  known_expressions found_;
};

}  // namespace graft::cuda
