// SPDX-License-Identifier: Apache-2.0
// A causal language model on an engine: weights, named adapters, and logits of tokens. Adapters are values; adding,
// switching, merging and removing them changes nothing of the base, whose weights stay where they are.
//     auto model = io::hf::load_model<cpu::engine<float>>(folder);
//     io::hf::load_adapter(*model, "sql", adapter_folder);
//     model->activate({"sql"});
//     model->logits({{ids, 0}}, out);
// Any thread may change the adapters while another one runs the model: a change waits for the end of the call, and the
// next call, or the next token, sees all of it.
#pragma once
#include <graft/core/mixed_bits.h>
#include <graft/model/merge.h>
#include <graft/model/model_ranks.h>
#include <graft/model/named_adapters.h>
#include <graft/model/stack_cache.h>

#include <mutex>

namespace graft {

struct model_options {
  int context = 0;  // positions that there must be room for; 0: those of the model, at most 4096
  adapter_capacity adapters{};
  chain several = chain::peft;  // how several adapters on one layer act
  // How the scales of 4-bit weights are looked for; row_run where what counts are the numbers of bitsandbytes on a
  // processor with AVX-512 (core/encoding.h).
  scaled_by blocks = scaled_by::run;
  std::shared_ptr<communicator> ranks{};  // that compute this model together; none: this process alone
};

template <class Engine> class causal_lm {
 public:
  using real = typename Engine::real;
  using names = named_adapters::names;

  static result<causal_lm> make(const model_config& config, model_weights weights, const model_options& options = {}) {
    if (status good = check_supported(config); !good) return good.failure();
    const bool turned = has_rope(config.family);
    const int context = options.context > 0 && turned ? options.context
                        : turned                      ? std::min(config.positions, 4096)
                                                      : config.positions;
    causal_lm m(config, std::move(weights), context);
    m.named_.room = options.adapters, m.named_.how = options.several;
    if (status good = Engine::start(m.programs_->queue); !good) return good.failure();
    if (options.ranks != nullptr) {
      const result<rank_share> share = share_of(config, *options.ranks);
      if (!share) return share.failure();
      m.programs_->share = *share;
      if (status good = Engine::exchange_by(m.programs_->queue, exchange_over(options.ranks)); !good)
        return good.failure();
    }
    if (status good = m.take(m.named_); !good) return good.failure();
    return result<causal_lm>(std::move(m));
  }

  const model_config& config() const { return *config_; }
  int context() const { return context_; }
  const model_weights& weights() const { return *weights_; }
  block_programs<Engine>& programs() { return *programs_; }
  // Held by whoever runs the model or changes its adapters.
  std::unique_lock<std::mutex> alone() const { return std::unique_lock(*mutex_); }

  // Launches of this model are timed from now on, each kind and class of sizes once: step_mode::max_autotune asks for it.
  // `file`: where the choices are kept, for every later program; empty: the usual place. note_on_choices() is what a user
  // should know of that file.
  status time_choices(const std::string& file = {}) {
    const auto mine = alone();
    return Engine::time_choices(programs_->queue, file);
  }
  std::string note_on_choices() const { return Engine::note_on_choices(programs_->queue); }

  // ---- adapters, by name; where one does not fit, the model stays as it was (model/causal_lm_adapters.h)
  status add(const std::string& name, adapter_set adapter);      // it is not active yet
  status replace(const std::string& name, adapter_set adapter);  // takes its place, active or not
  status remove(const std::string& name);
  status rename(const std::string& from, const std::string& to);
  status activate(const names& which);  // in this order; none is the base alone
  names all_names() const;
  names active() const;
  shared_adapter find(const std::string& name) const;
  const adapter_set& adapters() const { return *acting_; }  // those that are active, as one
  status set_adapters(adapter_set adapter);                 // takes the place of all
  status unload();                                          // none is left
  // After tensors of adapters were written.
  status adapters_changed();

  void enable(bool on);
  bool enabled() const;
  class disabled_scope {
   public:
    explicit disabled_scope(causal_lm& m) : model_(&m), before_(m.enabled()) { m.enable(false); }
    disabled_scope(const disabled_scope&) = delete;
    disabled_scope& operator=(const disabled_scope&) = delete;
    ~disabled_scope() { model_->enable(before_); }

   private:
    causal_lm* model_;
    bool before_;
  };
  // The base alone, until the end of the scope.
  [[nodiscard]] disabled_scope disabled() { return disabled_scope(*this); }

  // ---- merging: while anything is merged, the merged weights are the model, as in PEFT. Merged weights lie beside the
  // base, which is not written: unmerge() forgets them, and the base has the bits it had.
  status merge(const names& which);
  status unmerge();
  names merged() const;
  long long merged_bytes() const;
  status merge_and_unload(const names& which);
  // For a model of their own; `as`: of weights that are codes.
  result<model_weights> merged_weights(const names& which, merged_as as = merged_as::codes);
  result<model_weights> merged_weights() { return merged_weights(active()); }
  // How far elements of each module were moved when a merged weight became codes, over the largest of them. unmerge()
  // gives the codes of the base back.
  std::map<std::string, double> merge_rounding() const;

  // How rows with each of these sets of adapters run beside others, a line for each: in the launches of the base, or as a
  // group of their own, and why.
  result<std::string> explain_rows(std::span<const names> sets);

  // Logits of every row [rows, vocabulary], or of the last row of each run. `of_runs`: the adapters of each run, none of
  // them for the base alone; not given: those that are active.
  status logits(std::span<const row_run> runs, std::span<real> out, bool last_only = false,
                std::span<const names> of_runs = {}) {
    const auto mine = alone();
    if (status s = check_runs(runs); !s) return s;
    long long n = 0;
    for (const row_run& r : runs) n += last_only ? 1 : static_cast<long long>(r.tokens.size());
    if (out.size() != static_cast<std::size_t>(n * config_->vocabulary))
      return fail("the logits have room for ", static_cast<long long>(out.size()), " numbers, expected ", n, " x ",
                  config_->vocabulary);
    if constexpr (Engine::reads_host_memory)
      return run_rows(stacks_, nullptr, runs, of_runs, view_into(out.data(), n, config_->vocabulary));
    else {
      if (status s = logits_.reserve(programs_->queue, n * config_->vocabulary); !s) return s;
      if (status s = run_rows(stacks_, nullptr, runs, of_runs, logits_.into(n, config_->vocabulary)); !s) return s;
      return Engine::fetch(programs_->queue, logits_.rows(n, config_->vocabulary), out.data());
    }
  }

  // ---- for generation and training, which run stacks of their own and hold alone()
  // Logits into memory of the engine: of all rows, or, where there is room for fewer, of the last row of each run.
  status run_rows(stack_cache<Engine>& stacks, kept_rows<Engine>* cache, std::span<const row_run> runs,
                  std::span<const names> of_runs, const mutable_view& out);
  // The same in two steps, for the adapters that are active: what happens before anything is launched, and the launches.
  result<block_stack<Engine>*> prepare(stack_cache<Engine>& stacks, kept_rows<Engine>* cache,
                                       std::span<const row_run> runs);
  // The same where runs have adapters of their own. Null: an adapter cannot share the launches of the base, or there are
  // too many rows; run_rows runs them by groups.
  result<block_stack<Engine>*> prepare_mixed(stack_cache<Engine>& stacks, kept_rows<Engine>* cache,
                                             std::span<const row_run> runs, std::span<const names> of_runs);
  // The base whose launches they share; and the place of what a set of adapters does to it, or that it has none.
  static constexpr int base_place = -1, no_place = -2;
  result<block_stack<Engine>*> begin_mixed(stack_cache<Engine>& stacks, kept_rows<Engine>* cache, long long rows);
  result<int> place_of_mixed(stack_cache<Engine>& stacks, kept_rows<Engine>* cache, long long rows, const names& n,
                             std::string* why = nullptr);
  static long long rows_of(std::span<const row_run> runs) {
    long long rows = 0;
    for (const row_run& r : runs) rows += static_cast<long long>(r.tokens.size());
    return rows;
  }
  status check_adapters(std::span<const row_run> runs, std::span<const names> of_runs) const;
  status run_prepared(block_stack<Engine>& in, way w, const mutable_view& out) {
    if (status s = send_rows(); !s) return s;
    return run_sent(in, w, out);
  }
  // The same where the numbers of the rows are there.
  status run_sent(block_stack<Engine>& in, way w, const mutable_view& out) {
    if (status s = forward(in, w); !s) return s;
    return head(in, out);
  }
  result<std::unique_ptr<block_stack<Engine>>> make_stack(bool loss, bool dropped) {
    return make_stack(acting(), weights_now(), {loss, dropped});
  }
  result<std::unique_ptr<block_stack<Engine>>> make_stack(const names& which, bool loss, bool dropped);
  row_batch& rows() { return rows_; }
  // The rows of the next call, where the engine reads them once they were sent.
  status set_rows(std::span<const row_run> runs, bool cached, std::span<const std::int64_t> adapters = {}) {
    rows_.set(runs, config_->window, cached, adapters), ++rows_set_;
    const std::span<const std::int64_t> all = rows_.numbers();
    if (status s = row_numbers_.write(all.data(), static_cast<long long>(all.size_bytes())); !s) return s;
    return rows_.lies_at(static_cast<const std::int64_t*>(row_numbers_.data())), status(ok);
  }
  status send_rows() { return row_numbers_.send(programs_->queue); }
  // How often rows were set: their numbers lie where those before them did.
  std::uint64_t rows_set() const { return rows_set_; }
  // Another number where the rows of a call, or those between blocks, lie elsewhere than before.
  std::uint64_t place_of_rows() {
    std::uint64_t all = 0;
    for (const void* at :
         {rows_.ids().data, static_cast<const void*>(hidden(0).data()), static_cast<const void*>(hidden(1).data())})
      all = mixed_bits(all ^ static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at)));
    return all;
  }
  status forward(block_stack<Engine>& in, way w) {
    block_call c = call(0);
    c[call_input::x] = rows_.ids(), c.y = hidden(0).into(rows_.rows(), config_->width);
    if (status s = in.embed().run(way::forward, c); !s) return s;
    for (int l = 0; l < in.layers(); ++l) {
      c = call(l);
      c[call_input::span] = rows_.span_of(l);
      if (status s = in.layer(l).run(w, c); !s) return s;
    }
    return ok;
  }
  status head(block_stack<Engine>& in, const mutable_view& out) {
    const long long width = config_->width, n = out.size[0];
    engine_rows<Engine>* h = &hidden(in.layers());
    if (n < rows_.rows()) {
      engine_rows<Engine>& picked = hidden(in.layers() + 1);
      for (std::size_t k = 0; k < rows_.last().size(); ++k)
        if (status s = Engine::copy(programs_->queue, picked.row(static_cast<long long>(k), width),
                                    h->row(rows_.last()[k], width), width * bits_of(Engine::keeps) / 8);
            !s)
          return s;
      h = &picked;
    }
    block_call c;
    c[call_input::x] = h->rows(n, width);
    c.y = out;
    return in.head().run(way::forward, c);
  }
  status check_runs(std::span<const row_run> runs) const {
    for (const row_run& r : runs) {
      if (r.tokens.empty()) return fail("a sequence has no tokens, expected at least one");
      const long long end = r.position + static_cast<long long>(r.tokens.size());
      if (r.position < 0 || end > context_)
        return fail("a sequence reaches position ", end, ", there is room for ", context_);
      for (std::size_t t = 0; t < r.tokens.size(); ++t)
        if (r.tokens[t] < 0 || r.tokens[t] >= config_->vocabulary)
          return fail("id ", static_cast<long long>(r.tokens[t]), " at position ", static_cast<long long>(t),
                      " is outside the table of ", config_->vocabulary, " rows");
    }
    if (runs.empty()) return fail("there is no sequence, expected at least one");
    return ok;
  }
  // Room for the rows of a call in the memory between blocks. Stacks share programs, and with them their workspace, so
  // that each is bound for the largest call of any.
  result<capacity> reserve(long long rows) {
    largest_ = std::max(largest_, rows);
    for (auto& h : hidden_)
      if (status s = h.reserve(programs_->queue, largest_ * config_->width); !s) return s.failure();
    return capacity{largest_};
  }
  long long reserved_rows() const { return largest_; }

 private:
  struct numbered_weights {
    const model_weights& of;
    unsigned long long number;
  };
  struct numbered_merge {
    merged_model model;
    std::vector<shared_adapter> of;
    unsigned long long number;
    numbered_weights numbered() const { return {model.weights, number}; }
  };
  struct stack_use {
    bool loss = false, dropped = false;
    kept_rows<Engine>* cache = nullptr;
  };

  causal_lm(const model_config& config, model_weights weights, int context)
      : mutex_(std::make_unique<std::mutex>()),
        config_(std::make_unique<model_config>(config)),
        weights_(std::make_unique<model_weights>(std::move(weights))),
        context_(context),
        programs_(std::make_unique<block_programs<Engine>>()),
        texts_(std::make_unique<std::set<std::string>>()) {
    if (has_rope(config.family)) rotary_ = rotary_table(config, context);
  }
  template <class Edit> status change(Edit edit);
  status take(named_adapters next);
  status fits(const shared_adapter& adapter);
  result<merged_model> merge_of(std::span<const shared_adapter> adapters, merged_as as = merged_as::codes);
  void forget_unused();
  std::vector<shared_adapter> listed(const named_adapters& in, const names& which) const;
  std::span<const shared_adapter> acting() const {
    return named_.enabled ? std::span<const shared_adapter>(running_) : std::span<const shared_adapter>();
  }
  numbered_weights weights_now() const {
    return merged_ != nullptr && named_.enabled ? merged_->numbered() : base_weights();
  }
  numbered_weights base_weights() const { return {*weights_, weights_number_}; }
  result<std::unique_ptr<block_stack<Engine>>> make_stack(std::span<const shared_adapter> adapters,
                                                          const numbered_weights& on, const stack_use& use);
  result<block_stack<Engine>*> prepare(stack_cache<Engine>& stacks, kept_rows<Engine>* cache,
                                       std::span<const shared_adapter> adapters, const numbered_weights& on,
                                       std::span<const row_run> runs);
  status bring(const adapter_set& adapter);
  engine_rows<Engine>& hidden(int k) { return hidden_[k % 2]; }
  // From the rows before a layer to those behind it.
  block_call call(int layer) {
    block_call c;
    c[call_input::x] = hidden(layer).rows(rows_.rows(), config_->width);
    c[call_input::positions] = rows_.positions();
    c.y = hidden(layer + 1).into(rows_.rows(), config_->width);
    return c;
  }

  std::unique_ptr<std::mutex> mutex_;
  std::unique_ptr<model_config> config_;
  std::unique_ptr<model_weights> weights_;
  int context_ = 0;
  std::unique_ptr<block_programs<Engine>> programs_;
  std::unique_ptr<std::set<std::string>> texts_;
  std::vector<float> rotary_;
  named_adapters named_;
  std::vector<shared_adapter> running_;
  shared_adapter acting_ = std::make_shared<const adapter_set>();
  std::unique_ptr<numbered_merge> merged_;
  unsigned long long numbers_ = 1, weights_number_ = 1;  // other weights, another number
  stack_cache<Engine> stacks_;
  long long largest_ = 0;
  row_batch rows_;
  std::uint64_t rows_set_ = 0;
  typename Engine::numbers row_numbers_;
  engine_rows<Engine> hidden_[2], grouped_;
  engine_rows<Engine, dtype::f32> logits_;
  std::shared_ptr<placed_tensors<Engine>> weights_at_ = std::make_shared<placed_tensors<Engine>>(),
                                          adapters_at_ = std::make_shared<placed_tensors<Engine>>();
};

}  // namespace graft

#include <graft/model/causal_lm_adapters.h>
#include <graft/model/causal_lm_merge.h>
#include <graft/model/causal_lm_rows.h>
