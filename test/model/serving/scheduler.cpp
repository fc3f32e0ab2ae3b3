// SPDX-License-Identifier: Apache-2.0
// Which tokens of which sequences a step computes, and where their keys and values are, without a model.
#include <doctest/doctest.h>
#include <graft/core/splitmix64.h>
#include <graft/model/serving/scheduler.h>

#include <numeric>

using namespace graft::serving;

namespace {

using tokens = std::vector<std::int64_t>;

tokens counted(std::int64_t from, std::size_t n) {
  tokens all(n);
  std::iota(all.begin(), all.end(), from);
  return all;
}

// Runs plans as an engine would, and gives every sequence token 7.
struct runs {
  scheduler all;
  long long requests = 0;
  std::vector<int> failed{};
  scheduler::readiness answer = scheduler::readiness::ready;

  explicit runs(const scheduler::limits& l) : all(l) {}
  sequence* add(const tokens& prompt, int max_tokens, int priority = 0, const std::string& adapter = "",
                int choices = 1) {
    auto state = std::make_shared<request_state>();
    state->submitted.prompt = prompt, state->submitted.max_tokens = max_tokens, state->submitted.priority = priority;
    state->number = ++requests, state->open = choices;
    if (!adapter.empty()) state->ids = {adapter};
    sequence* last = nullptr;
    for (int c = 0; c < choices; ++c) {
      auto s = std::make_unique<sequence>();
      s->of = state, s->choice = c, s->tokens = prompt, s->prompt_tokens = prompt.size();
      last = s.get();
      all.add(std::move(s));
    }
    return last;
  }
  // Returns the plan as it was before the sequences went on.
  scheduler::step_plan step() {
    const scheduler::step_plan made =
        all.plan([&](request_state&) { return answer; }, [&](sequence& s) { failed.push_back(s.choice); });
    for (const auto& c : made.chunks) {
      c.of->cached += c.tokens;
      if (c.of->pending() == 0) c.of->tokens.push_back(7);
    }
    all.remove_if([](const sequence& s) {
      return static_cast<int>(s.tokens.size() - s.prompt_tokens) >= s.of->submitted.max_tokens;
    });
    return made;
  }
};
tokens sizes(const scheduler::step_plan& p) {
  tokens n;
  for (const auto& c : p.chunks) n.push_back(c.tokens);
  return n;
}

}  // namespace

TEST_CASE("kv_segments: never overlap, and neighbors become one again") {
  kv_segments s(100);
  CHECK(*s.take(40) == 0);
  CHECK(*s.take(40) == 40);
  CHECK_FALSE(s.take(21));
  CHECK(*s.take(20) == 80);
  s.release(0, 40), s.release(80, 20);
  CHECK(*s.take(15) == 80);  // the best fit
  s.release(80, 15), s.release(40, 40);
  CHECK(s.free_slots() == 100);
  CHECK(*s.take(100) == 0);
  std::uint64_t random = 5;
  kv_segments many(500);
  std::vector<std::pair<long long, long long>> taken;
  many.release(0, 0);
  std::vector<int> owner(500, -1);
  for (int i = 0; i < 3000; ++i) {
    random = graft::splitmix64(random);
    if (random % 2 == 0 || taken.empty()) {
      const auto n = static_cast<long long>(random / 2 % 60 + 1);
      const auto at = many.take(n);
      if (!at) continue;
      for (long long k = *at; k < *at + n; ++k) {
        REQUIRE(owner[static_cast<std::size_t>(k)] == -1);
        owner[static_cast<std::size_t>(k)] = i;
      }
      taken.emplace_back(*at, n);
    } else {
      const auto which = taken.begin() + static_cast<std::ptrdiff_t>(random / 2 % taken.size());
      for (long long k = which->first; k < which->first + which->second; ++k) owner[static_cast<std::size_t>(k)] = -1;
      many.release(which->first, which->second);
      taken.erase(which);
    }
  }
  for (const auto& [at, n] : taken) many.release(at, n);
  CHECK(*many.take(500) == 0);
}

TEST_CASE("scheduler: prompts go through in chunks beside sequences that decode") {
  runs r({.sequences = 4, .slots = 200, .tokens_per_step = 10, .reuse_prefixes = false});
  r.add(counted(0, 3), 5);
  CHECK(sizes(r.step()) == tokens{3});
  r.add(counted(100, 25), 3);
  CHECK(sizes(r.step()) == tokens{1, 9});
  CHECK(sizes(r.step()) == tokens{1, 9});
  CHECK(sizes(r.step()) == tokens{1, 7});
  CHECK(sizes(r.step()) == tokens{1, 1});
  CHECK(sizes(r.step()) == tokens{1});
  CHECK(sizes(r.step()).empty());
  CHECK(r.all.segments().free_slots() == 200);
}

TEST_CASE("scheduler: priorities first, then the order of arrival; memory is waited for in that order") {
  runs r({.sequences = 2, .slots = 40, .tokens_per_step = 64, .reuse_prefixes = false});
  r.add(counted(0, 10), 2), r.add(counted(0, 20), 10), r.add(counted(0, 5), 5), r.add(counted(0, 6), 4, -1);
  // The urgent one and the first one run. The second one does not fit into the cache with them, and the third one does
  // not pass it.
  CHECK(sizes(r.step()) == tokens{6, 10});
  CHECK(sizes(r.step()) == tokens{1, 1});
  CHECK(sizes(r.step()) == tokens{1, 20});
  CHECK(sizes(r.step()) == tokens{1, 1});
  CHECK(sizes(r.step()) == tokens{1, 5});
}

TEST_CASE("scheduler: a request whose adapters are not there lets others past, and one whose adapters failed ends") {
  runs r({.sequences = 2, .slots = 100, .tokens_per_step = 64, .reuse_prefixes = false});
  r.add(counted(0, 4), 2, 0, "", 2);
  r.answer = scheduler::readiness::pending;
  CHECK(sizes(r.step()).empty());
  CHECK(r.all.waiting().size() == 2);
  r.answer = scheduler::readiness::failed;
  CHECK(sizes(r.step()).empty());
  CHECK(r.failed == std::vector<int>{0, 1});
  CHECK(r.all.waiting().empty());
}

TEST_CASE("scheduler: a prefix is copied from a sequence with the same adapters, running or ended") {
  runs r({.sequences = 4, .slots = 400, .tokens_per_step = 64});
  r.add(counted(0, 40), 2, 0, "sql@1");
  CHECK(sizes(r.step()) == tokens{40});
  r.add(counted(0, 50), 2, 0, "sql@1");
  auto next = r.step();
  CHECK(sizes(next) == tokens{1, 10});
  REQUIRE(next.copies.size() == 1);
  CHECK(next.copies[0].rows == 40);
  r.step(), r.step();
  CHECK(r.all.running().empty());
  CHECK(r.all.prefix_slots() == 41 + 51);  // what was computed, answers included
  r.add(counted(0, 50), 2, 0, "sql@1");
  next = r.step();
  CHECK(sizes(next) == tokens{1});  // the last token of a prompt is computed
  CHECK(next.copies[0].rows == 49);
  r.step();
  CHECK(r.all.prefix_slots() == 41 + 51);  // it has the tokens of the one before it
  r.add(counted(0, 50), 2, 0, "sql@2"), r.add(counted(0, 50), 2);
  next = r.step();
  CHECK(sizes(next) == tokens{50, 14});
  CHECK(next.copies.empty());
  r.step(), r.step(), r.step();
  r.all.forget("sql@1");
  r.add(counted(0, 50), 2, 0, "sql@1");
  CHECK(sizes(r.step()) == tokens{50});
}

TEST_CASE("scheduler: choices of one request compute their prompt once") {
  runs r({.sequences = 4, .slots = 400, .tokens_per_step = 30});
  r.add(counted(0, 50), 4, 0, "", 3);
  CHECK(sizes(r.step()) == tokens{30});
  CHECK(sizes(r.step()) == tokens{20});
  auto next = r.step();
  CHECK(sizes(next) == tokens{1, 1, 1});
  CHECK(next.copies.size() == 2);
}

TEST_CASE("scheduler: ended sequences give their memory up for new ones, the least recently used first") {
  runs r({.sequences = 2, .slots = 100, .tokens_per_step = 100});
  for (int i = 0; i < 3; ++i) r.add(counted(1000 * i, 29), 1), r.step();
  CHECK(r.all.prefix_slots() == 87);
  r.add(counted(0, 29), 1);  // uses the first one again
  CHECK(r.step().copies.size() == 1);
  r.add(counted(5000, 30), 1), r.step();
  r.add(counted(0, 29), 1);
  CHECK(r.step().copies.size() == 1);
  r.add(counted(1000, 29), 1);
  CHECK(r.step().copies.empty());
  // One that needs all memory gets it, also where its own prefix is in the way.
  r.add(counted(0, 90), 10);
  CHECK(sizes(r.step()) == tokens{90});
  while (!r.all.running().empty()) r.step();
  CHECK(r.all.segments().slots() - r.all.segments().free_slots() == r.all.prefix_slots());
}
