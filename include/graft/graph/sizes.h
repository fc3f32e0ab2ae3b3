// SPDX-License-Identifier: Apache-2.0
// The sizes of a graph, as a small table of named and derived entries:
//     in (named)   r (named)   in / b   b (b - 1) / 2   (h + 2 pad - k) / stride + 1
// A formula is captured once with names; a layer binds numbers to the names, at compile time or at run time. solve()
// finds the names from the shapes of actual tensors, also through the derived entries (28 = b (b - 1) / 2 gives b = 8).
#pragma once
#include <graft/core/dim.h>
#include <graft/core/text.h>

namespace graft {

struct size_entry {
  enum class kind : unsigned char { name, product, quotient, triangle, window, butterfly };
  kind what = kind::name;
  dim a{}, b{}, c{}, d{};  // window: size, kernel, stride, padding
  const char* name = "";
  int nominal = 16;  // what cost comparisons assume while the size is only a name
};

inline constexpr int max_entries = 64;
inline constexpr long long unknown = -1;

struct size_values {
  long long v[max_entries];
  constexpr size_values() : v{} {
    for (long long& x : v) x = unknown;
  }
};

struct size_table {
  size_entry e[max_entries]{};
  int count = 0;

  constexpr long long value(dim d, const size_values& s) const {
    if (d.known()) return d.v;
    const size_entry& t = e[d.entry()];
    if (t.what == size_entry::kind::name) return s.v[d.entry()];
    const long long a = value(t.a, s), b = value(t.b, s);
    if (a == unknown || b == unknown) return unknown;
    switch (t.what) {
      case size_entry::kind::name: break;
      case size_entry::kind::product: return a * b;
      case size_entry::kind::quotient: return b == 0 ? unknown : a / b;
      case size_entry::kind::triangle: return a * (a - 1) / 2;
      // What b factors of blocks of a mix: a 2^(b-1) entries. Blocks are split in halves, so an odd one mixes nothing.
      case size_entry::kind::butterfly: return b <= 1 ? a : a % 2 != 0 || b > 32 ? 0 : a << (b - 1);
      case size_entry::kind::window: {
        const long long stride = value(t.c, s), pad = value(t.d, s);
        return stride <= 0 || pad == unknown || a + 2 * pad < b ? unknown : (a + 2 * pad - b) / stride + 1;
      }
    }
    return unknown;
  }

  // Assigns the one name in d that is still unknown so that d equals n; false when no value does.
  constexpr bool solve(dim d, long long n, size_values& s) const {
    if (d.known()) return d.v == n;
    const size_entry& t = e[d.entry()];
    if (t.what == size_entry::kind::name) {
      if (s.v[d.entry()] == unknown) s.v[d.entry()] = n;
      return s.v[d.entry()] == n;
    }
    const long long a = value(t.a, s), b = value(t.b, s);
    if (t.what == size_entry::kind::product && a > 0 && b == unknown) return n % a == 0 && solve(t.b, n / a, s);
    if (t.what == size_entry::kind::product && b > 0 && a == unknown) return n % b == 0 && solve(t.a, n / b, s);
    if (t.what == size_entry::kind::quotient && a > 0 && b == unknown)
      return n > 0 && a % n == 0 && solve(t.b, a / n, s);
    if (t.what == size_entry::kind::quotient && b > 0 && a == unknown) return solve(t.a, n * b, s);
    if (t.what == size_entry::kind::triangle && a == unknown)
      for (long long k = 1; k * (k - 1) / 2 <= n; ++k)
        if (k * (k - 1) / 2 == n && n > 0) return solve(t.a, k, s);
    if (t.what == size_entry::kind::triangle && a == unknown) return false;
    const long long now = value(d, s);
    return now == unknown || now == n;
  }

  constexpr int find(const char* name) const {
    for (int i = 0; i < count; ++i)
      if (e[i].what == size_entry::kind::name && same_text(e[i].name, name)) return i;
    return -1;
  }
  // The nominal value, for comparing costs before the sizes are known.
  constexpr long long nominal(dim d) const {
    size_values s;
    for (int i = 0; i < count; ++i) s.v[i] = e[i].nominal;
    const long long n = value(d, s);
    return n > 0 ? n : 1;
  }
};

}  // namespace graft
