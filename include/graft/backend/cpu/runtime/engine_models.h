// SPDX-License-Identifier: Apache-2.0
// The CPU engine for whole models: optimizer steps, accumulation of gradients, and multi-LoRA batches. A program that
// uses layers alone does not include it.
#pragma once
#include <graft/backend/cpu/multi_lora/adapter_table.h>
#include <graft/backend/cpu/ops/optimizer.h>
#include <graft/backend/cpu/runtime/engine_plan.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace graft::cpu {

template <class Real> typename engine<Real>::updates engine<Real>::make_optimizer_step(queue&) { return {}; }
template <class Real> class engine<Real>::gradient_accumulators {
 public:
  status bind(queue&, std::vector<gradient_addend> all) { return all_ = std::move(all), status(ok); }
  status add(queue&) {
    for (const gradient_addend& s : all_)
      for (long long i = 0; i < s.count; ++i) s.to[i] += static_cast<float>(static_cast<const Real*>(s.from)[i]);
    return ok;
  }

 private:
  std::vector<gradient_addend> all_;
};
// The adapter table of a model: rows of a call of the base may have adapters of their own.
template <class Real> class engine<Real>::adapter_table {
 public:
  using block = typename multi_lora_table<Real>::block;
  status begin(queue&, std::vector<block> base, int slots, long long) {
    return adapter_table_.begin(std::move(base), slots);
  }
  status put(int k, std::span<const block> with) { return adapter_table_.put(k, with); }
  result<std::uint64_t> send(queue& q, const std::int64_t* row_slots, std::span<const std::int64_t> rows) {
    if (status s = adapter_table_.send(q.has.evaluate, &q.host, row_slots, rows); !s) return s.failure();
    if (status s = std::exchange(q.host_error, status(ok)); !s) return s.failure();  // an all-reduce failed
    return std::uint64_t{1};
  }

 private:
  multi_lora_table<Real> adapter_table_;
};

static_assert(ModelEngine<engine<float>> && ModelEngine<engine<double>>);

}  // namespace graft::cpu
