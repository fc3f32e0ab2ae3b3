// SPDX-License-Identifier: Apache-2.0
// The rows of one call: tokens of several sequences one behind the other, of any lengths and without padding. Who sees
// whom is in the spans (graph/rules_model.h): a token sees its own sequence up to itself, or the last `window` of it.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>
#include <graft/model/config.h>

#include <cstdint>
#include <span>

namespace graft {

// Part of a sequence: `tokens` that stand at `position` and following. With a cache, `place` is where position 0 of the
// sequence is kept in it.
struct row_run {
  std::span<const std::int64_t> tokens;
  long long position = 0, place = 0;
};

class row_batch {
 public:
  // `windows`: of each layer; `adapters`: the place of each run's, where rows have their own. Memory is kept from call to
  // call.
  void set(std::span<const row_run> runs, std::span<const int> windows, bool cached,
           std::span<const std::int64_t> adapters = {}) {
    rows_ = 0;
    for (const row_run& r : runs) rows_ += static_cast<long long>(r.tokens.size());
    const auto n = static_cast<std::size_t>(rows_);
    last_.resize(runs.size());
    windows_.assign(windows.begin(), windows.end());
    kinds_.clear();
    for (const int w : windows_)
      if (std::find(kinds_.begin(), kinds_.end(), w) == kinds_.end()) kinds_.push_back(w);
    numbers_.resize((3 + kinds_.size() * 3) * n + runs.size()), at_ = numbers_.data();
    std::size_t row = 0;
    for (std::size_t s = 0; s < runs.size(); ++s) {
      const long long start = cached ? runs[s].place : static_cast<long long>(row) - runs[s].position;
      for (std::size_t t = 0; t < runs[s].tokens.size(); ++t, ++row) {
        numbers_[row] = runs[s].tokens[t];
        numbers_[n + row] = runs[s].position + static_cast<long long>(t);
        for (std::size_t k = 0; k < kinds_.size(); ++k) set_span(k, row, start);
        numbers_[(2 + kinds_.size() * 3) * n + runs.size() + row] = adapters.empty() ? -1 : adapters[s];
      }
      last_[s] = static_cast<long long>(row) - 1;
      numbers_[(2 + kinds_.size() * 3) * n + s] = last_[s];
    }
  }

  long long rows() const { return rows_; }
  // Ids, positions, spans, last rows and adapters, one behind the other; and where an engine has put them.
  std::span<const std::int64_t> numbers() const { return numbers_; }
  void lies_at(const std::int64_t* at) { at_ = at; }
  view ids() const { return view_of(at_, rows_); }
  view positions() const { return view_of(at_ + rows_, rows_); }
  view span_of(int layer) const {
    const int window = windows_[static_cast<std::size_t>(layer)];
    const auto k = static_cast<std::size_t>(std::find(kinds_.begin(), kinds_.end(), window) - kinds_.begin());
    return view_of(at_ + (2 + k * 3) * static_cast<std::size_t>(rows_), 3, rows_);
  }
  // The same in host memory.
  std::span<const std::int64_t> span_numbers(int layer) const {
    const auto first = static_cast<std::size_t>(static_cast<const std::int64_t*>(span_of(layer).data) - at_);
    return std::span(numbers_).subspan(first, 3 * static_cast<std::size_t>(rows_));
  }
  // Where each row is kept in the cache; and the row of the last token of each run.
  view places() const { return view_of(at_ + 4 * rows_, rows_); }
  view last_rows() const {
    return view_of(at_ + (2 + 3 * static_cast<long long>(kinds_.size())) * rows_, last_.size());
  }
  const std::int64_t* adapters() const {
    return at_ + (2 + 3 * kinds_.size()) * static_cast<std::size_t>(rows_) + last_.size();
  }
  // The same in host memory.
  std::span<const std::int64_t> adapter_numbers() const {
    return std::span(numbers_).last(static_cast<std::size_t>(rows_));
  }
  std::span<const long long> last() const { return last_; }
  std::span<const int> window_kinds() const { return kinds_; }

 private:
  void set_span(std::size_t kind, std::size_t row, long long start) {
    const auto n = static_cast<std::size_t>(rows_);
    const long long p = numbers_[n + row], back = kinds_[kind] == 0 ? p : kinds_[kind] - 1;
    std::int64_t* const at = numbers_.data() + (2 + kind * 3) * n + row;
    at[0] = start + std::max(0LL, p - back), at[n] = start + p + 1, at[2 * n] = start + p;
  }

  long long rows_ = 0;
  std::vector<std::int64_t> numbers_;
  const std::int64_t* at_ = nullptr;
  std::vector<long long> last_;
  std::vector<int> windows_, kinds_;
};

}  // namespace graft
