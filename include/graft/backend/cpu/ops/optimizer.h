// SPDX-License-Identifier: Apache-2.0
// AdamW and gradient clipping on all parameters at once, on the CPU, with parameter p, gradient g and moments m and v,
//     p <- decay p    m <- m + (1 - b1)(g - m)    v <- b2 v + (1 - b2) g²    p <- p - rate m / (sqrt(v) / root + eps)
// Work is cut into chunks of a fixed size, so any number of threads gives the same bits; a step allocates nothing.
#pragma once
#include <graft/backend/cpu/runtime/threads.h>
#include <graft/backend/optimizer_chunk.h>
#include <graft/core/result.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace graft::cpu {

class optimizer_step {
 public:
  // Optimizer state or gradients, whose address does not change.
  class memory {
   public:
    status reserve(optimizer_step&, std::size_t n) { return values_.resize(n), status(ok); }
    float* data() { return values_.data(); }
    std::span<float> host() { return values_; }
    status fetch(optimizer_step&) { return ok; }
    status send(optimizer_step&) { return ok; }

   private:
    std::vector<float> values_;
  };

  status bind(std::vector<optimizer_chunk> chunks) {
    chunks_ = std::move(chunks), sums_.resize(chunks_.size());
    return ok;
  }
  // Scales gradients whose norm is larger than `largest` down to it, with PyTorch's 1e-6 in the denominator.
  status clip(double largest) {
    for_each_chunk([this](const optimizer_chunk& p, std::size_t i) {
      double sum = 0;
      for (const float g : std::span(p.gradient, static_cast<std::size_t>(p.count))) sum += static_cast<double>(g) * g;
      sums_[i] = sum;
    });
    double sum = 0;
    for (const double s : sums_) sum += s;
    norm_ = std::sqrt(sum);
    const double factor = std::min(1.0, largest / (norm_ + 1e-6));
    // As in PyTorch a factor of 1 is applied too, so that NaN spreads and nothing depends on a branch.
    for_each_chunk([factor](const optimizer_chunk& p, std::size_t) {
      for (float& g : std::span(p.gradient, static_cast<std::size_t>(p.count))) g *= static_cast<float>(factor);
    });
    return ok;
  }
  result<double> norm() { return norm_; }  // of the gradients before clip() scaled them
  // Sets the numbers of the next step.
  status set_step(const adamw_step& n) { return numbers_ = n, status(ok); }
  status step() {
    for_each_chunk([n = numbers_](const optimizer_chunk& p, std::size_t) {
      for (long long i = 0; i < p.count; ++i) n.update(p, i, [](float v) { return std::sqrt(v); });
    });
    return ok;
  }
  status clear_gradients() {
    for (const optimizer_chunk& p : chunks_) std::fill_n(p.gradient, p.count, 0.0F);
    return ok;
  }

 private:
  template <class F> void for_each_chunk(F f) {
    const int threads = std::clamp(static_cast<int>(chunks_.size() / 2), 1, thread_count());
    run_on_threads(threads, [this, threads, f](int thread) {
      const auto n = chunks_.size(), all = static_cast<std::size_t>(threads), t = static_cast<std::size_t>(thread);
      for (std::size_t i = n * t / all; i < n * (t + 1) / all; ++i) f(chunks_[i], i);
    });
  }

  std::vector<optimizer_chunk> chunks_;
  std::vector<double> sums_;
  adamw_step numbers_{};
  double norm_ = 0;
};

}  // namespace graft::cpu
