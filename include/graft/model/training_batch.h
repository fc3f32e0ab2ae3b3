// SPDX-License-Identifier: Apache-2.0
// The numbers of a training call: sequences with their labels, what each row counts for, and a seed for each block. The
// loss is the mean over all labels that count; a row's weight is its part of that mean, times what the mean itself counts
// for, so that all gradients have their factors from the beginning and are only added afterwards. Where probabilities of
// attention are dropped, each layer has spans of its own, with keys that follow from the layer's seed.
#pragma once
#include <graft/backend/attention_drops.h>
#include <graft/model/rows.h>
#include <graft/run/check_ids.h>

#include <span>
#include <vector>

namespace graft {

// A token's label is the token behind it, unless labels are given: then the label of the token behind it; ignored_label
// counts for nothing.
struct labelled_sequence {
  std::span<const std::int64_t> tokens, labels{};
};

template <class Engine> class training_batch {
 public:
  using real = typename Engine::real;

  status fill(std::span<const labelled_sequence> batch, long long vocabulary) {
    runs_.clear(), numbers_.clear(), counted_ = 0;
    for (const labelled_sequence& s : batch) {
      if (!s.labels.empty() && s.labels.size() != s.tokens.size())
        return fail("a sequence of ", static_cast<long long>(s.tokens.size()), " tokens has ",
                    static_cast<long long>(s.labels.size()), " labels, expected as many");
      runs_.push_back({s.tokens, 0, 0});
      const std::span<const std::int64_t> from = s.labels.empty() ? s.tokens : s.labels;
      for (std::size_t t = 0; t < from.size(); ++t)
        numbers_.push_back(t + 1 < from.size() ? from[t + 1] : static_cast<std::int64_t>(ignored_label));
    }
    for (const std::int64_t l : numbers_) {
      counted_ += l != ignored_label ? 1 : 0;
      if (l != ignored_label && (l < 0 || l >= vocabulary))
        return fail("label ", static_cast<long long>(l), " is outside the vocabulary of ", vocabulary, "; ",
                    ignored_label, " is ignored");
    }
    rows_ = numbers_.size();
    return ok;
  }
  // Places of a block drop different elements; blocks do because each has a seed of its own.
  status bring(std::int64_t seed, std::int64_t call, std::size_t blocks, double weight) {
    if (counted_ == 0) return fail("no token of the batch has a label that counts");
    const auto key = static_cast<std::uint64_t>(seed) ^ mixed_bits(static_cast<std::uint64_t>(call));
    numbers_.resize(rows_);
    for (std::size_t b = 0; b < blocks; ++b) numbers_.push_back(static_cast<std::int64_t>(mixed_bits(key + b) >> 1U));
    weights_.resize(rows_);
    const auto counts = static_cast<real>(weight / static_cast<double>(counted_));
    for (std::size_t r = 0; r < rows_; ++r) weights_[r] = numbers_[r] == ignored_label ? real(0) : counts;
    if (status s = numbers_at_.write(numbers_.data(), static_cast<long long>(numbers_.size() * 8)); !s) return s;
    return weights_at_.write(weights_.data(), static_cast<long long>(rows_ * sizeof(real)));
  }
  // After bring().
  status bring_spans(const row_batch& rows, int layers, double dropped) {
    spans_.clear();
    for (int l = 0; l < layers; ++l) {
      const std::span<const std::int64_t> from = rows.span_numbers(l);
      const auto seed = static_cast<std::uint64_t>(numbers_[rows_ + static_cast<std::size_t>(l) + 1]);
      spans_.insert(spans_.end(), from.begin(), from.end());
      for (std::size_t r = 0; r < rows_; ++r)
        spans_.push_back(static_cast<std::int64_t>(mixed_bits(seed ^ mixed_bits(r)) >> 1U));
      spans_.insert(spans_.end(), rows_, attention_drops::dropped_draws(dropped));
    }
    return spans_at_.write(spans_.data(), static_cast<long long>(spans_.size() * 8));
  }
  status send(typename Engine::queue& q) {
    if (status s = numbers_at_.send(q); !s) return s;
    if (!spans_.empty())
      if (status s = spans_at_.send(q); !s) return s;
    return weights_at_.send(q);
  }

  std::span<const row_run> runs() const { return runs_; }
  view labels(long long first, long long n) const { return view_of(numbers() + first, n); }
  view weights(long long first, long long n) const {
    return view_of(static_cast<const real*>(weights_at_.data()) + first, n, 1);
  }
  view dropping_span(int layer) const {
    const auto* const all = static_cast<const std::int64_t*>(spans_at_.data());
    return view_of(all + 5 * static_cast<std::size_t>(layer) * rows_, 5, static_cast<long long>(rows_));
  }
  view seed(std::size_t block) const { return view_of(numbers() + rows_ + block, 1); }
  double mean(const real* losses) const {
    double sum = 0;
    for (std::size_t r = 0; r < rows_; ++r)
      if (numbers_[r] != ignored_label) sum += static_cast<double>(losses[r]);
    return sum / static_cast<double>(counted_);
  }
  // Another number where the numbers lie elsewhere, or sequences have other lengths.
  std::uint64_t stamp() const {
    std::uint64_t all = 0;
    const auto mix = [&](std::uint64_t part) { all = mixed_bits(all ^ part); };
    for (const void* at : {numbers_at_.data(), weights_at_.data(), spans_at_.data()})
      mix(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at)));
    for (const row_run& r : runs_) mix(r.tokens.size());
    return all;
  }

 private:
  const std::int64_t* numbers() const { return static_cast<const std::int64_t*>(numbers_at_.data()); }

  std::vector<row_run> runs_;
  std::vector<std::int64_t> numbers_;  // labels of the rows, and behind them the seeds of the blocks
  std::vector<real> weights_;
  std::vector<std::int64_t> spans_;  // [5, rows] of each layer
  typename Engine::numbers numbers_at_, weights_at_, spans_at_;
  std::size_t rows_ = 0;
  long long counted_ = 0;
};

}  // namespace graft
