// SPDX-License-Identifier: Apache-2.0
// Training of a model's adapters: the loss of a batch and the gradients of what is trained, for a loop of one's own,
//     auto t = training_run<engine>::make(model);
//     auto optimizer = adamw::over(t->parameters(), settings);
//     for (…) { t->clear(); loss = t->add(batch); optimizer->clip(1); optimizer->step(rate); t->parameters_changed(); }
// The loss is the mean over all labels that count. What forward computes and backward needs is kept per block; the logits
// of a batch never exist as a whole.
#pragma once
#include <graft/backend/cpu/dropout.h>
#include <graft/model/causal_lm.h>
#include <graft/model/optimizer.h>

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
};

template <class Engine> class training_run {
 public:
  using real = typename Engine::real;

  static result<training_run> make(causal_lm<Engine>& model, const training_settings& how = {}) {
    bool drops = model.config().residual_dropout > 0 && !has_rope(model.config().family);
    for (const module_adapter& m : model.adapters().modules) drops = drops || m.dropout > 0;
    auto stack = model.make_stack(true, how.dropout && drops);
    if (!stack) return stack.failure();
    training_run t(model, how, std::move(*stack));
    if (status s = t.collect(); !s) return s.failure();
    if (t.parameters_.empty()) return fail("the model has no adapters, so there is nothing to train");
    return t;
  }

  // Values and gradients, each shared tensor once; the memory stays where it is.
  std::vector<trained_parameter> parameters() const { return parameters_; }
  void clear() {
    for (auto& g : gradients_) std::fill(g->begin(), g->end(), 0.0F);
  }
  // After the values were written.
  status parameters_changed() {
    for (bound_block<Engine>& b : stack_->blocks())
      if (status s = b.parameters_changed(); !s) return s;
    return ok;
  }

  // The loss, and its gradients times `weight` added to those that are there.
  result<double> add(std::span<const labelled_sequence> batch, double weight = 1) {
    if (status s = fill(batch); !s) return s.failure();
    if (status s = ready(); !s) return s.failure();
    ++calls_;
    if (status s = forward(how_.checkpoint ? way::passing : way::keeping); !s) return s.failure();
    return backward(weight);
  }
  // The loss alone, without dropout.
  result<double> loss(std::span<const labelled_sequence> batch) {
    if (status s = fill(batch); !s) return s.failure();
    if (status s = ready(); !s) return s.failure();
    if (status s = ready_to_look(); !s) return s.failure();
    if (status s = forward(way::forward); !s) return s.failure();
    if (status s = head(nullptr); !s) return s.failure();
    return mean();
  }
  // How often gradients were added: dropout goes on from here.
  std::int64_t calls() const { return calls_; }
  void set_calls(std::int64_t n) { calls_ = n; }

 private:
  struct use {
    std::string name;  // inside the block
    std::size_t parameter;
    std::vector<real> gradient;
  };

  training_run(causal_lm<Engine>& model, const training_settings& how, std::unique_ptr<block_stack<Engine>> stack)
      : model_(&model), how_(how), stack_(std::move(stack)), uses_(stack_->blocks().size()) {}

  status collect() {
    std::map<const void*, std::size_t> known;
    std::size_t b = 0;
    for (bound_block<Engine>& block : stack_->blocks()) {
      for (const std::string& name : block.parameters()) {
        const auto value = block.values.tensors.find(name);
        if (value == block.values.tensors.end()) return fail("parameter ", name.c_str(), " has no value");
        const auto [at, fresh] = known.try_emplace(value->second.data, parameters_.size());
        if (fresh) add_parameter(block_stack<Engine>::whole_name(block, name), value->second);
        uses_[b].push_back({name, at->second, std::vector<real>(static_cast<std::size_t>(value->second.count()))});
      }
      ++b;
    }
    return ok;
  }
  void add_parameter(const std::string& name, const view& value) {
    gradients_.push_back(std::make_unique<std::vector<float>>(static_cast<std::size_t>(value.count())));
    mutable_view writable{const_cast<void*>(value.data), value.type}, gradient{gradients_.back()->data(), dtype::f32};
    for (mutable_view* v : {&writable, &gradient}) {
      v->rank = value.rank;
      std::copy_n(value.size, 4, v->size);
    }
    parameters_.push_back({name, writable, gradient});
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
    for (const std::int64_t l : labels_) counted_ += l != ignored_label ? 1 : 0;
    if (status s = model_->check_runs(runs_); !s) return s;
    if (counted_ == 0) return fail("no token of the batch has a label that counts");
    model_->rows().set(runs_, model_->config().window, false);
    return ok;
  }
  status ready() {
    const long long rows = model_->rows().rows();
    const capacity room = model_->reserve(rows);
    const auto n = static_cast<std::size_t>(rows * model_->config().width);
    hidden_.resize(static_cast<std::size_t>(stack_->layers()) + 1);
    for (auto& h : hidden_)
      if (h.size() < n) h.resize(n);
    for (auto& d : slope_)
      if (d.size() < n) d.resize(n);
    losses_.resize(static_cast<std::size_t>(rows)), weights_.resize(losses_.size());
    if (rows <= room_) return ok;
    std::size_t b = 0;
    for (bound_block<Engine>& block : stack_->blocks()) {
      const bool last = b + 1 == stack_->blocks().size(), trained = b >= first_trained();
      const way there = how_.checkpoint ? way::passing : way::keeping,
                back = how_.checkpoint || last ? way::recomputing : way::backward;
      if (!last)
        if (status s = block.bind(there, room); !s) return s;
      if (trained || last)
        if (status s = block.bind(back, room); !s) return s;
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
    for (std::size_t b = 0; b + 1 < stack_->blocks().size(); ++b)
      if (status s = stack_->blocks()[b].bind(way::forward, model_->reserve(rows)); !s) return s;
    room_to_look_ = rows;
    return ok;
  }
  std::size_t first_trained() const {
    std::size_t first = 0;
    while (uses_[first].empty()) ++first;
    return first;
  }
  mutable_view gradient_view(use& u) {
    mutable_view v = parameters_[u.parameter].gradient;
    v.data = u.gradient.data(), v.type = Engine::computes;
    return v;
  }

  // Places of a block drop different elements; blocks do because each has a seed of its own.
  block_call call(view x, std::size_t block) {
    block_call c;
    seeds_.resize(stack_->blocks().size());
    const auto key = static_cast<std::uint64_t>(how_.seed) ^ cpu::mixed(static_cast<std::uint64_t>(calls_));
    seeds_[block] = static_cast<std::int64_t>(cpu::mixed(key + block) >> 1U);
    c[call_input::seed] = view_of(&seeds_[block], 1);
    c[call_input::x] = x;
    c[call_input::positions] = model_->rows().positions();
    return c;
  }
  view rows_of(std::vector<real>& v) { return view_of(v.data(), model_->rows().rows(), model_->config().width); }
  mutable_view into(std::vector<real>& v) { return view_into(v.data(), model_->rows().rows(), model_->config().width); }

  status forward(way w) {
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
  status head(std::vector<real>* slope) {
    for (std::size_t r = 0; r < labels_.size(); ++r)
      weights_[r] = labels_[r] == ignored_label ? real(0) : static_cast<real>(1.0 / static_cast<double>(counted_));
    const long long rows = model_->rows().rows();
    block_call c = call(rows_of(hidden_.back()), stack_->blocks().size() - 1);
    c[call_input::labels] = view_of(labels_.data(), rows);
    c[call_input::dy] = view_of(weights_.data(), rows, 1);
    c.y = view_into(losses_.data(), rows, 1);
    if (slope != nullptr) c.dx = into(*slope);
    return stack_->head().run(way::recomputing, c);
  }
  double mean() const {
    double sum = 0;
    for (std::size_t r = 0; r < labels_.size(); ++r)
      if (labels_[r] != ignored_label) sum += static_cast<double>(losses_[r]);
    return sum / static_cast<double>(counted_);
  }
  result<double> backward(double weight) {
    if (status s = head(&slope_[0]); !s) return s.failure();
    accumulate(uses_.size() - 1, weight);
    const std::size_t first = first_trained();
    int now = 0;
    for (int l = stack_->layers() - 1; l >= 0 && static_cast<std::size_t>(l) + 1 >= first; --l, now ^= 1) {
      block_call c = call(rows_of(hidden_[static_cast<std::size_t>(l)]), static_cast<std::size_t>(l) + 1);
      c[call_input::span] = model_->rows().span_of(l);
      c[call_input::dy] = rows_of(slope_[now]);
      if (static_cast<std::size_t>(l) + 1 > first) c.dx = into(slope_[now ^ 1]);
      if (status s = stack_->layer(l).run(how_.checkpoint ? way::recomputing : way::backward, c); !s)
        return s.failure();
      accumulate(static_cast<std::size_t>(l) + 1, weight);
    }
    if (first > 0) return mean();
    block_call c = call(model_->rows().ids(), 0);
    c[call_input::dy] = rows_of(slope_[now]);
    if (status s = stack_->embed().run(how_.checkpoint ? way::recomputing : way::backward, c); !s) return s.failure();
    accumulate(0, weight);
    return mean();
  }
  void accumulate(std::size_t block, double weight) {
    for (const use& u : uses_[block]) {
      std::vector<float>& sum = *gradients_[u.parameter];
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] += static_cast<float>(weight) * static_cast<float>(u.gradient[i]);
    }
  }

  causal_lm<Engine>* model_;
  training_settings how_;
  std::unique_ptr<block_stack<Engine>> stack_;
  std::vector<std::vector<use>> uses_;  // by block
  std::vector<trained_parameter> parameters_;
  std::vector<std::unique_ptr<std::vector<float>>> gradients_;
  std::vector<row_run> runs_;
  std::vector<std::int64_t> labels_;
  long long counted_ = 0, room_ = 0, room_to_look_ = 0;
  std::int64_t calls_ = 0;
  std::vector<std::int64_t> seeds_;
  std::vector<std::vector<real>> hidden_;  // what goes into each layer, and out of the last
  std::vector<real> slope_[2], losses_, weights_;
};

}  // namespace graft
