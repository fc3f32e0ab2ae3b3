// SPDX-License-Identifier: Apache-2.0
// k-means clustering of rows (Lloyd's algorithm), as scikit-learn's KMeans with init="random" and n_init=1: numpy's
// RandomState draws the rows that are the first means, and at most ten rounds update them (sklearn/cluster/_kmeans.py).
#pragma once
#include <graft/io/random/torch.h>
#include <graft/io/svd/matrix.h>

#include <algorithm>

namespace graft::io {

// RandomState.choice of `count` distinct rows with equal weights float(1 / n): draws until enough rows are distinct.
inline std::vector<std::size_t> draw_rows(std::size_t n, std::size_t count, std::uint32_t seed) {
  mersenne_twister engine(seed);
  std::vector<double> weight(n, static_cast<double>(1.0F / static_cast<float>(n)));
  std::vector<std::size_t> found;
  while (found.size() < count) {
    std::vector<double> drawn(count - found.size());
    for (double& v : drawn) {
      const double high = engine() >> 5U, low = engine() >> 6U;
      v = (high * 67108864 + low) / 9007199254740992;
    }
    for (const std::size_t taken : found) weight[taken] = 0;
    std::vector<double> below(n);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) below[i] = sum += weight[i];
    for (double& v : below) v /= sum;
    for (const double v : drawn) {
      const auto at = static_cast<std::size_t>(std::upper_bound(below.begin(), below.end(), v) - below.begin());
      if (std::find(found.begin(), found.end(), at) == found.end()) found.push_back(at);
    }
  }
  return found;
}

class kmeans {
 public:
  // Returns the cluster of every row of x.
  static std::vector<std::size_t> of(svd::matrix x, std::size_t groups, std::uint32_t seed) {
    kmeans m(std::move(x), groups);
    return m.run(seed);
  }

 private:
  kmeans(svd::matrix x, std::size_t groups)
      : x_(std::move(x)), means_(x_.cols, groups), next_(x_.cols, groups), size_(groups), group_(x_.rows) {}

  std::vector<std::size_t> run(std::uint32_t seed) {
    double spread = 0;
    for (std::size_t j = 0; j < x_.cols; ++j) {
      double mean = 0, square = 0;
      for (std::size_t i = 0; i < x_.rows; ++i) mean += x_(i, j);
      mean /= static_cast<double>(x_.rows);
      for (std::size_t i = 0; i < x_.rows; ++i) x_(i, j) -= mean, square += x_(i, j) * x_(i, j);
      spread += square / static_cast<double>(x_.rows);
    }
    const double small = 1e-4 * spread / static_cast<double>(x_.cols);
    const std::vector<std::size_t> first = draw_rows(x_.rows, size_.size(), seed);
    for (std::size_t k = 0; k < first.size(); ++k)
      for (std::size_t j = 0; j < x_.cols; ++j) means_(j, k) = x_(first[k], j);
    std::vector<std::size_t> before;
    for (int round = 0; round < 10; ++round) {
      assign();
      const double moved = move();
      std::swap(means_, next_);
      if (group_ == before) return group_;
      if (moved <= small) break;
      before = group_;
    }
    assign();
    return group_;
  }
  double distance(std::size_t row, std::size_t group) const {
    double sum = 0;
    for (std::size_t j = 0; j < x_.cols; ++j) sum += (x_(row, j) - means_(j, group)) * (x_(row, j) - means_(j, group));
    return sum;
  }
  void assign() {
    for (std::size_t i = 0; i < x_.rows; ++i) {
      double least = distance(i, group_[i] = 0);
      for (std::size_t k = 1; k < size_.size(); ++k)
        if (const double d = distance(i, k); d < least) least = d, group_[i] = k;
    }
  }
  // Moves each mean to the mean of its rows; an empty cluster takes one of the rows farthest from their means. Returns
  // the sum of squared shifts.
  double move() {
    std::fill(next_.a.begin(), next_.a.end(), 0.0);
    std::fill(size_.begin(), size_.end(), 0.0);
    const auto shift = [&](std::size_t row, std::size_t group, double times) {
      for (std::size_t j = 0; j < x_.cols; ++j) next_(j, group) += times * x_(row, j);
      size_[group] += times;
    };
    for (std::size_t i = 0; i < x_.rows; ++i) shift(i, group_[i], 1);
    std::vector<std::size_t> far(x_.rows);
    for (std::size_t i = 0; i < far.size(); ++i) far[i] = i;
    if (std::find(size_.begin(), size_.end(), 0.0) != size_.end())
      std::sort(far.begin(), far.end(),
                [&](std::size_t a, std::size_t b) { return distance(a, group_[a]) > distance(b, group_[b]); });
    std::vector<std::size_t> empty;
    for (std::size_t k = 0; k < size_.size(); ++k)
      if (size_[k] == 0) empty.push_back(k);
    for (std::size_t k = 0; k < empty.size(); ++k) shift(far[k], group_[far[k]], -1), shift(far[k], empty[k], 1);
    double moved = 0;
    for (std::size_t k = 0; k < size_.size(); ++k)
      for (std::size_t j = 0; j < x_.cols; ++j) {
        if (size_[k] > 0) next_(j, k) /= size_[k];
        moved += (next_(j, k) - means_(j, k)) * (next_(j, k) - means_(j, k));
      }
    return moved;
  }

  svd::matrix x_, means_, next_;  // the rows of x_ are the points, the columns of means_ the means
  std::vector<double> size_;
  std::vector<std::size_t> group_;
};

}  // namespace graft::io
