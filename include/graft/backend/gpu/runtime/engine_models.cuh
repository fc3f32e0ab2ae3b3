// SPDX-License-Identifier: Apache-2.0
// The members of the GPU engine that only whole models use: attention kernels, sampling, the optimizer (AdamW),
// gradient accumulation and multi-LoRA batches. A program that runs single layers does not include this header.
#pragma once
#include <graft/backend/gpu/kernels/attention/launch.cuh>
#include <graft/backend/gpu/kernels/multi_lora/adapter_table.cuh>
#include <graft/backend/gpu/kernels/optimizer/adamw.cuh>
#include <graft/backend/gpu/kernels/sampling/sample.cuh>
#include <graft/backend/gpu/runtime/engine.cuh>

#include <algorithm>
#include <span>
#include <vector>

namespace graft::gpu {

template <class T> kernel_set every_kernel_of() {
  kernel_set all = every_kernel_of_layers<T>();
  all.attention = attention_for<T>();
  return all;
}

// Samples the next token of each sequence on the device.
template <class T> class engine<T>::sampler {
 public:
  template <class Settings> status reserve(queue&, const Settings& s, long long vocabulary, long long sequences) {
    return chooses_.reserve({s.draws(), static_cast<float>(s.temperature), static_cast<float>(s.repetition_penalty),
                             s.top_k, s.top_p, s.seed},
                            vocabulary, sequences);
  }
  status begin(queue& q, long long sequence, std::span<const std::int64_t> prompt) {
    return chooses_.begin(q.stream, sequence, prompt);
  }
  // Chooses a token per sequence from `logits`. With `goes_on` the kernel also writes the inputs of the next decode
  // step (ids, positions and attention ranges, one row per sequence).
  template <class Rows> status choose(queue& q, const void* logits, const Rows& rows, long long length, bool goes_on) {
    const auto at = [](const view& v) { return static_cast<std::int64_t*>(const_cast<void*>(v.data)); };
    sampled_rows of;
    of.logits = logits, of.positions = at(rows.positions()), of.slots = at(rows.slots());
    of.last = at(rows.last_rows()), of.length = length;
    next_rows next;
    if (goes_on) {
      next.ids = at(rows.ids()), next.positions = at(rows.positions()), next.ranges = next.positions + rows.rows();
      next.rows = static_cast<int>(rows.rows()), next.kinds = static_cast<int>(rows.distinct_windows().size());
      std::copy(rows.distinct_windows().begin(), rows.distinct_windows().end(), next.window);
    }
    return chooses_.choose(q.stream, rows.last_rows().size[0], of, next);
  }
  static bool can_run_ahead(std::size_t distinct_windows) { return distinct_windows <= next_rows::max_window_kinds; }
  std::int64_t token(std::size_t row, long long position) const { return chooses_.token(row, position); }

 private:
  token_sampler<T> chooses_;
};

template <class T> typename engine<T>::updates engine<T>::make_optimizer_step(queue& q) { return updates(q.stream); }
template <class T> class engine<T>::gradient_accumulators {
 public:
  status bind(queue& q, const std::vector<gradient_addend>& all) { return sums_.bind(q.stream, all); }
  status add(queue& q) { return sums_.add(q.stream); }

 private:
  gradient_accumulator sums_;
};
// The adapters of a multi-LoRA batch: rows with different adapters run in the launches of the base model.
template <class T> class engine<T>::adapter_table {
 public:
  using block = typename multi_lora_table<T>::block;
  status begin(queue& q, std::vector<block> base, int slots, long long rows) {
    return adapter_table_.begin(q.stream, std::move(base), slots, rows);
  }
  status put(int k, std::span<const block> with) { return adapter_table_.put(k, with); }
  result<std::uint64_t> send(queue& q, const std::int64_t* of_row, std::span<const std::int64_t> rows) {
    return adapter_table_.send(q.stream, of_row, rows);
  }

 private:
  multi_lora_table<T> adapter_table_;
};

static_assert(ModelEngine<engine<float>> && ModelEngine<engine<__nv_bfloat16>> && ModelEngine<engine<__half>>);

}  // namespace graft::gpu
