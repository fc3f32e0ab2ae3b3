// SPDX-License-Identifier: Apache-2.0
// The serving engine on a tiny model: answers of a batch against those that a generator gives one by one.
#include <doctest/doctest.h>
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/load_model.h>
#include <graft/model/serving/on_cpu.h>

using namespace graft;
using namespace graft::serving;
using engine = cpu::engine<float>;
using tokens = std::vector<std::int64_t>;
namespace hf = graft::io::hf;

namespace {

const std::string models = GRAFT_GOLDEN_DIR "/models/llama/";
const std::vector<std::string> methods{"lora", "dora", "oft", "ia3", "hra", "loha", "vera", "miss", "boft", "lokr"};

// Tokens of the tiny model stand for bytes: those below 128 for themselves, others for nothing.
std::string_view byte_of(std::int64_t token) {
  static const std::string all = [] {
    std::string s;
    for (int c = 0; c < 128; ++c) s += static_cast<char>(c);
    return s;
  }();
  return token > 0 && token < 128 ? std::string_view(all).substr(static_cast<std::size_t>(token), 1)
                                  : std::string_view();
}

struct answer {
  tokens made{};
  std::string text{}, message{};
  finish_reason why = finish_reason::failed;
  failure_cause cause = failure_cause::none;
  std::vector<event> events{};
  bool ended = false;
};

struct served {
  causal_lm<engine> model;
  std::unique_ptr<serving_engine<engine>> all;

  explicit served(const serving_settings& settings = {}, adapter_store::load_function load = {}) : model(loaded()) {
    if (!load)
      load = [this](const std::string& folder) -> result<adapter_set> {
        auto read = hf::load_adapters(folder, model);
        if (!read) return read.failure();
        return std::move(*read).with_origin();
      };
    auto made = serving_engine<engine>::make(model, settings, byte_of, std::move(load));
    REQUIRE(made);
    all = std::move(*made);
  }
  static causal_lm<engine> loaded() {
    auto made = hf::load_model<engine>(models + "base", options());
    REQUIRE(made);
    return std::move(*made);
  }
  static model_options options() {
    model_options o;
    o.adapters = {1000, 1'000'000};
    return o;
  }
  std::shared_ptr<response> send(request r) {
    if (r.max_tokens == 16) r.max_tokens = 12;
    r.ignore_eos = true;
    submission s = all->submit(std::move(r));
    CAPTURE(s.message);
    REQUIRE(s.what == submission::kind::accepted);
    return s.to;
  }
  // Runs steps until all choices have ended.
  std::vector<answer> finish(const std::vector<std::shared_ptr<response>>& sent, int choices = 1) {
    std::vector<answer> out(sent.size() * static_cast<std::size_t>(choices));
    for (int tries = 0; tries < 100000; ++tries) {
      bool over = true;
      if (!all->step()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (std::size_t i = 0; i < sent.size(); ++i) {
        while (auto e = sent[i]->next(std::chrono::milliseconds(0))) {
          answer& a = out[i * static_cast<std::size_t>(choices) + static_cast<std::size_t>(e->choice)];
          CHECK_FALSE(a.ended);
          a.text += e->text;
          if (e->finished)
            a.ended = true, a.why = e->why, a.message = e->message, a.cause = e->cause;
          else
            a.made.push_back(e->token), a.events.push_back(*e);
        }
      }
      for (const answer& a : out) over = over && a.ended;
      if (over) return out;
    }
    FAIL("the requests did not end");
    return out;
  }
  answer one(request r) { return finish({send(std::move(r))})[0]; }
};

// What a generator makes of the same prompt alone.
tokens alone(const std::vector<std::string>& folders, const tokens& prompt, const sampling_settings& sampling = {},
             int n = 12) {
  static auto model = hf::load_model<engine>(models + "base", served::options());
  REQUIRE(model);
  adapter_registry::names active;
  for (const std::string& f : folders) {
    if (model->find(f) == nullptr) REQUIRE(hf::load_adapter(*model, f, f));
    active.push_back(f);
  }
  REQUIRE(model->activate(active));
  generation_settings settings;
  settings.sampling = sampling, settings.max_new_tokens = n, settings.eos_tokens = no_eos_tokens;
  auto g = generator<engine>::make(*model, settings, 1, static_cast<int>(prompt.size()) + n);
  REQUIRE(g);
  const auto made = g->run(std::span(&prompt, 1));
  REQUIRE(made);
  return {(*made)[0].tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), (*made)[0].tokens.end()};
}
std::string folder_of(const std::string& method) { return models + method + "/adapter_init"; }
tokens prompt_of(std::size_t k, std::size_t length) {
  tokens p;
  for (std::size_t i = 0; i < length; ++i) p.push_back(static_cast<std::int64_t>(3 + (k * 31 + i * 7) % 240));
  return p;
}
sampling_settings drawn(unsigned long long seed) { return {true, 1.2, 40, 0.95, 1.1, seed}; }

}  // namespace

TEST_CASE("serving: answers of a batch of ten methods and the base are those computed alone") {
  served s({.batch = {.sequences = 6, .slots = 600, .tokens_per_step = 16}, .resident_adapters = 4});
  for (const std::string& m : methods) REQUIRE(s.all->adapters().add(m, folder_of(m)));
  REQUIRE(s.all->adapters().add("c", models + "multi/c"));
  std::vector<std::shared_ptr<response>> sent;
  std::vector<tokens> expected;
  for (std::size_t k = 0; k < 36; ++k) {
    request r;
    r.prompt = prompt_of(k, 1 + k * 5 % 40), r.max_tokens = 3 + static_cast<int>(k % 9);
    std::vector<std::string> folders;
    if (k % 12 < 10) r.adapters = {methods[k % 12]}, folders = {folder_of(methods[k % 12])};
    if (k % 12 == 10) r.adapters = {"lora", "c"}, folders = {folder_of("lora"), models + "multi/c"};
    if (k % 2 == 1) r.sampling = drawn(k);
    expected.push_back(alone(folders, r.prompt, r.sampling, r.max_tokens));
    sent.push_back(s.send(std::move(r)));
    if (k % 3 == 0) s.all->step();  // sequences join a running batch
  }
  const auto got = s.finish(sent);
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    CAPTURE(got[k].message);
    CHECK(got[k].made == expected[k]);
    CHECK(got[k].why == finish_reason::length);
  }
  const serving_stats stats = s.all->stats();
  CHECK(stats.adapters_in_memory <= 4);
  CHECK(stats.adapters_left > 0);
  CHECK(stats.finished[1] == 36);
  CHECK(stats.running == 0);
  CHECK(stats.waiting == 0);
}

TEST_CASE("serving: a seed gives the same tokens whatever else is in the batch") {
  served s;
  const tokens prompt = prompt_of(3, 20);
  request r{.prompt = prompt, .sampling = drawn(99)};
  r.choices = 3;
  const auto first = s.finish({s.send(r)}, 3);
  CHECK(first[0].made != first[1].made);
  CHECK(first[0].made == alone({}, prompt, drawn(99)));
  std::vector<std::shared_ptr<response>> sent;
  for (std::size_t k = 0; k < 8; ++k) sent.push_back(s.send({.prompt = prompt_of(k, 9 + k), .sampling = drawn(k)}));
  s.all->step(), s.all->step();
  sent.push_back(s.send({.prompt = prompt, .sampling = drawn(99)}));
  const auto crowded = s.finish(sent);
  CHECK(crowded.back().made == first[0].made);
  request other{.prompt = prompt, .sampling = drawn(98)};
  CHECK(s.one(other).made != first[0].made);
}

namespace {

// A long and a short request for each of ten methods, for the base and for two adapters together. The log probabilities
// of a token follow from all logits of its row.
std::vector<request> requests_of_every_method() {
  std::vector<request> all;
  for (std::size_t k = 0; k < 24; ++k) {
    request r;
    const std::size_t length = k < 12 ? 66 + 5 * k : 1 + 3 * (k - 12);
    r.prompt = prompt_of(k % 5, length), r.max_tokens = 8, r.logprobs = 20;
    if (k % 12 < 10) r.adapters = {methods[k % 12]};
    if (k % 12 == 10) r.adapters = {"lora", "c"};
    if (k % 2 == 1) r.sampling = drawn(k);
    all.push_back(std::move(r));
  }
  return all;
}
std::unique_ptr<served> serving_every_method(const scheduler::limits& batch) {
  auto s = std::make_unique<served>(serving_settings{.batch = batch});
  for (const std::string& m : methods) REQUIRE(s->all->adapters().add(m, folder_of(m)));
  REQUIRE(s->all->adapters().add("c", models + "multi/c"));
  return s;
}
bool same_bits(const answer& a, const answer& b) {
  const auto same = [](const event& x, const event& y) {
    return x.token == y.token && x.logprob == y.logprob &&
           std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(),
                      [](const token_logprob& p, const token_logprob& q) {
                        return p.token == q.token && p.logprob == q.logprob;
                      });
  };
  return !a.events.empty() && std::equal(a.events.begin(), a.events.end(), b.events.begin(), b.events.end(), same);
}

}  // namespace

TEST_CASE("serving: logits have the same bits alone and in any batch with any chunks and reused prefixes") {
  const std::vector<request> all = requests_of_every_method();
  std::vector<answer> expected;
  {
    const auto s = serving_every_method({.slots = 4000, .tokens_per_step = 512, .reuse_prefixes = false});
    for (const request& r : all) expected.push_back(s->one(r));
    CHECK(s->all->stats().reused_tokens == 0);
  }
  for (const int sequences : {1, 2, 3, 5, 8, 16})
    for (const int tokens_per_step : {17, 70, 512}) {
      CAPTURE(sequences);
      CAPTURE(tokens_per_step);
      const auto s = serving_every_method({.sequences = sequences, .slots = 4000, .tokens_per_step = tokens_per_step});
      for (int round = 0; round < 2; ++round) {  // in the second one every prompt is reused
        std::vector<std::shared_ptr<response>> sent;
        for (const request& r : all) sent.push_back(s->send(r));
        const std::vector<answer> got = s->finish(sent);
        for (std::size_t k = 0; k < all.size(); ++k) {
          CAPTURE(k);
          CHECK(same_bits(got[k], expected[k]));
        }
      }
      CHECK(s->all->stats().reused_tokens > 1000);
    }
}

TEST_CASE("serving: more sets of adapters in a step than there are slots for them") {
  const std::vector<std::string> few{"lora", "loha", "vera", "lora_qv"};
  served s({.batch = {.sequences = 70, .slots = 4000, .tokens_per_step = 512, .reuse_prefixes = false},
            .resident_adapters = 70});
  std::vector<std::shared_ptr<response>> sent;
  for (std::size_t k = 0; k < 70; ++k) {
    const std::string name = "adapter" + std::to_string(k);
    REQUIRE(s.all->adapters().add(name, folder_of(few[k % few.size()])));
    sent.push_back(s.send({.prompt = prompt_of(k % few.size(), 20), .adapters = {name}, .max_tokens = 4}));
  }
  const auto got = s.finish(sent);
  for (std::size_t k = 0; k < 70; ++k) {
    CAPTURE(k);
    CAPTURE(got[k].message);
    CHECK(got[k].made == alone({folder_of(few[k % few.size()])}, prompt_of(k % few.size(), 20), {}, 4));
  }
}

TEST_CASE("serving: an adapter is added block by block between the steps of running requests") {
  served s({.batch = {.slots = 600}});
  REQUIRE(s.all->adapters().add("dora", folder_of("dora")));
  const auto running = s.send({.prompt = prompt_of(0, 5), .max_tokens = 200});
  while (s.all->stats().generated_tokens < 3) s.all->step();
  const auto waits = s.send({.prompt = prompt_of(1, 9), .adapters = {"dora"}});
  s.all->step();  // it asks for the adapter
  while (s.all->stats().adapters_loaded == 0) {
    const serving_stats before = s.all->stats();
    REQUIRE(s.all->step());
    CHECK(s.all->stats().generated_tokens > before.generated_tokens);
  }
  const auto got = s.finish({running, waits});
  CHECK(got[0].made == alone({}, prompt_of(0, 5), {}, 200));
  CHECK(got[1].made == alone({folder_of("dora")}, prompt_of(1, 9)));
}

TEST_CASE("serving: an adapter that is unloaded or replaced while it is added") {
  served s({.batch = {.slots = 600}});
  const auto running = s.send({.prompt = prompt_of(0, 5), .max_tokens = 200});
  while (s.all->stats().generated_tokens < 3) s.all->step();
  for (int round = 0; round < 6; ++round) {
    REQUIRE(s.all->adapters().add("sql", models + "multi/a"));
    const request r{.prompt = prompt_of(1, 9), .adapters = {"sql"}, .max_tokens = 3};
    const auto waits = s.send(r);
    for (int steps = 0; steps < 2 + round; ++steps) s.all->step();
    REQUIRE(s.all->adapters().remove("sql"));
    REQUIRE(s.all->adapters().add("sql", models + "multi/b"));
    const answer a = s.finish({waits})[0];  // the version that was there when it was admitted, or the next one
    CHECK((a.made == alone({models + "multi/a"}, r.prompt, {}, 3) ||
           a.made == alone({models + "multi/b"}, r.prompt, {}, 3)));
    CHECK(s.one(r).made == alone({models + "multi/b"}, r.prompt, {}, 3));
    REQUIRE(s.all->adapters().remove("sql"));
  }
  CHECK(s.finish({running})[0].made == alone({}, prompt_of(0, 5), {}, 200));
  s.all->step();
  CHECK(s.all->stats().adapters_in_memory == 0);
}

TEST_CASE("serving: a request keeps the version it began with, and a prefix of another version is not reused") {
  served s({.batch = {.slots = 400, .tokens_per_step = 64}, .resident_adapters = 2});
  REQUIRE(s.all->adapters().add("sql", models + "multi/a"));
  const tokens prompt = prompt_of(1, 50);
  const auto before = alone({models + "multi/a"}, prompt, {}, 40), after = alone({models + "multi/b"}, prompt, {}, 40);
  REQUIRE(before != after);
  const request r{.prompt = prompt, .adapters = {"sql"}, .max_tokens = 40};
  CHECK(s.one(r).made == before);
  CHECK(s.one(r).made == before);
  CHECK(s.all->stats().reused_tokens == 49);
  const auto running = s.send(r);
  for (int i = 0; i < 5; ++i) s.all->step();
  status replaced = fail("did not return");
  std::thread loads([&] { replaced = s.all->adapters().load("sql", models + "multi/b", std::chrono::seconds(60)); });
  while (s.all->adapters().list()[0].version == 1) {
    // The request in flight is held back, so that the replacement happens while it runs.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!s.all->adapters().list()[0].loading) continue;
    s.all->step();
  }
  loads.join();
  CAPTURE(std::string(replaced.message()));
  REQUIRE(replaced);
  const long long reused = s.all->stats().reused_tokens;
  const auto both = s.finish({running, s.send(r)});
  CHECK(both[0].made == before);
  CHECK(both[1].made == after);
  CHECK(s.all->stats().reused_tokens == reused);
  CHECK(s.one(r).made == after);
  CHECK(s.all->stats().reused_tokens == reused + 49);
  CHECK(s.all->stats().adapters_in_memory == 1);
}

TEST_CASE("serving: cancelled requests, deadlines and the end of the engine") {
  served s({.batch = {.sequences = 2, .slots = 200, .tokens_per_step = 32}});
  const auto first = s.send({.prompt = prompt_of(0, 5), .max_tokens = 100});
  const auto second = s.send({.prompt = prompt_of(1, 5), .max_tokens = 90});
  const auto waits = s.send({.prompt = prompt_of(2, 5), .max_tokens = 4});
  const auto late = s.send({.prompt = prompt_of(2, 5), .max_tokens = 4, .deadline = serving::clock::now()});
  for (int i = 0; i < 4; ++i) s.all->step();
  first->cancel();
  const auto got = s.finish({first, waits, late});
  CHECK(got[0].why == finish_reason::cancelled);
  CHECK(got[0].made.size() <= 4);
  CHECK(got[1].made == alone({}, prompt_of(2, 5), {}, 4));
  CHECK(got[2].why == finish_reason::deadline);
  CHECK(s.all->stats().running == 1);
  std::thread loop([&] { s.all->run(); });
  s.all->stop();
  loop.join();
  answer a;
  while (auto e = second->next(std::chrono::milliseconds(0)))
    if (e->finished) a.why = e->why, a.cause = e->cause, a.message = e->message, a.ended = true;
  CHECK(a.ended);
  CHECK(a.why == finish_reason::failed);
  CHECK(a.cause == failure_cause::shutting_down);
  CHECK(a.message == "the server is shutting down");
  CHECK(s.all->submit({.prompt = {1}}).what == submission::kind::stopping);
}

TEST_CASE("serving: a drained engine finishes what it accepted") {
  served s;
  const auto sent = s.send({.prompt = prompt_of(0, 5)});
  s.all->drain();
  CHECK(s.all->submit({.prompt = {1}}).what == submission::kind::stopping);
  s.all->run();
  int made = 0;
  bool ended = false;
  while (auto e = sent->next(std::chrono::milliseconds(0))) made += e->finished ? 0 : 1, ended = e->finished;
  CHECK(made == 12);
  CHECK(ended);
}

TEST_CASE("serving: adapters that cannot be loaded fail their requests, and a mended folder is read again") {
  bool broken = true;
  served* self = nullptr;
  served s({}, [&](const std::string& folder) -> result<adapter_set> {
    if (broken) return fail("the folder is broken");
    auto read = hf::load_adapters(folder, self->model);
    if (!read) return read.failure();
    return std::move(*read).with_origin();
  });
  self = &s;
  REQUIRE(s.all->adapters().add("sql", models + "multi/a"));
  CHECK(contains(s.all->adapters().add("sql", "x").message(), "already"));
  CHECK(contains(s.all->adapters().add("a+b", "x").message(), "no +"));
  const request r{.prompt = prompt_of(0, 5), .adapters = {"sql"}};
  const answer a = s.one(r);
  CHECK(a.why == finish_reason::failed);
  CHECK(a.cause == failure_cause::broken_adapter);
  CHECK(a.message == "the folder is broken");
  broken = false;
  CHECK(s.one(r).made == alone({models + "multi/a"}, r.prompt));
  // A new version that is broken leaves the old one.
  broken = true;
  status replaced = ok;
  std::thread loads([&] { replaced = s.all->adapters().load("sql", "elsewhere", std::chrono::seconds(60)); });
  while (s.all->stats().adapters_failed < 2) s.all->step(), std::this_thread::sleep_for(std::chrono::milliseconds(1));
  loads.join();
  CHECK(contains(replaced.message(), "broken"));
  CHECK(s.one(r).made == alone({models + "multi/a"}, r.prompt));
  REQUIRE(s.all->adapters().remove("sql"));
  CHECK(s.all->submit(r).what == submission::kind::unknown_adapter);
  CHECK(contains(s.all->submit({.prompt = {1}, .adapters = {"slq"}}).message.c_str(), "there is no adapter 'slq'"));
}

TEST_CASE("serving: a request whose adapter is unloaded before it is admitted asks for an unknown adapter") {
  served s({.batch = {.sequences = 1, .slots = 200}});
  REQUIRE(s.all->adapters().add("sql", models + "multi/a"));
  const auto running = s.send({.prompt = prompt_of(0, 5), .max_tokens = 20});
  while (s.all->stats().generated_tokens < 3) s.all->step();
  const auto waits = s.send({.prompt = prompt_of(1, 5), .adapters = {"sql"}});
  s.all->step();
  REQUIRE(s.all->adapters().remove("sql"));
  const auto got = s.finish({running, waits});
  CHECK(got[0].made == alone({}, prompt_of(0, 5), {}, 20));
  CHECK(got[1].why == finish_reason::failed);
  CHECK(got[1].cause == failure_cause::unknown_adapter);
  CHECK(got[1].message == "there is no adapter 'sql'");
}

TEST_CASE("serving: an adapter that is unloaded while load() waits for it is unknown") {
  // The step loop does not run, so that load() is waiting when the name is removed.
  served s;
  REQUIRE(s.all->adapters().add("sql", models + "multi/a"));
  failure_cause why = failure_cause::none;
  status loaded = ok;
  std::thread loads([&] { loaded = s.all->adapters().load("sql", "", std::chrono::seconds(60), &why); });
  while (!s.all->adapters().list()[0].loading) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  REQUIRE(s.all->adapters().remove("sql"));
  loads.join();
  CHECK_FALSE(loaded);
  CHECK(why == failure_cause::unknown_adapter);
  CHECK_FALSE(s.all->adapters().load("sql", "", std::chrono::seconds(60), &why));
  CHECK(why == failure_cause::unknown_adapter);
}

namespace {

long long bytes_of(const std::string& folder) {
  const auto model = served::loaded();
  auto read = hf::load_adapters(folder, model);
  REQUIRE(read);
  return memory_bytes(std::move(*read).with_origin());
}
std::string names_in_memory(served& s) {
  std::string names;
  for (const adapter_info& i : s.all->adapters().list()) names += i.version > 0 ? i.name : "";
  return names;
}

}  // namespace

TEST_CASE("serving: memory for adapters is bounded in bytes") {
  const long long one = bytes_of(models + "multi/a"), most = 2 * one + one / 2;
  CHECK(one > 0);
  served s({.resident_adapter_bytes = most});
  for (const char* name : {"x", "y", "z"}) REQUIRE(s.all->adapters().add(name, models + "multi/a"));
  const tokens expected = alone({models + "multi/a"}, {5});
  for (const char* name : {"x", "y", "x", "z"}) {
    CHECK(s.one({.prompt = {5}, .adapters = {name}}).made == expected);
    CHECK(s.all->stats().adapter_bytes <= most);
  }
  CHECK(names_in_memory(s) == "xz");
  CHECK(s.all->stats().adapter_bytes == 2 * one);
  REQUIRE(s.all->adapters().pin("x", true));
  REQUIRE(s.all->adapters().pin("z", true));
  // Pinned adapters stay, and one that has no room beside them is refused and not waited for.
  const answer refused = s.one({.prompt = {5}, .adapters = {"y"}});
  CHECK(refused.cause == failure_cause::no_memory);
  CHECK(contains(refused.message.c_str(), "pinned"));
  REQUIRE(s.all->adapters().pin("z", false));
  CHECK(s.one({.prompt = {5}, .adapters = {"y"}}).made == expected);
  CHECK(names_in_memory(s) == "xy");
}

TEST_CASE("serving: adapters that are larger than the memory for them are refused, alone and together") {
  const long long one = bytes_of(models + "multi/a");
  served s({.resident_adapter_bytes = one + one / 2});
  for (const char* name : {"x", "y"}) REQUIRE(s.all->adapters().add(name, models + "multi/a"));
  const tokens expected = alone({models + "multi/a"}, {5});
  CHECK(s.one({.prompt = {5}, .adapters = {"x"}}).made == expected);
  const answer both = s.one({.prompt = {5}, .adapters = {"x", "y"}});
  CHECK(both.why == finish_reason::failed);
  CHECK(both.cause == failure_cause::no_memory);
  CHECK(contains(both.message.c_str(), "together"));
  CHECK(s.one({.prompt = {5}, .adapters = {"y"}}).made == expected);
  served small({.resident_adapter_bytes = one - 1});
  REQUIRE(small.all->adapters().add("x", models + "multi/a"));
  CHECK(small.one({.prompt = {5}, .adapters = {"x"}}).cause == failure_cause::no_memory);
  CHECK(small.all->stats().adapter_bytes == 0);
}

TEST_CASE("serving: an adapter that has no room beside the pinned ones is refused") {
  served s({.resident_adapters = 1});
  REQUIRE(s.all->adapters().add("x", models + "multi/a", true));
  REQUIRE(s.all->adapters().add("y", models + "multi/b"));
  s.one({.prompt = {5}, .adapters = {"x"}});
  CHECK(s.one({.prompt = {5}, .adapters = {"y"}}).cause == failure_cause::no_memory);
  // The pinned one itself may be replaced.
  status replaced = fail("did not return");
  std::thread loads([&] { replaced = s.all->adapters().load("x", models + "multi/b", std::chrono::seconds(60)); });
  while (s.all->stats().adapters_loaded < 2) s.all->step(), std::this_thread::sleep_for(std::chrono::milliseconds(1));
  loads.join();
  CHECK(replaced);
  CHECK(s.one({.prompt = {5}, .adapters = {"x"}}).made == alone({models + "multi/b"}, {5}));
}

TEST_CASE("serving: pinned adapters stay, others leave in the order of their last use") {
  served s({.resident_adapters = 2});
  for (const char* name : {"a", "b", "c"}) REQUIRE(s.all->adapters().add(name, models + "multi/" + name, *name == 'a'));
  const auto in_memory = [&] {
    std::string names;
    for (const adapter_info& i : s.all->adapters().list()) names += i.version > 0 ? i.name : "";
    return names;
  };
  for (const char* name : {"a", "b", "c", "b", "b"}) s.one({.prompt = {5}, .adapters = {name}});
  CHECK(in_memory() == "ab");
  REQUIRE(s.all->adapters().pin("a", false));
  s.one({.prompt = {5}, .adapters = {"c"}});
  CHECK(in_memory() == "bc");
  CHECK(s.all->submit({.prompt = {5}, .adapters = {"a", "b", "c"}}).what != submission::kind::accepted);
  CHECK(s.one({.prompt = {5}, .adapters = {"a", "b"}}).made == alone({models + "multi/a", models + "multi/b"}, {5}));
}

TEST_CASE("serving: stop strings, JSON objects, log probabilities, logit biases and penalties") {
  served s;
  request r{.prompt = prompt_of(4, 8), .sampling = drawn(3), .max_tokens = 60};
  r.logprobs = 3;
  const answer free = s.one(r);
  REQUIRE(free.text.size() > 8);
  double log_sum = 0;
  for (const event& e : free.events) {
    REQUIRE(e.top.size() == 3);
    CHECK(e.top[0].logprob >= e.top[1].logprob);
    CHECK(e.logprob <= e.top[0].logprob);
    log_sum += e.logprob;
  }
  CHECK(log_sum < 0);
  r.stop = {free.text.substr(4, 3), "not in the text"};
  const answer stopped = s.one(r);
  CHECK(stopped.text == free.text.substr(0, free.text.find(r.stop[0])));
  CHECK(stopped.why == finish_reason::stop);

  request biased{.prompt = prompt_of(4, 8), .max_tokens = 5};
  biased.logit_bias = {{77, 100.0}};
  CHECK(s.one(biased).made == tokens{77, 77, 77, 77, 77});
  biased.sampling.presence_penalty = 1000;
  const answer varied = s.one(biased);
  CHECK(varied.made[0] == 77);
  CHECK(varied.made[1] != 77);

  for (unsigned long long seed = 1; seed < 6; ++seed) {
    request json{.prompt = prompt_of(seed, 8), .sampling = drawn(seed), .max_tokens = 150};
    json.json_object = true, json.sampling.temperature = 3, json.sampling.top_k = 0;
    const answer object = s.one(json);
    CAPTURE(object.text);
    json_object_prefix p;
    CHECK(p.feed(object.text));
    CHECK(p.complete() == (object.why == finish_reason::stop));
  }
}

TEST_CASE("serving: requests that cannot be served are refused by name") {
  served s({.batch = {.sequences = 2, .slots = 50, .tokens_per_step = 8}, .max_waiting = 3});
  const auto refused = [&](auto change) {
    request r{.prompt = {5, 6}};
    change(r);
    const submission sent = s.all->submit(std::move(r));
    CHECK(sent.what == submission::kind::bad_request);
    CHECK(sent.to == nullptr);
    return sent.message;
  };
  const auto says = [](const std::string& message, const char* what) { return contains(message.c_str(), what); };
  CHECK(says(refused([](request& r) { r.prompt.clear(); }), "no tokens"));
  CHECK(says(refused([](request& r) { r.prompt = {256}; }), "token 256 is none of this model"));
  CHECK(says(refused([](request& r) { r.prompt = {-1}; }), "token -1"));
  CHECK(says(refused([](request& r) { r.max_tokens = 0; }), "max_tokens is 0"));
  CHECK(says(refused([](request& r) { r.max_tokens = 49; }), "together more than the 50"));
  CHECK(says(refused([](request& r) { r.choices = 0; }), "n is 0"));
  CHECK(says(refused([](request& r) { r.logprobs = 21; }), "logprobs is 21"));
  CHECK(says(refused([](request& r) { r.logit_bias = {{999, 1}}; }), "logit_bias has token 999"));
  CHECK(says(refused([](request& r) { r.sampling.temperature = -1; }), "temperature is -1"));
  CHECK(s.all->submit({.prompt = {1}, .choices = 3}).what == submission::kind::accepted);
  CHECK(s.all->submit({.prompt = {1}}).what == submission::kind::queue_full);
  s.all->step();
  CHECK(s.all->submit({.prompt = {1}}).what == submission::kind::accepted);
  auto made = serving_engine<engine>::make(s.model, {.batch = {.sequences = 9, .tokens_per_step = 8}}, {}, {});
  CHECK(contains(made.message(), "a token for each"));
  auto without = serving_engine<engine>::make(s.model, {}, {}, {});
  REQUIRE(without);
  CHECK(says((*without)->submit({.prompt = {1}, .stop = {"x"}}).message, "needs the model's tokenizer"));
}
