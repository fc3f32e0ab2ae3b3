// SPDX-License-Identifier: Apache-2.0
// What the CPU's engine has for whole models: the steps of an optimizer, sums of gradients, rows with adapters of their own. A
// program with layers alone does not read it.
#pragma once
#include <graft/backend/cpu/engine_plan.h>
#include <graft/backend/cpu/mixed_bank.h>
#include <graft/backend/cpu/parameter_updates.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace graft::cpu {

template <class Real> typename engine<Real>::updates engine<Real>::updates_on(queue&) { return {}; }
template <class Real> class engine<Real>::gradient_sums {
 public:
  status bind(queue&, std::vector<gradient_sum> all) { return all_ = std::move(all), status(ok); }
  status add(queue&) {
    for (const gradient_sum& s : all_)
      for (long long i = 0; i < s.count; ++i) s.to[i] += static_cast<float>(static_cast<const Real*>(s.from)[i]);
    return ok;
  }

 private:
  std::vector<gradient_sum> all_;
};
// Rows of a call may have adapters of their own, in the calls of the base.
template <class Real> class engine<Real>::bank {
 public:
  using block = typename mixed_bank<Real>::block;
  status begin(queue&, std::vector<block> base, int places, long long) { return bank_.begin(std::move(base), places); }
  status put(int k, std::span<const block> with) { return bank_.put(k, with); }
  result<std::uint64_t> send(queue& q, const std::int64_t* of_row, std::span<const std::int64_t> rows) {
    if (status s = bank_.send(q.has.evaluate, &q.host, of_row, rows); !s) return s.failure();
    if (status s = std::exchange(q.outside, status(ok)); !s) return s.failure();  // ranks that did not answer
    return std::uint64_t{1};
  }

 private:
  mixed_bank<Real> bank_;
};

}  // namespace graft::cpu
