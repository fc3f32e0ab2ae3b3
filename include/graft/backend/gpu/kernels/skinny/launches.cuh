// SPDX-License-Identifier: Apache-2.0
// Launches of narrow GEMMs with dropout.
#pragma once
#include <graft/backend/gpu/kernels/skinny/dropout_branch.cuh>
#include <graft/backend/gpu/runtime/program.cuh>

namespace graft::gpu {

template <> struct launch_on_gpu<dropout_gemm> {
  template <class T, class F> static void each_own_node(const program<T>&, const dropout_gemm& l, F f) {
    f(l.anchor());
  }
  template <class T> static void each_stored(const program<T>&, const dropout_gemm& d, const stored_nodes<T>& to) {
    to.add(d.result);
  }
  template <class T> static void each_typed(const program<T>&, const dropout_gemm& d, const typed_values<T>& to) {
    to.add_rows(d.wide), to.add_rows(d.narrow);
    if (d.form_kind != dropout_gemm::form::sum) to.add_rows(d.result);
  }
  template <class T> static status run(execution<T>& e, const dropout_gemm& d, const graft::launch&) {
    if (!e.is_requested(d.result)) return ok;
    const int k = e.written_output(d.result);
    element_ptr<float> to = e.values_.storage(d.result);
    if (k >= 0) to = {e.call_.outputs[k].data, e.call_.outputs[k].type};
    e.values_.put(d.result, to);
    dropout_gemm_args with;
    const tensor<float> wide = e.values_[d.wide];
    with.wide = wide.p, with.out = to, with.rows = wide.d[2], with.columns = static_cast<int>(wide.d[3]);
    dropout_branch& t = with.branch;
    if (d.narrow >= 0) {
      const wgrad_operand from = e.operand_of(d.narrow);
      t.narrow = from.elements(), t.rank = from.columns, t.pitch = from.pitch;
    }
    if (d.factor >= 0) {
      const tensor<float> a = e.values_[d.factor];
      t.factor = a.p;
      t.rank = static_cast<int>(a.d[d.factor_rank_major ? 2 : 3]);
      t.rank_step = d.factor_rank_major ? a.d[3] : 1, t.column_step = d.factor_rank_major ? 1 : a.d[3];
    }
    const graft::node& v = e.g_[d.dropout];
    t.seed = static_cast<const std::int64_t*>(e.tensor_at(v.b));
    t.salt = e.g_.sizes.value(v.k[0], e.call_.sizes), t.rate = e.values_[v.c].p;
    const auto multiply = e.kernels_.launches.dropout_gemms;
    return multiply != nullptr ? multiply(e.stream_, d.form_kind, with) : launch_not_compiled("a GEMM with dropout");
  }
};

}  // namespace graft::gpu
