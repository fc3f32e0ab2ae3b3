// SPDX-License-Identifier: Apache-2.0
// result<T>: a value or an error. On bad input the library returns an error; it never throws, aborts or half-writes.
//     result<tensor> t = file.find("lora_A");
//     if (!t) return t.failure();          // one sentence: what, where, what was expected
//     use(*t);
// Reading the value of a failure (*t, t->) is a mistake of the program: it ends with the message of that failure.
#pragma once
#include <graft/core/text.h>

#include <cstdio>
#include <memory>
#include <type_traits>
#include <utility>

namespace graft::detail {

// Mistakes in the calling program that no status can report, such as reading the value of a failed result or calling a
// model that was moved from: the program ends with one sentence on stderr, in release builds too. Input never leads
// here.
[[noreturn, gnu::cold, gnu::noinline]] inline void contract_violation(const char* sentence, const char* more = "") {
  std::fprintf(stderr, "graft: %s%s\n", sentence, more);
  __builtin_abort();
}

}  // namespace graft::detail

namespace graft {

struct error {
  text what;
};

namespace detail {
struct message_part {
  const char* words = nullptr;  // null: `letter`, or else `number`, is printed
  char letter = '\0';
  long long number = 0;
  constexpr message_part(const char* t) : words(t) {}
  constexpr message_part(const text& t) : words(t.c_str()) {}
  constexpr message_part(long long v) : number(v) {}
  constexpr message_part(int v) : number(v) {}
  constexpr message_part(char c) : letter(c) {}
};
[[gnu::cold, gnu::noinline]] constexpr error format_message(const message_part* parts, int count) {
  error e;
  // The call of is_constant_evaluated() keeps g++ from folding this function early, which would store all 1024 bytes of
  // every constant message.
  if (std::is_constant_evaluated() && count == 0) return e;
  for (int i = 0; i < count; ++i) {
    if (parts[i].words != nullptr)
      e.what << parts[i].words;
    else if (parts[i].letter != '\0')
      e.what << parts[i].letter;
    else
      e.what << parts[i].number;
  }
  return e;
}
}  // namespace detail

// Builds an error from the parts of its sentence: fail("expected ", 4, " bytes"). Parts are converted here and
// formatted by one function, so that a new combination of types adds no template instance.
template <class... Parts> [[gnu::always_inline]] constexpr error fail(const Parts&... parts) {
  const detail::message_part all[] = {parts...};
  return detail::format_message(all, static_cast<int>(sizeof...(Parts)));
}

// The storage is a union: with std::variant a file with one layer compiles 5 % longer at -O2 and 14 % at -O0 (g++ 12).
template <class T> class [[nodiscard]] result {
 public:
  constexpr result(T value) : value_(std::move(value)), good_(true) {}
  constexpr result(const error& e) : failure_(e), good_(false) {}
  constexpr result(const result& o) : good_(o.good_) { take(o); }
  constexpr result(result&& o) noexcept : good_(o.good_) { take(std::move(o)); }
  // Assignment returns void: nvcc warns about a discarded result. NOLINTBEGIN(misc-unconventional-assign-operator)
  constexpr void operator=(const result& o) {
    if (this != &o) drop(), good_ = o.good_, take(o);
  }
  constexpr void operator=(result&& o) noexcept {
    if (this != &o) drop(), good_ = o.good_, take(std::move(o));
  }  // NOLINTEND(misc-unconventional-assign-operator)
  constexpr ~result() { drop(); }

  constexpr explicit operator bool() const { return good_; }
  constexpr T& operator*() { return check_value(), value_; }
  constexpr const T& operator*() const { return check_value(), value_; }
  constexpr T* operator->() { return check_value(), &value_; }
  constexpr const T* operator->() const { return check_value(), &value_; }
  constexpr const error& failure() const { return failure_; }
  constexpr const char* message() const { return good_ ? "" : failure_.what.c_str(); }

 private:
  constexpr void check_value() const {
    if (!good_) [[unlikely]]
      detail::contract_violation("the value of a failed result was read; its error: ", failure_.what.c_str());
  }
  template <class From> constexpr void take(From&& o) {
    if (good_)
      std::construct_at(&value_, std::forward<From>(o).value_);
    else
      fail_as(o.failure_);
  }
  [[gnu::cold, gnu::noinline]] constexpr void fail_as(const error& e) { std::construct_at(&failure_, e); }
  constexpr void drop() {
    static_assert(std::is_trivially_destructible_v<error>, "a failure is left as it is");
    if (good_) std::destroy_at(&value_);
  }

  union {
    T value_;
    error failure_;
  };
  bool good_;
};

struct ok_t {};
inline constexpr ok_t ok{};
using status = result<ok_t>;

}  // namespace graft
