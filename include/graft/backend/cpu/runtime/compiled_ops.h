// SPDX-License-Identifier: Apache-2.0
// The operations that a program has compiled for the CPU, as function pointers: a layer type compiles its own, and an
// executor of graphs that are known only at run time compiles all of them (evaluate.h).
#pragma once
#include <graft/backend/cpu/runtime/tensor.h>
#include <graft/core/quant_format.h>
#include <graft/graph/op_set.h>

#include <memory>
#include <type_traits>

namespace graft::cpu {

// A host function: code outside the formula language that reads an operand and writes a result of the same sizes.
// Copies share its state. It is not a std::function, because <functional> is a twentieth of what a file with a layer
// parses.
template <class Real> class host_function {
 public:
  host_function() = default;
  host_function(std::nullptr_t) {}
  template <class F>
  requires(!std::is_same_v<F, host_function> && std::is_invocable_v<F&, const char*, tensor<Real>, tensor<Real>>)
      host_function(F f) {
    if constexpr (requires { f == nullptr; })
      if (f == nullptr) return;
    holds_ = std::make_shared<F>(std::move(f)), call_ = &call<F>;
  }
  explicit operator bool() const { return call_ != nullptr; }
  void operator()(const char* name, tensor<Real> in, tensor<Real> out) const { call_(holds_.get(), name, in, out); }

 private:
  template <class F> static void call(void* f, const char* name, tensor<Real> in, tensor<Real> out) {
    (*static_cast<F*>(f))(name, in, out);
  }
  std::shared_ptr<void> holds_;
  void (*call_)(void*, const char*, tensor<Real>, tensor<Real>) = nullptr;
};

}  // namespace graft::cpu

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
