// SPDX-License-Identifier: Apache-2.0
// One training call through the blocks of a model: forward, the loss of each row, backward. Blocks save tensors for
// backward or recompute them (activation checkpointing). The head runs on chunks of rows, so the logits of a batch
// never exist as a whole. The gradients of a block are added and reduced as soon as it has run (gradient_buckets.h).
#pragma once
#include <graft/model/causal_lm.h>
#include <graft/model/gradient_buckets.h>
#include <graft/model/router_loss.h>
#include <graft/model/training_batch.h>

namespace graft {

template <class Engine> class training_pass {
 public:
  using real = typename Engine::real;

  training_pass(causal_lm<Engine>& model, std::unique_ptr<block_stack<Engine>> stack, bool checkpoint, bool drops)
      : model_(&model),
        stack_(std::move(stack)),
        checkpoint_(checkpoint),
        drops_(drops),
        router_(model.config(), stack_->blocks().size()) {}

  block_stack<Engine>& stack() { return *stack_; }
  std::size_t blocks() const { return stack_->blocks().size(); }
  // Reserves memory for the rows of the call, and binds the blocks and their gradients if the call is the largest so
  // far.
  status bind_for_call(gradient_buckets<Engine>& gradients, const parameter_pool<Engine>& pool) {
    const long long rows = model_->rows().rows();
    const result<capacity> limits = model_->reserve(rows);
    if (!limits) return limits.failure();
    hidden_.resize(static_cast<std::size_t>(stack_->layers()) + 1);
    for (auto* all : {&hidden_, &gradient_})
      for (device_rows<Engine>& h : *all)
        if (status s = h.reserve(queue(), rows * model_->config().hidden_size); !s) return s;
    if (status s = device_losses_.reserve(queue(), rows); !s) return s;
    if (rows <= bound_rows_) return ok;
    for (std::size_t b = 0; b < blocks(); ++b) {
      bound_block<Engine>& block = stack_->blocks()[b];
      const bool last = b + 1 == blocks();
      if (!last)
        if (status s = block.bind(forward_kind(), *limits); !s) return s;
      if (b >= gradients.first_trained() || last)
        if (status s = block.bind(last ? pass_kind::backward_recompute : backward_kind(),
                                  last ? capacity{head_rows(limits->tokens)} : *limits);
            !s)
          return s;
      if (status s = gradients.bind_gradient(block, b, pool); !s) return s;
    }
    bound_rows_ = rows;
    return ok;
  }
  status ensure_bound_for_evaluation() {
    const long long rows = model_->rows().rows();
    if (rows <= evaluation_rows_) return ok;
    const result<capacity> limits = model_->reserve(rows);
    if (!limits) return limits.failure();
    for (std::size_t b = 0; b + 1 < blocks(); ++b)
      if (status s = stack_->blocks()[b].bind(pass_kind::forward, *limits); !s) return s;
    evaluation_rows_ = rows;
    return ok;
  }
  long long bound_rows() const { return bound_rows_; }
  // Returns the bytes that a call with so many rows saves for backward: the outputs of the blocks, and the saved
  // tensors of each block.
  result<long long> saved_bytes(long long rows) {
    rows = std::max(rows, model_->reserved_rows());
    long long bytes =
        (stack_->layers() + 1LL) * rows * model_->config().hidden_size * bits_of(Engine::storage_type) / 8;
    for (std::size_t b = 0; b + 1 < blocks() && !checkpoint_; ++b) {
      const result<long long> own = stack_->blocks()[b].saved_bytes(rows);
      if (!own) return own.failure();
      bytes += *own;
    }
    return bytes;
  }
  long long saved_allocation_bytes() {
    long long bytes = 0;
    for (const device_rows<Engine>& h : hidden_) bytes += h.bytes();
    for (const bound_block<Engine>& b : stack_->blocks()) bytes += b.saved_allocation_bytes();
    return bytes;
  }
  bool has_attention_dropout() const { return drops_ && model_->config().attention_dropout > 0; }

  // Computes the loss of each row without gradients.
  status evaluate_loss(training_batch<Engine>& batch) {
    if (status s = forward(batch, pass_kind::forward); !s) return s;
    return head(batch, nullptr);
  }
  // Computes the loss of each row and adds the gradients of all parameters. With `ranks`, each bucket is all-reduced as
  // soon as it is complete, overlapping the backward pass of earlier blocks; the caller waits on `ranks` before it
  // reads them.
  status forward_backward(training_batch<Engine>& batch, gradient_buckets<Engine>& gradients, communicator* ranks) {
    if (status s = forward(batch, forward_kind()); !s) return s;
    if (status s = head(batch, &gradients); !s) return s;
    if (status s = router_.differentiate(queue(), batch.weight()); !s) return s;
    std::size_t b = blocks() - 1;
    if (status s = gradients.block_done(queue(), b, ranks); !s) return s;
    for (std::size_t now = 0; b-- > gradients.first_trained(); now ^= 1) {
      block_call c = call_of(batch, b, backward_kind());
      c[call_input::dy] = rows_of(gradient_[now]);
      router_.give_gradient(c);
      if (b > gradients.first_trained()) c.dx = into(gradient_[now ^ 1]);
      if (status s = stack_->blocks()[b].run(backward_kind(), c); !s) return s;
      if (status s = gradients.block_done(queue(), b, ranks); !s) return s;
    }
    return ok;
  }
  result<double> mean(const training_batch<Engine>& batch) {
    const long long rows = model_->rows().rows();
    const result<double> of_router = router_.loss(queue());
    if (!of_router) return of_router.failure();
    if constexpr (Engine::reads_host_memory) {
      return batch.mean(static_cast<const real*>(device_losses_.data())) + *of_router;
    } else {
      losses_.resize(static_cast<std::size_t>(rows));
      if (status s = Engine::fetch(queue(), device_losses_.rows(rows, 1), losses_.data()); !s) return s.failure();
      return batch.mean(losses_.data()) + *of_router;
    }
  }

 private:
  typename Engine::queue& queue() { return model_->programs().queue; }
  pass_kind forward_kind() const { return checkpoint_ ? pass_kind::forward_checkpointed : pass_kind::forward_saved; }
  pass_kind backward_kind() const { return checkpoint_ ? pass_kind::backward_recompute : pass_kind::backward; }
  // Returns the rows of one call of the head: all rows with dropout, since dropout counts elements from the first row
  // of the call.
  long long head_rows(long long rows) const {
    return Engine::loss_rows == 0 || drops_ ? rows : std::min(rows, Engine::loss_rows);
  }
  view rows_of(device_rows<Engine>& v) { return v.rows(model_->rows().rows(), model_->config().hidden_size); }
  mutable_view into(device_rows<Engine>& v) { return v.into(model_->rows().rows(), model_->config().hidden_size); }
  // Returns the inputs of the embedding or a layer; y, dy and dx are set by the caller.
  block_call call_of(const training_batch<Engine>& batch, std::size_t b, pass_kind w) {
    block_call c;
    const int layer = static_cast<int>(b) - 1;
    c[call_input::seed] = batch.seed(b);
    c[call_input::x] = b == 0 ? model_->rows().ids() : rows_of(hidden_[b - 1]);
    c[call_input::positions] = model_->rows().positions();
    const bool drops = w != pass_kind::forward && has_attention_dropout();
    if (b > 0)
      c[call_input::attention_range] =
          drops ? batch.dropout_attention_range(layer) : model_->rows().attention_range_of(layer);
    return c;
  }
  status forward(training_batch<Engine>& batch, pass_kind w) {
    if (status s = model_->upload_rows(); !s) return s;
    if (status s = batch.send(queue()); !s) return s;
    if (status s = router_.begin(queue(), model_->rows().rows()); !s) return s;
    for (std::size_t b = 0; b + 1 < blocks(); ++b) {
      block_call c = call_of(batch, b, w);
      c.y = into(hidden_[b]);
      router_.measure(c, b);
      if (status s = stack_->blocks()[b].run(w, c); !s) return s;
    }
    return ok;
  }
  // Runs the head: the loss of each row and, with `gradients`, the gradient of its weighted sum.
  status head(const training_batch<Engine>& batch, gradient_buckets<Engine>* gradients) {
    const long long rows = model_->rows().rows(), width = model_->config().hidden_size, step = head_rows(rows);
    for (long long first = 0; first < rows; first += step) {
      const long long n = std::min(step, rows - first);
      block_call c;
      c[call_input::seed] = batch.seed(blocks() - 1);
      c[call_input::x] = {hidden_.back().row(first, width), Engine::storage_type, {n, width, 1, 1}, 2};
      c[call_input::positions] = view_of(static_cast<const std::int64_t*>(model_->rows().positions().data) + first, n);
      c[call_input::labels] = batch.labels(first, n);
      c[call_input::dy] = batch.weights(first, n);
      c.y = {device_losses_.row(first, 1), Engine::compute_type, {n, 1, 1, 1}, 2};
      if (gradients != nullptr) c.dx = {gradient_[0].row(first, width), Engine::storage_type, {n, width, 1, 1}, 2};
      if (status s = stack_->head().run(pass_kind::backward_recompute, c); !s) return s;
      if (gradients != nullptr)
        if (status s = gradients->head_done(queue()); !s) return s;
    }
    return ok;
  }

  causal_lm<Engine>* model_;
  std::unique_ptr<block_stack<Engine>> stack_;
  bool checkpoint_, drops_;
  // hidden_: the output of each block but the head; gradient_: gradients of outputs, double-buffered.
  std::vector<device_rows<Engine>> hidden_, gradient_ = std::vector<device_rows<Engine>>(2);
  device_rows<Engine, Engine::compute_type> device_losses_;
  std::vector<real> losses_;
  router_loss<Engine, real> router_;
  long long bound_rows_ = 0, evaluation_rows_ = 0;
};

}  // namespace graft
