// SPDX-License-Identifier: Apache-2.0
// Generation: a prompt goes through the model once, a long one in pieces, and leaves its keys and values in the cache;
// then one token after the other, each sequence for itself. Sequences of one call may have any lengths: rows are not padded, so a batch gives the
// tokens that its sequences would give one by one. The cache has the room it was made with; a sequence that fills it ends.
// A step that is replayed leaves the rows of the next one where they are read, so that the next one is queued before the
// tokens of this one are looked at: the device does not wait for the host. Where it turns out that something else should
// have run, what it chose is not looked at.
//     generator<engine> g(model, settings, 8, 512);
//     g.run(prompts, [&](std::size_t sequence, std::int64_t token) { …; return true; });
#pragma once
#include <graft/core/mixed_bits.h>
#include <graft/model/captured_steps.h>
#include <graft/model/causal_lm.h>
#include <graft/model/next_tokens.h>

namespace graft {

enum class stop_reason : unsigned char { running, end_token, new_tokens, no_room, caller };

struct generated_sequence {
  std::vector<std::int64_t> tokens;  // with the prompt
  stop_reason why = stop_reason::running;
};

template <class Engine> class generator {
 public:
  // Room for so many sequences of so many tokens each, prompts included.
  static result<generator> make(causal_lm<Engine>& model, const generation_settings& how, int sequences, int length,
                                step_mode steps = step_mode::standard) {
    if (sequences < 1 || length < 1) return fail("there must be room for at least one sequence and one token");
    if (length > model.context())
      return fail("sequences of ", length, " tokens do not fit the ", model.context(), " positions of the model");
    if (how.prefill_chunk_size && *how.prefill_chunk_size < 1)
      return fail("prefill_chunk_size is ", *how.prefill_chunk_size, ", expected at least 1");
    if (steps == step_mode::max_autotune)
      if (status s = model.time_choices(); !s) return s.failure();
    generator made(model, how, sequences, length);
    made.steps_ = steps;
    return result<generator>(std::move(made));
  }

  // `token` is called with the number of a sequence and its new token; where it gives false the sequence ends.
  // `adapters`: those of each prompt; not given: those of the model, at every token those that are active then.
  template <class OnToken>
  result<std::vector<generated_sequence>> run(std::span<const std::vector<std::int64_t>> prompts, OnToken token,
                                              std::span<const named_adapters::names> adapters = {}) {
    std::vector<generated_sequence> all(prompts.size());
    if (!adapters.empty() && adapters.size() != prompts.size())
      return fail("adapters are named for ", static_cast<long long>(adapters.size()), " prompts, and there are ",
                  static_cast<long long>(prompts.size()));
    adapters_ = adapters;
    if (status s = start(prompts, all); !s) return s.failure();
    const nothing_queued at_the_end{*this};
    for (bool more = !how_.new_tokens || *how_.new_tokens > 0; more;) {
      if (status s = go_through_long_prompts(all); !s) return s.failure();
      if (status s = step(all); !s) return s.failure();
      more = false;
      for (const std::size_t i : active_) {
        const auto row = std::find(rows_of_.begin(), rows_of_.end(), i) - rows_of_.begin();
        const result<int> next = choice_.token(static_cast<std::size_t>(row), all[i].tokens, i);
        if (!next) return next.failure();
        all[i].tokens.push_back(*next);
        if (!token(i, static_cast<std::int64_t>(*next))) all[i].why = stop_reason::caller;
        const auto made = all[i].tokens.size() - prompts[i].size();
        if (all[i].why == stop_reason::running) all[i].why = reason(*next, made, all[i].tokens.size());
        more = more || all[i].why == stop_reason::running;
      }
      std::erase_if(active_, [&](std::size_t i) { return all[i].why != stop_reason::running; });
    }
    return all;
  }
  result<std::vector<generated_sequence>> run(std::span<const std::vector<std::int64_t>> prompts) {
    return run(prompts, [](std::size_t, std::int64_t) { return true; });
  }
  // How many steps are captured: one for each number of rows and each set of adapters that was active.
  int captured() const { return captured_.captured(); }

 private:
  generator(causal_lm<Engine>& model, const generation_settings& how, int sequences, int length)
      : model_(&model),
        how_(how),
        sequences_(static_cast<std::size_t>(sequences)),
        length_(length),
        cache_(std::make_unique<kept_rows<Engine>>()),
        choice_(how.sampling, model.config().vocabulary, length) {
    cache_->places = static_cast<long long>(sequences) * length;
  }

  status start(std::span<const std::vector<std::int64_t>> prompts, std::vector<generated_sequence>& all) {
    if (prompts.empty() || prompts.size() > sequences_)
      return fail("there are ", static_cast<long long>(prompts.size()), " prompts, expected 1 to ",
                  static_cast<long long>(sequences_));
    active_.clear(), done_.assign(prompts.size(), 0), runs_.clear(), runs_.reserve(prompts.size());
    prompt_.clear();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto n = static_cast<long long>(prompts[i].size());
      if (n < 1 || n > length_)
        return fail("prompt ", static_cast<long long>(i), " has ", n, " tokens, expected 1 to ", length_);
      all[i].tokens.reserve(static_cast<std::size_t>(length_) + 1);
      all[i].tokens = prompts[i];
      all[i].tokens.reserve(static_cast<std::size_t>(length_) + 1);
      active_.push_back(i), prompt_.push_back(n);
    }
    if (status s = choice_.begin(queue(), prompts); !s) return s;
    return ok;
  }
  // Where more tokens wait than a piece has, all but the last of each sequence go into the cache, piece by piece.
  status go_through_long_prompts(const std::vector<generated_sequence>& all) {
    const long long piece = how_.prefill_chunk_size.value_or(4096);
    long long waiting = 0;
    for (const std::size_t i : active_) waiting += static_cast<long long>(all[i].tokens.size()) - done_[i];
    if (waiting <= std::max(piece, static_cast<long long>(active_.size()))) return ok;
    for (std::size_t k = 0; k < active_.size();) {
      runs_.clear(), names_.clear();
      for (long long room = piece; room > 0 && k < active_.size();) {
        const std::size_t i = active_[k];
        const long long left = static_cast<long long>(all[i].tokens.size()) - 1 - done_[i], n = std::min(left, room);
        if (n > 0) {
          const auto from = static_cast<std::size_t>(done_[i]);
          runs_.push_back({std::span(all[i].tokens).subspan(from, static_cast<std::size_t>(n)), done_[i],
                           static_cast<long long>(i) * length_});
          if (!adapters_.empty()) names_.push_back(adapters_[i]);
          done_[i] += n, room -= n;
        }
        if (n == left) ++k;
      }
      if (runs_.empty()) continue;
      const auto mine = model_->alone();
      const result<mutable_view> logits = choice_.logits(queue(), static_cast<long long>(runs_.size()));
      if (!logits) return logits.failure();
      if (status s = model_->run_rows(stacks_, cache_.get(), runs_, names_, *logits); !s) return s;
    }
    return ok;
  }
  // All tokens of the active sequences that are not in the cache yet: the prompts, or one each.
  status step(const std::vector<generated_sequence>& all) {
    runs_.clear(), names_.clear();
    for (const std::size_t i : active_) {
      const auto done = static_cast<std::size_t>(done_[i]);
      runs_.push_back({std::span(all[i].tokens).subspan(done), done_[i], static_cast<long long>(i) * length_});
      if (!adapters_.empty()) names_.push_back(adapters_[i]);
      done_[i] = static_cast<long long>(all[i].tokens.size());
    }
    const auto mine = model_->alone();
    const bool only_mine = model_->rows_set() == rows_set_;  // nobody else's rows lie where those of the next step do
    const auto n = static_cast<long long>(active_.size());
    const result<mutable_view> logits = choice_.logits(queue(), n);
    if (!logits) return logits.failure();
    const auto stack = names_.empty() ? model_->prepare(stacks_, cache_.get(), runs_)
                                      : model_->prepare_mixed(stacks_, cache_.get(), runs_, names_);
    if (!stack) return stack.failure();
    const bool was_queued = std::exchange(queued_ahead_, false);
    if (*stack == nullptr) {
      rows_of_ = active_;
      if (status s = model_->run_rows(stacks_, cache_.get(), runs_, names_, *logits); !s) return s;
      if (status s = model_->set_rows(runs_, true); !s) return s;
      if (status s = model_->send_rows(); !s) return s;
      if (status s = choice_.choose(queue(), model_->rows(), false); !s) return s;
      if (status s = choice_.note(queue(), ++steps_queued_); !s) return s;
      return choice_.wait(steps_queued_);
    }
    const bool replays = is_captured(steps_) && model_->rows().rows() == n;
    const auto work = [&]() -> status {
      if (status s = model_->run_sent(**stack, way::cached, *logits); !s) return s;
      return choice_.choose(queue(), model_->rows(), replays);
    };
    const std::uint64_t stamp_now = stamp(**stack, *logits);
    const auto queue_step = [&]() -> status {
      typename Engine::captured* const kept = replays ? &captured_.of(active_.size(), (*stack)->number()) : nullptr;
      if (status s = replays ? kept->run(queue(), stamp_now, work) : work(); !s) return s;
      return choice_.note(queue(), ++steps_queued_);
    };
    const std::uint64_t acts_now = mixed_bits(stamp_now ^ acting());
    const bool is_queued = was_queued && stamp_ahead_ == acts_now;
    if (!is_queued) {
      rows_of_ = active_;
      if (status s = model_->send_rows(); !s) return s;
      if (status s = queue_step(); !s) return s;
    }
    const int this_step = steps_queued_;
    rows_set_ = model_->rows_set();
    // Adapters that change between tokens would make a step that was queued ahead one in vain.
    const bool steady = std::exchange(acted_before_, acts_now) == acts_now;
    if (replays && steady && rows_of_ == active_ && (only_mine || !is_queued) && all_go_on(all)) {
      if (status s = queue_step(); !s) return s;
      queued_ahead_ = true, stamp_ahead_ = acts_now;
    }
    return choice_.wait(this_step);
  }
  // Will every sequence take the token of this step and one more, unless a token or the caller ends it?
  bool all_go_on(const std::vector<generated_sequence>& all) const {
    bool every = choice_.can_go_on(model_->rows());
    for (const std::size_t i : active_) {
      const auto length = static_cast<long long>(all[i].tokens.size()) + 1, made = length - prompt_[i];
      every = every && length < length_ && (!how_.new_tokens || made < *how_.new_tokens) &&
              (how_.new_tokens || !how_.length || length < *how_.length);
    }
    return every;
  }
  // A step that was queued and is not wanted any more has ended before its memory goes.
  struct nothing_queued {
    generator& of;
    ~nothing_queued() {
      if (std::exchange(of.queued_ahead_, false)) static_cast<void>(of.choice_.wait(of.steps_queued_));
    }
  };
  typename Engine::queue& queue() { return model_->programs().queue; }
  // Another number where anything lies elsewhere than before, or something else is run.
  std::uint64_t stamp(const block_stack<Engine>& stack, const mutable_view& logits) {
    std::uint64_t all = model_->place_of_rows();
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(logits.data)), stack.number(),
          static_cast<std::uint64_t>(stack.moves(way::cached)), names_.empty() ? 0 : stacks_.mixed().number()})
      all = mixed_bits(all ^ part);
    return all;
  }
  // Which adapters act on the rows of a step that all of them share: what was captured reads them from memory.
  std::uint64_t acting() {
    if (names_.empty()) return 0;
    std::uint64_t all = stacks_.mixed().changes();
    for (const std::int64_t place : model_->rows().adapter_numbers())
      all = mixed_bits(all ^ static_cast<std::uint64_t>(place));
    return all;
  }
  stop_reason reason(int token, std::size_t made, std::size_t length) const {
    if (std::find(how_.end.begin(), how_.end.end(), token) != how_.end.end()) return stop_reason::end_token;
    if (how_.new_tokens && made >= static_cast<std::size_t>(*how_.new_tokens)) return stop_reason::new_tokens;
    if (!how_.new_tokens && how_.length && length >= static_cast<std::size_t>(*how_.length))
      return stop_reason::new_tokens;
    return length >= static_cast<std::size_t>(length_) ? stop_reason::no_room : stop_reason::running;
  }

  causal_lm<Engine>* model_;
  generation_settings how_;
  std::size_t sequences_;
  int length_;
  std::unique_ptr<kept_rows<Engine>> cache_;
  stack_cache<Engine> stacks_;
  std::span<const named_adapters::names> adapters_;
  next_tokens<Engine> choice_;
  step_mode steps_ = step_mode::standard;
  captured_steps<Engine> captured_;
  std::vector<std::size_t> active_, rows_of_;  // rows_of_: the sequences of the step that is read next
  std::vector<long long> done_, prompt_;       // tokens in the cache, and those of the prompt
  int steps_queued_ = 0;
  bool queued_ahead_ = false;  // the last step that was queued is the one behind the one that was read last
  std::uint64_t stamp_ahead_ = 0, acted_before_ = 0, rows_set_ = 0;
  std::vector<row_run> runs_;
  std::vector<named_adapters::names> names_;
};

}  // namespace graft
