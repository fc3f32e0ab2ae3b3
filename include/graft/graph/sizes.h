// SPDX-License-Identifier: Apache-2.0
// The size table of a graph: named sizes, and sizes derived from them,
//     in (named)   r (named)   in / b   b (b - 1) / 2   (h + 2 pad - k) / stride + 1
// A formula is captured once with names, and a layer binds numbers to them at compile time or at run time. solve()
// infers the names from the shapes of actual tensors, also through derived sizes (28 = b (b - 1) / 2 gives b = 8).
#pragma once
#include <graft/core/dim.h>
#include <graft/core/saturate.h>
#include <graft/graph/path.h>

namespace graft {

struct size_entry {
  enum class kind : unsigned char { name, sum, difference, product, quotient, triangle, window, butterfly };
  kind what = kind::name;
  dim a{}, b{}, c{}, d{};  // window: size, kernel, stride, padding
  const char* name = "";
  int path = 0;
  int index = -1;       // names: index in size_values
  int nominal = 0;      // assumed by cost comparisons while the number is unknown; 0: not stated
  bool tokens = false;  // counts the rows of a call

  constexpr int assumed() const { return nominal > 0 ? nominal : 16; }
};

inline constexpr int max_names = 192;
inline constexpr long long unknown = -1;

// The number of every named size, or `unknown`.
struct size_values {
  long long v[max_names];
  constexpr size_values() : v{} {
    for (long long& x : v) x = unknown;
  }
};

struct size_table {
  const size_entry* e = nullptr;
  int count = 0;
  path_table paths{};

  constexpr long long value(dim d, const size_values& s) const { return value(d, s, false); }
  // The nominal value, for comparing costs before the sizes are known.
  constexpr long long nominal(dim d) const {
    const long long n = value(d, {}, true);
    return n > 0 ? n : 1;
  }
  // A flag in place of a null pointer: under -fsanitize=undefined g++ does not know while compiling that the address of
  // a constant is not null.
  [[gnu::noinline]] constexpr long long value(dim d, const size_values& named, bool nominal) const {
    if (d.is_static()) return d.v;
    const size_entry& t = e[d.entry()];
    if (t.what == size_entry::kind::name) return nominal ? t.assumed() : named.v[t.index];
    const long long a = value(t.a, named, nominal), b = value(t.b, named, nominal);
    if (a == unknown || b == unknown) return unknown;
    switch (t.what) {
      case size_entry::kind::name: break;
      case size_entry::kind::sum: return saturating_add(a, b);
      case size_entry::kind::difference: return a < b ? unknown : a - b;
      case size_entry::kind::product: return saturating_multiply(a, b);
      case size_entry::kind::quotient: return b == 0 ? unknown : a / b;
      case size_entry::kind::triangle:
        return a < 2 ? 0 : a % 2 == 0 ? saturating_multiply(a / 2, a - 1) : saturating_multiply(a, a / 2);
      // b butterfly factors with blocks of a mix a 2^(b-1) columns. Blocks are split in halves and must be even.
      case size_entry::kind::butterfly:
        return b <= 1 ? a : a % 2 != 0 || b > 32 ? 0 : saturating_multiply(a, 1LL << (b - 1));
      case size_entry::kind::window: {
        const long long stride = value(t.c, named, nominal), pad = value(t.d, named, nominal);
        const long long padded = pad == unknown ? unknown : saturating_add(a, saturating_multiply(2, pad));
        return stride <= 0 || pad == unknown || padded < b ? unknown : (padded - b) / stride + 1;
      }
    }
    return unknown;
  }

  // Assigns the one name in d that is still unknown so that d equals n; false when no value does.
  constexpr bool solve(dim d, long long n, size_values& s) const {
    if (d.is_static()) return d.v == n;
    const size_entry& t = e[d.entry()];
    if (t.what == size_entry::kind::name) {
      if (s.v[t.index] == unknown) s.v[t.index] = n;
      return s.v[t.index] == n;
    }
    const long long a = value(t.a, s), b = value(t.b, s);
    using enum size_entry::kind;
    if (t.what == sum && (a == unknown) != (b == unknown))
      return a == unknown ? n > b && solve(t.a, n - b, s) : n > a && solve(t.b, n - a, s);
    if (t.what == difference && (a == unknown) != (b == unknown))
      return a == unknown ? solve(t.a, saturating_add(n, b), s) : a > n && solve(t.b, a - n, s);
    if (t.what == product && a > 0 && b == unknown) return n % a == 0 && solve(t.b, n / a, s);
    if (t.what == product && b > 0 && a == unknown) return n % b == 0 && solve(t.a, n / b, s);
    if (t.what == quotient && a > 0 && b == unknown) return n > 0 && a % n == 0 && solve(t.b, a / n, s);
    if (t.what == quotient && b > 0 && a == unknown) return solve(t.a, saturating_multiply(n, b), s);
    if (t.what == triangle && a == unknown) {
      for (long long k = 1; k * (k - 1) / 2 <= n; ++k)
        if (k * (k - 1) / 2 == n && n > 0) return solve(t.a, k, s);
      return false;
    }
    const long long now = value(d, s);
    return now == unknown || now == n;
  }

  // The index in size_values of a name with its path, "self_attn.q_proj.r"; -1: there is none.
  [[gnu::noinline]] constexpr int find(const char* full) const {
    for (int i = 0; i < count; ++i)
      if (e[i].what == size_entry::kind::name && paths.is(e[i].path, e[i].name, full)) return e[i].index;
    return -1;
  }
  // Finds a name of another graph's table as find() does, without composing its text.
  constexpr int find_like(const size_table& other, const size_entry& name) const {
    for (int i = 0; i < count; ++i)
      if (e[i].index >= 0 && same_text(e[i].name, name.name) && paths.same(e[i].path, other.paths, name.path))
        return e[i].index;
    return -1;
  }
  // Returns true if d is the number of rows of a call, or has it as a factor.
  [[gnu::noinline]] constexpr bool has_token_rows(dim d) const {
    if (d.is_static()) return false;
    const size_entry& t = e[d.entry()];
    return t.what == size_entry::kind::name ? t.tokens : has_token_rows(t.a) || has_token_rows(t.b);
  }
  // Binds n to every size that counts the rows of a call.
  constexpr void set_tokens(size_values& s, long long n) const {
    for (int i = 0; i < count; ++i)
      if (e[i].tokens) s.v[e[i].index] = n;
  }
  constexpr long long tokens(const size_values& s) const {
    for (int i = 0; i < count; ++i)
      if (e[i].tokens) return s.v[e[i].index];
    return unknown;
  }
  // Compares two sizes by content, not by entry: numbers come first, then names, then derived sizes.
  [[gnu::noinline]] constexpr int order(dim p, dim q) const {
    auto sign = [](long long n) { return n < 0 ? -1 : n > 0 ? 1 : 0; };
    if (p == q) return 0;
    if (p.is_static() || q.is_static())
      return p.is_static() && q.is_static() ? sign(p.v - q.v) : p.is_static() ? -1 : 1;
    const size_entry &s = e[p.entry()], &t = e[q.entry()];
    if (s.what != t.what) return sign(static_cast<int>(s.what) - static_cast<int>(t.what));
    if (s.what == size_entry::kind::name) {
      const char *a = s.name, *b = t.name;
      while (*a != '\0' && *a == *b) ++a, ++b;
      return *a != *b ? sign(*a - *b) : paths.order(s.path, t.path);
    }
    if (const int first = order(s.a, t.a); first != 0) return first;
    if (const int second = order(s.b, t.b); second != 0) return second;
    if (const int third = order(s.c, t.c); third != 0) return third;
    return order(s.d, t.d);
  }
};

}  // namespace graft
