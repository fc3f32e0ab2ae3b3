// SPDX-License-Identifier: Apache-2.0
// Continuous batching: which tokens of which sequences the next step computes. A step has a budget of tokens. Every
// sequence that decodes has one of them; what is left goes to prompts, chunk by chunk (chunked prefill), so that a
// long prompt does not stop the others. Waiting sequences are admitted by priority, then in the order in which they came, as soon as their
// adapters are in memory and a segment of the KV cache is free for prompt and answer; one that has to wait for memory
// lets nobody past, so that long requests do not starve.
//
// Prefix cache: a sequence that begins with tokens which another one with the same versions of the same adapters
// has computed, running or ended, copies its keys and values. A sequence whose prompt another one is computing waits
// for it. Ended sequences keep their segments until the memory is needed, the least recently used leaves first.
#pragma once
#include <graft/backend/lru_cache.h>
#include <graft/model/serving/adapter_store.h>
#include <graft/model/serving/json_object_prefix.h>
#include <graft/model/serving/kv_segments.h>
#include <graft/model/serving/stop_strings.h>

#include <deque>
#include <span>
#include <tuple>

namespace graft::serving {

// The state of a waiting or admitted request, which its n choices share.
struct request_state {
  request submitted;
  std::shared_ptr<response> to;
  long long number = 0, since = 0;         // the order of requests; adapter_store::now() at its arrival
  std::vector<shared_version> versions{};  // adapter versions, pinned when the first choice is admitted
  std::vector<std::string> ids{};          // names of these versions in the model
  int open = 0;                            // choices that have not ended
  int first_choice = 0;                    // number of the first choice among all choices of the response
  bool acquired = false;
};

struct sequence {
  std::shared_ptr<request_state> of;
  int choice = 0;
  std::vector<std::int64_t> tokens{};
  std::size_t prompt_tokens = 0;
  long long cached = 0;              // tokens whose keys and values are in the KV cache
  long long segment = 0, slots = 0;  // first slot and length of its segment
  stop_strings stops{};
  json_object_prefix json{};

  long long pending() const { return static_cast<long long>(tokens.size()) - cached; }
  bool before(const sequence& o) const {
    const auto rank = [](const sequence& s) { return std::tuple(s.of->submitted.priority, s.of->number, s.choice); };
    return rank(*this) < rank(o);
  }
};

class scheduler {
 public:
  struct limits {
    int sequences = 32;      // sequences that run at a time
    long long slots = 8192;  // slots of the KV cache
    int tokens_per_step = 512;
    bool reuse_prefixes = true;
  };
  // Tokens [cached, cached + tokens) of a sequence.
  struct chunk {
    sequence* of;
    long long tokens;
  };
  struct row_copy {
    long long from, to, rows;
  };
  struct step_plan {
    std::vector<chunk> chunks;
    std::vector<row_copy> copies;  // copies of keys and values that precede the chunks
    void clear() { chunks.clear(), copies.clear(); }
  };
  enum class readiness : std::uint8_t { ready, pending, failed };

  explicit scheduler(const limits& l) : limits_(l), segments_(l.slots) {}

  void add(std::unique_ptr<sequence> s) {
    const auto at = std::upper_bound(waiting_.begin(), waiting_.end(), s,
                                     [](const auto& a, const auto& b) { return a->before(*b); });
    waiting_.insert(at, std::move(s));
  }
  // Plans a step. ready(request_state&) acquires the adapters of a request; a sequence whose request failed is handed
  // to failed(sequence&) and forgotten.
  template <class Ready, class Failed> const step_plan& plan(Ready ready, Failed failed) {
    plan_.clear();
    long long budget = limits_.tokens_per_step;
    for (const auto& s : running_)
      if (s->pending() == 1) plan_.chunks.push_back({s.get(), 1}), --budget;
    for (const auto& s : running_)
      if (s->pending() > 1 && budget > 0) budget -= plan_chunk(*s, budget);
    for (auto at = waiting_.begin(); at != waiting_.end() && budget > 0 && runs_more();) {
      const readiness r = ready(*(*at)->of);
      if (r == readiness::failed) {
        failed(**at);
        at = waiting_.erase(at);
        continue;
      }
      if (r == readiness::pending || waits_for_prefix(**at)) {
        ++at;
        continue;
      }
      if (!admit(**at)) break;
      budget -= plan_chunk(**at, budget);
      const auto position = std::upper_bound(running_.begin(), running_.end(), *at,
                                             [](const auto& a, const auto& b) { return a->before(*b); });
      running_.insert(position, std::move(*at));
      at = waiting_.erase(at);
    }
    return plan_;
  }
  // Ends sequences, running or waiting, for which ended(sequence&) holds.
  template <class Ended> void remove_if(Ended ended) {
    std::erase_if(waiting_, [&](const auto& s) { return ended(*s); });
    std::erase_if(running_, [&](auto& s) {
      if (!ended(*s)) return false;
      keep_prefix(*s);
      return true;
    });
  }
  // Forgets the prefixes of a version that leaves. None could be reused again.
  void forget(const std::string& id) {
    prefixes_.remove_if([&](const prefix& p) {
      const bool gone = std::find(p.ids.begin(), p.ids.end(), id) != p.ids.end();
      if (gone) segments_.release(p.segment, static_cast<long long>(p.tokens.size()));
      return gone;
    });
  }
  const std::vector<std::unique_ptr<sequence>>& running() const { return running_; }
  const std::deque<std::unique_ptr<sequence>>& waiting() const { return waiting_; }
  const kv_segments& segments() const { return segments_; }
  long long prefix_slots() const {
    long long all = 0;
    for (const prefix& p : prefixes_) all += static_cast<long long>(p.tokens.size());
    return all;
  }

 private:
  struct prefix {  // a sequence that ended
    std::vector<std::string> ids;
    std::vector<std::int64_t> tokens;
    long long segment;
  };
  struct match {
    long long tokens = 0, segment = 0;
    const prefix* ended = nullptr;
  };
  static constexpr std::size_t max_prefixes = 256;
  static constexpr long long worth_waiting = 32;  // tokens of a prefix that another sequence is computing

  bool runs_more() const { return running_.size() < static_cast<std::size_t>(limits_.sequences); }
  long long plan_chunk(sequence& s, long long budget) {
    const long long n = std::min(s.pending(), budget);
    plan_.chunks.push_back({&s, n});
    return n;
  }
  static long long common(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
    const auto n = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
    return std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin();
  }
  // The last token of a prompt is always computed: its logits are needed.
  static std::span<const std::int64_t> reusable(const sequence& s) {
    return std::span(s.tokens).first(s.tokens.size() - 1);
  }
  bool waits_for_prefix(const sequence& s) const {
    if (!limits_.reuse_prefixes) return false;
    const long long now = longest(s).tokens;
    return std::any_of(running_.begin(), running_.end(), [&](const auto& r) {
      if (r->pending() <= 1 || r->of->ids != s.of->ids) return false;
      const long long shared = common(reusable(s), reusable(*r));
      return shared >= worth_waiting && shared > std::max(now, r->cached);
    });
  }
  match longest(const sequence& s) const {
    match best;
    if (!limits_.reuse_prefixes) return best;
    const auto wanted = reusable(s);
    const auto offer = [&](std::span<const std::int64_t> have, long long segment, const prefix* ended) {
      if (const long long n = common(wanted, have); n > best.tokens) best = {n, segment, ended};
    };
    for (const auto& r : running_)
      if (r->of->ids == s.of->ids)
        offer(std::span(r->tokens).first(static_cast<std::size_t>(r->cached)), r->segment, nullptr);
    for (const prefix& p : prefixes_)
      if (p.ids == s.of->ids) offer(p.tokens, p.segment, &p);
    return best;
  }
  // Finds a segment and copies what can be reused. Returns false if no segment is free.
  bool admit(sequence& s) {
    match reused = longest(s);
    if (reused.ended != nullptr)  // it was used last
      static_cast<void>(prefixes_.find([&](const prefix& p) { return &p == reused.ended; }));
    const long long slots = static_cast<long long>(s.prompt_tokens) + s.of->submitted.max_tokens;
    auto first_slot = segments_.take(slots);
    while (!first_slot && !prefixes_.empty()) {
      if (reused.ended != nullptr && prefixes_.size() == 1) reused = {};
      drop_oldest();
      first_slot = segments_.take(slots);
    }
    if (!first_slot) return false;
    s.segment = *first_slot, s.slots = slots, s.cached = reused.tokens;
    if (reused.tokens > 0) plan_.copies.push_back({reused.segment, *first_slot, reused.tokens});
    return true;
  }
  void drop_oldest() {
    segments_.release(prefixes_.oldest().segment, static_cast<long long>(prefixes_.oldest().tokens.size()));
    prefixes_.drop_oldest();
  }
  // Adds the computed part of an ended sequence to the prefix cache and releases the rest of its segment.
  void keep_prefix(sequence& s) {
    const bool keeps = limits_.reuse_prefixes && s.cached > 0;
    const long long retained = keeps ? s.cached : 0;
    segments_.release(s.segment + retained, s.slots - retained);
    if (!keeps) return;
    s.tokens.resize(static_cast<std::size_t>(retained));
    prefixes_.remove_if([&](const prefix& p) {
      const bool covered = p.ids == s.of->ids && p.tokens.size() <= s.tokens.size() &&
                           common(p.tokens, s.tokens) == static_cast<long long>(p.tokens.size());
      if (covered) segments_.release(p.segment, static_cast<long long>(p.tokens.size()));
      return covered;
    });
    if (prefixes_.size() == max_prefixes) drop_oldest();
    prefixes_.add({s.of->ids, std::move(s.tokens), s.segment});
  }

  limits limits_;
  kv_segments segments_;
  std::deque<std::unique_ptr<sequence>> waiting_;  // waiting_ and running_ are sorted by before()
  std::vector<std::unique_ptr<sequence>> running_;
  lru_cache<prefix> prefixes_;
  step_plan plan_;
};

}  // namespace graft::serving
