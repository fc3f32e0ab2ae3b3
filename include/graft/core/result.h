// SPDX-License-Identifier: Apache-2.0
// A value or an error. Nothing in the library throws, aborts or half-writes on bad input: it returns one of these.
//     result<tensor> t = file.find("lora_A");
//     if (!t) return t.failure();          // one sentence: what, where, what was expected
//     use(*t);
#pragma once
#include <graft/core/text.h>

#include <utility>
#include <variant>

namespace graft {

struct error {
  text what;
};

// Builds the sentence from its parts: fail("expected ", 4, " bytes"). Cold: optimising what runs at most once would be
// most of what a file of ours costs to compile.
template <class... Parts> [[gnu::cold, gnu::noinline]] constexpr error fail(const Parts&... parts) {
  error e;
  (e.what << ... << parts);
  return e;
}

template <class T> class [[nodiscard]] result {
 public:
  constexpr result(T value) : held_(std::in_place_index<0>, std::move(value)) {}
  constexpr result(error e) : held_(std::in_place_index<1>, e) {}

  constexpr explicit operator bool() const { return held_.index() == 0; }
  constexpr T& operator*() { return *std::get_if<0>(&held_); }
  constexpr const T& operator*() const { return *std::get_if<0>(&held_); }
  constexpr T* operator->() { return std::get_if<0>(&held_); }
  constexpr const T* operator->() const { return std::get_if<0>(&held_); }
  constexpr const error& failure() const { return *std::get_if<1>(&held_); }
  constexpr const char* message() const { return *this ? "" : failure().what.c_str(); }

 private:
  std::variant<T, error> held_;
};

struct ok_t {};
inline constexpr ok_t ok{};
using status = result<ok_t>;

}  // namespace graft
