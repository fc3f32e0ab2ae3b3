// SPDX-License-Identifier: Apache-2.0
// What an engine has for whole models: attention, sampling, the steps of an optimizer, sums of gradients, rows with
// adapters of their own. A program with layers alone does not read it.
#pragma once
#include <graft/backend/cuda/attention.cuh>
#include <graft/backend/cuda/engine.cuh>
#include <graft/backend/cuda/mixed_bank.cuh>
#include <graft/backend/cuda/parameter_updates.cuh>
#include <graft/backend/cuda/token_sampler.cuh>

#include <algorithm>
#include <span>
#include <vector>

namespace graft::cuda {

template <class T> kernel_set every_kernel_of() {
  kernel_set all = every_kernel_of_layers<T>();
  all.attention = attention_for<T>();
  return all;
}

// The next token of each sequence.
template <class T> class engine<T>::sampler {
 public:
  template <class Settings> status reserve(queue&, const Settings& s, long long vocabulary, long long sequences) {
    return chooses_.reserve({s.sample, static_cast<float>(s.temperature), static_cast<float>(s.repetition_penalty),
                             s.top_k, s.top_p, s.seed},
                            vocabulary, sequences);
  }
  status begin(queue& q, long long sequence, std::span<const std::int64_t> prompt) {
    return chooses_.begin(q.stream, sequence, prompt);
  }
  // `goes_on`: the numbers of the call, a row for each sequence, become those of the next one.
  template <class Rows> status choose(queue& q, const void* logits, const Rows& rows, long long length, bool goes_on) {
    const auto at = [](const view& v) { return static_cast<std::int64_t*>(const_cast<void*>(v.data)); };
    sampled_rows of;
    of.logits = logits, of.positions = at(rows.positions()), of.places = at(rows.places());
    of.last = at(rows.last_rows()), of.length = length;
    next_rows next;
    if (goes_on) {
      next.ids = at(rows.ids()), next.positions = at(rows.positions()), next.spans = next.positions + rows.rows();
      next.rows = static_cast<int>(rows.rows()), next.kinds = static_cast<int>(rows.window_kinds().size());
      std::copy(rows.window_kinds().begin(), rows.window_kinds().end(), next.window);
    }
    return chooses_.choose(q.stream, rows.last_rows().size[0], of, next);
  }
  static bool can_go_on(std::size_t window_kinds) { return window_kinds <= next_rows::most_kinds; }
  std::int64_t token(std::size_t row, long long position) const { return chooses_.token(row, position); }

 private:
  token_sampler<T> chooses_;
};

template <class T> typename engine<T>::updates engine<T>::updates_on(queue& q) { return updates(q.stream); }
template <class T> class engine<T>::gradient_sums {
 public:
  status bind(queue& q, const std::vector<gradient_sum>& all) { return sums_.bind(q.stream, all); }
  status add(queue& q) { return sums_.add(q.stream); }

 private:
  summed_gradients sums_;
};
// Rows of a call may have adapters of their own, in the launches of the base.
template <class T> class engine<T>::bank {
 public:
  using block = typename mixed_bank<T>::block;
  status begin(queue& q, std::vector<block> base, int places, long long rows) {
    return bank_.begin(q.stream, std::move(base), places, rows);
  }
  status put(int k, std::span<const block> with) { return bank_.put(k, with); }
  result<std::uint64_t> send(queue& q, const std::int64_t* of_row, std::span<const std::int64_t> rows) {
    return bank_.send(q.stream, of_row, rows);
  }

 private:
  mixed_bank<T> bank_;
};

}  // namespace graft::cuda
