// SPDX-License-Identifier: Apache-2.0
// nodes_launch: a node that is a launch of its own, or several that run one after the other on all rows: look-ups,
// rotations, small matrices, collectives, host functions, and whatever no other kind of launch takes in.
#pragma once
#include <graft/core/dtype.h>
#include <graft/derive/stage.h>
#include <graft/derive/traversal.h>
#include <graft/plan/launch/slot.h>
#include <graft/plan/target_function.h>

namespace graft {

// The name of a launch that is built around node v.
constexpr const char* launch_name_of(const node& v) {
  switch (traits_of(v.what).kind) {
    case op_class::product: return "GEMM";
    case op_class::lookup: return accumulates_result(v.what) ? "reduce" : "gather";
    case op_class::rotation: return accumulates_result(v.what) ? "reduce" : "rotation";
    case op_class::rowwise: return "rowwise";
    case op_class::attention: return "attention";
    case op_class::reduction: return "reduce";
    case op_class::pointwise:
    case op_class::layout: return "elementwise";
    case op_class::leaf:
    case op_class::algebra: return "small matrices";
    case op_class::collective: return "collective";
    case op_class::opaque: return "host function";
  }
  return "";
}

struct nodes_launch {
  struct capabilities {
    // Returns true for the operations that the target has a kernel for; null: it has kernels for all of them.
    target_function<bool(op)> runs{};
    // The number of kernels of one node; null: one.
    target_function<int(const graph&, id, const size_values&, dtype, const target&)> kernels{};
    // How many times slower a flop of a product of large matrices is here than in a GEMM over rows.
    long long flop_factor = 1;
  };
  struct work {};

  id first = none_id;   // the node it is named after
  bool joined = false;  // several nodes run here one after the other

  constexpr id anchor() const { return first; }
  constexpr const char* name(const graph& g) const {
    const op_class kind = traits_of(g[first].what).kind;
    return joined && kind != op_class::attention && !stands_alone(kind) ? "small matrices" : launch_name_of(g[first]);
  }
  static constexpr bool stands_alone(op_class kind) { return kind == op_class::opaque || kind == op_class::collective; }
  // The kernels of node i, of which other kinds of launches run some too.
  template <class Facts> static constexpr int kernels_of(const Facts& in, id i) {
    const auto& of = in.p.to.template can<nodes_launch>().kernels;
    return !of ? 1 : of(in.g, i, in.s, in.type, in.p.to);
  }
  template <class Facts> constexpr int kernels(const Facts& in) const { return kernels_of(in, first); }
};

// rows_launch: on the CPU, everything that keeps rows apart between two values that need all of them (row_flow.h). It
// runs in chunks of rows.
struct rows_launch {
  struct capabilities {};
  struct work {};

  id around = none_id;  // a product with the base weight, a look-up or a norm, where it has one

  constexpr id anchor() const { return around; }
  constexpr const char* name(const graph& g) const { return launch_name_of(g[around]); }
  template <class Facts> constexpr int kernels(const Facts& in) const { return nodes_launch::kernels_of(in, around); }
};

}  // namespace graft
