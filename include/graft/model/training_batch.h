// SPDX-License-Identifier: Apache-2.0
// The inputs of a training call: sequences with labels, the loss weight of each row, and a dropout seed for each block.
// The loss is the mean over all labels that are not ignored. A row's weight is 1 / their number times the weight of the
// call, so gradients have their factors from the start and are only added. With attention dropout each layer has its
// own attention ranges, with keys that follow from the layer's seed (backend/attention_dropout.h).
#pragma once
#include <graft/backend/attention_dropout.h>
#include <graft/model/row_batch.h>
#include <graft/run/check_ids.h>

#include <span>
#include <vector>

namespace graft {

// Row t is trained to predict labels[t + 1], which is tokens[t + 1] if `labels` is empty. Rows whose label is
// ignored_label do not count.
struct labeled_sequence {
  std::span<const std::int64_t> tokens, labels{};
};

template <class Engine> class training_batch {
 public:
  using real = typename Engine::real;

  status fill(std::span<const labeled_sequence> batch, long long vocabulary) {
    chunks_.clear(), numbers_.clear(), counted_ = 0;
    for (const labeled_sequence& s : batch) {
      if (!s.labels.empty() && s.labels.size() != s.tokens.size())
        return fail("a sequence of ", static_cast<long long>(s.tokens.size()), " tokens has ",
                    static_cast<long long>(s.labels.size()), " labels, expected as many");
      chunks_.push_back({s.tokens, 0, 0});
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
  // Sets the seeds and weights of a call, after fill(). Each block has its own seed, so that blocks drop different
  // elements.
  status set_seeds_and_weights(std::int64_t seed, std::int64_t call, std::size_t blocks, double weight) {
    if (counted_ == 0) return fail("no token of the batch has a label that counts");
    weight_ = weight;
    const auto key = static_cast<std::uint64_t>(seed) ^ splitmix64(static_cast<std::uint64_t>(call));
    numbers_.resize(rows_);
    for (std::size_t b = 0; b < blocks; ++b) numbers_.push_back(static_cast<std::int64_t>(splitmix64(key + b) >> 1U));
    weights_.resize(rows_);
    const auto counts = static_cast<real>(weight / static_cast<double>(counted_));
    for (std::size_t r = 0; r < rows_; ++r) weights_[r] = numbers_[r] == ignored_label ? real(0) : counts;
    if (status s = device_numbers_.write(numbers_.data(), static_cast<long long>(numbers_.size() * 8)); !s) return s;
    return device_weights_.write(weights_.data(), static_cast<long long>(rows_ * sizeof(real)));
  }
  // Sets the attention ranges for attention dropout; called after set_seeds_and_weights(), whose seeds it uses.
  status write_attention_ranges(const row_batch& rows, int layers, double dropped) {
    ranges_.clear();
    for (int l = 0; l < layers; ++l) {
      const std::span<const std::int64_t> from = rows.host_attention_range(l);
      const auto seed = static_cast<std::uint64_t>(numbers_[rows_ + static_cast<std::size_t>(l) + 1]);
      ranges_.insert(ranges_.end(), from.begin(), from.end());
      for (std::size_t r = 0; r < rows_; ++r)
        ranges_.push_back(static_cast<std::int64_t>(splitmix64(seed ^ splitmix64(r)) >> 1U));
      ranges_.insert(ranges_.end(), rows_, attention_dropout_mask::dropped_count(dropped));
    }
    return ranges_at_.write(ranges_.data(), static_cast<long long>(ranges_.size() * 8));
  }
  status send(typename Engine::queue& q) {
    if (status s = device_numbers_.send(q); !s) return s;
    if (!ranges_.empty())
      if (status s = ranges_at_.send(q); !s) return s;
    return device_weights_.send(q);
  }

  std::span<const sequence_chunk> chunks() const { return chunks_; }
  view labels(long long first, long long n) const { return view_of(numbers() + first, n); }
  view weights(long long first, long long n) const {
    return view_of(static_cast<const real*>(device_weights_.data()) + first, n, 1);
  }
  view dropout_attention_range(int layer) const {
    const auto* const all = static_cast<const std::int64_t*>(ranges_at_.data());
    return view_of(all + 5 * static_cast<std::size_t>(layer) * rows_, 5, static_cast<long long>(rows_));
  }
  double weight() const { return weight_; }  // of this call's loss
  view seed(std::size_t block) const { return view_of(numbers() + rows_ + block, 1); }
  double mean(const real* losses) const {
    double sum = 0;
    for (std::size_t r = 0; r < rows_; ++r)
      if (numbers_[r] != ignored_label) sum += static_cast<double>(losses[r]);
    return sum / static_cast<double>(counted_);
  }
  // Hashes addresses and sequence lengths, on which a captured step depends.
  std::uint64_t version_hash() const {
    std::uint64_t all = 0;
    const auto mix = [&](std::uint64_t part) { all = splitmix64(all ^ part); };
    for (const void* at : {device_numbers_.data(), device_weights_.data(), ranges_at_.data()})
      mix(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at)));
    for (const sequence_chunk& r : chunks_) mix(r.tokens.size());
    return all;
  }

 private:
  const std::int64_t* numbers() const { return static_cast<const std::int64_t*>(device_numbers_.data()); }

  std::vector<sequence_chunk> chunks_;
  std::vector<std::int64_t> numbers_;  // labels of the rows, then seeds of the blocks
  std::vector<real> weights_;
  std::vector<std::int64_t> ranges_;  // [layers, 5, rows]: attention range, dropout key, number of dropped draws
  typename Engine::numbers device_numbers_, device_weights_, ranges_at_;
  std::size_t rows_ = 0;
  double weight_ = 1;
  long long counted_ = 0;
};

}  // namespace graft
