// SPDX-License-Identifier: Apache-2.0
// Launches of small matrices: Kronecker chains (LoKr) and stacks. If no kernel takes the sizes of a call, the nodes run
// one by one; the kinds count kernels by the same rule.
#pragma once
#include <graft/backend/gpu/kernels/linalg/kronecker_chain.cuh>
#include <graft/backend/gpu/kernels/linalg/matrix_stack.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <> struct launch_on_gpu<kronecker_chain> {
  template <class T, class F> static void each_own_node(const program<T>&, const kronecker_chain& c, F f) {
    for (const id i : c.inside()) f(i);
  }
  template <class T>
  static void each_stored(const program<T>& in, const kronecker_chain& c, const stored_nodes<T>& to) {
    const bool whole = fuses_chain(in.g_, c, to.sizes, dtype_of<T>, in.p_.to.template can<kronecker_chain>());
    for (const id i : c.inside())
      if (!whole || (i != c.between && i != c.other)) to.add(i);
  }
  // The partial gradients E and F that the blocks of the kernel write.
  template <class T> static long long scratch(const program<T>& in, const kronecker_chain& c, const size_values& s) {
    if (!c.sums()) return 0;
    const long long tokens = in.g_.sizes.value(in.g_[c.z].d[1], s),
                    each = element_count(in.g_, c.left_sum, s) + element_count(in.g_, c.right_sum, s);
    return chain_blocks(tokens) * each * static_cast<long long>(sizeof(float));
  }
  template <class T, class F> static void each_operand(const program<T>&, const kronecker_chain& c, F f) {
    f(c.z), f(c.x);
  }
  template <class T> static void each_typed(const program<T>&, const kronecker_chain& c, const typed_values<T>& to) {
    for (const id i : {c.z, c.x, c.between, c.other, c.result}) to.add_rows(i);
  }
  template <class T> static status run(execution<T>& e, const kronecker_chain& c, const graft::launch&) {
    if (!fuses_chain(e.g_, c, e.call_.sizes, dtype_of<T>, e.p_.to.template can<kronecker_chain>())) {
      for (const id i : c.inside())
        if (status s = e.run_node(i); !s) return s;
      return ok;
    }
    if (e.kernels_.launches.chain == nullptr) return launch_not_compiled("a small matrix of every token");
    auto slot = [&](id i) {
      const int k = e.written_output(i);
      element_ptr<float> to = e.values_.storage(i);
      if (k >= 0) to = {e.call_.outputs[k].data, e.call_.outputs[k].type};
      return e.values_.put(i, to), to;
    };
    const chain_sizes n = chain_sizes_of(e.g_, c, e.call_.sizes);
    chain_args with;
    with.z = e.tensor_at(c.z), with.d = e.output_ptr(c.result);
    with.l = e.values_[c.left].p, with.r = e.values_[c.right].p;
    with.l_transposed = c.left_transposed, with.r_transposed = c.right_transposed;
    with.l_rows = static_cast<int>(n.left_rows), with.z_rows = static_cast<int>(n.rows);
    with.z_cols = static_cast<int>(n.columns), with.r_cols = static_cast<int>(n.right_columns);
    with.tokens = e.g_.sizes.value(e.g_[c.z].d[1], e.call_.sizes);
    if (c.sums())
      with.x = e.tensor_at(c.x), with.e = slot(c.left_sum), with.f = slot(c.right_sum),
      with.partial = e.values_.scratch_now();
    return e.kernels_.launches.chain(e.stream_, with);
  }
};

template <> struct launch_on_gpu<matrix_stack> {
  template <class T, class F> static void each_own_node(const program<T>&, const matrix_stack& s, F f) {
    for (const id i : s.inside) f(i);
  }
  template <class T> static void each_stored(const program<T>& in, const matrix_stack& s, const stored_nodes<T>& to) {
    const bool whole = fuses_stack(in.g_, s, to.sizes, in.p_.to.template can<matrix_stack>());
    for (const id i : s.inside)
      if (!whole || is_read_outside(in, s, i)) to.add(i);
  }
  template <class T> static status run(execution<T>& e, const matrix_stack& s, const graft::launch&) {
    if (!fuses_stack(e.g_, s, e.call_.sizes, e.p_.to.template can<matrix_stack>())) {
      for (const id i : s.inside)
        if (status done = e.run_node(i); !done) return done;
      return ok;
    }
    stack_args with{};
    with.operands = s.operands.size(), with.steps = s.inside.size(), with.slots = s.slots;
    const tensor<float> first = e.values_[e.g_[s.inside[0]].a], other = e.values_[s.operands[0]];
    const tensor<float>& like = first.count() > 1 ? first : other;
    with.edge = static_cast<int>(like.d[3]), with.matrices = like.matrices();
    for (int k = 0; k < with.operands; ++k) {
      with.operand[k] = e.values_[s.operands[k]].p;
      with.at[k] = static_cast<signed char>(s.operand_slot[k]);
    }
    const auto slot = [&](id o) -> signed char {
      for (int k = 0; k < with.operands; ++k)
        if (s.operands[k] == o) return with.at[k];
      for (int k = 0; k < with.steps; ++k)
        if (s.inside[k] == o) return static_cast<signed char>(s.slot[k]);
      return -1;
    };
    for (int k = 0; k < with.steps; ++k) {
      const id i = s.inside[k];
      const graft::node& v = e.g_[i];
      stack_step& to = with.step[k];
      to.what = v.what, to.ta = v.ta, to.tb = v.tb;
      to.to = static_cast<signed char>(s.slot[k]), to.a = slot(v.a),
      to.b = v.b < 0 ? static_cast<signed char>(0) : slot(v.b);
      if (to.a < 0 || to.b < 0) to.number = e.values_[to.a < 0 ? v.a : v.b].p;
      if (!is_read_outside(e.program_, s, i)) continue;
      const int out = e.written_output(i);
      to.store = e.values_.storage(i);
      if (out >= 0) to.store = {e.call_.outputs[out].data, e.call_.outputs[out].type};
      e.values_.put(i, to.store);
    }
    if (e.kernels_.launches.stack == nullptr) return launch_not_compiled("stacks of small matrices");
    return e.kernels_.launches.stack(e.stream_, with);
  }

 private:
  // Returns true if the value of node i is read outside of the stack.
  template <class T> static bool is_read_outside(const program<T>& in, const matrix_stack& s, id i) {
    int inside = 0;
    for (const id reader : s.inside)
      for (int k = 0; k < 3; ++k) inside += in.g_[reader].operand(k) == i ? 1 : 0;
    return in.readers_[i] > inside;
  }
};

}  // namespace graft::gpu
