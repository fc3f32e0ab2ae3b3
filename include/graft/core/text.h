// SPDX-License-Identifier: Apache-2.0
// text: a string of at most 1023 characters that constant evaluation can build. The printer, explain(), run-time errors
// and static_assert arguments all use it, so that a message reads alike from the compiler and from the program.
#pragma once
namespace graft {

struct text {
  static constexpr int capacity = 1023;
  char s[capacity + 1]{};
  int n = 0;

  constexpr text() = default;
  constexpr text(const char* t) { *this << t; }

  constexpr text& operator<<(char c) {
    if (n < capacity) s[n++] = c;
    return *this;
  }
  [[gnu::noinline]] constexpr text& operator<<(const char* t) {
    while (*t != '\0') *this << *t++;
    return *this;
  }
  constexpr text& operator<<(const text& t) { return *this << t.s; }
  [[gnu::noinline]] constexpr text& operator<<(long long v) {
    char digits[24]{};
    int k = 0;
    unsigned long long u = v < 0 ? 0ULL - static_cast<unsigned long long>(v) : static_cast<unsigned long long>(v);
    if (v < 0) *this << '-';
    do digits[k++] = static_cast<char>('0' + u % 10);
    while ((u /= 10) != 0);
    while (k > 0) *this << digits[--k];
    return *this;
  }
  constexpr text& operator<<(int v) { return *this << static_cast<long long>(v); }

  constexpr const char* c_str() const { return s; }
  constexpr bool empty() const { return n == 0; }
};

constexpr bool same_text(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}
constexpr bool contains(const char* where, const char* what) {
  for (; *where != '\0'; ++where) {
    const char *w = where, *q = what;
    while (*q != '\0' && *w == *q) ++w, ++q;
    if (*q == '\0') return true;
  }
  return *what == '\0';
}

}  // namespace graft
