// SPDX-License-Identifier: Apache-2.0
// A causal language model on an engine: weights, adapters, and logits of tokens. Adapters are values; adding, switching
// off and removing them changes nothing of the base, whose weights stay where they are.
//     auto model = io::hf::load_model<cpu::engine<float>>(folder);
//     model->set_adapters(*io::hf::load_adapters(adapter_folder, *model));
//     model->logits({{ids, 0}}, out);
#pragma once
#include <graft/model/block_stack.h>

namespace graft {

struct model_options {
  int context = 0;  // positions that there must be room for; 0: those of the model, at most 4096
};

template <class Engine> class causal_lm {
 public:
  using real = typename Engine::real;

  static result<causal_lm> make(const model_config& config, model_weights weights, const model_options& options = {}) {
    if (status good = check_supported(config); !good) return good.failure();
    const bool turned = has_rope(config.family);
    const int context = options.context > 0 && turned ? options.context
                        : turned                      ? std::min(config.positions, 4096)
                                                      : config.positions;
    causal_lm m(config, std::move(weights), context);
    if (status good = m.rebuild(); !good) return good.failure();
    return m;
  }

  const model_config& config() const { return *config_; }
  int context() const { return context_; }
  const model_weights& weights() const { return *weights_; }
  const adapter_set& adapters() const { return *adapters_; }
  block_programs<Engine>& programs() { return *programs_; }

  // Takes the place of all adapters; where one does not fit, the model stays as it was.
  status set_adapters(adapter_set adapters) {
    auto before = std::exchange(adapters_, std::make_unique<adapter_set>(std::move(adapters)));
    status s = rebuild();
    if (!s) adapters_ = std::move(before);
    return s;
  }
  void enable(bool on) { enabled_ = on; }
  bool enabled() const { return enabled_; }

  // Logits of every row [rows, vocabulary], or of the last row of each run.
  status logits(std::span<const row_run> runs, std::span<real> out, bool last_only = false) {
    if (status s = check_runs(runs); !s) return s;
    rows_.set(runs, config_->window, false);
    if (status s = ready(stack(), rows_.rows()); !s) return s;
    if (status s = forward(*stack(), way::forward); !s) return s;
    return head(*stack(), out, last_only);
  }

  // ---- for generation and training, which run stacks of their own
  result<std::unique_ptr<block_stack<Engine>>> make_stack(bool loss, bool dropped, long long cache_places) {
    return block_stack<Engine>::make(*programs_,
                                     settings(enabled_ ? adapters_.get() : nullptr, loss, dropped, cache_places));
  }
  row_batch& rows() { return rows_; }
  status forward(block_stack<Engine>& in, way w) {
    block_call c = call(hidden(0), hidden(0));
    c[call_input::x] = rows_.ids();
    if (status s = in.embed().run(way::forward, c); !s) return s;
    for (int l = 0; l < in.layers(); ++l) {
      c = call(hidden(l), hidden(l + 1));
      c[call_input::span] = rows_.span_of(l);
      if (status s = in.layer(l).run(w, c); !s) return s;
    }
    return ok;
  }
  status head(block_stack<Engine>& in, std::span<real> out, bool last_only) {
    const auto width = static_cast<std::size_t>(config_->width);
    real* h = hidden(in.layers());
    long long n = rows_.rows();
    if (last_only) {
      n = static_cast<long long>(rows_.last().size());
      real* const picked = hidden(in.layers() + 1);
      for (std::size_t k = 0; k < rows_.last().size(); ++k)
        std::copy_n(h + static_cast<std::size_t>(rows_.last()[k]) * width, width, picked + k * width);
      h = picked;
    }
    if (out.size() != static_cast<std::size_t>(n * config_->vocabulary))
      return fail("the logits have room for ", static_cast<long long>(out.size()), " numbers, expected ", n, " x ",
                  config_->vocabulary);
    block_call c;
    c[call_input::x] = view_of(h, n, config_->width);
    c.y = view_into(out.data(), n, config_->vocabulary);
    return in.head().run(way::forward, c);
  }
  status check_runs(std::span<const row_run> runs) const {
    for (const row_run& r : runs) {
      if (r.tokens.empty()) return fail("a sequence has no tokens, expected at least one");
      const long long end = r.position + static_cast<long long>(r.tokens.size());
      if (r.position < 0 || end > context_)
        return fail("a sequence reaches position ", end, ", there is room for ", context_);
    }
    if (runs.empty()) return fail("there is no sequence, expected at least one");
    return ok;
  }
  // Room for the rows of a call in the memory between blocks. Stacks share programs, and with them their workspace, so
  // that each is bound for the largest call of any.
  capacity reserve(long long rows) {
    largest_ = std::max(largest_, rows);
    const auto n = static_cast<std::size_t>(largest_ * config_->width);
    for (auto& h : hidden_)
      if (h.size() < n) h.resize(n);
    return {largest_};
  }

 private:
  causal_lm(const model_config& config, model_weights weights, int context)
      : config_(std::make_unique<model_config>(config)),
        weights_(std::make_unique<model_weights>(std::move(weights))),
        context_(context),
        programs_(std::make_unique<block_programs<Engine>>()),
        texts_(std::make_unique<std::set<std::string>>()),
        adapters_(std::make_unique<adapter_set>()) {
    if (has_rope(config.family)) rotary_ = rotary_table(config, context);
  }
  typename block_stack<Engine>::settings settings(const adapter_set* adapters, bool loss, bool dropped,
                                                  long long cache_places) {
    return {*config_,    *weights_, *texts_,  adapters,
            loss,        dropped,   context_, view_of(rotary_.data(), context_, config_->head_size),
            cache_places};
  }
  status rebuild() {
    auto base = block_stack<Engine>::make(*programs_, settings(nullptr, false, false, 0));
    if (!base) return base.failure();
    auto adapted = block_stack<Engine>::make(*programs_, settings(adapters_.get(), false, false, 0));
    if (!adapted) return adapted.failure();
    if (status s = (*adapted)->bind(way::forward, reserve(1)); !s) return s;
    base_ = std::move(*base), adapted_ = std::move(*adapted);
    room_[0] = room_[1] = 0;
    return ok;
  }
  std::unique_ptr<block_stack<Engine>>& stack() { return enabled_ ? adapted_ : base_; }
  status ready(std::unique_ptr<block_stack<Engine>>& in, long long rows) {
    long long& room = room_[enabled_ ? 1 : 0];
    const capacity all = reserve(rows);
    if (rows <= room) return ok;
    if (status s = in->bind(way::forward, all); !s) return s;
    room = rows;
    return ok;
  }
  real* hidden(int k) { return hidden_[static_cast<std::size_t>(k % 2)].data(); }
  block_call call(real* x, real* y) {
    block_call c;
    c[call_input::x] = view_of(x, rows_.rows(), config_->width);
    c[call_input::positions] = rows_.positions();
    c.y = view_into(y, rows_.rows(), config_->width);
    return c;
  }

  std::unique_ptr<model_config> config_;
  std::unique_ptr<model_weights> weights_;
  int context_ = 0;
  std::unique_ptr<block_programs<Engine>> programs_;
  std::unique_ptr<std::set<std::string>> texts_;
  std::unique_ptr<adapter_set> adapters_;
  std::vector<float> rotary_;
  std::unique_ptr<block_stack<Engine>> base_, adapted_;
  long long room_[2] = {0, 0};
  bool enabled_ = true;
  long long largest_ = 0;
  row_batch rows_;
  std::vector<real> hidden_[2];
};

}  // namespace graft
