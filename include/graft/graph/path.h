// SPDX-License-Identifier: Apache-2.0
// Paths of leaves and sizes in a model, such as "self_attn.q_proj". A path is an entry of the graph's table: its
// parent's entry and one word, so that composing names copies no text. Entry 0 is the root, which has no name.
#pragma once
#include <graft/core/text.h>

namespace graft {

struct path_entry {
  int above = -1;
  const char* word = "";
  int length = 0;
};

struct path_table {
  const path_entry* e = nullptr;
  int count = 0;

  // Returns the rest of `full` after this path and its dot, or null if `full` does not begin with them.
  [[gnu::noinline]] constexpr const char* strip_prefix(int path, const char* full) const {
    if (path <= 0) return full;
    full = strip_prefix(e[path].above, full);
    if (full == nullptr) return nullptr;
    for (int i = 0; i < e[path].length; ++i)
      if (full[i] != e[path].word[i]) return nullptr;
    return full[e[path].length] == '.' ? full + e[path].length + 1 : nullptr;
  }
  // Returns true if a path of another table has equal words.
  constexpr bool same(int path, const path_table& other, int there) const {
    if (path <= 0 || there <= 0) return path <= 0 && there <= 0;
    const path_entry &p = e[path], &q = other.e[there];
    bool equal = p.length == q.length;
    for (int i = 0; equal && i < p.length; ++i) equal = p.word[i] == q.word[i];
    return equal && same(p.above, other, q.above);
  }
  constexpr bool is(int path, const char* name, const char* full) const {
    const char* const rest = strip_prefix(path, full);
    return rest != nullptr && same_text(rest, name);
  }
  [[gnu::cold]] constexpr void print(text& t, int path) const {
    if (path <= 0) return;
    print(t, e[path].above);
    for (int i = 0; i < e[path].length; ++i) t << e[path].word[i];
    t << '.';
  }
  // Compares two paths word by word, not by entry; the result is -1, 0 or 1.
  constexpr int order(int p, int q) const {
    if (p == q) return 0;
    if (p <= 0 || q <= 0) return p <= 0 ? -1 : 1;
    if (const int above = order(e[p].above, e[q].above); above != 0) return above;
    int i = 0;
    while (i < e[p].length && i < e[q].length && e[p].word[i] == e[q].word[i]) ++i;
    const int a = i < e[p].length ? e[p].word[i] : 0, b = i < e[q].length ? e[q].word[i] : 0;
    return a < b ? -1 : 1;
  }
  [[gnu::cold, gnu::noinline]] constexpr text full(int path, const char* name) const {
    text t;
    print(t, path), t << name;
    return t;
  }
};

}  // namespace graft
