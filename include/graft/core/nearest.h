// SPDX-License-Identifier: Apache-2.0
// Which of some names was probably meant by one that is none of them: the one with the fewest letters to add, to leave out
// or to change, if these are few; one that only lacks its end ("lora_A" of "lora_A.weight") or has a path before it too
// many.
//     nearest meant("lora_a.weight");  meant.offer("lora_A.weight");
//     fail("no tensor 'lora_a.weight'", meant.hint());          "; did you mean 'lora_A.weight'?"
#pragma once
#include <graft/core/text.h>

namespace graft {

class nearest {
 public:
  [[gnu::cold]] constexpr explicit nearest(const char* wanted)
      : wanted_(wanted),
        most_(length(wanted) < 4   ? 1
              : length(wanted) < 9 ? length(wanted) / 3
                                   : 3) {}
  // One of the names that there are.
  [[gnu::cold]] constexpr void offer(const char* name) {
    const int d = distance(name);
    if (d > most_ || (d == most_ && length(name) <= found_.n)) return;
    most_ = d, found_ = text(name);
  }
  [[gnu::cold]] constexpr text hint() const {
    text t;
    if (!found_.empty()) t << "; did you mean '" << found_ << "'?";
    return t;
  }

 private:
  static constexpr int longest = 96;  // letters of a name that are compared; of a longer one only ends

  static constexpr int length(const char* s) {
    int n = 0;
    while (s[n] != '\0') ++n;
    return n;
  }
  static constexpr char small(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
  // Is the shorter one the beginning or the end of the longer one, up to a dot?
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
    const int n = length(a), m = length(b), differ = n > m ? n - m : m - n;
    if (n > 0 && (begins(a, n, b) || ends(b, m, a, n))) return 1;
    if (differ > most_ || n > longest) return n + m;
    int row[longest + 4]{};
    for (int j = 0; j <= m; ++j) row[j] = j;
    for (int i = 1; i <= n; ++i) {
      int diagonal = row[0];
      row[0] = i;
      for (int j = 1; j <= m; ++j) {
        const int changed = diagonal + (small(a[i - 1]) == small(b[j - 1]) ? 0 : 1);
        diagonal = row[j];
        const int shorter = (row[j - 1] < row[j] ? row[j - 1] : row[j]) + 1;
        row[j] = changed < shorter ? changed : shorter;
      }
    }
    return row[m];
  }

  const char* wanted_;
  int most_;  // letters that may differ
  text found_;
};

}  // namespace graft
