// SPDX-License-Identifier: Apache-2.0
// AdaLoRA's rank allocation and orthogonal regularization (Zhang et al. 2023, arXiv 2303.10512), with PEFT's arithmetic
// (tuners/adalora). The formula of its layers, W + s B diag(E) A, is in adapter/adalora.h.
//   importance   I = |w dw|, its moving average Ī and deviation U; a triplet (row of A, entry of E, column of B)
//                scores S(E) + mean S(A) + mean S(B), S = Ī U
//   budget       falls from all ranks to the target along a cubic schedule; the lowest scoring triplets get E = 0
//   term         weight / n Σ |A Aᵀ - I| + |Bᵀ B - I| over all n matrices (Frobenius norm, not squared)
#pragma once
#include <graft/core/result.h>
#include <graft/model/optimizer.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace graft {

struct adalora_settings {
  int target_rank = 8;
  long long warmup_steps = 0, final_steps = 0, every = 1, steps = 0;  // PEFT's tinit, tfinal, deltaT, total_step
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
  static result<rank_allocator> make(std::vector<adalora_layer> layers, const adalora_settings& s) {
    if (s.steps <= 0) return fail("AdaLoRA needs the number of all steps, 'total_step', to spread its budget over");
    if (s.warmup_steps >= s.steps - s.final_steps)
      return fail("AdaLoRA warms up for ", s.warmup_steps, " steps, expected less than the ", s.steps - s.final_steps,
                  " steps before its budget is final");
    if (s.every < 1) return fail("AdaLoRA allocates every ", s.every, " steps, expected at least 1");
    for (const adalora_layer& l : layers)
      if (l.rank() == 0 || l.A.size() % l.rank() != 0 || l.B.size() % l.rank() != 0 || l.dA.size() != l.A.size() ||
          l.dE.size() != l.E.size() || l.dB.size() != l.B.size())
        return fail(l.module.c_str(), ": lora_A, lora_E and lora_B do not have the shapes of one AdaLoRA layer");
    return rank_allocator(std::move(layers), s);
  }

  // Called after step 0, 1, … of the optimizer, before the gradients are cleared.
  void allocate(long long step) {
    const long long final_step = settings_.steps - settings_.final_steps;
    if (step > final_step) return mask();
    if (step < final_step)
      for (std::size_t i = 0; i < layers_.size(); ++i) update_importance(i);
    const auto [budget, masks] = budget_at(step);
    if (!masks && step < final_step) return;
    prune(budget);
    if (step == final_step) forget();
  }
  // Returns 1 for the triplets of a layer that are left and 0 for pruned ones; all are 1 before the first allocation.
  std::span<const float> rank_mask(std::size_t layer) const { return history_[layer].rank_mask; }
  std::span<const adalora_layer> layers() const { return layers_; }

  // Returns the state of a checkpoint by name; it is saved from and loaded into these spans.
  std::vector<std::pair<std::string, std::span<float>>> state() {
    std::vector<std::pair<std::string, std::span<float>>> all;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      importance_history& h = history_[i];
      all.emplace_back(layers_[i].module + ".kept", h.rank_mask);
      for (const auto& [leaf, a] : {std::pair{".lora_A", &h.A}, std::pair{".lora_E", &h.E}, std::pair{".lora_B", &h.B}})
        all.emplace_back(layers_[i].module + leaf + ".importance", a->importance),
            all.emplace_back(layers_[i].module + leaf + ".uncertainty", a->uncertainty);
    }
    return all;
  }
  long long ranks() const {
    long long n = 0;
    for (const importance_history& h : history_) n += std::count(h.rank_mask.begin(), h.rank_mask.end(), 1.0F);
    return n;
  }

  // Returns the regularization term of the loss and adds its gradient to dA and dB.
  double orthogonal_regularization() {
    const double share = settings_.orthogonality / static_cast<double>(2 * layers_.size());
    double term = 0;
    for (adalora_layer& l : layers_) {
      const std::size_t r = l.rank();
      term += add_orthogonal_gradient(l.A, l.dA, r, l.in(), l.in(), 1, share);
      term += add_orthogonal_gradient(l.B, l.dB, r, l.out(), 1, r, share);
    }
    return share * term;
  }

 private:
  struct averages {
    std::vector<float> importance, uncertainty;
  };
  struct importance_history {
    averages A, E, B;
    std::vector<float> rank_mask;
  };
  struct rank_budget {
    long long ranks;
    bool masks;
  };

  rank_allocator(std::vector<adalora_layer> layers, const adalora_settings& s)
      : layers_(std::move(layers)), settings_(s), history_(layers_.size()) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const adalora_layer& l = layers_[i];
      history_[i].rank_mask.assign(l.rank(), 1.0F), all_ += static_cast<long long>(l.rank());
    }
    forget();
  }
  void forget() {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      for (const auto& [a, n] : {std::pair{&history_[i].A, layers_[i].A.size()},
                                 {&history_[i].E, layers_[i].E.size()},
                                 {&history_[i].B, layers_[i].B.size()}})
        a->importance.assign(n, 0.0F), a->uncertainty.assign(n, 0.0F);
  }
  long long target() const { return settings_.target_rank * static_cast<long long>(layers_.size()); }
  rank_budget budget_at(long long step) const {
    if (step <= settings_.warmup_steps) return {all_, false};
    const auto decay_steps = static_cast<double>(settings_.steps - settings_.final_steps - settings_.warmup_steps);
    const double left = 1 - static_cast<double>(step - settings_.warmup_steps) / decay_steps;
    const double more = static_cast<double>(all_ - target()) * (left * left * left);
    return {static_cast<long long>(more + static_cast<double>(target())), step % settings_.every == 0};
  }

  void update_importance(std::size_t i) {
    const adalora_layer& l = layers_[i];
    update_importance(l.A, l.dA, history_[i].A), update_importance(l.E, l.dE, history_[i].E),
        update_importance(l.B, l.dB, history_[i].B);
  }
  void update_importance(std::span<const float> w, std::span<const float> dw, averages& a) const {
    const auto b1 = static_cast<float>(settings_.beta1), b2 = static_cast<float>(settings_.beta2);
    const auto c1 = static_cast<float>(1 - settings_.beta1), c2 = static_cast<float>(1 - settings_.beta2);
    for (std::size_t k = 0; k < w.size(); ++k) {
      const float now = std::abs(w[k] * dw[k]);
      a.importance[k] = b1 * a.importance[k] + c1 * now;
      a.uncertainty[k] = b2 * a.uncertainty[k] + c2 * std::abs(now - a.importance[k]);
    }
  }
  // Returns the score of each triplet of a layer.
  std::vector<float> scores(std::size_t i) const {
    const importance_history& h = history_[i];
    const std::size_t r = layers_[i].rank(), in = layers_[i].in(), out = layers_[i].out();
    std::vector<float> all(r, 0.0F);
    for (std::size_t t = 0; t < r; ++t) {
      float of_a = 0, of_b = 0;
      for (std::size_t k = 0; k < in; ++k) of_a += h.A.importance[t * in + k] * h.A.uncertainty[t * in + k];
      for (std::size_t k = 0; k < out; ++k) of_b += h.B.importance[k * r + t] * h.B.uncertainty[k * r + t];
      all[t] = h.E.importance[t] * h.E.uncertainty[t] + of_a / static_cast<float>(in) + of_b / static_cast<float>(out);
    }
    return all;
  }
  void prune(long long budget) {
    if (budget >= all_) return;  // nothing to prune; PEFT would fail in kthvalue(0)
    std::vector<std::vector<float>> of_layer;
    std::vector<float> every;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      of_layer.push_back(scores(i));
      every.insert(every.end(), of_layer.back().begin(), of_layer.back().end());
    }
    const auto nth = every.begin() + static_cast<std::ptrdiff_t>(all_ - budget - 1);
    std::nth_element(every.begin(), nth, every.end());
    for (std::size_t i = 0; i < layers_.size(); ++i)
      for (std::size_t t = 0; t < of_layer[i].size(); ++t)
        history_[i].rank_mask[t] = of_layer[i][t] > *nth ? 1.0F : 0.0F;
    mask();
  }
  void mask() {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      for (std::size_t t = 0; t < layers_[i].rank(); ++t)
        if (history_[i].rank_mask[t] == 0) layers_[i].E[t] = 0;
  }

  // Returns |V Vᵀ - I| of r vectors of length n, V[i][k] = v[i row + k step] (rows of A, columns of B), and adds
  // `share` times its gradient, 2 (V Vᵀ - I) V / norm, to dv.
  double add_orthogonal_gradient(std::span<const float> v, std::span<float> dv, std::size_t r, std::size_t n,
                                 std::size_t row, std::size_t step, double share) {
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
  std::vector<importance_history> history_;
  std::vector<double> gram_;
  long long all_ = 0;
};

// Finds the AdaLoRA layers among trained parameters: the lora_A, lora_E and lora_B of one module.
inline std::vector<adalora_layer> adalora_layers(const std::vector<trained_parameter>& all) {
  const auto numbers = [](const mutable_view& v) {
    return std::span<float>(static_cast<float*>(v.data), static_cast<std::size_t>(v.count()));
  };
  const auto find = [&](const std::string& name) -> const trained_parameter* {
    for (const trained_parameter& p : all)
      if (p.name == name) return &p;
    return nullptr;
  };
  std::vector<adalora_layer> out;
  const std::string_view last = ".lora_E";
  for (const trained_parameter& e : all) {
    if (!e.name.ends_with(last)) continue;
    const std::string module = e.name.substr(0, e.name.size() - last.size());
    const trained_parameter *const a = find(module + ".lora_A"), *const b = find(module + ".lora_B");
    if (a == nullptr || b == nullptr) continue;
    out.push_back({module, numbers(a->value), numbers(e.value), numbers(b->value), numbers(a->gradient),
                   numbers(e.gradient), numbers(b->gradient)});
  }
  return out;
}

}  // namespace graft
