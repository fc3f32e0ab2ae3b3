// SPDX-License-Identifier: Apache-2.0
// What AdaLoRA (Zhang et al. 2023, arXiv 2303.10512) does beside its formula W + s B diag(E) A, with PEFT's arithmetic
// (tuners/adalora): ranks move to where they count, and A and B are kept near to orthogonal.
//   importance   I = |w dw|, its mean Ī and its spread U over time; a triplet (row of A, entry of E, column of B) counts
//                S(E) + mean S(A) + mean S(B), S = Ī U
//   budget       falls from all ranks to the target along a cube; the triplets that count least lose their entry of E
//   term         weight / n Σ |A Aᵀ - I| + |Bᵀ B - I| over all n matrices (Frobenius norm, not squared)
#pragma once
#include <graft/core/result.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace graft {

struct adalora_settings {
  int target_rank = 8;
  long long warm_up = 0, last_steps = 0, every = 1, steps = 0;  // PEFT's tinit, tfinal, deltaT, total_step
  double beta1 = 0.85, beta2 = 0.85, orthogonality = 0.5;
};

// The tensors of one layer: A [rank, in], E [rank], B [out, rank], and their gradients.
struct adalora_layer {
  std::string module;
  std::span<float> A, E, B, dA, dE, dB;

  std::size_t rank() const { return E.size(); }
  std::size_t in() const { return A.size() / rank(); }
  std::size_t out() const { return B.size() / rank(); }
};

class rank_allocator {
 public:
  static result<rank_allocator> over(std::vector<adalora_layer> layers, const adalora_settings& s) {
    if (s.steps <= 0) return fail("AdaLoRA needs the number of all steps, 'total_step', to spread its budget over");
    if (s.warm_up >= s.steps - s.last_steps)
      return fail("AdaLoRA warms up for ", s.warm_up, " steps, expected less than the ", s.steps - s.last_steps,
                  " steps before its budget is final");
    if (s.every < 1) return fail("AdaLoRA allocates every ", s.every, " steps, expected at least 1");
    for (const adalora_layer& l : layers)
      if (l.rank() == 0 || l.A.size() % l.rank() != 0 || l.B.size() % l.rank() != 0 || l.dA.size() != l.A.size() ||
          l.dE.size() != l.E.size() || l.dB.size() != l.B.size())
        return fail(l.module.c_str(), ": lora_A, lora_E and lora_B do not have the shapes of one AdaLoRA layer");
    return rank_allocator(std::move(layers), s);
  }

  // After step 0, 1, .. of the optimizer, before the gradients are cleared.
  void allocate(long long step) {
    const long long final_step = settings_.steps - settings_.last_steps;
    if (step > final_step) return mask();
    if (step < final_step)
      for (std::size_t i = 0; i < layers_.size(); ++i) observe(i);
    const auto [budget, masks] = budget_at(step);
    if (!masks && step < final_step) return;
    prune(budget);
    if (step == final_step) forget();
  }
  // Which triplets of a layer are left, 1 or 0; all of them before the first allocation.
  std::span<const float> kept(std::size_t layer) const { return history_[layer].kept; }
  std::span<const adalora_layer> layers() const { return layers_; }

  // What a run that goes on needs, by name, to be written and read as it is.
  std::vector<std::pair<std::string, std::span<float>>> state() {
    std::vector<std::pair<std::string, std::span<float>>> all;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      history& h = history_[i];
      all.emplace_back(layers_[i].module + ".kept", h.kept);
      for (const auto& [leaf, a] : {std::pair{".lora_A", &h.A}, std::pair{".lora_E", &h.E}, std::pair{".lora_B", &h.B}})
        all.emplace_back(layers_[i].module + leaf + ".importance", a->mean),
            all.emplace_back(layers_[i].module + leaf + ".uncertainty", a->spread);
    }
    return all;
  }
  long long ranks() const {
    long long n = 0;
    for (const history& h : history_) n += std::count(h.kept.begin(), h.kept.end(), 1.0F);
    return n;
  }

  // The term of the loss; its gradient is added to dA and dB.
  double keep_orthogonal() {
    const double share = settings_.orthogonality / static_cast<double>(2 * layers_.size());
    double term = 0;
    for (adalora_layer& l : layers_) {
      const std::size_t r = l.rank();
      term += push_apart(l.A, l.dA, r, l.in(), l.in(), 1, share);
      term += push_apart(l.B, l.dB, r, l.out(), 1, r, share);
    }
    return share * term;
  }

 private:
  struct averages {
    std::vector<float> mean, spread;
  };
  struct history {
    averages A, E, B;
    std::vector<float> kept;
  };
  struct allowance {
    long long ranks;
    bool masks;
  };

  rank_allocator(std::vector<adalora_layer> layers, const adalora_settings& s)
      : layers_(std::move(layers)), settings_(s), history_(layers_.size()) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const adalora_layer& l = layers_[i];
      history_[i].kept.assign(l.rank(), 1.0F), all_ += static_cast<long long>(l.rank());
    }
    forget();
  }
  void forget() {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      for (const auto& [a, n] : {std::pair{&history_[i].A, layers_[i].A.size()},
                                 {&history_[i].E, layers_[i].E.size()},
                                 {&history_[i].B, layers_[i].B.size()}})
        a->mean.assign(n, 0.0F), a->spread.assign(n, 0.0F);
  }
  long long target() const { return settings_.target_rank * static_cast<long long>(layers_.size()); }
  allowance budget_at(long long step) const {
    if (step <= settings_.warm_up) return {all_, false};
    const auto falling = static_cast<double>(settings_.steps - settings_.last_steps - settings_.warm_up);
    const double left = 1 - static_cast<double>(step - settings_.warm_up) / falling;
    const double more = static_cast<double>(all_ - target()) * (left * left * left);
    return {static_cast<long long>(more + static_cast<double>(target())), step % settings_.every == 0};
  }

  void observe(std::size_t i) {
    const adalora_layer& l = layers_[i];
    observe(l.A, l.dA, history_[i].A), observe(l.E, l.dE, history_[i].E), observe(l.B, l.dB, history_[i].B);
  }
  void observe(std::span<const float> w, std::span<const float> dw, averages& a) const {
    const auto b1 = static_cast<float>(settings_.beta1), b2 = static_cast<float>(settings_.beta2);
    const auto c1 = static_cast<float>(1 - settings_.beta1), c2 = static_cast<float>(1 - settings_.beta2);
    for (std::size_t k = 0; k < w.size(); ++k) {
      const float now = std::abs(w[k] * dw[k]);
      a.mean[k] = b1 * a.mean[k] + c1 * now;
      a.spread[k] = b2 * a.spread[k] + c2 * std::abs(now - a.mean[k]);
    }
  }
  // How much each triplet of a layer counts.
  std::vector<float> scores(std::size_t i) const {
    const history& h = history_[i];
    const std::size_t r = layers_[i].rank(), in = layers_[i].in(), out = layers_[i].out();
    std::vector<float> all(r, 0.0F);
    for (std::size_t t = 0; t < r; ++t) {
      float of_a = 0, of_b = 0;
      for (std::size_t k = 0; k < in; ++k) of_a += h.A.mean[t * in + k] * h.A.spread[t * in + k];
      for (std::size_t k = 0; k < out; ++k) of_b += h.B.mean[k * r + t] * h.B.spread[k * r + t];
      all[t] = h.E.mean[t] * h.E.spread[t] + of_a / static_cast<float>(in) + of_b / static_cast<float>(out);
    }
    return all;
  }
  void prune(long long budget) {
    if (budget >= all_) return;  // PEFT asks for the zeroth smallest score here, which is an error
    std::vector<std::vector<float>> of_layer;
    std::vector<float> every;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      of_layer.push_back(scores(i));
      every.insert(every.end(), of_layer.back().begin(), of_layer.back().end());
    }
    const auto nth = every.begin() + static_cast<std::ptrdiff_t>(all_ - budget - 1);
    std::nth_element(every.begin(), nth, every.end());
    for (std::size_t i = 0; i < layers_.size(); ++i)
      for (std::size_t t = 0; t < of_layer[i].size(); ++t) history_[i].kept[t] = of_layer[i][t] > *nth ? 1.0F : 0.0F;
    mask();
  }
  void mask() {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      for (std::size_t t = 0; t < layers_[i].rank(); ++t)
        if (history_[i].kept[t] == 0) layers_[i].E[t] = 0;
  }

  // |V Vᵀ - I| of r vectors of n numbers, V[i][k] = v[i row + k step]: the rows of A, the columns of B. Adds share times its slope, 2 (V Vᵀ - I) V / norm.
  double push_apart(std::span<const float> v, std::span<float> dv, std::size_t r, std::size_t n, std::size_t row,
                    std::size_t step, double share) {
    gram_.assign(r * r, 0.0);
    double square = 0;
    for (std::size_t i = 0; i < r; ++i)
      for (std::size_t j = 0; j < r; ++j) {
        double dot = i == j ? -1.0 : 0.0;
        for (std::size_t k = 0; k < n; ++k) dot += static_cast<double>(v[i * row + k * step]) * v[j * row + k * step];
        gram_[i * r + j] = dot, square += dot * dot;
      }
    const double norm = std::sqrt(square);
    if (norm == 0) return 0;
    for (std::size_t i = 0; i < r; ++i)
      for (std::size_t k = 0; k < n; ++k) {
        double slope = 0;
        for (std::size_t j = 0; j < r; ++j) slope += gram_[i * r + j] * v[j * row + k * step];
        dv[i * row + k * step] += static_cast<float>(share * 2 * slope / norm);
      }
    return norm;
  }

  std::vector<adalora_layer> layers_;
  adalora_settings settings_;
  std::vector<history> history_;
  std::vector<double> gram_;
  long long all_ = 0;
};

}  // namespace graft
