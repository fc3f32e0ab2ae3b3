// SPDX-License-Identifier: Apache-2.0
// Dropout of attention probabilities, drawn by a counter-based generator. An attention range of five rows
// (graph/rules_model.h) has in row 3 a key per query and in row 4 how many of 2^53 draws are dropped. Whether a
// probability is dropped follows from the key, the head and the position of the attention key alone, so forward and
// backward drop the same ones on every backend and no mask is stored.
#pragma once
#include <graft/core/splitmix64.h>

namespace graft {

struct attention_dropout_mask {
  const std::int64_t* keys = nullptr;  // [2, rows]: a key per query, then its number of dropped draws; null: no dropout
  long long rows = 0, first_head = 0;  // queries of the call; the first head that this rank computes

  constexpr explicit operator bool() const { return keys != nullptr; }
  static constexpr attention_dropout_mask of(const std::int64_t* range, long long range_rows, long long rows,
                                             long long head) {
    return {range_rows == 5 ? range + 3 * rows : nullptr, rows, head};
  }
  // The factor of a probability: 0 if it is dropped, else 1 / (1 - rate).
  template <class Real> constexpr Real factor(long long row, long long head, long long key_row) const {
    if (keys == nullptr) return Real(1);
    const auto dropped = static_cast<std::uint64_t>(keys[rows + row]);
    const auto number = static_cast<std::uint64_t>(first_head + head) << 40U | static_cast<std::uint64_t>(key_row);
    const bool is_kept = splitmix64(static_cast<std::uint64_t>(keys[row]) ^ number) >> 11U >= dropped;
    return is_kept ? static_cast<Real>(1 / (1 - static_cast<double>(dropped) / draws)) : Real(0);
  }
  // The number of 2^53 draws that a rate drops; a rate of 1 drops all of them.
  static constexpr std::int64_t dropped_count(double rate) { return static_cast<std::int64_t>(rate * draws); }

 private:
  static constexpr double draws = 9007199254740992.0;
};

}  // namespace graft
