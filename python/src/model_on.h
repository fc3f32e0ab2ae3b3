// SPDX-License-Identifier: Apache-2.0
// stored_model (model.h) on an engine.
#pragma once
#include <graft/io/load_model.h>
#include <graft/model/generate.h>

#include "model.h"

namespace graft::pytorch {

template <class Engine> class model_on final : public stored_model {
 public:
  model_on(const std::string& path, int context) : model_(opened(path, context)) {
    settings_ = value(io::read_generation_settings(path, model_.config().tokens));
  }
  void load_adapter(const std::string& name, const std::string& path) override {
    check(model_.add(name, value(io::load_adapters(path, model_)).set));
  }
  void remove_adapter(const std::string& name) override { check(model_.remove(name)); }
  void activate(const names& which) override { check(model_.activate(which)); }
  names adapters() const override { return model_.all_names(); }
  names active() const override { return model_.active(); }
  int vocabulary() const override { return model_.config().vocabulary; }
  int context() const override { return model_.context(); }
  generation_settings settings() const override { return settings_; }

  logit_rows logits(const std::vector<ids>& sequences, bool last_only, const std::vector<names>& which) override {
    std::vector<sequence_chunk> chunks;
    for (const ids& s : sequences) chunks.push_back({s});
    const auto guard = model_.lock();
    check(model_.check_chunks(chunks));
    const auto count = static_cast<long long>(chunks.size()), n = last_only ? count : model_.rows_of(chunks);
    const auto memory = std::make_shared<device_rows<Engine>>();
    check(memory->reserve(queue(), n * vocabulary()));
    const mutable_view to = memory->into(n, vocabulary());
    check(model_.run_rows(stacks_, nullptr, chunks, which, to));
    if constexpr (!Engine::reads_host_memory) check(Engine::wait(queue()));
    return {memory, to.data, n, vocabulary(), to.type, !Engine::reads_host_memory};
  }
  std::vector<ids> generate(const std::vector<ids>& prompts, const generation_settings& settings,
                            const std::vector<names>& which,
                            const std::function<bool(std::size_t, std::int64_t)>& on_token) override {
    std::size_t longest = 0;
    for (const ids& p : prompts) {
      longest = std::max(longest, p.size());
      check(model_.check_chunks(std::vector<sequence_chunk>(p.empty() ? 0 : 1, sequence_chunk{p})));
    }
    const long long wanted = static_cast<long long>(longest) + settings.max_new_tokens.value_or(model_.context());
    const int length = static_cast<int>(std::min<long long>(model_.context(), std::max(wanted, 1LL)));
    const int count = std::max(1, static_cast<int>(prompts.size()));
    const step_mode steps = Engine::reads_host_memory ? step_mode::standard : step_mode::reduce_overhead;
    auto g = value(generator<Engine>::make(model_, settings, count, length, steps));
    std::vector<ids> all;
    for (generated_sequence& s : value(g.run(prompts, on_token, which))) all.push_back(std::move(s.tokens));
    return all;
  }

 private:
  static void check(const status& s) {
    if (!s) throw std::runtime_error(s.message());
  }
  template <class T> static T value(result<T> r) {
    if (!r) throw std::runtime_error(r.message());
    return std::move(*r);
  }
  static causal_lm<Engine> opened(const std::string& path, int context) {
    model_options options;
    options.context = context;
    return value(io::load_model<Engine>(path, options));
  }
  typename Engine::queue& queue() { return model_.programs().queue; }

  causal_lm<Engine> model_;
  block_stack_cache<Engine> stacks_;
  generation_settings settings_;
};

}  // namespace graft::pytorch
