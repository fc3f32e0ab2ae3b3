// SPDX-License-Identifier: Apache-2.0
// The ready-made training loop: shuffled sequences, batches, gradient accumulation, clipping, a learning rate schedule,
// AdamW, and AdaLoRA's rank allocation if the method has it. Every step is a function of the seed and its number, so a
// run that is saved and resumed gives the bits of one that was never interrupted.
//     auto t = trainer<engine>::make(model, sequences, settings);
//     t->run([&](const step_report& r) { …; return !stop; });        // false ends the run after this step
// With a communicator (data parallelism) every rank works on its part of each batch and all make the same step, which
// is that of one process whose batches are as large as all parts together.
#pragma once
#include <graft/model/adalora.h>
#include <graft/model/lr_schedule.h>
#include <graft/model/training_run.h>
#include <graft/parallel/single_process.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

namespace graft {

struct trainer_settings {
  long long steps = 0;  // steps of the optimizer
  int batch = 1;        // sequences of one call, on each rank
  int accumulate = 1;   // calls whose gradients make one step
  adamw_settings optimizer{};
  lr_schedule rate{};      // if its steps are 0: `steps` above
  double clip = 1;         // largest global norm of the gradients; 0: no clipping
  std::uint64_t seed = 0;  // seed of the order of sequences and of dropout
  bool dropout = true, checkpoint = false;
  step_mode mode = step_mode::standard;  // the others capture a step of one call and replay it
  std::optional<adalora_settings> adalora{};
  std::shared_ptr<communicator> ranks = std::make_shared<single_process>();
  long long bucket_bytes = 4 << 20;  // smallest size of a gradient bucket (gradient_buckets.h)
};

struct step_report {
  long long step = 0, steps = 0;  // steps done, and steps of the whole run
  double loss = 0, rate = 0, norm = 0;
  long long tokens = 0;  // tokens of this step, on all ranks
  double seconds = 0;    // of this step
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  double seconds_left() const { return seconds * static_cast<double>(steps - step); }
};

template <class Engine> class trainer {
 public:
  using sequences = std::vector<std::vector<std::int64_t>>;

  // `data` must outlive the trainer.
  static result<trainer> make(causal_lm<Engine>& model, const sequences& data, const trainer_settings& settings) {
    if (data.empty()) return fail("there are no sequences to train on");
    if (settings.steps < 1 || settings.batch < 1 || settings.accumulate < 1)
      return fail("steps, batch and accumulate must be at least 1");
    for (const std::vector<std::int64_t>& s : data)
      if (s.size() < 2)
        return fail("a sequence has ", static_cast<long long>(s.size()), " tokens, expected at least 2");
    if (!Engine::reads_host_memory && settings.ranks->size() > 1 && !settings.ranks->reads_device_memory())
      return fail("this communicator reduces host memory, and this model trains on a device: use nccl_communicator");
    if (settings.ranks->reads_device_memory() && settings.ranks->stream() != Engine::stream_of(model.programs().queue))
      return fail(
          "this communicator uses another stream than the model: make nccl_communicator with the model's stream");
    if (is_captured(settings.mode) && (settings.accumulate != 1 || settings.adalora))
      return fail("a captured step is one call without AdaLoRA's ranks; train with the standard mode");
    if (is_captured(settings.mode) && !Engine::reads_host_memory && model.config().router_loss > 0)
      return fail(
          "a captured step cannot compute the auxiliary loss of routers, whose counts the host adds up; train "
          "with the standard mode");
    auto run = training_run<Engine>::make(
        model, {settings.dropout, settings.checkpoint, seed_of(settings), settings.mode, settings.bucket_bytes});
    if (!run) return run.failure();
    auto optimizer = run->optimizer(settings.optimizer);
    if (!optimizer) return optimizer.failure();
    trainer t(data, settings, std::move(*run), std::move(*optimizer));
    if (t.settings_.rate.steps == 0) t.settings_.rate.steps = settings.steps;
    if (settings.adalora) {
      auto ranks = rank_allocator::make(adalora_layers(t.run_.on_host()), *settings.adalora);
      if (!ranks) return ranks.failure();
      t.ranks_ = std::move(*ranks);
    }
    return result<trainer>(std::move(t));
  }

  // Trains until all steps are done or `report` returns false on any rank.
  template <class Report> status run(Report report) {
    while (optimizer_.steps() < settings_.steps) {
      const result<step_report> r = step();
      if (!r) return r.failure();
      double stop = report(*r) ? 0 : 1;
      if (status s = settings_.ranks->all_reduce(view_into(&stop, 1), reduction::max); !s) return s;
      if (stop != 0) break;
    }
    return run_.fetch();
  }
  result<step_report> step() {
    const auto begin = std::chrono::steady_clock::now();
    const long long now = optimizer_.steps();
    step_report r{now + 1, settings_.steps, 0, settings_.optimizer.rate * settings_.rate.factor(now)};
    const auto timed = [&] {
      r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      return r;
    };
    if (is_captured(settings_.mode)) {
      const rank_batch s = rank_batch_of(now);
      const auto made = run_.step(s.batch, optimizer_, r.rate, settings_.clip, s.weight, settings_.ranks.get());
      if (!made) return made.failure();
      r.tokens = s.tokens, r.loss = made->loss * s.weight, r.norm = made->norm;
      if (status summed = settings_.ranks->all_reduce(view_into(&r.loss, 1), reduction::sum); !summed)
        return summed.failure();
      if (!std::isfinite(r.loss)) return not_finite(r.step);
      return timed();
    }
    run_.clear();
    for (int call = 0; call < settings_.accumulate; ++call) {
      const rank_batch s = rank_batch_of(now * settings_.accumulate + call);
      const double weight = s.weight / settings_.accumulate;
      const bool last = call + 1 == settings_.accumulate;
      const result<double> loss = run_.add(s.batch, weight, last ? settings_.ranks.get() : nullptr);
      if (!loss) return loss.failure();
      r.tokens += s.tokens, r.loss += *loss * weight;
    }
    if (status s = settings_.ranks->begin_all_reduce(view_into(&r.loss, 1)); !s) return s.failure();
    if (status s = settings_.ranks->wait(); !s) return s.failure();
    if (status s = on_host([&] { r.loss += ranks_->orthogonal_regularization(); }); !s) return s.failure();
    if (!std::isfinite(r.loss)) return not_finite(r.step);
    if (settings_.clip > 0)
      if (status s = optimizer_.clip_to(settings_.clip); !s) return s.failure();
    if (status s = optimizer_.step(r.rate); !s) return s.failure();
    if (status s = on_host([&] { ranks_->allocate(now); }); !s) return s.failure();
    if (status s = run_.parameters_changed(); !s) return s.failure();
    if (settings_.clip > 0) {
      const result<double> norm = optimizer_.norm();
      if (!norm) return norm.failure();
      r.norm = *norm;
    }
    return timed();
  }
  // Returns the mean loss over all labels of other sequences; batches are distributed over the ranks round-robin.
  result<double> evaluate(const sequences& data) {
    double sums[2] = {0, 0};  // sum of the losses, and number of labels
    long long batches = 0;
    for (std::size_t i = 0; i < data.size(); i += static_cast<std::size_t>(settings_.batch), ++batches) {
      if (batches % settings_.ranks->size() != settings_.ranks->rank()) continue;
      std::vector<labeled_sequence> batch;
      double labels = 0;
      for (std::size_t k = i; k < data.size() && k < i + static_cast<std::size_t>(settings_.batch); ++k)
        batch.push_back({data[k]}), labels += static_cast<double>(data[k].size()) - 1;
      result<double> loss = run_.loss(batch);
      if (!loss) return loss;
      sums[0] += *loss * labels, sums[1] += labels;
    }
    if (batches == 0) return fail("there are no sequences to evaluate");
    if (status s = settings_.ranks->all_reduce(view_into(sums, 2), reduction::sum); !s) return s.failure();
    return sums[0] / sums[1];
  }

  // Returns an upper bound of the bytes that a step saves for backward, known before the first one: a batch of the
  // longest sequences.
  result<long long> saved_bytes() {
    std::vector<long long> lengths;
    for (const std::vector<std::int64_t>& s : *data_) lengths.push_back(static_cast<long long>(s.size()));
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    long long rows = 0;
    for (std::size_t k = 0; k < static_cast<std::size_t>(settings_.batch); ++k) rows += lengths[k % lengths.size()];
    return run_.saved_bytes(rows);
  }
  long long saved_allocation_bytes() { return run_.saved_allocation_bytes(); }

  // The state of a checkpoint is that of the optimizer and of AdaLoRA.
  using optimizer_type = typename training_run<Engine>::optimizer_type;
  optimizer_type& optimizer() { return optimizer_; }
  std::optional<rank_allocator>& ranks() { return ranks_; }
  // Copies parameters and the optimizer's state to host memory.
  status fetch() {
    if (status s = run_.fetch(); !s) return s;
    return optimizer_.fetch();
  }
  // Continues from adapters and optimizer state that were loaded into host memory.
  status restore_device_state() {
    run_.set_calls(optimizer_.steps() * settings_.accumulate);
    if (status s = run_.send(); !s) return s;
    if (status s = optimizer_.send(); !s) return s;
    return run_.parameters_changed();
  }

 private:
  trainer(const sequences& data, const trainer_settings& settings, training_run<Engine> run, optimizer_type optimizer)
      : data_(&data),
        settings_(settings),
        run_(std::move(run)),
        optimizer_(std::move(optimizer)),
        order_(data.size()) {}

  static error not_finite(long long step) {
    return fail("the loss of step ", step, " is not a finite number; lower the learning rate");
  }
  // Runs AdaLoRA's part of a step, which is computed in host memory.
  template <class F> status on_host(F f) {
    if (!ranks_) return ok;
    if (status s = run_.fetch(); !s) return s;
    f();
    return run_.send();
  }
  // Every epoch has its own shuffle.
  void shuffle(long long epoch) {
    if (epoch == shuffled_epoch_) return;
    shuffled_epoch_ = epoch;
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    for (std::size_t i = order_.size() - 1; i > 0; --i) {
      const std::uint64_t key = splitmix64(settings_.seed ^ splitmix64(static_cast<std::uint64_t>(epoch)));
      std::swap(order_[i], order_[splitmix64(key ^ i) % (i + 1)]);
    }
  }
  // This rank's sequences of a call, and the weight of its mean loss in the mean over the labels of all ranks.
  struct rank_batch {
    std::vector<labeled_sequence> batch;
    double weight = 0;
    long long tokens = 0;
  };
  rank_batch rank_batch_of(long long call) {
    rank_batch s;
    const auto n = static_cast<long long>(data_->size());
    const long long ranks = settings_.ranks->size(), first = call * settings_.batch * ranks;
    long long labels = 0, mine = 0;
    for (long long k = 0; k < settings_.batch * ranks; ++k) {
      shuffle((first + k) / n);
      const std::vector<std::int64_t>& one = (*data_)[order_[static_cast<std::size_t>((first + k) % n)]];
      const auto length = static_cast<long long>(one.size());
      s.tokens += length, labels += length - 1;
      if (k / settings_.batch == settings_.ranks->rank()) s.batch.push_back({one}), mine += length - 1;
    }
    s.weight = static_cast<double>(mine) / static_cast<double>(labels);
    return s;
  }
  // Every rank has its own dropout seed.
  static std::int64_t seed_of(const trainer_settings& settings) {
    const auto rank = static_cast<std::uint64_t>(settings.ranks->rank());
    return static_cast<std::int64_t>(rank == 0 ? settings.seed : splitmix64(settings.seed ^ splitmix64(rank)));
  }

  const sequences* data_;
  trainer_settings settings_;
  training_run<Engine> run_;
  optimizer_type optimizer_;
  std::optional<rank_allocator> ranks_;
  std::vector<std::size_t> order_;
  long long shuffled_epoch_ = -1;
};

}  // namespace graft
