// SPDX-License-Identifier: Apache-2.0
// A host function: code outside the formula language that reads an operand and writes a result of the same sizes.
// Copies share its state. It is not a std::function, because <functional> is a twentieth of what a file with a layer
// parses.
#pragma once
#include <graft/backend/cpu/runtime/tensor.h>

#include <memory>
#include <type_traits>

namespace graft::cpu {

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
