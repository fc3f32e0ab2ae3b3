// SPDX-License-Identifier: Apache-2.0
// The auxiliary load-balancing loss of routers (Switch Transformer, arXiv 2101.03961, equations 4 to 6), as
// load_balancing_loss_func of transformers computes it over the rows of all layers together:
//     factor · E · sum over experts e of (C_e / T) (S_e / T)
// where C_e counts the rows of all layers that chose e, S_e sums the softmax of their scores, and T is the number of
// rows. Only S has a gradient, which is factor · E · C_e / T² for every row, so backward begins when all layers have
// counted. On a GPU the host waits there for the counts, so that such a step cannot be captured.
#pragma once
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/model/device_tensors.h>
#include <graft/model/model_config.h>
#include <graft/run/program.h>

#include <numeric>

namespace graft {

template <class Engine, class Real> class router_loss {
 public:
  using queue = typename Engine::queue;

  router_loss(const model_config& c, std::size_t blocks)
      : experts_(c.experts),
        blocks_(static_cast<long long>(blocks)),
        per_token_(c.experts_per_token),
        factor_(c.router_loss) {}
  bool is_used() const { return factor_ > 0 && experts_ > 0; }

  status begin(queue& q, long long rows) {
    if (!is_used()) return ok;
    if (status s = row_weights_.reserve(q, rows); !s) return s;
    std::fill(row_weights_.host().begin(), row_weights_.host().end(), stored(1));
    for (numbers* zero : {&counts_, &sums_})
      if (status s = zero->reserve(q, blocks_ * experts_); !s) return s;
    return row_weights_.send(q);
  }
  // Requests router statistics (counts, softmax sums) as outputs of a forward call of a block; blocks without a router
  // leave them zero.
  void measure(block_call& c, std::size_t block) {
    if (!is_used()) return;
    give_row_weights(c);
    const long long first = static_cast<long long>(block) * experts_;
    c.router_counts = view_into(counts_.data() + first, 1, experts_);
    c.router_sums = view_into(sums_.data() + first, 1, experts_);
  }
  // Computes the gradient of the sums after all forward calls; `weight` is that of the call's loss.
  status differentiate(queue& q, double weight) {
    if (!is_used()) return ok;
    if (status s = counts_.fetch(q); !s) return s;
    if (status s = gradient_.reserve(q, experts_); !s) return s;
    const double rows = all_rows();
    for (long long e = 0; e < experts_; ++e)
      gradient_.host()[static_cast<std::size_t>(e)] =
          stored(rows > 0 ? weight * scale() * total(counts_, e) / (rows * rows) : 0);
    return gradient_.send(q);
  }
  void give_gradient(block_call& c) {
    if (!is_used()) return;
    give_row_weights(c);
    c[call_input::router_gradient] = view_of(gradient_.data(), 1, experts_);
  }
  result<double> loss(queue& q) {
    if (!is_used()) return 0.0;
    for (numbers* of : {&counts_, &sums_})
      if (status s = of->fetch(q); !s) return s.failure();
    const double rows = all_rows();
    double sum = 0;
    for (long long e = 0; e < experts_; ++e) sum += total(counts_, e) * total(sums_, e);
    return rows > 0 ? scale() * sum / (rows * rows) : 0;
  }

 private:
  using numbers = mirrored_numbers<Engine, Real>;
  // GEMMs read row weights and gradients, so these are in the storage type.
  using stored_number = std::conditional_t<Engine::storage_type == dtype::bf16, bf16,
                                           std::conditional_t<Engine::storage_type == dtype::f16, f16, Real>>;
  static stored_number stored(double v) {
    if constexpr (Engine::storage_type == dtype::bf16)
      return narrow(static_cast<float>(v));
    else if constexpr (Engine::storage_type == dtype::f16)
      return narrow_to_f16(static_cast<float>(v));
    else
      return static_cast<Real>(v);
  }

  double scale() const { return factor_ * static_cast<double>(experts_); }
  void give_row_weights(block_call& c) {
    c[call_input::row_weights] = view_of(row_weights_.data(), static_cast<long long>(row_weights_.host().size()), 1);
  }
  // Rows of all layers with a router, each of which chose per_token_ experts.
  double all_rows() {
    const auto of = counts_.host();
    return std::accumulate(of.begin(), of.end(), 0.0) / per_token_;
  }
  double total(numbers& of_blocks, long long e) {
    double sum = 0;
    for (; e < blocks_ * experts_; e += experts_)
      sum += static_cast<double>(of_blocks.host()[static_cast<std::size_t>(e)]);
    return sum;
  }

  long long experts_, blocks_;
  double per_token_, factor_;
  numbers counts_, sums_;
  mirrored_numbers<Engine, stored_number> row_weights_, gradient_;
};

}  // namespace graft
