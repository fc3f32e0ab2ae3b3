// SPDX-License-Identifier: Apache-2.0
// "Did you mean" suggestions: the offered name with the smallest edit distance to a name that does not exist. A name
// that continues the wanted one after a dot ("lora_A.weight" for "lora_A"), or that ends it after a dot, has distance
// 1.
//     name_suggester meant("lora_a.weight");  meant.offer("lora_A.weight");
//     fail("no tensor 'lora_a.weight'", meant.hint());          "; did you mean 'lora_A.weight'?"
#pragma once
#include <graft/core/text.h>

namespace graft {

class name_suggester {
 public:
  [[gnu::cold]] constexpr explicit name_suggester(const char* wanted)
      : wanted_(wanted),
        max_edits_(length(wanted) < 4   ? 1
                   : length(wanted) < 9 ? length(wanted) / 3
                                        : 3) {}
  // Considers one existing name; among equal distances the longest name wins.
  [[gnu::cold]] constexpr void offer(const char* name) {
    const int d = distance(name);
    if (d > max_edits_ || (d == max_edits_ && length(name) <= closest_.n)) return;
    max_edits_ = d, closest_ = text(name);
  }
  [[gnu::cold]] constexpr text hint() const {
    text t;
    if (!closest_.empty()) t << "; did you mean '" << closest_ << "'?";
    return t;
  }

 private:
  static constexpr int longest = 96;  // names above this length are compared only as prefix or suffix

  static constexpr int length(const char* s) {
    int n = 0;
    while (s[n] != '\0') ++n;
    return n;
  }
  static constexpr char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
  // begins: is `part` a prefix of `whole` that ends at a dot? ends: is it a suffix that starts after a dot?
  static constexpr bool begins(const char* part, int n, const char* whole) {
    for (int i = 0; i < n; ++i)
      if (part[i] != whole[i]) return false;
    return whole[n] == '.';
  }
  static constexpr bool ends(const char* part, int n, const char* whole, int m) {
    return m > n && whole[m - n - 1] == '.' && same_text(part, whole + (m - n));
  }
  [[gnu::cold]] constexpr int distance(const char* b) const {
    const char* const a = wanted_;
    const int n = length(a), m = length(b), length_gap = n > m ? n - m : m - n;
    if (n > 0 && (begins(a, n, b) || ends(b, m, a, n))) return 1;
    if (length_gap > max_edits_ || n > longest) return n + m;
    int row[longest + 4]{};
    for (int j = 0; j <= m; ++j) row[j] = j;
    for (int i = 1; i <= n; ++i) {
      int diagonal = row[0];
      row[0] = i;
      for (int j = 1; j <= m; ++j) {
        const int changed = diagonal + (to_lower(a[i - 1]) == to_lower(b[j - 1]) ? 0 : 1);
        diagonal = row[j];
        const int shorter = (row[j - 1] < row[j] ? row[j - 1] : row[j]) + 1;
        row[j] = changed < shorter ? changed : shorter;
      }
    }
    return row[m];
  }

  const char* wanted_;
  int max_edits_;  // largest edit distance that is still suggested
  text closest_;
};

}  // namespace graft
