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
