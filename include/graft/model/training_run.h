// SPDX-License-Identifier: Apache-2.0
// Training of a model's adapters in a loop of your own: the loss of a batch and the gradients of all trained
// parameters, which are in the engine's memory.
//     auto t = training_run<engine>::make(model);
//     auto optimizer = t->optimizer(settings);
//     for (…) { t->clear(); loss = t->add(batch); optimizer->clip(1); optimizer->step(rate); t->parameters_changed(); }
//     t->fetch();                                      // copies the trained values to the adapters' host memory
#pragma once
#include <graft/model/coft_projection.h>
#include <graft/model/optimizer.h>
#include <graft/model/training_pass.h>

#include <bit>

namespace graft {

struct training_settings {
  bool dropout = true;      // at the rates of the model's and the adapters' configurations
  bool checkpoint = false;  // activation checkpointing: backward recomputes blocks instead of reading saved tensors
  std::int64_t seed = 0;    // seed of dropout; each call derives its own from it
  step_mode steps = step_mode::standard;
  long long bucket_bytes = 4 << 20;  // smallest size of a gradient bucket (gradient_buckets.h)
};

template <class Engine> class training_run {
 public:
  static result<training_run> make(causal_lm<Engine>& model, const training_settings& settings = {}) {
    const bool drops = settings.dropout && uses_dropout(model, model.adapters().modules);
    const auto guard = model.lock();
    result<training_run> t =
        over(model, settings, drops, model.make_stack(true, drops), std::make_shared<parameter_pool<Engine>>());
    if (t && t->parameters().empty()) return model.has_no_parameters();
    return t;
  }
  // Trains these adapters instead of the active ones; an empty list computes losses without gradients.
  static result<training_run> make(causal_lm<Engine>& model, const adapter_registry::names& which,
                                   const training_settings& settings, std::shared_ptr<parameter_pool<Engine>> pool) {
    bool drops = false;
    for (const std::string& name : which)
      if (const shared_adapter a = model.find(name)) drops = drops || uses_dropout(model, a->modules);
    drops = settings.dropout && (drops || uses_dropout(model, {}));
    const auto guard = model.lock();
    return over(model, settings, drops, model.make_stack(which, true, drops), std::move(pool));
  }

  // Returns values and gradients, each shared tensor once; their addresses do not change.
  std::vector<trained_parameter> parameters() const { return pool_->parameters; }
  using optimizer_type = basic_adamw<typename Engine::updates>;
  result<optimizer_type> optimizer(const adamw_settings& settings = {}) {
    return optimizer_type::make(parameters(), settings, Engine::make_optimizer_step(queue()));
  }
  // Returns the parameters in host memory as of the last fetch(); send() copies what was written there to the engine.
  std::vector<trained_parameter> on_host() const { return pool_->on_host; }
  status fetch() { return pool_->fetch(queue()); }
  status send() { return pool_->send(queue()); }
  void clear() { cleared_ = pool_->clear(queue()); }
  // Recomputes what depends on parameters alone, after an optimizer wrote them. A program that never calls it is safe
  // as well: until the first call, every add() recomputes it.
  status parameters_changed() {
    const auto guard = model_->lock();
    reports_changes_ = true;
    return blocks_changed();
  }

  // Returns the loss of a batch and adds its gradients, times `weight`. `ranks` is passed with the last call of a step:
  // the gradients are all-reduced during the backward pass and complete when ranks->wait() has returned.
  result<double> add(std::span<const labeled_sequence> batch, double weight = 1, communicator* ranks = nullptr) {
    if (!cleared_) return cleared_.failure();
    if (has_no_parameters()) return loss(batch);
    const auto guard = model_->lock();
    if (status s = refresh(); !s) return s.failure();
    if (status s = begin(batch, calls_ + 1, weight); !s) return s.failure();
    ++calls_;
    if (status s = pass_.forward_backward(batch_, gradients_, ranks); !s) return s.failure();
    stale_ = !reports_changes_;
    return pass_.mean(batch_);
  }
  // step() does a whole step: the gradients of one batch, clipped to the norm `clip` unless that is 0, and the
  // optimizer's update. Unless the mode is standard, it is captured once for batches of equal lengths and then
  // replayed.
  struct step_result {
    double loss = 0, norm = 0;
  };
  result<step_result> step(std::span<const labeled_sequence> batch, optimizer_type& by, double rate, double clip,
                           double weight = 1, communicator* ranks = nullptr) {
    const auto guard = model_->lock();
    if (has_no_parameters()) return fail("these adapters have nothing to train");
    if (status s = begin(batch, calls_ + 1, weight); !s) return s.failure();
    ++calls_;
    if (status s = by.begin_step(rate); !s) return s.failure();
    const auto work = [&]() -> status {
      if (status s = pool_->clear(queue()); !s) return s;
      if (status s = pass_.forward_backward(batch_, gradients_, ranks); !s) return s;
      if (ranks != nullptr)
        if (status s = ranks->join(); !s) return s;
      if (clip > 0)
        if (status s = by.clip_to(clip); !s) return s;
      if (status s = by.make_step(); !s) return s;
      return blocks_changed();
    };
    const bool replays = is_captured(settings_.steps);
    if (status s = replays ? captured_.run(queue(), version_hash(clip, ranks), work) : work(); !s) return s.failure();
    if (ranks != nullptr)
      if (status s = ranks->wait(); !s) return s.failure();
    const result<double> loss = pass_.mean(batch_);
    if (!loss) return loss.failure();
    if (clip <= 0) return step_result{*loss};
    const result<double> norm = by.norm();
    if (!norm) return norm.failure();
    return step_result{*loss, *norm};
  }
  // Returns the loss alone, without dropout and gradients.
  result<double> loss(std::span<const labeled_sequence> batch) {
    const auto guard = model_->lock();
    if (status s = refresh(); !s) return s.failure();
    if (status s = begin(batch, calls_, 1); !s) return s.failure();
    if (status s = pass_.ensure_bound_for_evaluation(); !s) return s.failure();
    if (status s = pass_.evaluate_loss(batch_); !s) return s.failure();
    return pass_.mean(batch_);
  }
  // Returns the bytes that a call with so many rows saves for backward, known before the first one.
  // saved_allocation_bytes() is what is allocated for it now, which is never more.
  result<long long> saved_bytes(long long rows) {
    const auto guard = model_->lock();
    return pass_.saved_bytes(rows);
  }
  long long saved_allocation_bytes() { return pass_.saved_allocation_bytes(); }
  // Returns the number of calls that added gradients; a resumed run sets it so that dropout continues.
  std::int64_t calls() const { return calls_; }
  void set_calls(std::int64_t n) { calls_ = n; }

 private:
  typename Engine::queue& queue() { return model_->programs().queue; }
  bool has_no_parameters() const { return gradients_.first_trained() == pass_.blocks(); }
  status begin(std::span<const labeled_sequence> batch, std::int64_t call, double weight) {
    if (status s = batch_.fill(batch, model_->config().vocabulary); !s) return s;
    if (status s = model_->check_chunks(batch_.chunks()); !s) return s;
    if (status s = model_->set_rows(batch_.chunks(), false); !s) return s;
    if (status s = pass_.bind_for_call(gradients_, *pool_); !s) return s;
    if (status s = coft_.project(queue(), *pool_); !s) return s;
    if (status s = batch_.set_seeds_and_weights(settings_.seed, call, pass_.blocks(), weight); !s) return s;
    if (!pass_.has_attention_dropout()) return ok;
    const model_config& c = model_->config();
    return batch_.write_attention_ranges(model_->rows(), c.layers, c.attention_dropout);
  }
  // Recomputes what follows from parameters that an optimizer may have written.
  status refresh() { return stale_ ? blocks_changed() : status(ok); }
  status blocks_changed() {
    stale_ = false;
    auto& blocks = pass_.stack().blocks();
    return Engine::run_concurrently(queue(), blocks.size(),
                                    [&](std::size_t k) { return blocks[k].parameters_changed(); });
  }
  // Hashes what a captured step depends on: addresses, sequence lengths, binding and settings.
  std::uint64_t version_hash(double clip, const communicator* ranks) {
    const auto address = [](const void* p) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p)); };
    std::uint64_t all = batch_.version_hash();
    for (const std::uint64_t part :
         {address(model_->rows().ids().data), static_cast<std::uint64_t>(model_->programs().address_version()),
          static_cast<std::uint64_t>(pass_.bound_rows()), std::bit_cast<std::uint64_t>(clip), address(ranks)})
      all = splitmix64(all ^ part);
    return all;
  }

  static bool uses_dropout(const causal_lm<Engine>& model, std::span<const module_adapter> modules) {
    const model_config& c = model.config();
    bool drops = c.residual_dropout > 0 || c.embedding_dropout > 0 || c.attention_dropout > 0;
    for (const module_adapter& m : modules) drops = drops || m.drops().any();
    return drops;
  }
  static result<training_run> over(causal_lm<Engine>& model, const training_settings& settings, bool drops,
                                   result<std::unique_ptr<block_stack<Engine>>> stack,
                                   std::shared_ptr<parameter_pool<Engine>> pool) {
    if (!stack) return stack.failure();
    if (settings.steps == step_mode::max_autotune)
      if (status s = Engine::enable_autotuning(model.programs().queue, {}); !s) return s.failure();
    training_run t(model, settings, {model, std::move(*stack), settings.checkpoint, drops}, std::move(pool));
    if (status s = t.gradients_.collect(t.queue(), t.pass_.stack(), *t.pool_, settings.bucket_bytes,
                                        padding_token_of(model.config()));
        !s)
      return s.failure();
    t.coft_.collect(t.pass_.stack(), *t.pool_);
    return result<training_run>(std::move(t));
  }
  training_run(causal_lm<Engine>& model, const training_settings& settings, training_pass<Engine> pass,
               std::shared_ptr<parameter_pool<Engine>> pool)
      : model_(&model), settings_(settings), pass_(std::move(pass)), pool_(std::move(pool)) {}

  causal_lm<Engine>* model_;
  training_settings settings_;
  training_pass<Engine> pass_;
  std::shared_ptr<parameter_pool<Engine>> pool_;
  gradient_buckets<Engine> gradients_;
  coft_projection<Engine> coft_;
  training_batch<Engine> batch_;
  std::int64_t calls_ = 0;
  bool reports_changes_ = false;  // the program calls parameters_changed() itself
  bool stale_ = false;            // add() has run, and an optimizer may have written the values
  status cleared_ = ok;
  typename Engine::captured captured_;
};

}  // namespace graft
