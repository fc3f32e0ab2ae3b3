// SPDX-License-Identifier: Apache-2.0
// The operations that a program has compiled for the CPU, as function pointers: a layer type compiles its own, and an
// executor of graphs that are known only at run time compiles all of them (evaluate.h).
#pragma once
#include <graft/backend/cpu/runtime/host_function.h>
#include <graft/core/quant_format.h>
#include <graft/graph/op_set.h>

namespace graft::cpu {

template <class Real> struct evaluator;
template <class Real> struct operands;

template <class Real>
using node_function = void (*)(const evaluator<Real>&, id, tensor<Real>, const operands<Real>&, int accumulate);

// Dequantizes elements [first, first + n) of a quantized weight.
template <class Real>
using dequantize_function = void (*)(const weight_view& w, long long first, long long n, Real* to);

template <class Real> struct operations {
  node_function<Real> evaluate = nullptr;
  op_set have;
  // Null if the compiled GEMMs read only weights of type Real: a narrower weight is then converted, a quantized one
  // refused.
  dequantize_function<Real> dequantize = nullptr;
};
template <class Real> operations<Real> every_operation();

}  // namespace graft::cpu
