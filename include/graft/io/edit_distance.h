// SPDX-License-Identifier: Apache-2.0
// Spelling suggestions by Levenshtein distance. Two words are near misses if at most two letters, and fewer than half
// of the intended word, have to be inserted, deleted or replaced.
#pragma once
#include <algorithm>
#include <string_view>
#include <vector>

namespace graft::io {

inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (const char letter : a) {
    std::size_t corner = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = corner + (letter == b[j] ? 0 : 1);
      corner = row[j + 1];
      row[j + 1] = std::min({changed, corner + 1, row[j] + 1});
    }
  }
  return row[b.size()];
}

inline bool is_near_miss(std::string_view written, std::string_view meant) {
  const std::size_t longer = std::max(written.size(), meant.size()), shorter = std::min(written.size(), meant.size());
  if (longer > shorter + 2 || longer > 100) return false;
  const std::size_t edits = edit_distance(written, meant);
  return edits > 0 && edits <= 2 && 2 * edits < meant.size();
}

}  // namespace graft::io
