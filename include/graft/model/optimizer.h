// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov, Hutter, arXiv:1711.05101) with PyTorch's arithmetic (torch/optim/adamw.py), for step t = 1, 2, …
//     p <- p (1 - rate decay)       m <- m + (1 - b1)(g - m)       v <- b2 v + (1 - b2) g²
//     p <- p - rate / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// and gradient clipping by the global norm (torch/nn/utils/clip_grad.py). An engine's `Updates` does the work in chunks
// of a fixed size, so any number of threads gives the same bits. A step allocates nothing.
#pragma once
#include <graft/backend/cpu/ops/optimizer.h>
#include <graft/core/result.h>
#include <graft/core/view.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace graft {

struct trained_parameter {
  std::string name;
  mutable_view value, gradient;  // float, row-major, of the same shape
  bool decays = true;
};

struct adamw_settings {
  double rate = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 1e-2;
};

// AdamW over parameters whose values and gradients are in the memory that `Updates` works on.
template <class Updates> class basic_adamw {
 public:
  basic_adamw(basic_adamw&&) noexcept =
      default;  // not copyable: the chunks of `Updates` point into mean_ and mean_square_
  basic_adamw& operator=(basic_adamw&&) noexcept = default;
  static result<basic_adamw> make(std::vector<trained_parameter> parameters, const adamw_settings& settings = {},
                                  Updates updates = {}) {
    for (const trained_parameter& p : parameters) {
      if (p.value.type != dtype::f32 || p.gradient.type != dtype::f32)
        return fail("parameter ", p.name.c_str(), " is ", name_of(p.value.type), " with gradients in ",
                    name_of(p.gradient.type), ", expected f32: store trainable parameters in float");
      bool same = p.value.rank == p.gradient.rank && p.value.contiguous() && p.gradient.contiguous();
      for (int i = 0; same && i < p.value.rank; ++i) same = p.value.size[i] == p.gradient.size[i];
      if (!same)
        return fail("parameter ", p.name.c_str(), ' ', shape_of(p.value), " has a gradient ", shape_of(p.gradient),
                    ", expected the same shape, row-major");
    }
    basic_adamw made(std::move(parameters), settings, std::move(updates));
    if (status s = made.bind(); !s) return s.failure();
    return result<basic_adamw>(std::move(made));
  }

  // Scales gradients down to the global norm `largest` (up to PyTorch's 1e-6) and returns the norm they had.
  result<double> clip(double largest) {
    if (status s = clip_to(largest); !s) return s.failure();
    return norm();
  }
  // Does what clip() does without waiting for the norm.
  status clip_to(double largest) { return updates_.clip(largest); }
  result<double> norm() { return updates_.norm(); }

  status step() { return step(settings_.rate); }
  status step(double rate) {
    if (status s = begin_step(rate); !s) return s;
    return make_step();
  }
  // begin_step() and make_step() are the halves of step(): the factors of the step, and its work, which can be
  // captured.
  status make_step() { return updates_.step(); }
  status begin_step(double rate) {
    ++steps_;
    const auto t = static_cast<double>(steps_);
    const auto s = settings_;
    const adamw_step n{static_cast<float>(1 - rate * s.decay),
                       static_cast<float>(1 - s.beta1),
                       static_cast<float>(s.beta2),
                       static_cast<float>(1 - s.beta2),
                       static_cast<float>(std::sqrt(1 - std::pow(s.beta2, t))),
                       static_cast<float>(s.eps),
                       static_cast<float>(-rate / (1 - std::pow(s.beta1, t)))};
    return updates_.set_step(n);
  }
  status clear_gradients() { return updates_.clear_gradients(); }

  // The state of a checkpoint is the number of steps, and m and v of each parameter in its shape, in host memory.
  // fetch() copies them from the engine, send() to it.
  long long steps() const { return steps_; }
  void set_steps(long long steps) { steps_ = steps; }
  const std::vector<trained_parameter>& parameters() const { return parameters_; }
  std::span<float> mean(std::size_t i) { return state(mean_, i); }
  std::span<float> mean_square(std::size_t i) { return state(mean_square_, i); }
  status fetch() {
    if (status s = mean_.fetch(updates_); !s) return s;
    return mean_square_.fetch(updates_);
  }
  status send() {
    if (status s = mean_.send(updates_); !s) return s;
    return mean_square_.send(updates_);
  }
  const adamw_settings& settings() const { return settings_; }

 private:
  basic_adamw(std::vector<trained_parameter> parameters, const adamw_settings& settings, Updates updates)
      : parameters_(std::move(parameters)), settings_(settings), updates_(std::move(updates)) {}

  status bind() {
    long long all = 0;
    for (const trained_parameter& p : parameters_) offsets_.push_back(all), all += p.value.count();
    for (auto* const m : {&mean_, &mean_square_})
      if (status s = m->reserve(updates_, static_cast<std::size_t>(all)); !s) return s;
    std::vector<optimizer_chunk> chunks;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const trained_parameter& p = parameters_[i];
      float *const value = static_cast<float*>(p.value.data), *const gradient = static_cast<float*>(p.gradient.data);
      for (long long at = 0; at < p.value.count(); at += optimizer_chunk_size)
        chunks.push_back({value + at, gradient + at, mean_.data() + offsets_[i] + at,
                          mean_square_.data() + offsets_[i] + at, std::min(optimizer_chunk_size, p.value.count() - at),
                          p.decays});
    }
    return updates_.bind(std::move(chunks));
  }
  std::span<float> state(typename Updates::memory& all, std::size_t i) {
    return all.host().subspan(static_cast<std::size_t>(offsets_[i]),
                              static_cast<std::size_t>(parameters_[i].value.count()));
  }

  std::vector<trained_parameter> parameters_;
  adamw_settings settings_;
  Updates updates_;
  std::vector<long long> offsets_;
  typename Updates::memory mean_, mean_square_;
  long long steps_ = 0;
};
using adamw = basic_adamw<cpu::optimizer_step>;

}  // namespace graft
