// SPDX-License-Identifier: Apache-2.0
// Divides the slots of a KV cache into segments, each the contiguous slots of one sequence. Attention kernels read one
// range of slots per row, so that a sequence needs neighboring ones; its segment is as long as prompt and answer may
// become, and the best fit is taken. Pages would save the part of an answer that is not written, and cost every kernel
// a table of addresses.
#pragma once
#include <algorithm>
#include <map>
#include <optional>

namespace graft::serving {

class kv_segments {
 public:
  explicit kv_segments(long long slots) : slots_(slots), free_slots_(slots) {
    if (slots > 0) free_[0] = slots;
  }
  // Returns the first slot of a new segment.
  std::optional<long long> take(long long slots) {
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at)
      if (at->second >= slots && (best == free_.end() || at->second < best->second)) best = at;
    if (best == free_.end()) return std::nullopt;
    const auto [first, length] = *best;
    free_.erase(best);
    if (length > slots) free_[first + slots] = length - slots;
    free_slots_ -= slots;
    return first;
  }
  // Gives back slots of a segment, which may be a part of it.
  void release(long long first, long long slots) {
    if (slots <= 0) return;
    free_slots_ += slots;
    auto after = free_.lower_bound(first);
    if (after != free_.end() && after->first == first + slots) {
      slots += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin())
      if (const auto before = std::prev(after); before->first + before->second == first) {
        before->second += slots;
        return;
      }
    free_[first] = slots;
  }
  long long slots() const { return slots_; }
  long long free_slots() const { return free_slots_; }

 private:
  std::map<long long, long long> free_;  // length of each free segment, by its first slot
  long long slots_, free_slots_;
};

}  // namespace graft::serving
