// SPDX-License-Identifier: Apache-2.0
// The auxiliary load-balancing loss of routers (Switch Transformer, arXiv 2101.03961, equations 4 to 6), as
// load_balancing_loss_func of transformers computes it over the rows of all layers together:
//     factor · E · sum over experts e of (C_e / T) (S_e / T)
// where C_e counts the rows of all layers that chose e, S_e sums the softmax of their scores, and T is the number of
// rows. Only S has a gradient, which is factor · E · C_e / T² for every row, so backward begins when all layers have
// counted. On engines without host memory models with experts do not exist yet.
#pragma once
#include <graft/model/model_config.h>
#include <graft/run/program.h>

#include <numeric>
#include <vector>

namespace graft {

template <class Real> class router_loss {
 public:
  router_loss(const model_config& c, std::size_t blocks)
      : experts_(static_cast<std::size_t>(c.experts)), per_token_(c.experts_per_token), factor_(c.router_loss) {
    if (is_used()) counts_.resize(blocks * experts_), sums_.resize(blocks * experts_), gradient_.resize(experts_);
  }
  bool is_used() const { return factor_ > 0 && experts_ > 0; }

  void begin(long long rows) {
    if (!is_used()) return;
    row_weights_.assign(static_cast<std::size_t>(rows), Real(1));
    std::fill(counts_.begin(), counts_.end(), Real(0)), std::fill(sums_.begin(), sums_.end(), Real(0));
  }
  // Asks a forward call of a block for its counts and sums; blocks without a router leave them zero.
  void measure(block_call& c, std::size_t block) {
    if (!is_used()) return;
    const auto n = static_cast<long long>(experts_);
    give_row_weights(c);
    c.router_counts = view_into(counts_.data() + block * experts_, 1, n);
    c.router_sums = view_into(sums_.data() + block * experts_, 1, n);
  }
  // Computes the gradient of the sums after all forward calls; `weight` is that of the call's loss.
  void differentiate(double weight) {
    if (!is_used()) return;
    const double rows = all_rows();
    for (std::size_t e = 0; e < experts_; ++e)
      gradient_[e] = rows > 0 ? static_cast<Real>(weight * scale() * total(counts_, e) / (rows * rows)) : Real(0);
  }
  void give_gradient(block_call& c) {
    if (!is_used()) return;
    give_row_weights(c);
    c[call_input::router_gradient] = view_of(gradient_.data(), 1, static_cast<long long>(experts_));
  }
  double loss() const {
    const double rows = all_rows();
    double sum = 0;
    for (std::size_t e = 0; e < experts_ && is_used(); ++e) sum += total(counts_, e) * total(sums_, e);
    return rows > 0 ? scale() * sum / (rows * rows) : 0;
  }

 private:
  double scale() const { return factor_ * static_cast<double>(experts_); }
  void give_row_weights(block_call& c) {
    c[call_input::row_weights] = view_of(row_weights_.data(), static_cast<long long>(row_weights_.size()), 1);
  }
  // Rows of all layers with a router, each of which chose per_token_ experts.
  double all_rows() const { return std::accumulate(counts_.begin(), counts_.end(), 0.0) / per_token_; }
  double total(const std::vector<Real>& of_blocks, std::size_t e) const {
    double sum = 0;
    for (; e < of_blocks.size(); e += experts_) sum += static_cast<double>(of_blocks[e]);
    return sum;
  }

  std::size_t experts_;
  double per_token_, factor_;
  std::vector<Real> row_weights_, counts_, sums_, gradient_;
};

}  // namespace graft
