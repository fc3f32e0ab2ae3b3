// SPDX-License-Identifier: Apache-2.0
// The rows of one call: tokens of several sequences of any lengths, concatenated without padding (ragged batch). A
// token attends to its own sequence up to itself, or to the last `window` tokens of it; attention ranges state this as
// numbers (graph/rules_model.h). All numbers are one int64 array, for n rows, c chunks and w different windows:
//     ids [n]   positions [n]   w attention ranges [3, n]: first key, end of keys, slot to write   last rows [c]
//     adapters [n]
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>
#include <graft/model/model_config.h>

#include <cstdint>
#include <span>

namespace graft {

// A part of a sequence: `tokens` are its tokens from `position` on. With a KV cache, position 0 of the sequence is in
// `slot`.
struct sequence_chunk {
  std::span<const std::int64_t> tokens;
  long long position = 0, slot = 0;
};

class row_batch {
 public:
  // Sets the rows. `windows`: the sliding window of each layer; `adapters`: the adapter slot of each chunk in a
  // multi-LoRA batch. Memory is reused from call to call.
  void set(std::span<const sequence_chunk> chunks, std::span<const int> windows, bool cached,
           std::span<const std::int64_t> adapters = {}) {
    rows_ = 0;
    for (const sequence_chunk& r : chunks) rows_ += static_cast<long long>(r.tokens.size());
    const auto n = static_cast<std::size_t>(rows_);
    last_.resize(chunks.size());
    windows_.assign(windows.begin(), windows.end());
    window_kinds_.clear();
    for (const int w : windows_)
      if (std::find(window_kinds_.begin(), window_kinds_.end(), w) == window_kinds_.end()) window_kinds_.push_back(w);
    numbers_.resize((3 + window_kinds_.size() * 3) * n + chunks.size()), at_ = numbers_.data();
    std::size_t row = 0;
    for (std::size_t s = 0; s < chunks.size(); ++s) {
      const long long start = cached ? chunks[s].slot : static_cast<long long>(row) - chunks[s].position;
      for (std::size_t t = 0; t < chunks[s].tokens.size(); ++t, ++row) {
        numbers_[row] = chunks[s].tokens[t];
        numbers_[n + row] = chunks[s].position + static_cast<long long>(t);
        for (std::size_t k = 0; k < window_kinds_.size(); ++k) set_attention_range(k, row, start);
        numbers_[(2 + window_kinds_.size() * 3) * n + chunks.size() + row] = adapters.empty() ? -1 : adapters[s];
      }
      last_[s] = static_cast<long long>(row) - 1;
      numbers_[(2 + window_kinds_.size() * 3) * n + s] = last_[s];
    }
  }

  long long rows() const { return rows_; }
  // Returns the array in host memory. set_address() says where an engine reads it; the views below are of that memory.
  std::span<const std::int64_t> numbers() const { return numbers_; }
  void set_address(const std::int64_t* at) { at_ = at; }
  view ids() const { return view_of(at_, rows_); }
  view positions() const { return view_of(at_ + rows_, rows_); }
  view attention_range_of(int layer) const {
    const int window = windows_[static_cast<std::size_t>(layer)];
    const auto k =
        static_cast<std::size_t>(std::find(window_kinds_.begin(), window_kinds_.end(), window) - window_kinds_.begin());
    return view_of(at_ + (2 + k * 3) * static_cast<std::size_t>(rows_), 3, rows_);
  }
  // Returns the attention range of a layer in host memory.
  std::span<const std::int64_t> host_attention_range(int layer) const {
    const auto first = static_cast<std::size_t>(static_cast<const std::int64_t*>(attention_range_of(layer).data) - at_);
    return std::span(numbers_).subspan(first, 3 * static_cast<std::size_t>(rows_));
  }
  // Returns the KV cache slot of each row.
  view slots() const { return view_of(at_ + 4 * rows_, rows_); }
  // Returns the row of the last token of each chunk.
  view last_rows() const {
    return view_of(at_ + (2 + 3 * static_cast<long long>(window_kinds_.size())) * rows_, last_.size());
  }
  // Returns the adapter slot of each row, -1 for the base.
  const std::int64_t* adapters() const {
    return at_ + (2 + 3 * window_kinds_.size()) * static_cast<std::size_t>(rows_) + last_.size();
  }
  // Returns the adapter slot of each row in host memory.
  std::span<const std::int64_t> host_adapters() const {
    return std::span(numbers_).last(static_cast<std::size_t>(rows_));
  }
  std::span<const long long> last() const { return last_; }
  std::span<const int> distinct_windows() const { return window_kinds_; }

 private:
  void set_attention_range(std::size_t kind, std::size_t row, long long start) {
    const auto n = static_cast<std::size_t>(rows_);
    const long long p = numbers_[n + row], back = window_kinds_[kind] == 0 ? p : window_kinds_[kind] - 1;
    std::int64_t* const at = numbers_.data() + (2 + kind * 3) * n + row;
    at[0] = start + std::max(0LL, p - back), at[n] = start + p + 1, at[2 * n] = start + p;
  }

  long long rows_ = 0;
  std::vector<std::int64_t> numbers_;
  const std::int64_t* at_ = nullptr;
  std::vector<long long> last_;
  std::vector<int> windows_, window_kinds_;
};

}  // namespace graft
