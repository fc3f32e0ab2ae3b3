// SPDX-License-Identifier: Apache-2.0
// Laws of whole models on the GPU: captured steps give the bits of others, a batch gives the tokens of its sequences
// one by one, a KV cache gives the logits of a full forward, and every run gives the same bits. Sampling equals the
// CPU's. `golden` compares the numbers with PEFT's.
#include <doctest/doctest.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/on_gpu.cuh>
#include <graft/model/trainer.h>

#include <cmath>
#include <cstdio>
#include <deque>
#include <random>
#include <string_view>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

using wide = gpu::engine<float>;
using narrow_type = gpu::engine<__nv_bfloat16>;
const std::string models = GRAFT_GOLDEN_DIR "/models/";

bool no_gpu() {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}

template <class Engine> causal_lm<Engine> tuned(const std::string& family, const std::string& adapter) {
  auto model = io::hf::load_model<Engine>(models + family + "/base");
  INFO(std::string(model.message()));
  REQUIRE(bool(model));
  if (!adapter.empty()) {
    auto loaded = io::hf::load_adapters(models + family + "/" + adapter + "/adapter_init", *model);
    REQUIRE(bool(loaded));
    REQUIRE(bool(model->set_adapters(loaded->set)));
  }
  return std::move(*model);
}

using sequences = std::vector<std::vector<std::int64_t>>;
const sequences prompts{{5, 9, 20, 31}, {7}, {10, 11, 12, 13, 14, 15, 16}};  // the smallest vocabulary has 32 tokens

template <class Engine>
sequences generated(causal_lm<Engine>& model, const sequences& from, const sampling_settings& how, step_mode steps) {
  generation_settings all;
  all.sampling = how, all.max_new_tokens = 20, all.eos_tokens = no_eos_tokens;
  auto g = generator<Engine>::make(model, all, static_cast<int>(from.size()), 40, steps);
  REQUIRE(bool(g));
  sequences out;
  for (int round = 0; round < 2; ++round) {  // the second round replays what the first one captured
    const auto made = g->run(from);
    INFO(std::string(made.message()));
    REQUIRE(bool(made));
    sequences now;
    for (const generated_sequence& s : *made) now.push_back(s.tokens);
    CHECK((round == 0 || now == out));
    out = now;
  }
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("gpu models: captured or not, in a batch or alone, the same tokens", Engine, wide, narrow_type) {
  if (no_gpu()) return;
  for (const auto& [family, adapter] :
       {std::pair{"llama", "lora"}, std::pair{"mistral", ""}, std::pair{"gpt2", ""},
        std::pair{"../experts/models/qwen3_moe", "lora_experts"}, std::pair{"../experts/models/gpt_oss", ""},
        std::pair{"../checkpoints/models/gpt_oss_mxfp4", ""}, std::pair{"../checkpoints/models/gptq_4", "lora"}}) {
    INFO(std::string(family));
    auto model = tuned<Engine>(family, adapter);
    for (const sampling_settings& how : {sampling_settings{}, sampling_settings{true, 0.8, 20, 0.9, 1.3, 3}}) {
      const sequences together = generated(model, prompts, how, step_mode::standard);
      CHECK(generated(model, prompts, how, step_mode::reduce_overhead) == together);
      if (how.sample) continue;  // a random draw depends on the number of its sequence
      for (const sampling_settings& cold : {sampling_settings{true, 0, 20, 0.9, 1, 3}, {true, 0.8, 0, 0, 1, 3}})
        CHECK(generated(model, prompts, cold, step_mode::reduce_overhead) == together);
      for (std::size_t i = 0; i < prompts.size(); ++i)
        CHECK(generated(model, {prompts[i]}, how, step_mode::reduce_overhead)[0] == together[i]);
    }
  }
}

TEST_CASE_TEMPLATE("gpu models: a step that was queued early is used only if it is the next one", Engine, wide,
                   narrow_type) {
  if (no_gpu()) return;
  auto model = tuned<Engine>("llama", "lora");
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocabulary));
  // Sequences end one after the other, another call runs other rows, and the adapter is disabled in between.
  const auto tokens = [&](step_mode steps, int disturbed) {
    generation_settings how;
    how.max_new_tokens = 24, how.eos_tokens = no_eos_tokens;
    auto g = generator<Engine>::make(model, how, 3, 40, steps);
    REQUIRE(bool(g));
    sequences all;
    for (int round = 0; round < 2; ++round) {
      int made[3] = {};
      const auto out = g->run(prompts, [&](std::size_t i, std::int64_t) {
        ++made[i];
        if (i == 0 && disturbed == 1 && made[0] % 5 == 3) {
          const sequence_chunk other[] = {{prompts[2], 0, 0}};
          CHECK(bool(model.logits(other, logits, true)));
        }
        if (i == 0 && disturbed == 2 && (made[0] == 7 || made[0] == 15)) model.enable(made[0] == 15);
        return i == 2 || made[i] < (i == 0 ? 19 : 6);
      });
      REQUIRE(bool(out));
      for (const generated_sequence& s : *out) all.push_back(s.tokens);
    }
    return all;
  };
  for (const int disturbed : {0, 1, 2}) {
    INFO(disturbed);
    const sequences expected = tokens(step_mode::standard, disturbed);
    CHECK(tokens(step_mode::reduce_overhead, disturbed) == expected);
    CHECK((disturbed != 1 || expected == tokens(step_mode::standard, 0)));
  }
  // Runs to the last slot of the cache.
  generation_settings endless;
  endless.eos_tokens = no_eos_tokens;
  for (const step_mode steps : {step_mode::standard, step_mode::reduce_overhead}) {
    auto g = generator<Engine>::make(model, endless, 3, 12, steps);
    REQUIRE(bool(g));
    const auto out = g->run(prompts);
    REQUIRE(bool(out));
    for (const generated_sequence& s : *out) CHECK((s.tokens.size() == 12 && s.why == stop_reason::cache_full));
  }
}

TEST_CASE("gpu models: prompts of many lengths leave no more device memory than the longest") {
  if (no_gpu()) return;
  auto model = tuned<narrow_type>("llama", "lora");
  const auto generate = [&](int sequences, int prompt) {
    generation_settings how;
    how.max_new_tokens = 3, how.prefill_chunk_size = 64, how.eos_tokens = no_eos_tokens;
    auto g = generator<narrow_type>::make(model, how, sequences, prompt + 4, step_mode::reduce_overhead);
    REQUIRE(bool(g));
    REQUIRE(bool(g->run(std::vector(static_cast<std::size_t>(sequences), std::vector<std::int64_t>(prompt, 7)))));
  };
  generate(4, 200), generate(1, 200);
  const long long before = gpu::device_memory.bytes;
  const int programs = model.programs().count();
  for (int k = 0; k < 50; ++k) generate(1 + k % 4, 1 + 4 * k);
  CHECK(gpu::device_memory.bytes <= before + (1LL << 20));  // the KV caches of all these generators are more
  CHECK(model.programs().count() == programs);
}

TEST_CASE("gpu models: prompts that are processed in chunks give the tokens of whole ones") {
  using Engine = wide;
  if (no_gpu()) return;
  auto model = tuned<Engine>("llama", "lora");
  const sequences long_ones{sequences::value_type(90, 3), {5, 9, 200, 31}, sequences::value_type(33, 100)};
  sequences expected;
  for (const int piece : {4096, 1, 16, 50}) {
    generation_settings how;
    how.max_new_tokens = 8, how.prefill_chunk_size = piece, how.eos_tokens = no_eos_tokens;
    auto g = generator<Engine>::make(model, how, 3, 100, step_mode::reduce_overhead);
    REQUIRE(bool(g));
    const auto made = g->run(long_ones);
    REQUIRE(bool(made));
    sequences now;
    for (const generated_sequence& s : *made) now.push_back(s.tokens);
    if (expected.empty()) expected = now;
    CHECK(now == expected);
  }
}

TEST_CASE("gpu models: sampling equals the CPU's") {
  if (no_gpu()) return;
  auto model = tuned<wide>("llama", "lora");
  for (const sampling_settings& how :
       {sampling_settings{true, 1, 0, 1, 1, 1}, sampling_settings{true, 0.7, 5, 1, 1, 2},
        sampling_settings{true, 1.5, 50, 0.7, 1, 3}, sampling_settings{true, 1, 0, 0.5, 1.2, 4},
        sampling_settings{false, 1, 0, 1, 1.5, 0}}) {
    const sequences made = generated(model, prompts, how, step_mode::reduce_overhead);
    sampler host(how, model.config().vocabulary);
    std::vector<float> logits(static_cast<std::size_t>(model.config().vocabulary));
    for (std::size_t i = 0; i < made.size(); ++i)
      for (std::size_t n = prompts[i].size(); n < made[i].size(); ++n) {
        const auto history = std::span(made[i]).first(n);
        const sequence_chunk run[] = {{history, 0, 0}};
        REQUIRE(bool(model.logits(run, logits, true)));
        const result<int> next = host.next(logits, history, i, prompts[i].size());
        REQUIRE(bool(next));
        CHECK(*next == made[i][n]);
      }
  }
}

TEST_CASE_TEMPLATE("gpu models: runs are bitwise repeatable, forward and in training", Engine, wide, narrow_type) {
  if (no_gpu()) return;
  for (const auto& [family, adapter] : {std::pair{"llama", "lora"}, std::pair{"mistral", "lora_all_linear"}}) {
    INFO(std::string(family));
    std::vector<float> logits[3];
    std::vector<double> losses[3];
    for (int round = 0; round < 3; ++round) {  // the third round recomputes blocks instead of saving tensors
      auto model = tuned<Engine>(family, adapter);
      std::vector<sequence_chunk> runs;
      std::size_t rows = 0;
      for (const auto& p : prompts) runs.push_back({p, 0, 0}), rows += p.size();
      logits[round].resize(rows * static_cast<std::size_t>(model.config().vocabulary));
      REQUIRE(bool(model.logits(runs, logits[round])));
      const sequences data{prompts[0], prompts[2], {1, 2, 3, 4, 5, 6, 7, 8, 9}};
      auto t = trainer<Engine>::make(model, data, {.steps = 4, .batch = 2, .accumulate = 2, .checkpoint = round == 2});
      INFO(std::string(t.message()));
      REQUIRE(bool(t));
      const status s = t->run([&](const step_report& r) { return losses[round].push_back(r.loss), true; });
      INFO(std::string(s.message()));
      REQUIRE(bool(s));
    }
    CHECK(logits[0] == logits[1]);
    CHECK(losses[0] == losses[1]);
    REQUIRE(losses[0].size() == 4);
    for (std::size_t i = 0; i < 4; ++i) CHECK(losses[0][i] == doctest::Approx(losses[2][i]).epsilon(2e-3));
  }
}

// A small Llama whose head size the attention kernels support.
causal_lm<narrow_type> wide_heads(const char* adapter, double soft_cap = 0) {
  model_config c;
  c.vocabulary = 96, c.hidden_size = c.embedding_width = 256, c.intermediate_size = 512, c.layers = 2;
  c.heads = 4, c.kv_heads = 2, c.head_dim = 64, c.positions = 256, c.window.assign(2, 0);
  c.norm_eps = 1e-5, c.attention_scale = 1.0 / 8, c.attention_soft_cap = soft_cap;
  model_weights w;
  auto memory = std::make_shared<std::deque<std::vector<float>>>();
  std::mt19937 engine(5);
  std::uniform_real_distribution<float> any(-1, 1);
  const auto put = [&](const std::string& name, long long rows, long long cols) {
    auto& v = memory->emplace_back(static_cast<std::size_t>(rows * cols), 1.0F);
    if (cols > 1)
      for (float& x : v) x = 1.7F * any(engine) / std::sqrt(static_cast<float>(cols));
    w.tensors[name] = {v.data(), dtype::f32, {rows, cols, 1, 1}, cols > 1 ? 2 : 1};
  };
  put("model.embed_tokens.weight", 96, 256), put("lm_head.weight", 96, 256), put("model.norm.weight", 256, 1);
  for (const std::string at : {"model.layers.0.", "model.layers.1."}) {
    put(at + "input_layernorm.weight", 256, 1), put(at + "post_attention_layernorm.weight", 256, 1);
    put(at + "self_attn.q_proj.weight", 256, 256), put(at + "self_attn.o_proj.weight", 256, 256);
    put(at + "self_attn.k_proj.weight", 128, 256), put(at + "self_attn.v_proj.weight", 128, 256);
    put(at + "mlp.gate_proj.weight", 512, 256), put(at + "mlp.up_proj.weight", 512, 256);
    put(at + "mlp.down_proj.weight", 256, 512);
  }
  w.owner = memory;
  auto model = causal_lm<narrow_type>::make(c, std::move(w));
  INFO(std::string(model.message()));
  REQUIRE(bool(model));
  const bool turns = std::string_view(adapter) == "oft";
  std::vector<std::pair<std::string, io::json>> with{{"target_modules", io::json_string("all-linear")},
                                                     {"r", io::json_number(turns ? 0 : 8)}};
  if (turns) with.push_back({"oft_block_size", io::json_number(32)});
  if (std::string_view(adapter) == "dora") with.push_back({"use_dora", io::json_bool(true)});
  if (std::string_view(adapter) == "dropped") with.push_back({"lora_dropout", io::json_number(0.3)});
  const auto config = io::make_adapter_config(turns ? "OFT" : "LORA", {}, with);
  REQUIRE(bool(config));
  auto made = io::hf::new_adapter(*model, *config);
  INFO(std::string(made.message()));
  REQUIRE(bool(made));
  REQUIRE(bool(model->set_adapters(made->set)));
  return std::move(*model);
}
TEST_CASE("gpu models: 16 tokens and 17, which other GEMM kernels take, have the same logits") {
  if (no_gpu()) return;
  for (const char* adapter : {"lora", "dora", "oft"}) {
    auto model = wide_heads(adapter);
    std::vector<std::int64_t> many(17);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(5 * i + 1);
    std::vector<float> logits[2];
    for (const std::size_t rows : {std::size_t{16}, std::size_t{17}}) {
      const std::vector<sequence_chunk> runs{{std::span<const std::int64_t>(many).first(rows), 0, 0}};
      logits[rows - 16].resize(rows * 96);
      REQUIRE(bool(model.logits(runs, logits[rows - 16])));
    }
    float most = 0, apart = 0;
    for (std::size_t i = 0; i < logits[0].size(); ++i)
      most = std::max(most, std::abs(logits[1][i])), apart = std::max(apart, std::abs(logits[0][i] - logits[1][i]));
    CHECK(apart < 2e-2F * most);
  }
}
TEST_CASE("gpu models: gradients from saved tensors equal those of recomputed blocks") {
  if (no_gpu()) return;
  std::vector<std::int64_t> first(150), second(70);
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<std::int64_t>(i * 37 % 96);
  for (std::size_t i = 0; i < second.size(); ++i) second[i] = static_cast<std::int64_t>(i * 29 % 96);
  const std::vector<labeled_sequence> batch{{first}, {second}};
  for (const auto& [adapter, soft_cap] :
       {std::pair{"lora", 0.0}, {"lora", 0.5}, {"dora", 0.0}, {"oft", 0.0}, {"dropped", 0.0}}) {
    INFO(std::string(adapter), ", soft cap ", soft_cap);
    auto model = wide_heads(adapter, soft_cap);
    std::vector<float> found[2];
    long long kept[2] = {};
    // After a step precomputed values change, and both passes must see it. The second run begins with the parameters
    // that the first one trained, and draws the dropout mask of its second call.
    for (const bool again : {false, true}) {
      auto t = training_run<narrow_type>::make(model, {.checkpoint = again});
      INFO(std::string(t.message()));
      REQUIRE(bool(t));
      auto optimizer = t->optimizer();
      REQUIRE(bool(optimizer));
      const auto before = again ? t->add(batch) : result<double>(0.0);
      REQUIRE(bool(before));
      if (!again) {
        const auto stepped = t->step(batch, *optimizer, 1e-2, 1);
        INFO(std::string(stepped.message()));
        REQUIRE(bool(stepped));
      }
      t->clear();
      const auto planned = t->saved_bytes(220);
      const auto loss = t->add(batch);
      INFO(std::string(loss.message()));
      REQUIRE(bool(loss));
      REQUIRE(bool(planned));
      CHECK(t->saved_allocation_bytes() > 0);
      CHECK(t->saved_allocation_bytes() <= *planned);
      kept[again] = *planned;
      REQUIRE(bool(t->fetch()));
      for (const trained_parameter& p : t->on_host()) {
        const auto* const at = static_cast<const float*>(p.gradient.data);
        found[again].insert(found[again].end(), at, at + p.gradient.count());
      }
    }
    CHECK(kept[1] < kept[0]);
    REQUIRE(found[0].size() == found[1].size());
    double d = 0, n = 0;
    for (std::size_t i = 0; i < found[0].size(); ++i) {
      const double x = static_cast<double>(found[0][i]), y = static_cast<double>(found[1][i]);
      d += (x - y) * (x - y), n += y * y;
    }
    REQUIRE(n > 0);
    CHECK(std::sqrt(d / n) < 1e-2);
  }
}

TEST_CASE_TEMPLATE("gpu models: a training step gives the same bits captured or not", Engine, wide, narrow_type) {
  if (no_gpu()) return;
  // Batches with the same lengths are replayed; the last one has other lengths and is captured separately.
  const sequences data{
      {5, 9, 200, 31, 8, 77}, {100, 101, 102, 103, 104, 105}, {1, 2, 3, 4, 5, 6}, {9, 8, 7, 6, 5, 4, 3}};
  std::vector<double> numbers[2];
  std::vector<float> trained[2];
  for (const step_mode mode : {step_mode::standard, step_mode::reduce_overhead}) {
    const auto k = static_cast<std::size_t>(mode);
    auto model = tuned<Engine>("llama", "lora");
    trainer_settings how{.steps = 12, .batch = 1, .clip = 0.01};
    how.rate.warmup_steps = 3, how.mode = mode;
    auto t = trainer<Engine>::make(model, data, how);
    INFO(std::string(t.message()));
    REQUIRE(bool(t));
    const status s = t->run([&](const step_report& r) {
      numbers[k].push_back(r.loss), numbers[k].push_back(r.norm);
      return true;
    });
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    for (const module_adapter& m : model.adapters().modules)
      for (const auto& [name, tensor] : m.tensors) {
        const view v = tensor.value();
        if (v.type != dtype::f32) continue;
        const auto* const at = static_cast<const float*>(v.data);
        trained[k].insert(trained[k].end(), at, at + v.count());
      }
  }
  REQUIRE(numbers[0].size() == 24);
  CHECK(numbers[0] == numbers[1]);
  REQUIRE(!trained[0].empty());
  CHECK(trained[0] == trained[1]);
}
TEST_CASE("gpu models: invalid calls are errors before anything is launched") {
  if (no_gpu()) return;
  auto model = tuned<wide>("llama", "");
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocabulary));
  const std::vector<std::int64_t> beyond{1, model.config().vocabulary};
  const sequence_chunk run[] = {{beyond, 0, 0}};
  const long long before = gpu::launch_count();
  CHECK(!model.logits(run, logits, true));
  generation_settings how;
  how.max_new_tokens = 3, how.eos_tokens = no_eos_tokens;
  auto g = generator<wide>::make(model, how, 1, 4);
  REQUIRE(bool(g));
  const long long made = gpu::launch_count();
  CHECK(!g->run(sequences{{1, 2, 3, 4, 5}}));
  CHECK(before <= made);
  CHECK(gpu::launch_count() == made);
}
