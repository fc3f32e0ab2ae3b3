// SPDX-License-Identifier: Apache-2.0
// One call of training through the blocks of a model: forward, the loss of each row and its slope, and back. What forward
// computes and backward needs is kept per block, or computed again; the logits of a batch never exist as a whole. Gradients
// leave a block as soon as it has run (block_gradients.h).
#pragma once
#include <graft/model/block_gradients.h>
#include <graft/model/causal_lm.h>
#include <graft/model/training_batch.h>

namespace graft {

template <class Engine> class training_pass {
 public:
  using real = typename Engine::real;

  training_pass(causal_lm<Engine>& model, std::unique_ptr<block_stack<Engine>> stack, bool checkpoint, bool drops)
      : model_(&model), stack_(std::move(stack)), checkpoint_(checkpoint), drops_(drops) {}

  block_stack<Engine>& stack() { return *stack_; }
  std::size_t blocks() const { return stack_->blocks().size(); }
  // Room for so many rows. Blocks are bound again where there was less: `gradients` says where theirs go.
  status ready(block_gradients<Engine>& gradients, const parameter_pool<Engine>& pool) {
    const long long rows = model_->rows().rows();
    const result<capacity> room = model_->reserve(rows);
    if (!room) return room.failure();
    hidden_.resize(static_cast<std::size_t>(stack_->layers()) + 1);
    for (auto* all : {&hidden_, &slope_})
      for (engine_rows<Engine>& h : *all)
        if (status s = h.reserve(queue(), rows * model_->config().width); !s) return s;
    if (status s = losses_at_.reserve(queue(), rows); !s) return s;
    if (rows <= room_) return ok;
    for (std::size_t b = 0; b < blocks(); ++b) {
      bound_block<Engine>& block = stack_->blocks()[b];
      const bool last = b + 1 == blocks();
      if (!last)
        if (status s = block.bind(there(), *room); !s) return s;
      if (b >= gradients.first_trained() || last)
        if (status s = block.bind(last ? way::recomputing : back(), last ? capacity{head_rows(room->tokens)} : *room);
            !s)
          return s;
      if (status s = gradients.want(block, b, pool); !s) return s;
    }
    room_ = rows;
    return ok;
  }
  status ready_to_look() {
    const long long rows = model_->rows().rows();
    if (rows <= room_to_look_) return ok;
    const result<capacity> room = model_->reserve(rows);
    if (!room) return room.failure();
    for (std::size_t b = 0; b + 1 < blocks(); ++b)
      if (status s = stack_->blocks()[b].bind(way::forward, *room); !s) return s;
    room_to_look_ = rows;
    return ok;
  }
  long long room() const { return room_; }
  // What calls with so many rows keep for the backward pass: the rows between the blocks, and what each block keeps.
  result<long long> kept_bytes(long long rows) {
    rows = std::max(rows, model_->reserved_rows());
    long long bytes = (stack_->layers() + 1LL) * rows * model_->config().width * bits_of(Engine::keeps) / 8;
    for (std::size_t b = 0; b + 1 < blocks() && !checkpoint_; ++b) {
      const result<long long> own = stack_->blocks()[b].kept_bytes(rows);
      if (!own) return own.failure();
      bytes += *own;
    }
    return bytes;
  }
  long long held_bytes() {
    long long bytes = 0;
    for (const engine_rows<Engine>& h : hidden_) bytes += h.bytes();
    for (const bound_block<Engine>& b : stack_->blocks()) bytes += b.held_bytes();
    return bytes;
  }
  bool drops_attention() const { return drops_ && model_->config().attention_dropout > 0; }

  // The loss of each row.
  status look(training_batch<Engine>& batch) {
    if (status s = forward(batch, way::forward); !s) return s;
    return head(batch, nullptr);
  }
  // The same with gradients, summed over the ranks where some are given: finished when those are waited for.
  status there_and_back(training_batch<Engine>& batch, block_gradients<Engine>& gradients, communicator* ranks) {
    if (status s = forward(batch, there()); !s) return s;
    if (status s = head(batch, &gradients); !s) return s;
    std::size_t b = blocks() - 1;
    if (status s = gradients.block_ran(queue(), b, ranks); !s) return s;
    for (std::size_t now = 0; b-- > gradients.first_trained(); now ^= 1) {
      block_call c = call_of(batch, b, back());
      c[call_input::dy] = rows_of(slope_[now]);
      if (b > gradients.first_trained()) c.dx = into(slope_[now ^ 1]);
      if (status s = stack_->blocks()[b].run(back(), c); !s) return s;
      if (status s = gradients.block_ran(queue(), b, ranks); !s) return s;
    }
    return ok;
  }
  result<double> mean(const training_batch<Engine>& batch) {
    const long long rows = model_->rows().rows();
    if constexpr (Engine::reads_host_memory) {
      return batch.mean(static_cast<const real*>(losses_at_.data()));
    } else {
      losses_.resize(static_cast<std::size_t>(rows));
      if (status s = Engine::fetch(queue(), losses_at_.rows(rows, 1), losses_.data()); !s) return s.failure();
      return batch.mean(losses_.data());
    }
  }

 private:
  typename Engine::queue& queue() { return model_->programs().queue; }
  way there() const { return checkpoint_ ? way::passing : way::keeping; }
  way back() const { return checkpoint_ ? way::recomputing : way::backward; }
  // Rows of one call of the head. Where elements are dropped there it is one call: their numbers count from its beginning.
  long long head_rows(long long rows) const {
    return Engine::loss_rows == 0 || drops_ ? rows : std::min(rows, Engine::loss_rows);
  }
  view rows_of(engine_rows<Engine>& v) { return v.rows(model_->rows().rows(), model_->config().width); }
  mutable_view into(engine_rows<Engine>& v) { return v.into(model_->rows().rows(), model_->config().width); }
  // Of the embedding and the layers.
  block_call call_of(const training_batch<Engine>& batch, std::size_t b, way w) {
    block_call c;
    const int layer = static_cast<int>(b) - 1;
    c[call_input::seed] = batch.seed(b);
    c[call_input::x] = b == 0 ? model_->rows().ids() : rows_of(hidden_[b - 1]);
    c[call_input::positions] = model_->rows().positions();
    const bool drops = w != way::forward && drops_attention();
    if (b > 0) c[call_input::span] = drops ? batch.dropping_span(layer) : model_->rows().span_of(layer);
    return c;
  }
  status forward(training_batch<Engine>& batch, way w) {
    if (status s = model_->send_rows(); !s) return s;
    if (status s = batch.send(queue()); !s) return s;
    for (std::size_t b = 0; b + 1 < blocks(); ++b) {
      block_call c = call_of(batch, b, w);
      c.y = into(hidden_[b]);
      if (status s = stack_->blocks()[b].run(w, c); !s) return s;
    }
    return ok;
  }
  // The loss of each row, and with gradients the slope of its mean.
  status head(const training_batch<Engine>& batch, block_gradients<Engine>* gradients) {
    const long long rows = model_->rows().rows(), width = model_->config().width, step = head_rows(rows);
    for (long long first = 0; first < rows; first += step) {
      const long long n = std::min(step, rows - first);
      block_call c;
      c[call_input::seed] = batch.seed(blocks() - 1);
      c[call_input::x] = {hidden_.back().row(first, width), Engine::keeps, {n, width, 1, 1}, 2};
      c[call_input::positions] = view_of(static_cast<const std::int64_t*>(model_->rows().positions().data) + first, n);
      c[call_input::labels] = batch.labels(first, n);
      c[call_input::dy] = batch.weights(first, n);
      c.y = {losses_at_.row(first, 1), Engine::computes, {n, 1, 1, 1}, 2};
      if (gradients != nullptr) c.dx = {slope_[0].row(first, width), Engine::keeps, {n, width, 1, 1}, 2};
      if (status s = stack_->head().run(way::recomputing, c); !s) return s;
      if (gradients != nullptr)
        if (status s = gradients->head_ran(queue()); !s) return s;
    }
    return ok;
  }

  causal_lm<Engine>* model_;
  std::unique_ptr<block_stack<Engine>> stack_;
  bool checkpoint_, drops_;
  std::vector<engine_rows<Engine>> hidden_,
      slope_ = std::vector<engine_rows<Engine>>(2);  // behind each block, and back
  engine_rows<Engine, Engine::computes> losses_at_;
  std::vector<real> losses_;
  long long room_ = 0, room_to_look_ = 0;
};

}  // namespace graft
