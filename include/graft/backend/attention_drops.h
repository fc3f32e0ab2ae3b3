// SPDX-License-Identifier: Apache-2.0
// Dropout of attention's probabilities, by counter like any dropout: a span of five rows (graph/rules_model.h) brings a key
// for each row, and how many of 2^53 draws are dropped. What becomes of a probability follows from the key, the head and
// the row that is looked at, so that forward and backward, on any backend, drop the same ones and nothing is stored.
#pragma once
#include <graft/core/mixed_bits.h>

namespace graft {

struct attention_drops {
  const std::int64_t* keys = nullptr;  // and behind them how many draws are dropped; none: everything is kept
  long long rows = 0, first_head = 0;  // of the heads that are computed here

  constexpr explicit operator bool() const { return keys != nullptr; }
  static constexpr attention_drops of(const std::int64_t* span, long long span_rows, long long rows, long long head) {
    return {span_rows == 5 ? span + 3 * rows : nullptr, rows, head};
  }
  // What a probability is multiplied by.
  template <class Real> constexpr Real factor(long long row, long long head, long long looked_at) const {
    if (keys == nullptr) return Real(1);
    const auto dropped = static_cast<std::uint64_t>(keys[rows + row]);
    const auto number = static_cast<std::uint64_t>(first_head + head) << 40U | static_cast<std::uint64_t>(looked_at);
    const bool kept = mixed_bits(static_cast<std::uint64_t>(keys[row]) ^ number) >> 11U >= dropped;
    return kept ? static_cast<Real>(1 / (1 - static_cast<double>(dropped) / draws)) : Real(0);
  }
  // Of 2^53; a rate of 1 keeps nothing.
  static constexpr std::int64_t dropped_draws(double rate) { return static_cast<std::int64_t>(rate * draws); }

 private:
  static constexpr double draws = 9007199254740992.0;
};

}  // namespace graft
