// SPDX-License-Identifier: Apache-2.0
// The forms of a combination that end in svd: the updates ΔW_i of a module with their weights, and the nearest matrix of a
// rank to what they give, as factors. Where all are LoRA's and only added, their factors are enough.
#pragma once
#include <graft/io/hf/weighted_adapters.h>
#include <graft/io/svd/factors.h>
#include <graft/io/torch_random.h>
#include <graft/model/update.h>

#include <functional>

namespace graft::io::hf::detail {

// W' − W of a method that does not state it, on the weight of a layer (model/update.h).
using folded_update = std::function<result<std::vector<float>>(const module_adapter&, const view& weight)>;

class combined_updates {
 public:
  // `twice`: the scaling counts twice, as PEFT before 0.21 has it.
  combined_updates(const folded_update& fold, const combination_settings& how, long long rank, bool twice,
                   mersenne_twister& random)
      : fold_(fold), how_(how), rank_(rank), twice_(twice), random_(random) {}

  status factor(const base_layer& b, const std::vector<weighted_module>& share, long long rows, long long cols,
                std::vector<float>& A, std::vector<float>& B) {
    long long together = 0;
    bool plain = true;
    for (const weighted_module& m : share) plain = plain && m.plain_lora();
    for (const weighted_module& m : share) together += plain ? m.rank() : 0;
    svd::rank_factors f;
    if (how_.type == combination::svd && plain && together <= std::min(rows, cols)) {
      svd::matrix p(static_cast<std::size_t>(rows), static_cast<std::size_t>(together)),
          q(static_cast<std::size_t>(together), static_cast<std::size_t>(cols));
      std::size_t from = 0;
      for (const weighted_module& m : share) {
        const double times = m.weight * m.scale() * (twice_ ? m.scale() : 1);
        const auto r = static_cast<std::size_t>(m.rank());
        for (std::size_t k = 0; k < r; ++k) {
          for (std::size_t i = 0; i < p.rows; ++i)
            p(i, from + k) = times * static_cast<double>((*m.factor(false).data)[i * r + k]);
          for (std::size_t j = 0; j < q.cols; ++j)
            q(from + k, j) = static_cast<double>((*m.factor(true).data)[k * q.cols + j]);
        }
        from += r;
      }
      f = svd::nearest_factors(p, q, static_cast<std::size_t>(rank_));
    } else {
      std::vector<std::vector<float>> updates;
      std::vector<double> weights;
      for (const weighted_module& m : share) {
        result<std::vector<float>> u = update(b, m, rows, cols);
        if (!u) return u.failure();
        updates.push_back(std::move(*u));
        weights.push_back(m.weight * (twice_ && m.plain_lora() ? m.scale() : 1));
      }
      const std::vector<float> sum = combined(std::move(updates), weights, how_, [&] { return unit_float(random_); });
      svd::matrix dense(static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
      for (std::size_t i = 0; i < dense.rows; ++i)
        for (std::size_t j = 0; j < dense.cols; ++j) dense(i, j) = static_cast<double>(sum[i * dense.cols + j]);
      f = svd::nearest_factors(dense, static_cast<std::size_t>(rank_));
    }
    std::copy(f.A.begin(), f.A.end(), A.begin()), std::copy(f.B.begin(), f.B.end(), B.begin());
    return ok;
  }

 private:
  // ΔW [rows, cols]; of an embedding turned, as its factors are.
  result<std::vector<float>> update(const base_layer& b, const weighted_module& m, long long rows, long long cols) {
    std::vector<float> out(static_cast<std::size_t>(rows * cols));
    const auto height = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(cols);
    if (m.plain_lora()) {
      const auto r = static_cast<std::size_t>(m.rank());
      const std::vector<float>&A = *m.factor(true).data, &B = *m.factor(false).data;
      for (std::size_t i = 0; i < height; ++i)
        for (std::size_t j = 0; j < width; ++j) {
          float sum = 0;
          for (std::size_t k = 0; k < r; ++k) sum += B[i * r + k] * A[k * width + j];
          out[i * width + j] = sum * static_cast<float>(m.scale());
        }
      return out;
    }
    result<std::vector<float>> folded = fold_(*m.is, b.weight);
    if (!folded || b.kind != "embedding") return folded;
    for (std::size_t i = 0; i < height; ++i)
      for (std::size_t j = 0; j < width; ++j) out[i * width + j] = (*folded)[j * height + i];
    return out;
  }

  const folded_update& fold_;
  const combination_settings& how_;
  long long rank_;
  bool twice_;
  mersenne_twister& random_;
};

}  // namespace graft::io::hf::detail
