// SPDX-License-Identifier: Apache-2.0
// Training of a model's adapters: the loss of a batch and the gradients of what is trained, for a loop of one's own,
//     auto t = training_run<engine>::make(model);
//     auto optimizer = t->optimizer(settings);
//     for (…) { t->clear(); loss = t->add(batch); optimizer->clip(1); optimizer->step(rate); t->parameters_changed(); }
//     t->fetch();                                                 what was trained, into the adapters' own memory
// Parameters and gradients lie in the engine's memory.
#pragma once
#include <graft/model/bounded_rows.h>
#include <graft/model/optimizer.h>
#include <graft/model/training_pass.h>

#include <bit>

namespace graft {

struct training_settings {
  bool dropout = true;      // as the model's and the adapter's configuration say
  bool checkpoint = false;  // compute blocks again for the backward pass instead of keeping their values
  std::int64_t seed = 0;    // of dropout, with the number of the call
  step_mode steps = step_mode::standard;
  long long exchanged_bytes = 4 << 20;  // gradients are summed over ranks in pieces that are at least so large
};

template <class Engine> class training_run {
 public:
  static result<training_run> make(causal_lm<Engine>& model, const training_settings& how = {}) {
    const bool drops = how.dropout && drops_elements(model, model.adapters().modules);
    const auto mine = model.alone();
    result<training_run> t =
        over(model, how, drops, model.make_stack(true, drops), std::make_shared<parameter_pool<Engine>>());
    if (t && t->parameters().empty()) return fail("the model has no adapters, so there is nothing to train");
    return t;
  }
  // With these adapters instead of those that are active; without any there are no gradients.
  static result<training_run> make(causal_lm<Engine>& model, const named_adapters::names& which,
                                   const training_settings& how, std::shared_ptr<parameter_pool<Engine>> pool) {
    bool drops = false;
    for (const std::string& name : which)
      if (const shared_adapter a = model.find(name)) drops = drops || drops_elements(model, a->modules);
    drops = how.dropout && (drops || drops_elements(model, {}));
    const auto mine = model.alone();
    return over(model, how, drops, model.make_stack(which, true, drops), std::move(pool));
  }

  // Values and gradients, each shared tensor once; the memory stays where it is.
  std::vector<trained_parameter> parameters() const { return pool_->parameters; }
  using optimizer_type = adamw_on<typename Engine::updates>;
  result<optimizer_type> optimizer(const adamw_settings& settings = {}) {
    return optimizer_type::over(parameters(), settings, Engine::updates_on(queue()));
  }
  // The same tensors in host memory, as they were at the last fetch(); what is written there counts after send().
  std::vector<trained_parameter> on_host() const { return pool_->on_host; }
  status fetch() { return pool_->fetch(queue()); }
  status send() { return pool_->send(queue()); }
  void clear() { cleared_ = pool_->clear(queue()); }
  // After the values were written.
  status parameters_changed() {
    const auto mine = model_->alone();
    return blocks_changed();
  }

  // The loss, and its gradients times `weight` added to those that are there. `ranks`, with the last call of a step: the
  // gradients become the sums of all ranks' while the pass runs, and are there when ranks->wait() has returned.
  result<double> add(std::span<const labelled_sequence> batch, double weight = 1, communicator* ranks = nullptr) {
    if (!cleared_) return cleared_.failure();
    if (nothing_to_train()) return loss(batch);
    const auto mine = model_->alone();
    if (status s = begin(batch, calls_ + 1, weight); !s) return s.failure();
    ++calls_;
    if (status s = pass_.there_and_back(batch_, gradients_, ranks); !s) return s.failure();
    return pass_.mean(batch_);
  }
  // A whole step: the gradients of one batch, clipped to `clip` where that is not 0, and what the optimizer makes of them.
  // Unless the mode is the standard one, it is captured once for batches of the same lengths and then replayed; loss and
  // norm are known after it.
  struct step_numbers {
    double loss = 0, norm = 0;
  };
  result<step_numbers> step(std::span<const labelled_sequence> batch, optimizer_type& by, double rate, double clip,
                            double weight = 1, communicator* ranks = nullptr) {
    const auto mine = model_->alone();
    if (nothing_to_train()) return fail("these adapters have nothing to train");
    if (status s = begin(batch, calls_ + 1, weight); !s) return s.failure();
    ++calls_;
    if (status s = by.begin_step(rate); !s) return s.failure();
    const auto work = [&]() -> status {
      if (status s = pool_->clear(queue()); !s) return s;
      if (status s = pass_.there_and_back(batch_, gradients_, ranks); !s) return s;
      if (ranks != nullptr)
        if (status s = ranks->join(); !s) return s;
      if (clip > 0)
        if (status s = by.clip_to(clip); !s) return s;
      if (status s = by.make_step(); !s) return s;
      return blocks_changed();
    };
    const bool replays = is_captured(how_.steps);
    if (status s = replays ? captured_.run(queue(), stamp(clip, ranks), work) : work(); !s) return s.failure();
    if (ranks != nullptr)
      if (status s = ranks->wait(); !s) return s.failure();
    const result<double> loss = pass_.mean(batch_);
    if (!loss) return loss.failure();
    if (clip <= 0) return step_numbers{*loss};
    const result<double> norm = by.norm();
    if (!norm) return norm.failure();
    return step_numbers{*loss, *norm};
  }
  // The loss alone, without dropout.
  result<double> loss(std::span<const labelled_sequence> batch) {
    const auto mine = model_->alone();
    if (status s = begin(batch, calls_, 1); !s) return s.failure();
    if (status s = pass_.ready_to_look(); !s) return s.failure();
    if (status s = pass_.look(batch_); !s) return s.failure();
    return pass_.mean(batch_);
  }
  // Bytes that calls with so many rows keep from forward to backward, known before the first one; and what is kept memory
  // for now, which is no more.
  result<long long> kept_bytes(long long rows) {
    const auto mine = model_->alone();
    return pass_.kept_bytes(rows);
  }
  long long held_bytes() { return pass_.held_bytes(); }
  // How often gradients were added: dropout goes on from here.
  std::int64_t calls() const { return calls_; }
  void set_calls(std::int64_t n) { calls_ = n; }

 private:
  typename Engine::queue& queue() { return model_->programs().queue; }
  bool nothing_to_train() const { return gradients_.first_trained() == pass_.blocks(); }
  status begin(std::span<const labelled_sequence> batch, std::int64_t call, double weight) {
    if (status s = batch_.fill(batch, model_->config().vocabulary); !s) return s;
    if (status s = model_->check_runs(batch_.runs()); !s) return s;
    if (status s = model_->set_rows(batch_.runs(), false); !s) return s;
    if (status s = pass_.ready(gradients_, *pool_); !s) return s;
    if (status s = bounded_.shorten(queue(), *pool_); !s) return s;
    if (status s = batch_.bring(how_.seed, call, pass_.blocks(), weight); !s) return s;
    if (!pass_.drops_attention()) return ok;
    const model_config& c = model_->config();
    return batch_.bring_spans(model_->rows(), c.layers, c.attention_dropout);
  }
  status blocks_changed() {
    auto& blocks = pass_.stack().blocks();
    return Engine::side_by_side(queue(), blocks.size(), [&](std::size_t k) { return blocks[k].parameters_changed(); });
  }
  // Another number where anything lies elsewhere than before, or something else is run.
  std::uint64_t stamp(double clip, const communicator* ranks) {
    const auto place = [](const void* p) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p)); };
    std::uint64_t all = batch_.stamp();
    for (const std::uint64_t part :
         {place(model_->rows().ids().data), static_cast<std::uint64_t>(model_->programs().moves()),
          static_cast<std::uint64_t>(pass_.room()), std::bit_cast<std::uint64_t>(clip), place(ranks)})
      all = mixed_bits(all ^ part);
    return all;
  }

  static bool drops_elements(const causal_lm<Engine>& model, std::span<const module_adapter> modules) {
    const model_config& c = model.config();
    bool drops = c.residual_dropout > 0 || c.embedding_dropout > 0 || c.attention_dropout > 0;
    for (const module_adapter& m : modules) drops = drops || m.drops().any();
    return drops;
  }
  static result<training_run> over(causal_lm<Engine>& model, const training_settings& how, bool drops,
                                   result<std::unique_ptr<block_stack<Engine>>> stack,
                                   std::shared_ptr<parameter_pool<Engine>> pool) {
    if (!stack) return stack.failure();
    if (how.steps == step_mode::max_autotune)
      if (status s = Engine::time_choices(model.programs().queue, {}); !s) return s.failure();
    training_run t(model, how, {model, std::move(*stack), how.checkpoint, drops}, std::move(pool));
    if (status s =
            t.gradients_.collect(t.queue(), t.pass_.stack(), *t.pool_, how.exchanged_bytes, padding_of(model.config()));
        !s)
      return s.failure();
    t.bounded_.collect(t.pass_.stack(), *t.pool_);
    return result<training_run>(std::move(t));
  }
  training_run(causal_lm<Engine>& model, const training_settings& how, training_pass<Engine> pass,
               std::shared_ptr<parameter_pool<Engine>> pool)
      : model_(&model), how_(how), pass_(std::move(pass)), pool_(std::move(pool)) {}

  causal_lm<Engine>* model_;
  training_settings how_;
  training_pass<Engine> pass_;
  std::shared_ptr<parameter_pool<Engine>> pool_;
  block_gradients<Engine> gradients_;
  bounded_rows<Engine> bounded_;
  training_batch<Engine> batch_;
  std::int64_t calls_ = 0;
  status cleared_ = ok;
  typename Engine::captured captured_;
};

}  // namespace graft
