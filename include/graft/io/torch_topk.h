// SPDX-License-Identifier: Apache-2.0
// torch.topk of a list on the CPU: the places of the largest or smallest numbers, in order. Where numbers are equal their
// order is that of the algorithms that PyTorch calls, which are called here too (ATen/native/TopKImpl.h).
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace graft::io {

inline std::vector<std::int64_t> topk_places(const std::vector<float>& values, std::size_t k, bool largest) {
  struct entry {
    float value;
    std::int64_t at;
  };
  std::vector<entry> all(values.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {values[i], static_cast<std::int64_t>(i)};
  const auto sort = [&](auto before) {
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(k);
    if (k * 64 <= all.size()) return std::partial_sort(all.begin(), end, all.end(), before);
    std::nth_element(all.begin(), end - 1, all.end(), before);
    std::sort(all.begin(), end - 1, before);
  };
  if (largest)
    sort([](const entry& a, const entry& b) { return a.value > b.value; });
  else
    sort([](const entry& a, const entry& b) { return a.value < b.value; });
  std::vector<std::int64_t> places;
  for (std::size_t i = 0; i < k; ++i) places.push_back(all[i].at);
  return places;
}

}  // namespace graft::io
