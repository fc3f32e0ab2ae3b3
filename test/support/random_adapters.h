// SPDX-License-Identifier: Apache-2.0
// Drives a model through operations in random order: load, activate, enable, replace, rename, remove, combine, merge,
// unmerge, multi-LoRA batches, folders that do not fit the model and requests that must fail. After each operation its
// outputs and its list of adapters are compared with a naive model on the CPU, built from the base for every
// comparison. GRAFT_OPERATIONS is the number of operations, GRAFT_SEED determines their order.
#pragma once
#include <doctest/doctest.h>
#include <graft/core/splitmix64.h>
#include <graft/io/hf/combine_adapters.h>
#include <graft/model/generate.h>
#include <graft/model/on_cpu.h>

#include <cstdlib>

namespace test {

using namespace graft;
using namespace graft::io;
using names = adapter_registry::names;
using on_cpu = cpu::engine<float>;
using id_lists = std::vector<std::vector<std::int64_t>>;

inline std::string opt_models() { return std::string(GRAFT_GOLDEN_DIR) + "/models/opt/"; }
inline const char* const adapter_folders[] = {"multi/a",
                                              "multi/b",
                                              "multi/c",
                                              "lora/adapter_init",
                                              "ia3/adapter_init",
                                              "vblora/adapter_init",
                                              "adalora/adapter_init",
                                              "ln_tuning/adapter_init"};

inline std::uint64_t stated(const char* name, std::uint64_t otherwise) {
  const char* const v = std::getenv(name);
  return v != nullptr ? std::strtoull(v, nullptr, 10) : otherwise;
}
class dice {
 public:
  explicit dice(std::uint64_t seed) : seed_(seed) {}
  std::size_t below(std::size_t n) { return splitmix64(seed_ ^ splitmix64(++drawn_)) % n; }

 private:
  std::uint64_t seed_, drawn_ = 0;
};

template <class Engine> causal_lm<Engine> bare_model(int max_adapters = 64) {
  static const auto base = [] {
    auto m = hf::load_model<on_cpu>(opt_models() + "base");
    REQUIRE_MESSAGE(m, m.message());
    return std::move(*m);
  }();
  model_options options;
  options.adapters.adapters = max_adapters;
  auto m = causal_lm<Engine>::make(base.config(), base.weights(), options);
  REQUIRE(m);
  return std::move(*m);
}

// The source of an adapter: a folder, or a combination of other adapters.
struct recipe {
  std::string folder;
  std::vector<recipe> parts;
};
inline status bake(causal_lm<on_cpu>& m, const std::string& name, const recipe& r) {
  if (r.parts.empty()) return hf::load_adapter(m, name, opt_models() + r.folder);
  names of;
  for (const recipe& p : r.parts) {
    of.push_back(name + "/" + std::to_string(of.size()));
    if (status s = bake(m, of.back(), p); !s) return s;
  }
  combination_settings options;
  options.type = combination::cat;
  return hf::combine(m, name, of, std::vector<double>(of.size(), 0.5), options);
}

template <class Engine>
id_lists tokens_of(generator<Engine>& g, const id_lists& prompts, const std::vector<names>& of_prompts) {
  const auto made = g.run(
      prompts, [](std::size_t, std::int64_t) { return true; }, of_prompts);
  REQUIRE_MESSAGE(made, made.message());
  id_lists all;
  for (const generated_sequence& s : *made) all.push_back(s.tokens);
  return all;
}
template <class Engine> generator<Engine> short_generator(causal_lm<Engine>& m, step_mode options) {
  generation_settings settings;
  settings.max_new_tokens = 5, settings.eos_tokens = no_eos_tokens;
  auto g = generator<Engine>::make(m, settings, 3, 16, options);
  REQUIRE_MESSAGE(g, g.message());
  return std::move(*g);
}

struct naive_model {
  std::map<std::string, recipe> all;
  names order, active, merged;
  bool enabled = true;

  causal_lm<on_cpu> fresh(const names* of_run) const {
    causal_lm<on_cpu> m = bare_model<on_cpu>();
    const names which = of_run != nullptr ? *of_run : !enabled ? names{} : merged.empty() ? active : merged;
    for (const std::string& n : which) REQUIRE(bake(m, n, all.at(n)));
    const bool merges = of_run == nullptr && enabled && !merged.empty();
    const status done = merges ? m.merge(which) : m.activate(which);
    REQUIRE_MESSAGE(done, done.message());
    return m;
  }
  std::vector<float> logits(std::span<const sequence_chunk> runs, const std::vector<names>& chunk_adapters) const {
    std::vector<float> out;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      causal_lm<on_cpu> m = fresh(chunk_adapters.empty() ? nullptr : &chunk_adapters[i]);
      std::vector<float> one(runs[i].tokens.size() * static_cast<std::size_t>(m.config().vocabulary));
      REQUIRE(m.logits(runs.subspan(i, 1), one));
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }
  id_lists tokens(const id_lists& prompts, const std::vector<names>& of_prompts) const {
    id_lists out;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      causal_lm<on_cpu> m = fresh(of_prompts.empty() ? nullptr : &of_prompts[i]);
      auto g = short_generator(m, step_mode::standard);
      out.push_back(tokens_of(g, {prompts[i]}, {})[0]);
    }
    return out;
  }
};

template <class Engine> class random_adapters {
 public:
  explicit random_adapters(std::uint64_t seed) : dice_(seed) {}

  void step() {
    switch (dice_.below(14)) {
      case 0:
      case 1: return load();
      case 2:
      case 3: return activate();
      case 4: return model_.enable(now_.enabled = !now_.enabled);
      case 5: return replace();
      case 6: return remove();
      case 7: return rename();
      case 8: return combine();
      case 9: return merge();
      case 10: return unmerge();
      case 11: return mixed();
      case 12: return bad_folder();
      default: return nonsense();
    }
  }
  void look() {
    CHECK(model_.all_names() == now_.order);
    CHECK(model_.active() == now_.active);
    CHECK(model_.merged() == now_.merged);
    CHECK(model_.enabled() == now_.enabled);
    same({});
  }
  // Compares tokens of one generator, whose steps are captured and replayed, as well.
  void generate_captured() { captured_ = true; }
  int captured() const { return steps_.captured(); }

 private:
  static constexpr std::size_t max_adapters = 6;
  std::string any() { return now_.order[dice_.below(now_.order.size())]; }
  bool is_merged(const std::string& n) const {
    return std::find(now_.merged.begin(), now_.merged.end(), n) != now_.merged.end();
  }
  names some() {
    names list;
    for (const std::string& n : now_.order)
      if (dice_.below(3) == 0) list.insert(list.begin() + static_cast<std::ptrdiff_t>(dice_.below(list.size() + 1)), n);
    int norms = 0;  // two that replace the same module cannot be active at once
    std::erase_if(list, [&](const std::string& n) { return whole(now_.all.at(n)) && ++norms > 1; });
    return list;
  }
  static bool whole(const recipe& r) { return r.folder == "ln_tuning/adapter_init"; }
  void load() {
    const std::string name = "n" + std::to_string(dice_.below(9)),
                      folder = adapter_folders[dice_.below(std::size(adapter_folders))];
    const status s = hf::load_adapter(model_, name, opt_models() + folder);
    CHECK(bool(s) == (!now_.all.contains(name) && now_.order.size() < max_adapters));
    if (s) now_.all[name] = {folder, {}}, now_.order.push_back(name);
  }
  void activate() {
    const names list = some();
    const status s = model_.activate(list);
    REQUIRE_MESSAGE(s, s.message());
    now_.active = list, now_.merged.clear();
  }
  void replace() {
    if (now_.order.empty()) return;
    const std::string name = any(), folder = adapter_folders[dice_.below(3)];
    const recipe& old = now_.all.at(name);
    const bool lora = !old.parts.empty() || old.folder.starts_with("multi/") || old.folder.starts_with("lora/");
    const status s = hf::replace_adapter(model_, name, opt_models() + folder);
    CHECK(bool(s) == (lora && !is_merged(name)));
    if (s) now_.all[name] = {folder, {}};
  }
  void remove() {
    if (now_.order.empty()) return;
    const std::string name = any();
    CHECK(bool(model_.remove(name)) == !is_merged(name));
    if (is_merged(name)) return;
    now_.all.erase(name), std::erase(now_.order, name), std::erase(now_.active, name);
  }
  void rename() {
    if (now_.order.empty()) return;
    const std::string from = any(), to = "n" + std::to_string(dice_.below(9));
    const bool free = !now_.all.contains(to);
    CHECK(bool(model_.rename(from, to)) == free);
    if (!free) return;
    now_.all[to] = now_.all.at(from), now_.all.erase(from);
    for (names* list : {&now_.order, &now_.active, &now_.merged}) std::replace(list->begin(), list->end(), from, to);
  }
  void combine() {
    if (now_.order.empty()) return;
    const std::string name = "n" + std::to_string(dice_.below(9)), a = any(), b = any();
    const recipe &first = now_.all.at(a), &second = now_.all.at(b);
    combination_settings options;
    options.type = combination::cat;
    const status s = hf::combine(model_, name, {a, b}, {0.5, 0.5}, options);
    const auto lora = [](const recipe& r) {
      return r.parts.empty() && (r.folder.starts_with("multi/") || r.folder.starts_with("lora/"));
    };
    const bool ia3 = first.folder.starts_with("ia3") && second.folder.starts_with("ia3");
    if (!lora(first) || !lora(second)) {
      if (s && !ia3) REQUIRE((!first.parts.empty() || !second.parts.empty()));
      if (s) REQUIRE(model_.remove(name));  // the naive model has no such combination
      return;
    }
    CHECK(bool(s) == (!now_.all.contains(name) && now_.order.size() < max_adapters));
    if (!s) return;
    recipe made{"", {first, second}};
    now_.all[name] = std::move(made), now_.order.push_back(name);
  }
  void merge() {
    const names list = some();
    names next = now_.merged;
    for (const std::string& n : list)
      if (!is_merged(n)) next.push_back(n);
    int wholes = 0;
    for (const std::string& n : next) wholes += whole(now_.all.at(n)) ? 1 : 0;
    const status s = model_.merge(list);
    CHECK(bool(s) == (wholes < 2));
    if (s) now_.merged = next;
  }
  void unmerge() {
    REQUIRE(model_.unmerge());
    now_.merged.clear();
  }
  void mixed() {
    std::vector<names> of;
    for (int i = 0; i < 3; ++i) of.push_back(some());
    if (now_.merged.empty()) return same(of);
    std::vector<float> out(9 * static_cast<std::size_t>(model_.config().vocabulary));
    CHECK_FALSE(model_.logits(runs(), out, false, of));
  }
  void bad_folder() {
    const std::string folder =
        dice_.below(2) == 0 ? opt_models() + "nowhere" : opt_models() + "../llama/lora/adapter_init";
    CHECK_FALSE(hf::load_adapter(model_, "bad", folder));
    if (!now_.order.empty()) CHECK_FALSE(hf::replace_adapter(model_, any(), folder));
  }
  void nonsense() {
    CHECK_FALSE(model_.activate({"nobody"}));
    CHECK_FALSE(model_.merge({"nobody"}));
    CHECK_FALSE(model_.remove("nobody"));
    if (!now_.order.empty()) CHECK_FALSE(model_.activate({now_.order[0], now_.order[0]}));
  }
  std::vector<sequence_chunk> runs() const { return {{ids_[0]}, {ids_[1]}, {ids_[2]}}; }
  void same(const std::vector<names>& chunk_adapters) {
    std::vector<float> now(9 * static_cast<std::size_t>(model_.config().vocabulary));
    const std::vector<sequence_chunk> rows = runs();
    const status s = model_.logits(rows, now, false, chunk_adapters);
    REQUIRE_MESSAGE(s, s.message());
    const std::vector<float> wanted = now_.logits(rows, chunk_adapters);
    double most = 0;
    for (std::size_t i = 0; i < now.size(); ++i)
      most = std::max(most, std::abs(double(now[i]) - double(wanted[i])) / (1 + std::abs(double(wanted[i]))));
    CHECK(most < 1e-5);
    if (captured_) CHECK(tokens_of(steps_, ids_, chunk_adapters) == now_.tokens(ids_, chunk_adapters));
  }

  dice dice_;
  causal_lm<Engine> model_ = bare_model<Engine>(static_cast<int>(max_adapters));
  generator<Engine> steps_ = short_generator(model_, step_mode::reduce_overhead);
  bool captured_ = false;
  naive_model now_;
  const id_lists ids_ = {{1, 5, 7, 90}, {3, 4}, {9, 8, 7}};
};

}  // namespace test
