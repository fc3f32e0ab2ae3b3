// SPDX-License-Identifier: Apache-2.0
// The ready loop: sequences in an order that follows from the seed, batches, accumulation, clipping, a schedule, AdamW,
// and AdaLoRA's ranks where there are any. Every step is a function of the seed and its number, so that a run that is
// saved and goes on gives the bits of one that was never interrupted.
//     trainer<engine> t = *trainer<engine>::make(model, sequences, settings);
//     t.run([&](const step_report& r) { …; return !stop; });        // false ends it after this step
// With a communicator every rank works on its part of each batch, and all of them make the same step: what they compute is
// what one process computes with batches as large as all parts together.
#pragma once
#include <graft/model/adalora_layers.h>
#include <graft/model/schedule.h>
#include <graft/model/training.h>
#include <graft/parallel/alone.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

namespace graft {

struct trainer_settings {
  long long steps = 0;  // of the optimizer
  int batch = 1;        // sequences of one call, on each rank
  int accumulate = 1;   // calls of one step
  adamw_settings optimizer{};
  rate_schedule rate{};    // its steps are those above where it has none
  double clip = 1;         // largest norm of the gradients; 0: not clipped
  std::uint64_t seed = 0;  // of the order and of dropout
  bool dropout = true, checkpoint = false;
  step_mode mode = step_mode::standard;  // the others: a step of one call, captured once and replayed
  std::optional<adalora_settings> adalora{};
  std::shared_ptr<communicator> ranks = std::make_shared<alone>();
  long long exchanged_bytes = 4 << 20;  // gradients are summed over ranks in pieces that are at least so large
};

struct step_report {
  long long step = 0, steps = 0;  // steps that are done, and all
  double loss = 0, rate = 0, norm = 0;
  long long tokens = 0;  // of this step, on all ranks
  double seconds = 0;    // of this step
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  double seconds_left() const { return seconds * static_cast<double>(steps - step); }
};

template <class Engine> class trainer {
 public:
  using sequences = std::vector<std::vector<std::int64_t>>;

  // The sequences outlive the trainer.
  static result<trainer> make(causal_lm<Engine>& model, const sequences& data, const trainer_settings& how) {
    if (data.empty()) return fail("there are no sequences to train on");
    if (how.steps < 1 || how.batch < 1 || how.accumulate < 1)
      return fail("steps, batch and accumulate must be at least 1");
    for (const std::vector<std::int64_t>& s : data)
      if (s.size() < 2)
        return fail("a sequence has ", static_cast<long long>(s.size()), " tokens, expected at least 2");
    if (!Engine::reads_host_memory && how.ranks->size() > 1 && !how.ranks->reads_device_memory())
      return fail("these ranks exchange host memory, and this model trains in a device's: use nccl_communicator");
    if (how.ranks->reads_device_memory() && how.ranks->stream() != Engine::stream_of(model.programs().queue))
      return fail("these ranks exchange on another stream than the model's: make nccl_communicator with the model's");
    if (is_captured(how.mode) && (how.accumulate != 1 || how.adalora))
      return fail("a captured step is one call without AdaLoRA's ranks; train with the standard mode");
    auto run =
        training_run<Engine>::make(model, {how.dropout, how.checkpoint, seed_of(how), how.mode, how.exchanged_bytes});
    if (!run) return run.failure();
    auto optimizer = run->optimizer(how.optimizer);
    if (!optimizer) return optimizer.failure();
    trainer t(data, how, std::move(*run), std::move(*optimizer));
    if (t.how_.rate.steps == 0) t.how_.rate.steps = how.steps;
    if (how.adalora) {
      auto ranks = rank_allocator::over(adalora_layers(t.run_.on_host()), *how.adalora);
      if (!ranks) return ranks.failure();
      t.ranks_ = std::move(*ranks);
    }
    return result<trainer>(std::move(t));
  }

  // Until all steps are done, or `report` gives false, on any rank.
  template <class Report> status run(Report report) {
    while (optimizer_.steps() < how_.steps) {
      const result<step_report> r = step();
      if (!r) return r.failure();
      double stop = report(*r) ? 0 : 1;
      if (status s = how_.ranks->all_reduce(view_into(&stop, 1), reduction::largest); !s) return s;
      if (stop != 0) break;
    }
    return run_.fetch();
  }
  result<step_report> step() {
    const auto begin = std::chrono::steady_clock::now();
    const long long now = optimizer_.steps();
    step_report r{now + 1, how_.steps, 0, how_.optimizer.rate * how_.rate.factor(now)};
    const auto timed = [&] {
      r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      return r;
    };
    if (is_captured(how_.mode)) {
      const share s = share_of(now);
      const auto made = run_.step(s.batch, optimizer_, r.rate, how_.clip, s.weight, how_.ranks.get());
      if (!made) return made.failure();
      r.tokens = s.tokens, r.loss = made->loss * s.weight, r.norm = made->norm;
      if (status summed = how_.ranks->all_reduce(view_into(&r.loss, 1), reduction::sum); !summed)
        return summed.failure();
      if (!std::isfinite(r.loss)) return not_finite(r.step);
      return timed();
    }
    run_.clear();
    for (int call = 0; call < how_.accumulate; ++call) {
      const share s = share_of(now * how_.accumulate + call);
      const double weight = s.weight / how_.accumulate;
      const bool last = call + 1 == how_.accumulate;
      const result<double> loss = run_.add(s.batch, weight, last ? how_.ranks.get() : nullptr);
      if (!loss) return loss.failure();
      r.tokens += s.tokens, r.loss += *loss * weight;
    }
    if (status s = how_.ranks->begin_all_reduce(view_into(&r.loss, 1)); !s) return s.failure();
    if (status s = how_.ranks->wait(); !s) return s.failure();
    if (status s = on_host([&] { r.loss += ranks_->keep_orthogonal(); }); !s) return s.failure();
    if (!std::isfinite(r.loss)) return not_finite(r.step);
    if (how_.clip > 0)
      if (status s = optimizer_.clip_to(how_.clip); !s) return s.failure();
    if (status s = optimizer_.step(r.rate); !s) return s.failure();
    if (status s = on_host([&] { ranks_->allocate(now); }); !s) return s.failure();
    if (status s = run_.parameters_changed(); !s) return s.failure();
    if (how_.clip > 0) {
      const result<double> norm = optimizer_.norm();
      if (!norm) return norm.failure();
      r.norm = *norm;
    }
    return timed();
  }
  // The mean loss of other sequences, each token counting the same; ranks take turns with the batches.
  result<double> evaluate(const sequences& data) {
    double sums[2] = {0, 0};  // of the losses, and of the labels
    long long batches = 0;
    for (std::size_t i = 0; i < data.size(); i += static_cast<std::size_t>(how_.batch), ++batches) {
      if (batches % how_.ranks->size() != how_.ranks->rank()) continue;
      std::vector<labelled_sequence> batch;
      double labels = 0;
      for (std::size_t k = i; k < data.size() && k < i + static_cast<std::size_t>(how_.batch); ++k)
        batch.push_back({data[k]}), labels += static_cast<double>(data[k].size()) - 1;
      result<double> loss = run_.loss(batch);
      if (!loss) return loss;
      sums[0] += *loss * labels, sums[1] += labels;
    }
    if (batches == 0) return fail("there are no sequences to look at");
    if (status s = how_.ranks->all_reduce(view_into(sums, 2), reduction::sum); !s) return s.failure();
    return sums[0] / sums[1];
  }

  // Bytes that no step keeps more of from forward to backward, known before the first one: those of the longest sequences.
  result<long long> kept_bytes() {
    std::vector<long long> lengths;
    for (const std::vector<std::int64_t>& s : *data_) lengths.push_back(static_cast<long long>(s.size()));
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    long long rows = 0;
    for (std::size_t k = 0; k < static_cast<std::size_t>(how_.batch); ++k) rows += lengths[k % lengths.size()];
    return run_.kept_bytes(rows);
  }
  long long held_bytes() { return run_.held_bytes(); }

  // What a run that goes on needs.
  using optimizer_type = typename training_run<Engine>::optimizer_type;
  optimizer_type& optimizer() { return optimizer_; }
  std::optional<rank_allocator>& ranks() { return ranks_; }
  // What was trained and the optimizer's state, in host memory.
  status fetch() {
    if (status s = run_.fetch(); !s) return s;
    return optimizer_.fetch();
  }
  // After optimizer and adapters were set, in host memory, to those of another run.
  status resumed() {
    run_.set_calls(optimizer_.steps() * how_.accumulate);
    if (status s = run_.send(); !s) return s;
    if (status s = optimizer_.send(); !s) return s;
    return run_.parameters_changed();
  }

 private:
  trainer(const sequences& data, const trainer_settings& how, training_run<Engine> run, optimizer_type optimizer)
      : data_(&data), how_(how), run_(std::move(run)), optimizer_(std::move(optimizer)), order_(data.size()) {}

  static error not_finite(long long step) {
    return fail("the loss of step ", step, " is not a finite number; lower the rate");
  }
  // AdaLoRA's part of a step is computed in host memory.
  template <class F> status on_host(F f) {
    if (!ranks_) return ok;
    if (status s = run_.fetch(); !s) return s;
    f();
    return run_.send();
  }
  // Each time through the data is a shuffle of its own.
  void shuffle(long long epoch) {
    if (epoch == shuffled_) return;
    shuffled_ = epoch;
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    for (std::size_t i = order_.size() - 1; i > 0; --i) {
      const std::uint64_t key = mixed_bits(how_.seed ^ mixed_bits(static_cast<std::uint64_t>(epoch)));
      std::swap(order_[i], order_[mixed_bits(key ^ i) % (i + 1)]);
    }
  }
  // This rank's sequences of a call, and what its mean counts for in the mean over the labels of all ranks.
  struct share {
    std::vector<labelled_sequence> batch;
    double weight = 0;
    long long tokens = 0;
  };
  share share_of(long long call) {
    share s;
    const auto n = static_cast<long long>(data_->size());
    const long long ranks = how_.ranks->size(), first = call * how_.batch * ranks;
    long long labels = 0, mine = 0;
    for (long long k = 0; k < how_.batch * ranks; ++k) {
      shuffle((first + k) / n);
      const std::vector<std::int64_t>& one = (*data_)[order_[static_cast<std::size_t>((first + k) % n)]];
      const auto length = static_cast<long long>(one.size());
      s.tokens += length, labels += length - 1;
      if (k / how_.batch == how_.ranks->rank()) s.batch.push_back({one}), mine += length - 1;
    }
    s.weight = static_cast<double>(mine) / static_cast<double>(labels);
    return s;
  }
  // Every rank drops other elements.
  static std::int64_t seed_of(const trainer_settings& how) {
    const auto rank = static_cast<std::uint64_t>(how.ranks->rank());
    return static_cast<std::int64_t>(rank == 0 ? how.seed : mixed_bits(how.seed ^ mixed_bits(rank)));
  }

  const sequences* data_;
  trainer_settings how_;
  training_run<Engine> run_;
  optimizer_type optimizer_;
  std::optional<rank_allocator> ranks_;
  std::vector<std::size_t> order_;
  long long shuffled_ = -1;
};

}  // namespace graft
