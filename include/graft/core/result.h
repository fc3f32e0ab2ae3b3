// SPDX-License-Identifier: Apache-2.0
// A value or an error. Nothing in the library throws, aborts or half-writes on bad input: it returns one of these.
//     result<tensor> t = file.find("lora_A");
//     if (!t) return t.failure();          // one sentence: what, where, what was expected
//     use(*t);
#pragma once
#include <graft/core/text.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace graft {

struct error {
  text what;
};

namespace detail {
struct sentence_part {
  const char* words = nullptr;  // null: a letter, or a number
  char letter = '\0';
  long long number = 0;
  constexpr sentence_part(const char* t) : words(t) {}
  constexpr sentence_part(const text& t) : words(t.c_str()) {}
  constexpr sentence_part(long long v) : number(v) {}
  constexpr sentence_part(int v) : number(v) {}
  constexpr sentence_part(char c) : letter(c) {}
};
[[gnu::cold, gnu::noinline]] constexpr error sentence(const sentence_part* parts, int count) {
  error e;
  // Asked, so that a sentence of constants is left to the program: g++ would write out all its bytes wherever one is said.
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

// Builds the sentence from its parts: fail("expected ", 4, " bytes"). One function for all sentences, not a
// template for each.
template <class... Parts> [[gnu::always_inline]] constexpr error fail(const Parts&... parts) {
  const detail::sentence_part all[] = {parts...};
  return detail::sentence(all, static_cast<int>(sizeof...(Parts)));
}

// A union of our own: with std::variant a file with one layer compiles 5 % longer at -O2 and 14 % at -O0 (g++ 12).
template <class T> class [[nodiscard]] result {
 public:
  constexpr result(T value) : value_(std::move(value)), good_(true) {}
  constexpr result(const error& e) : failure_(e), good_(false) {}
  constexpr result(const result& o) : good_(o.good_) { take(o); }
  constexpr result(result&& o) noexcept : good_(o.good_) { take(std::move(o)); }
  // An assignment has no value: nvcc would call it one that is discarded. NOLINTBEGIN(misc-unconventional-assign-operator)
  constexpr void operator=(const result& o) {
    if (this != &o) drop(), good_ = o.good_, take(o);
  }
  constexpr void operator=(result&& o) noexcept {
    if (this != &o) drop(), good_ = o.good_, take(std::move(o));
  }  // NOLINTEND(misc-unconventional-assign-operator)
  constexpr ~result() { drop(); }

  constexpr explicit operator bool() const { return good_; }
  constexpr T& operator*() { return value_; }
  constexpr const T& operator*() const { return value_; }
  constexpr T* operator->() { return &value_; }
  constexpr const T* operator->() const { return &value_; }
  constexpr const error& failure() const { return failure_; }
  constexpr const char* message() const { return good_ ? "" : failure_.what.c_str(); }

 private:
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
