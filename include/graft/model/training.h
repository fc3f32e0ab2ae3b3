// SPDX-License-Identifier: Apache-2.0
// Training of a model's adapters: the loss of a batch and the gradients of what is trained, for a loop of one's own,
//     auto t = training_run<engine>::make(model);
//     auto optimizer = t->optimizer(settings);
//     for (…) { t->clear(); loss = t->add(batch); optimizer->clip(1); optimizer->step(rate); t->parameters_changed(); }
//     t->fetch();                                                 what was trained, into the adapters' own memory
// The loss is the mean over all labels that count. What forward computes and backward needs is kept per block; the logits
// of a batch never exist as a whole. Parameters and gradients lie in the engine's memory.
#pragma once
#include <graft/core/mixed_bits.h>
#include <graft/model/causal_lm.h>
#include <graft/model/optimizer.h>
#include <graft/model/parameter_pool.h>

#include <bit>

namespace graft {

// A token's label is the token behind it, unless labels are given: then the label of the token behind it; ignored_label
// counts for nothing.
struct labelled_sequence {
  std::span<const std::int64_t> tokens, labels{};
};

struct training_settings {
  bool dropout = true;      // as the model's and the adapter's configuration say
  bool checkpoint = false;  // compute blocks again for the backward pass instead of keeping their values
  std::int64_t seed = 0;    // of dropout, with the number of the call
  step_mode steps = step_mode::standard;
};

template <class Engine> class training_run {
 public:
  using real = typename Engine::real;

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

  // The loss, and its gradients times `weight` added to those that are there.
  result<double> add(std::span<const labelled_sequence> batch, double weight = 1) {
    if (!cleared_) return cleared_.failure();
    if (first_trained() == uses_.size()) return loss(batch);
    const auto mine = model_->alone();
    if (status s = fill(batch); !s) return s.failure();
    if (status s = ready(); !s) return s.failure();
    ++calls_;
    if (status s = bring_numbers(); !s) return s.failure();
    if (status s = forward_and_back(weight); !s) return s.failure();
    return mean();
  }
  // A whole step: the gradients of one batch, clipped to `clip` where that is not 0, and what the optimizer makes of them.
  // With reduce_overhead it is captured once for batches of the same lengths and then replayed; loss and norm are known
  // after it.
  struct step_numbers {
    double loss = 0, norm = 0;
  };
  result<step_numbers> step(std::span<const labelled_sequence> batch, optimizer_type& by, double rate, double clip) {
    const auto mine = model_->alone();
    if (first_trained() == uses_.size()) return fail("these adapters have nothing to train");
    if (status s = fill(batch); !s) return s.failure();
    if (status s = ready(); !s) return s.failure();
    ++calls_;
    if (status s = bring_numbers(); !s) return s.failure();
    if (status s = by.begin_step(rate); !s) return s.failure();
    const auto work = [&]() -> status {
      if (status s = pool_->clear(queue()); !s) return s;
      if (status s = forward_and_back(1); !s) return s;
      if (clip > 0)
        if (status s = by.clip_to(clip); !s) return s;
      if (status s = by.make_step(); !s) return s;
      return blocks_changed();
    };
    const bool replays = how_.steps == step_mode::reduce_overhead;
    if (status s = replays ? captured_.run(queue(), stamp(clip), work) : work(); !s) return s.failure();
    const result<double> loss = mean();
    if (!loss) return loss.failure();
    if (clip <= 0) return step_numbers{*loss};
    const result<double> norm = by.norm();
    if (!norm) return norm.failure();
    return step_numbers{*loss, *norm};
  }
  // The loss alone, without dropout.
  result<double> loss(std::span<const labelled_sequence> batch) {
    const auto mine = model_->alone();
    if (status s = fill(batch); !s) return s.failure();
    if (status s = ready(); !s) return s.failure();
    if (status s = ready_to_look(); !s) return s.failure();
    if (status s = bring_numbers(); !s) return s.failure();
    if (status s = forward(way::forward); !s) return s.failure();
    if (status s = head(nullptr, 0); !s) return s.failure();
    return mean();
  }
  // How often gradients were added: dropout goes on from here.
  std::int64_t calls() const { return calls_; }
  void set_calls(std::int64_t n) { calls_ = n; }

 private:
  struct use {
    std::string name;  // inside the block
    std::size_t parameter;
    engine_rows<Engine, Engine::computes> gradient;
  };
  typename Engine::queue& queue() { return model_->programs().queue; }
  status blocks_changed() {
    for (bound_block<Engine>& b : stack_->blocks())
      if (status s = b.parameters_changed(); !s) return s;
    return ok;
  }
  // Another number where anything lies elsewhere than before, or something else is run.
  std::uint64_t stamp(double clip) {
    const auto place = [](const void* p) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p)); };
    std::uint64_t all = 0;
    const auto mix = [&](std::uint64_t part) { all = mixed_bits(all ^ part); };
    mix(place(model_->rows().ids().data)), mix(place(whole_numbers_.data())), mix(place(row_weights_.data()));
    mix(static_cast<std::uint64_t>(model_->programs().moves())), mix(static_cast<std::uint64_t>(room_));
    mix(std::bit_cast<std::uint64_t>(clip));
    for (const row_run& r : runs_) mix(r.tokens.size());
    return all;
  }

  static bool drops_elements(const causal_lm<Engine>& model, std::span<const module_adapter> modules) {
    bool drops = model.config().residual_dropout > 0 && !has_rope(model.config().family);
    for (const module_adapter& m : modules) drops = drops || m.dropout > 0;
    return drops;
  }
  static result<training_run> over(causal_lm<Engine>& model, const training_settings& how, bool drops,
                                   result<std::unique_ptr<block_stack<Engine>>> stack,
                                   std::shared_ptr<parameter_pool<Engine>> pool) {
    if (!stack) return stack.failure();
    training_run t(model, how, std::move(*stack), std::move(pool));
    t.drops_ = drops;
    if (status s = t.collect(); !s) return s.failure();
    return result<training_run>(std::move(t));
  }
  training_run(causal_lm<Engine>& model, const training_settings& how, std::unique_ptr<block_stack<Engine>> stack,
               std::shared_ptr<parameter_pool<Engine>> pool)
      : model_(&model), how_(how), stack_(std::move(stack)), uses_(stack_->blocks().size()), pool_(std::move(pool)) {}

  status collect() {
    std::size_t b = 0;
    for (bound_block<Engine>& block : stack_->blocks()) {
      for (const std::string& name : block.parameters()) {
        const auto value = block.values.tensors.find(name);
        if (value == block.values.tensors.end()) return fail("parameter ", name.c_str(), " has no value");
        const result<std::size_t> at = pool_->add(queue(), block_stack<Engine>::whole_name(block, name), value->second,
                                                  stack_->original(value->second.data));
        if (!at) return at.failure();
        uses_[b].push_back({name, *at, {}});
        if (status s = uses_[b].back().gradient.reserve(queue(), value->second.count()); !s) return s;
      }
      ++b;
    }
    std::vector<gradient_sum> of_head, of_others;
    for (b = uses_.size(); b-- > 0;)
      for (use& u : uses_[b])
        (b + 1 == uses_.size() ? of_head : of_others)
            .push_back({pool_->gradients[u.parameter]->data(), u.gradient.data(),
                        pool_->parameters[u.parameter].value.count()});
    if (status s = head_sums_.bind(queue(), std::move(of_head)); !s) return s;
    return sums_.bind(queue(), std::move(of_others));
  }

  status fill(std::span<const labelled_sequence> batch) {
    runs_.clear(), labels_.clear(), counted_ = 0;
    for (const labelled_sequence& s : batch) {
      if (!s.labels.empty() && s.labels.size() != s.tokens.size())
        return fail("a sequence of ", static_cast<long long>(s.tokens.size()), " tokens has ",
                    static_cast<long long>(s.labels.size()), " labels, expected as many");
      runs_.push_back({s.tokens, 0, 0});
      const std::span<const std::int64_t> from = s.labels.empty() ? s.tokens : s.labels;
      for (std::size_t t = 0; t < from.size(); ++t)
        labels_.push_back(t + 1 < from.size() ? from[t + 1] : static_cast<std::int64_t>(ignored_label));
    }
    for (const std::int64_t l : labels_) {
      counted_ += l != ignored_label ? 1 : 0;
      if (l != ignored_label && (l < 0 || l >= model_->config().vocabulary))
        return fail("label ", static_cast<long long>(l), " is outside the vocabulary of ", model_->config().vocabulary,
                    "; ", ignored_label, " is ignored");
    }
    if (status s = model_->check_runs(runs_); !s) return s;
    if (counted_ == 0) return fail("no token of the batch has a label that counts");
    return model_->set_rows(runs_, false);
  }
  // What else the call brings: what each row counts for, its label, and a seed for each block. Places of a block drop
  // different elements; blocks do because each has a seed of its own.
  status bring_numbers() {
    const auto key = static_cast<std::uint64_t>(how_.seed) ^ mixed_bits(static_cast<std::uint64_t>(calls_));
    labels_.resize(static_cast<std::size_t>(model_->rows().rows()));
    for (std::size_t b = 0; b < stack_->blocks().size(); ++b)
      labels_.push_back(static_cast<std::int64_t>(mixed_bits(key + b) >> 1U));
    const auto rows = static_cast<std::size_t>(model_->rows().rows());
    for (std::size_t r = 0; r < rows; ++r)
      weights_[r] = labels_[r] == ignored_label ? real(0) : static_cast<real>(1.0 / static_cast<double>(counted_));
    if (status s = whole_numbers_.write(labels_.data(), static_cast<long long>(labels_.size() * 8)); !s) return s;
    return row_weights_.write(weights_.data(), static_cast<long long>(rows * sizeof(real)));
  }
  status ready() {
    const long long rows = model_->rows().rows();
    const result<capacity> room = model_->reserve(rows);
    if (!room) return room.failure();
    hidden_.resize(static_cast<std::size_t>(stack_->layers()) + 1);
    for (auto* all : {&hidden_, &slope_})
      for (engine_rows<Engine>& h : *all)
        if (status s = h.reserve(queue(), rows * model_->config().width); !s) return s;
    if (status s = losses_at_.reserve(queue(), rows); !s) return s;
    losses_.resize(static_cast<std::size_t>(rows)), weights_.resize(losses_.size());
    if (rows <= room_) return ok;
    std::size_t b = 0;
    for (bound_block<Engine>& block : stack_->blocks()) {
      const bool last = b + 1 == stack_->blocks().size(), trained = b >= first_trained();
      const way there = how_.checkpoint ? way::passing : way::keeping,
                back = how_.checkpoint || last ? way::recomputing : way::backward;
      if (!last)
        if (status s = block.bind(there, *room); !s) return s;
      if (trained || last)
        if (status s = block.bind(back, last ? capacity{head_rows(room->tokens)} : *room); !s) return s;
      for (use& u : uses_[b])
        if (status s = block.want(u.name.c_str(), gradient_view(u)); !s) return s;
      ++b;
    }
    room_ = rows;
    return ok;
  }
  status ready_to_look() {
    const long long rows = model_->rows().rows();
    if (rows <= room_to_look_) return ok;
    const result<capacity> room = model_->reserve(rows);
    if (!room) return room.failure();
    for (std::size_t b = 0; b + 1 < stack_->blocks().size(); ++b)
      if (status s = stack_->blocks()[b].bind(way::forward, *room); !s) return s;
    room_to_look_ = rows;
    return ok;
  }
  std::size_t first_trained() const {
    std::size_t first = 0;
    while (first < uses_.size() && uses_[first].empty()) ++first;
    return first;
  }
  mutable_view gradient_view(use& u) {
    mutable_view v = pool_->parameters[u.parameter].gradient;
    v.data = u.gradient.data(), v.type = Engine::computes;
    return v;
  }

  // Rows of one call of the head. Where elements are dropped there it is one call: their numbers count from its beginning.
  long long head_rows(long long rows) const {
    return Engine::loss_rows == 0 || drops_ ? rows : std::min(rows, Engine::loss_rows);
  }
  const std::int64_t* whole_numbers() const { return static_cast<const std::int64_t*>(whole_numbers_.data()); }
  block_call call(view x, std::size_t block) {
    block_call c;
    c[call_input::seed] = view_of(whole_numbers() + model_->rows().rows() + static_cast<long long>(block), 1);
    c[call_input::x] = x;
    c[call_input::positions] = model_->rows().positions();
    return c;
  }
  view rows_of(engine_rows<Engine>& v) { return v.rows(model_->rows().rows(), model_->config().width); }
  mutable_view into(engine_rows<Engine>& v) { return v.into(model_->rows().rows(), model_->config().width); }

  status forward(way w) {
    if (status s = model_->send_rows(); !s) return s;
    if (status s = whole_numbers_.send(queue()); !s) return s;
    if (status s = row_weights_.send(queue()); !s) return s;
    block_call c = call(model_->rows().ids(), 0);
    c.y = into(hidden_[0]);
    if (status s = stack_->embed().run(w, c); !s) return s;
    for (int l = 0; l < stack_->layers(); ++l) {
      c = call(rows_of(hidden_[static_cast<std::size_t>(l)]), static_cast<std::size_t>(l) + 1);
      c[call_input::span] = model_->rows().span_of(l);
      c.y = into(hidden_[static_cast<std::size_t>(l) + 1]);
      if (status s = stack_->layer(l).run(w, c); !s) return s;
    }
    return ok;
  }
  // The loss of each row, and the slope of its mean.
  status head(engine_rows<Engine>* slope, double weight) {
    const long long rows = model_->rows().rows(), width = model_->config().width, step = head_rows(rows);
    for (long long first = 0; first < rows; first += step) {
      const long long n = std::min(step, rows - first);
      block_call c =
          call({hidden_.back().row(first, width), Engine::keeps, {n, width, 1, 1}, 2}, stack_->blocks().size() - 1);
      c[call_input::positions] = view_of(static_cast<const std::int64_t*>(model_->rows().positions().data) + first, n);
      c[call_input::labels] = view_of(whole_numbers() + first, n);
      c[call_input::dy] = view_of(static_cast<const real*>(row_weights_.data()) + first, n, 1);
      c.y = {losses_at_.row(first, 1), Engine::computes, {n, 1, 1, 1}, 2};
      if (slope != nullptr) c.dx = {slope->row(first, width), Engine::keeps, {n, width, 1, 1}, 2};
      if (status s = stack_->head().run(way::recomputing, c); !s) return s;
      if (weight != 0)
        if (status s = head_sums_.add(queue(), weight); !s) return s;
    }
    return ok;
  }
  result<double> mean() {
    const real* of = losses_.data();
    if constexpr (Engine::reads_host_memory)
      of = static_cast<const real*>(losses_at_.data());
    else if (status s = Engine::fetch(queue(), losses_at_.rows(model_->rows().rows(), 1), losses_.data()); !s)
      return s.failure();
    double sum = 0;
    for (std::size_t r = 0; r < losses_.size() && r < static_cast<std::size_t>(model_->rows().rows()); ++r)
      if (labels_[r] != ignored_label) sum += static_cast<double>(of[r]);
    return sum / static_cast<double>(counted_);
  }
  status forward_and_back(double weight) {
    if (status s = forward(how_.checkpoint ? way::passing : way::keeping); !s) return s;
    if (status s = head(&slope_[0], weight); !s) return s;
    const std::size_t first = first_trained();
    std::size_t now = 0;
    for (int l = stack_->layers() - 1; l >= 0 && static_cast<std::size_t>(l) + 1 >= first; --l, now ^= 1) {
      block_call c = call(rows_of(hidden_[static_cast<std::size_t>(l)]), static_cast<std::size_t>(l) + 1);
      c[call_input::span] = model_->rows().span_of(l);
      c[call_input::dy] = rows_of(slope_[now]);
      if (static_cast<std::size_t>(l) + 1 > first) c.dx = into(slope_[now ^ 1]);
      if (status s = stack_->layer(l).run(how_.checkpoint ? way::recomputing : way::backward, c); !s) return s;
    }
    if (first == 0) {
      block_call c = call(model_->rows().ids(), 0);
      c[call_input::dy] = rows_of(slope_[now]);
      if (status s = stack_->embed().run(how_.checkpoint ? way::recomputing : way::backward, c); !s) return s;
    }
    return sums_.add(queue(), weight);
  }

  causal_lm<Engine>* model_;
  training_settings how_;
  std::unique_ptr<block_stack<Engine>> stack_;
  std::vector<std::vector<use>> uses_;  // by block
  std::shared_ptr<parameter_pool<Engine>> pool_;
  typename Engine::gradient_sums sums_, head_sums_;
  std::vector<row_run> runs_;
  std::vector<std::int64_t> labels_;  // of the rows, and behind them the seeds of the blocks
  typename Engine::numbers whole_numbers_, row_weights_;
  long long counted_ = 0, room_ = 0, room_to_look_ = 0;
  std::int64_t calls_ = 0;
  status cleared_ = ok;
  bool drops_ = false;
  std::vector<engine_rows<Engine>> hidden_, slope_ = std::vector<engine_rows<Engine>>(2);  // into each layer, and back
  typename Engine::captured captured_;
  engine_rows<Engine, Engine::computes> losses_at_;
  std::vector<real> losses_, weights_;
};

}  // namespace graft
