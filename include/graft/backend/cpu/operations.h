// SPDX-License-Identifier: Apache-2.0
// The operations that a program has compiled for the CPU, behind one pointer: a layer type brings its own, an executor of
// graphs that are known only at run time brings all of them (evaluate.h).
#pragma once
#include <graft/backend/cpu/host_function.h>
#include <graft/core/encoding.h>
#include <graft/graph/op_set.h>

namespace graft::cpu {

template <class Real> struct evaluator;
template <class Real> struct operands;

template <class Real>
using node_function = void (*)(const evaluator<Real>&, id, tensor<Real>, const operands<Real>&, int accumulate);

// Elements [first, first + n) of a weight that is codes.
template <class Real> using code_function = void (*)(const weight_view& w, long long first, long long n, Real* to);

template <class Real> struct operations {
  node_function<Real> evaluate = nullptr;
  op_set have;
  // Null where products read weights as wide alone: a narrower one is copied as numbers then, and codes are refused.
  code_function<Real> decode = nullptr;
};
template <class Real> operations<Real> every_operation();

}  // namespace graft::cpu
