// SPDX-License-Identifier: Apache-2.0
// target_function: a function that a target may have, as a member of the capabilities of a kind of launch.
#pragma once
#include <type_traits>

namespace graft {

struct target;

// A flag says whether there is a function: under -fsanitize=undefined g++ does not know while compiling that the
// address of a function is not null.
template <class Function> class target_function {
 public:
  constexpr target_function() = default;
  template <class F>
  requires(std::is_convertible_v<F, Function*>) constexpr target_function(F f) : function_(f), has_(true) {}
  constexpr explicit operator bool() const { return has_; }
  template <class... Args> constexpr auto operator()(Args&&... args) const {
    return function_(static_cast<Args&&>(args)...);
  }

 private:
  Function* function_ = nullptr;
  bool has_ = false;
};

}  // namespace graft
