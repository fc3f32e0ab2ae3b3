// SPDX-License-Identifier: Apache-2.0
// Launches of elementwise expressions, and of pairs of them with the column wgrads of a gate.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/expression.cuh>
#include <graft/backend/gpu/kernels/wgrad/swiglu_column_scale.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <> struct launch_on_gpu<expression_launch> {
  template <class T, class F> static void each_own_node(const program<T>&, const expression_launch& l, F f) {
    f(l.anchor());
  }
  template <class T> static void each_stored(const program<T>&, const expression_launch& l, const stored_nodes<T>& to) {
    to.add(l.root);
    if (l.paired_root >= 0) to.add(l.paired_root);
  }
  template <class T> static status run(execution<T>& e, const expression_launch& l, const graft::launch& of) {
    const id* const nodes = &e.p_.nodes[of.first];
    status found = ok;
    // Builds the elementwise expression of a root and sets the address that its result is stored to.
    auto written = [&](id root) {
      const int k = e.written_output(root);
      element_ptr<float> at = e.values_.storage(root);
      if (k >= 0) at = {e.call_.outputs[k].data, e.call_.outputs[k].type};
      e.values_.put(root, at);
      expression_writer writer(
          e.g_, [&](id i) { return is_one_of(nodes, nodes + of.count, i); },
          [&](id i) {
            const result<tensor<float>> read = e.values_.numbers(e.stream_, i);
            if (!read) found = read.failure();
            return read ? *read : tensor<float>{};
          });
      return writer.write(e.g_[root].what == op::sum_to ? e.g_[root].a : root);
    };
    const expression first = written(l.root);
    if (l.paired_root < 0) {
      const id value = e.g_[l.root].what == op::sum_to ? e.g_[l.root].a : l.root;
      if (!found) return found;
      const auto evaluate = e.kernels_.launches.expression;
      if (evaluate == nullptr) return launch_not_compiled("an expression");
      return evaluate(e.stream_, e.kernels_.launches.sums, first,
                      shaped(e.g_, value, e.call_.sizes, element_ptr<float>{}), e.values_[l.root]);
    }
    const expression second = written(l.paired_root);
    if (!found) return found;
    bool sums = l.gate_wgrads[0] >= 0 && e.kernels_.launches.gates != nullptr;
    for (const int k : l.gate_wgrads) sums = sums && e.is_requested(e.p_.template all<wgrad_launch>()[k].result);
    if (sums) {
      gate_wgrad with[2];
      for (int k = 0; k < 2; ++k) {
        const wgrad_launch& s = e.p_.template all<wgrad_launch>()[l.gate_wgrads[k]];
        with[k] = {
            e.output_ptr(s), {e.output_ptr(s.scaled), dtype_of<T>}, e.tensor_at(s.right), e.values_[s.scale].p.at};
      }
      const result<bool> made = e.kernels_.launches.gates(e.stream_, e.to_, first, second, e.values_[l.root],
                                                          e.values_[l.paired_root], with[0], with[1]);
      if (!made) return made.failure();
      if (*made) return ok;
    }
    const auto evaluate = e.kernels_.launches.two_expressions;
    if (evaluate == nullptr) return launch_not_compiled("two expressions");
    if (status s = evaluate(e.stream_, first, second, e.values_[l.root], e.values_[l.paired_root]); !s) return s;
    for (const int k : l.gate_wgrads)
      if (k >= 0)
        if (status s = e.run_wgrad(k); !s) return s;
    return ok;
  }
};

}  // namespace graft::gpu
