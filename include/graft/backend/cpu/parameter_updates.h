// SPDX-License-Identifier: Apache-2.0
// What an optimizer does to all parameters at once, on the CPU: sums of squares, clipping, and AdamW's step
//     p <- p kept       m <- m + (1 - b1)(g - m)       v <- b2 v + (1 - b2) g²       p <- p - rate m / (sqrt(v) / root + eps)
// Work is cut into pieces of a fixed size, so any number of threads gives the same bits; nothing is allocated.
#pragma once
#include <graft/backend/cpu/threads.h>
#include <graft/backend/update_piece.h>
#include <graft/core/result.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace graft::cpu {

class parameter_updates {
 public:
  // Numbers that belong to the parameters, and stay where they are.
  class memory {
   public:
    status reserve(parameter_updates&, std::size_t n) { return values_.resize(n), status(ok); }
    float* data() { return values_.data(); }
    std::span<float> host() { return values_; }
    status fetch(parameter_updates&) { return ok; }
    status send(parameter_updates&) { return ok; }

   private:
    std::vector<float> values_;
  };

  status bind(std::vector<update_piece> pieces) {
    pieces_ = std::move(pieces), sums_.resize(pieces_.size());
    return ok;
  }
  // Gradients with a larger norm than `largest` are scaled down to it, up to PyTorch's 1e-6.
  status clip(double largest) {
    each_piece([this](const update_piece& p, std::size_t i) {
      double sum = 0;
      for (const float g : std::span(p.gradient, static_cast<std::size_t>(p.count))) sum += static_cast<double>(g) * g;
      sums_[i] = sum;
    });
    double sum = 0;
    for (const double s : sums_) sum += s;
    norm_ = std::sqrt(sum);
    const double factor = std::min(1.0, largest / (norm_ + 1e-6));
    // As in PyTorch a factor of 1 is applied too, so that NaN spreads and nothing depends on a branch.
    each_piece([factor](const update_piece& p, std::size_t) {
      for (float& g : std::span(p.gradient, static_cast<std::size_t>(p.count))) g *= static_cast<float>(factor);
    });
    return ok;
  }
  result<double> norm() { return norm_; }  // of the gradients as clip() found them
  // The numbers of the next step, and the step.
  status bring(const adamw_numbers& n) { return numbers_ = n, status(ok); }
  status step() {
    each_piece([n = numbers_](const update_piece& p, std::size_t) {
      for (long long i = 0; i < p.count; ++i) n.update(p, i, [](float v) { return std::sqrt(v); });
    });
    return ok;
  }
  status clear_gradients() {
    for (const update_piece& p : pieces_) std::fill_n(p.gradient, p.count, 0.0F);
    return ok;
  }

 private:
  template <class F> void each_piece(F f) {
    const int threads = std::clamp(static_cast<int>(pieces_.size() / 2), 1, thread_count());
    on_threads(threads, [this, threads, f](int thread) {
      const auto n = pieces_.size(), all = static_cast<std::size_t>(threads), t = static_cast<std::size_t>(thread);
      for (std::size_t i = n * t / all; i < n * (t + 1) / all; ++i) f(pieces_[i], i);
    });
  }

  std::vector<update_piece> pieces_;
  std::vector<double> sums_;
  adamw_numbers numbers_{};
  double norm_ = 0;
};

}  // namespace graft::cpu
