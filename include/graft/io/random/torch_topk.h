// SPDX-License-Identifier: Apache-2.0
// torch.topk on the CPU: the indices of the k largest or smallest values in sorted order. The order of equal values
// depends on the algorithm, so the standard algorithms that PyTorch calls are called here too (ATen/native/TopKImpl.h).
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace graft::io {

inline std::vector<std::int64_t> topk_indices(const std::vector<float>& values, std::size_t k, bool largest) {
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
  std::vector<std::int64_t> indices;
  for (std::size_t i = 0; i < k; ++i) indices.push_back(all[i].at);
  return indices;
}

}  // namespace graft::io
