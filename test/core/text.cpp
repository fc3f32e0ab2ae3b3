// SPDX-License-Identifier: Apache-2.0
#include <graft/core/text.h>

#include <climits>

#include "../support/static_check.h"

using namespace graft;

namespace {

template <class... Parts> constexpr text joined(const Parts&... parts) {
  text t;
  return (t << ... << parts);
}
constexpr text letters_written(int n) {
  text t;
  for (int i = 0; i < n; ++i) t << static_cast<char>('a' + i % 26);
  return t;
}

}  // namespace

TEST_CASE("text: values of every type are appended in order") {
  SAYS(joined("r = ", 16, ", ", 'x', ": ", text("end")), "r = 16, x: end");
  SAYS(joined(), "");
  SAYS(joined(""), "");
  BOTH(joined().empty());
  BOTH(!joined('a').empty());
  BOTH(joined("abc").n == 3);
}

TEST_CASE("text: numbers") {
  SAYS(joined(0), "0");
  SAYS(joined(-0), "0");
  SAYS(joined(7), "7");
  SAYS(joined(-7), "-7");
  SAYS(joined(1000000), "1000000");
  SAYS(joined(INT_MAX), "2147483647");
  SAYS(joined(INT_MIN), "-2147483648");
  SAYS(joined(LLONG_MAX), "9223372036854775807");
  SAYS(joined(LLONG_MIN), "-9223372036854775808");
}

TEST_CASE("text: text that does not fit is cut off and stays terminated") {
  BOTH(letters_written(text::capacity - 1).n == text::capacity - 1);
  BOTH(letters_written(text::capacity).n == text::capacity);
  BOTH(letters_written(text::capacity + 1).n == text::capacity);
  BOTH(letters_written(5 * text::capacity).n == text::capacity);
  BOTH(letters_written(5 * text::capacity).s[text::capacity] == '\0');
  BOTH(same_text(letters_written(5 * text::capacity).c_str(), letters_written(text::capacity).c_str()));
  // A number at the capacity loses its last digits, and a text its end.
  BOTH(joined(letters_written(text::capacity - 2), 123).s[text::capacity - 1] == '2');
  BOTH(joined(letters_written(text::capacity - 2), "xyz").s[text::capacity - 1] == 'y');
  BOTH(joined(letters_written(text::capacity - 2), text("xyz")).n == text::capacity);
  BOTH(joined(letters_written(text::capacity), -1).n == text::capacity);
}

TEST_CASE("text: a text appended to itself doubles") {
  constexpr text twice = [] {
    text t("ab");
    const text copy = t;
    return t << copy;
  }();
  SAYS(twice, "abab");
}

TEST_CASE("text: same_text and contains") {
  BOTH(same_text("", ""));
  BOTH(same_text("abc", "abc"));
  BOTH(!same_text("abc", "abd"));
  BOTH(!same_text("abc", "ab"));
  BOTH(!same_text("ab", "abc"));
  BOTH(contains("abcabd", "abd"));
  BOTH(contains("aab", "ab"));
  BOTH(contains("abc", "abc"));
  BOTH(contains("abc", ""));
  BOTH(contains("", ""));
  BOTH(!contains("", "a"));
  BOTH(!contains("abc", "abcd"));
  BOTH(!contains("abc", "ac"));
}
