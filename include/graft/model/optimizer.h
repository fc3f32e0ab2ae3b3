// SPDX-License-Identifier: Apache-2.0
// AdamW (Loshchilov, Hutter, arXiv:1711.05101) with PyTorch's arithmetic (torch/optim/adamw.py), for step t = 1, 2, ..
//     p <- p (1 - rate decay)       m <- m + (1 - b1)(g - m)       v <- b2 v + (1 - b2) g²
//     p <- p - rate / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// and clipping by the norm of all gradients together (torch/nn/utils/clip_grad.py). Work is cut into pieces of a fixed
// size, so any number of threads gives the same bits; a step allocates nothing.
#pragma once
#include <graft/backend/cpu/threads.h>
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

class adamw {
 public:
  static result<adamw> over(std::vector<trained_parameter> parameters, const adamw_settings& settings = {}) {
    for (const trained_parameter& p : parameters) {
      if (p.value.type != dtype::f32 || p.gradient.type != dtype::f32)
        return fail("parameter ", p.name.c_str(), " is ", name_of(p.value.type), " with gradients in ",
                    name_of(p.gradient.type), ", expected f32: keep what is trained in float");
      bool same = p.value.rank == p.gradient.rank && p.value.contiguous() && p.gradient.contiguous();
      for (int i = 0; same && i < p.value.rank; ++i) same = p.value.size[i] == p.gradient.size[i];
      if (!same)
        return fail("parameter ", p.name.c_str(), ' ', shape_of(p.value), " has a gradient ", shape_of(p.gradient),
                    ", expected the same shape, row-major");
    }
    return adamw(std::move(parameters), settings);
  }

  // The norm of all gradients; larger ones than `largest` are scaled down to it, up to PyTorch's 1e-6.
  double clip(double largest) {
    each_piece([this](const piece& p, std::size_t i) {
      double sum = 0;
      for (const float g : gradients(p)) sum += static_cast<double>(g) * g;
      sums_[i] = sum;
    });
    double sum = 0;
    for (const double s : sums_) sum += s;
    const double norm = std::sqrt(sum), factor = std::min(1.0, largest / (norm + 1e-6));
    // As in PyTorch a factor of 1 is applied too, so that NaN spreads and nothing depends on a branch.
    each_piece([this, factor](const piece& p, std::size_t) {
      for (float& g : gradients(p)) g *= static_cast<float>(factor);
    });
    return norm;
  }

  void step() { step(settings_.rate); }
  void step(double rate) {
    ++steps_;
    const auto t = static_cast<double>(steps_);
    const auto s = settings_;
    const numbers n{static_cast<float>(1 - rate * s.decay),
                    static_cast<float>(1 - s.beta1),
                    static_cast<float>(s.beta2),
                    static_cast<float>(1 - s.beta2),
                    static_cast<float>(std::sqrt(1 - std::pow(s.beta2, t))),
                    static_cast<float>(s.eps),
                    static_cast<float>(-rate / (1 - std::pow(s.beta1, t)))};
    each_piece([this, &n](const piece& p, std::size_t) { update(p, n); });
  }
  void clear_gradients() {
    for (const piece& p : pieces_) std::ranges::fill(gradients(p), 0.0F);
  }

  // What a run that goes on needs: how many steps were made, and m and v of each parameter, in its shape.
  long long steps() const { return steps_; }
  void set_steps(long long steps) { steps_ = steps; }
  const std::vector<trained_parameter>& parameters() const { return parameters_; }
  std::span<float> mean(std::size_t i) { return state(mean_, i); }
  std::span<float> mean_square(std::size_t i) { return state(mean_square_, i); }
  const adamw_settings& settings() const { return settings_; }

 private:
  static constexpr long long piece_size = 1 << 14;
  struct piece {
    std::size_t parameter;
    long long first, count, state;  // of the parameter's elements; where its state begins
  };
  struct numbers {
    float kept, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps, minus_rate;
  };

  adamw(std::vector<trained_parameter> parameters, const adamw_settings& settings)
      : parameters_(std::move(parameters)), settings_(settings) {
    long long all = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      begins_.push_back(all);
      const long long n = parameters_[i].value.count();
      for (long long at = 0; at < n; at += piece_size)
        pieces_.push_back({i, at, std::min(piece_size, n - at), all + at});
      all += n;
    }
    sums_.resize(pieces_.size());
    mean_.resize(static_cast<std::size_t>(all));
    mean_square_.resize(static_cast<std::size_t>(all));
  }

  template <class F> void each_piece(F f) {
    const int threads = std::clamp(static_cast<int>(pieces_.size() / 2), 1, cpu::thread_count());
    cpu::on_threads(threads, [this, threads, f](int thread) {
      const auto n = pieces_.size(), all = static_cast<std::size_t>(threads), t = static_cast<std::size_t>(thread);
      for (std::size_t i = n * t / all; i < n * (t + 1) / all; ++i) f(pieces_[i], i);
    });
  }
  static std::span<float> part(const mutable_view& v, const piece& p) {
    return {static_cast<float*>(v.data) + p.first, static_cast<std::size_t>(p.count)};
  }
  std::span<float> gradients(const piece& p) const { return part(parameters_[p.parameter].gradient, p); }
  std::span<float> state(std::vector<float>& all, std::size_t i) {
    return {all.data() + begins_[i], static_cast<std::size_t>(parameters_[i].value.count())};
  }
  void update(const piece& p, const numbers& n) {
    float* const value = part(parameters_[p.parameter].value, p).data();
    const float* const g = gradients(p).data();
    float *const m = mean_.data() + p.state, *const v = mean_square_.data() + p.state;
    const float kept = parameters_[p.parameter].decays ? n.kept : 1.0F;
    for (long long i = 0; i < p.count; ++i) {
      m[i] = m[i] + n.one_minus_beta1 * (g[i] - m[i]);
      v[i] = v[i] * n.beta2 + n.one_minus_beta2 * g[i] * g[i];
      value[i] = value[i] * kept + n.minus_rate * (m[i] / (std::sqrt(v[i]) / n.root_correction + n.eps));
    }
  }

  std::vector<trained_parameter> parameters_;
  adamw_settings settings_;
  std::vector<piece> pieces_;
  std::vector<long long> begins_;
  std::vector<double> sums_;
  std::vector<float> mean_, mean_square_;
  long long steps_ = 0;
};

}  // namespace graft
