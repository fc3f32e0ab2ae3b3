// SPDX-License-Identifier: Apache-2.0
// First-step gradients of whole models on the GPU against the CPU, over sizes that are no powers of two: every method
// on models with ReLU, GELU and SiLU in the MLP, with and without biases, ranks 1 to 64, 1 to 600 tokens. In float
// every element is compared; in bf16, where small elements are mostly rounding error, the direction and the length of
// every tensor.
//
// A gradient is compared where it is well-conditioned: a ReLU whose input is zero up to rounding has either derivative,
// and large terms may cancel. The condition is measured as the change of the CPU's own gradient when all weights move
// by two millionths, up and down: weights are drawn again if it jumps, and smaller changes are added to the tolerance.
#include <doctest/doctest.h>
#include <graft/core/bf16.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/on_cpu.h>
#include <graft/model/on_gpu.cuh>
#include <graft/model/training_run.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <numeric>
#include <set>

#include "../support/each_in_parallel.h"
#include "../support/fresh_methods.h"
#include "../support/gpu_layer.h"

using namespace graft;

namespace {

struct model_shape {
  const model_family* family;
  int hidden, inner, heads, rank, sequences, length;
};
constexpr int vocabulary = 200;

bool no_gpu() {
  const std::string why = ::test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}
float uniform(std::uint64_t number) {
  return static_cast<float>(static_cast<double>(splitmix64(number) >> 11U) * 0x1p-52 - 1);
}

model_config config_of(const model_shape& s) {
  model_config c;
  c.family = s.family, c.vocabulary = vocabulary, c.hidden_size = c.embedding_width = s.hidden,
  c.intermediate_size = s.inner;
  c.layers = 2, c.heads = c.kv_heads = s.heads, c.head_dim = s.hidden / s.heads, c.positions = 160;
  c.window.assign(2, 0), c.attention_scale = 1 / std::sqrt(static_cast<double>(c.head_dim)), c.norm_eps = 1e-5;
  c.tied = !s.family->has_rope;
  c.attention_bias = c.output_bias = c.mlp_bias = s.family != &families::llama;
  if (s.family == &families::mistral)  // Llama with biases; every family of this table has them
    c.family = &families::llama;
  if (s.family == &families::opt) c.activation = activation_kind::relu;
  if (s.family == &families::gpt2) c.activation = activation_kind::gelu_tanh;
  return c;
}

// Weights that are exact in bf16, as float and as bf16.
struct random_weights {
  model_weights wide, narrow;
  // `by`: every element is moved up or down by this fraction.
  random_weights(const model_config& c, std::uint64_t seed, double by = 0) : drawn(seed << 32U), moved(by) {
    wide.owner = narrow.owner = memory;
    const auto norm = [&](const std::string& at) {
      vector(at + ".weight", c.hidden_size, 1);
      if (c.family != &families::llama) vector(at + ".bias", c.hidden_size, 0);
    };
    const auto linear = [&](const std::string& at, int out, int in, bool bias) {
      const bool stored_in_out = c.family == &families::gpt2;
      matrix(at + ".weight", stored_in_out ? in : out, stored_in_out ? out : in,
             1.5F / std::sqrt(static_cast<float>(in)));
      if (bias) vector(at + ".bias", out, 0);
    };
    const int h = c.hidden_size, m = c.intermediate_size;
    if (c.family == &families::opt) {
      matrix("model.decoder.embed_tokens.weight", vocabulary, h, 1);
      matrix("model.decoder.embed_positions.weight", c.positions + 2, h, 1);
      norm("model.decoder.final_layer_norm");
      for (int l = 0; l < c.layers; ++l) {
        const std::string at = "model.decoder.layers." + std::to_string(l) + ".";
        norm(at + "self_attn_layer_norm"), norm(at + "final_layer_norm");
        for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"})
          linear(at + "self_attn." + name, h, h, true);
        linear(at + "fc1", m, h, true), linear(at + "fc2", h, m, true);
      }
    } else if (c.family == &families::gpt2) {
      matrix("transformer.wte.weight", vocabulary, h, 1), matrix("transformer.wpe.weight", c.positions, h, 1);
      norm("transformer.ln_f");
      for (int l = 0; l < c.layers; ++l) {
        const std::string at = "transformer.h." + std::to_string(l) + ".";
        norm(at + "ln_1"), norm(at + "ln_2");
        linear(at + "attn.c_attn", 3 * h, h, true), linear(at + "attn.c_proj", h, h, true);
        linear(at + "mlp.c_fc", m, h, true), linear(at + "mlp.c_proj", h, m, true);
      }
    } else {
      matrix("model.embed_tokens.weight", vocabulary, h, 1), matrix("lm_head.weight", vocabulary, h, 0.1F);
      norm("model.norm");
      for (int l = 0; l < c.layers; ++l) {
        const std::string at = "model.layers." + std::to_string(l) + ".";
        norm(at + "input_layernorm"), norm(at + "post_attention_layernorm");
        for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
          linear(at + "self_attn." + name, h, h, c.attention_bias);
        linear(at + "mlp.gate_proj", m, h, c.mlp_bias), linear(at + "mlp.up_proj", m, h, c.mlp_bias);
        linear(at + "mlp.down_proj", h, m, c.mlp_bias);
      }
    }
  }

 private:
  struct storage {
    std::deque<std::vector<float>> floats;
    std::deque<std::vector<bf16>> halves;
  };
  std::shared_ptr<storage> memory = std::make_shared<storage>();
  std::uint64_t drawn;
  double moved;

  void put(const std::string& name, long long rows, long long cols, float scale, float around) {
    auto& f = memory->floats.emplace_back();
    auto& n = memory->halves.emplace_back();
    for (long long i = 0; i < rows * cols; ++i) {
      const std::uint64_t number = drawn++;
      n.push_back(graft::narrow(around + scale * uniform(number)));
      const double up = (splitmix64(number) & 1U) != 0 ? moved : -moved;
      f.push_back(static_cast<float>(widen(n.back()) * (1 + up)));
    }
    const int rank = cols == 0 ? 1 : 2;
    wide.tensors[name] = {f.data(), dtype::f32, {rows, cols, 1, 1}, rank};
    narrow.tensors[name] = {n.data(), dtype::bf16, {rows, cols, 1, 1}, rank};
  }
  void matrix(const std::string& name, int rows, int cols, float scale) { put(name, rows, cols, scale, 0); }
  void vector(const std::string& name, int rows, float around) {
    put(name, rows, 1, 0.2F, around);
    wide.tensors[name].rank = narrow.tensors[name].rank = 1;
  }
};

// A new adapter often changes nothing, so every tensor is moved and no zero hides an error.
void perturb(adapter_set& set) {
  std::set<const void*> seen;
  std::uint64_t drawn = 1U << 20U;
  for (module_adapter& m : set.modules)
    for (auto* const tensors : {&m.tensors, &m.base})
      for (auto& [name, t] : *tensors) {
        if (t.data == nullptr || !t.stored || !seen.insert(t.data->data()).second) continue;
        // RandLoRA's scalars multiply the sum of all its bases: a larger move would dominate the base layer.
        const float by = name.starts_with("randlora_") ? 0.001F : 0.05F;
        for (float& v : *t.data) v += by * uniform(drawn++);
      }
}

struct named_gradient {
  std::string name;
  std::vector<float> values;
};
struct first_step {
  double loss = 0;
  std::vector<named_gradient> gradients;
};
template <class Engine>
result<first_step> first_step_of(const model_config& c, const model_weights& weights, const adapter_set& adapters,
                                 const std::vector<labeled_sequence>& batch) {
  auto model = causal_lm<Engine>::make(c, weights);
  if (!model) return model.failure();
  if (status s = model->set_adapters(adapters); !s) return s.failure();
  auto t = training_run<Engine>::make(*model, {.dropout = false});
  if (!t) return t.failure();
  t->clear();
  const result<double> loss = t->add(batch);
  if (!loss) return loss.failure();
  if (status s = t->fetch(); !s) return s.failure();
  first_step out;
  out.loss = *loss;
  for (const trained_parameter& p : t->on_host()) {
    const auto* const g = static_cast<const float*>(p.gradient.data);
    out.gradients.push_back({p.name, {g, g + p.gradient.count()}});
  }
  return out;
}

double largest_of(const std::vector<float>& v) {
  double m = 0;
  for (const float x : v) m = std::max(m, std::abs(static_cast<double>(x)));
  return m;
}
double norm_of(const std::vector<float>& v) {
  double s = 0;
  for (const float x : v) s += static_cast<double>(x) * x;
  return std::sqrt(s);
}
// The largest difference of a tensor's gradient, relative to its largest element or to a thousandth of the model's
// largest, if that is more: smaller gradients are rounding errors of terms that cancel.
double furthest(const named_gradient& got, const named_gradient& want, double largest) {
  double off = got.values.size() == want.values.size() ? 0 : 1e30;
  for (std::size_t i = 0; i < want.values.size() && i < got.values.size(); ++i) {
    const double d = std::abs(static_cast<double>(got.values[i]) - static_cast<double>(want.values[i]));
    off = d >= 0 ? std::max(off, d) : 1e30;
  }
  return off / std::max(largest_of(want.values), 1e-3 * largest);
}

// The largest change of a tensor's gradient when the weights move.
std::vector<double> sensitivity_of(const first_step& at, const first_step& up, const first_step& down, double largest) {
  std::vector<double> all;
  for (std::size_t i = 0; i < at.gradients.size(); ++i)
    all.push_back(std::max(furthest(up.gradients[i], at.gradients[i], largest),
                           furthest(down.gradients[i], at.gradients[i], largest)));
  return all;
}
double largest_of(const first_step& s) {
  double largest = 0;
  for (const named_gradient& g : s.gradients) largest = std::max(largest, largest_of(g.values));
  return largest;
}
std::string described(const model_shape& s, const graft::test::fresh_method& m) {
  std::string all = std::string(s.family->name) + " " + std::to_string(s.hidden) + " x " + std::to_string(s.inner) +
                    ", " + std::to_string(s.sequences) + " x " + std::to_string(s.length) + " tokens, rank " +
                    std::to_string(s.rank) + ", " + m.type;
  for (const auto& [name, value] : m.keys) all += " " + name;
  return all;
}
// A ReLU unit near zero flips sign under another order of addition, and the gradient jumps; moving the weights does not
// find every such unit. With 300,000 units one flip is common, but other weights flip another unit, while a wrong
// launch is wrong with both seeds.
bool agrees_in_float(const first_step& got, const first_step& want, const std::vector<double>& sensitivity) {
  bool agrees = got.gradients.size() == want.gradients.size();
  for (std::size_t i = 0; agrees && i < got.gradients.size(); ++i)
    agrees = furthest(got.gradients[i], want.gradients[i], largest_of(want)) < 1e-4 + 3 * sensitivity[i];
  return agrees;
}
void compare_in_float(const first_step& got, const first_step& want, const std::vector<double>& sensitivity) {
  CHECK(std::abs(got.loss - want.loss) <= 1e-4 * std::abs(want.loss));
  REQUIRE(got.gradients.size() == want.gradients.size());
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    const named_gradient &g = got.gradients[i], &w = want.gradients[i];
    REQUIRE(g.name == w.name);
    const double off = furthest(g, w, largest_of(want));
    INFO(w.name, ": ", off, ", moves by ", sensitivity[i], " itself");
    CHECK(off < 1e-4 + 3 * sensitivity[i]);
  }
}
void compare_in_bf16(const first_step& got, const first_step& want) {
  CHECK(std::abs(got.loss - want.loss) <= 2e-2 * std::abs(want.loss));
  REQUIRE(got.gradients.size() == want.gradients.size());
  const double largest = largest_of(want);
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    const named_gradient &g = got.gradients[i], &w = want.gradients[i];
    REQUIRE(g.name == w.name);
    // A single number is a sum whose terms cancel, and it has no direction.
    if (largest_of(w.values) < 1e-2 * largest || w.values.size() == 1) continue;
    double dot = 0;
    for (std::size_t k = 0; k < w.values.size(); ++k) dot += static_cast<double>(g.values[k]) * w.values[k];
    const double ours = norm_of(g.values), theirs = norm_of(w.values);
    INFO(w.name, ": cosine ", dot / (ours * theirs), ", length ", ours / theirs);
    CHECK(dot / (ours * theirs) > 0.98);
    CHECK(std::abs(ours / theirs - 1) < 0.1);
  }
}

// What one method must give on the weights of a seed.
struct oracle {
  std::uint64_t seed = 0;
  adapter_set adapter;
  first_step want;
  std::vector<double> sensitivity;
  double jump = INFINITY;  // the largest sensitivity
};
struct moved_weights {
  random_weights at, up, down;
  moved_weights(const model_config& c, std::uint64_t seed) : at(c, seed), up(c, seed, 2e-6), down(c, seed, -2e-6) {}
};
constexpr std::uint64_t seeds = 6;

result<oracle> oracle_of(const model_config& c, const moved_weights& weights, std::uint64_t seed,
                         const io::adapter_config& config, const std::vector<labeled_sequence>& batch) {
  using reference = cpu::engine<float>;
  oracle o;
  o.seed = seed;
  auto base = causal_lm<reference>::make(c, weights.at.wide);
  if (!base) return base.failure();
  auto adapter = io::hf::new_adapter(*base, config, seed);
  if (!adapter) return adapter.failure();
  perturb(adapter->set);
  o.adapter = std::move(adapter->set);
  first_step steps[3];
  for (int i = 0; i < 3; ++i) {
    const random_weights& w = i == 0 ? weights.at : i == 1 ? weights.up : weights.down;
    auto step = first_step_of<reference>(c, w.wide, o.adapter, batch);
    if (!step) return step.failure();
    steps[i] = std::move(*step);
  }
  o.sensitivity = sensitivity_of(steps[0], steps[1], steps[2], largest_of(steps[0]));
  o.jump = *std::max_element(o.sensitivity.begin(), o.sensitivity.end());
  o.want = std::move(steps[0]);
  return o;
}

void sweep(const model_shape& s, bool bf16_too) {
  if (no_gpu()) return;
  const model_config c = config_of(s);
  std::vector<std::vector<std::int64_t>> ids;
  std::uint64_t drawn = 7;
  for (int b = 0; b < s.sequences; ++b) {
    ids.emplace_back();
    for (int i = 0; i < s.length; ++i)
      ids.back().push_back(static_cast<std::int64_t>(splitmix64(drawn++) % vocabulary));
  }
  std::vector<labeled_sequence> batch;
  for (const auto& one : ids) batch.push_back({one});
  const std::vector<graft::test::fresh_method> methods = graft::test::fresh_methods(s.rank);
  std::vector<io::adapter_config> configs;
  for (const graft::test::fresh_method& m : methods) {
    auto keys = m.keys;
    if (std::none_of(keys.begin(), keys.end(), [](const auto& k) { return k.first == "target_modules"; }))
      keys.push_back({"target_modules", io::json_string("all-linear")});
    auto config = io::make_adapter_config(m.type, {}, keys);
    INFO(described(s, m), ": ", std::string(config.message()));
    REQUIRE(bool(config));
    configs.push_back(std::move(*config));
  }
  // The CPU computes one method per thread: steps this small gain nothing from several threads.
  std::vector<result<oracle>> oracles(methods.size(), result<oracle>(fail("no weights were drawn")));
  std::vector<int> open(methods.size());
  std::iota(open.begin(), open.end(), 0);
  for (std::uint64_t seed = 1; seed <= seeds && !open.empty(); ++seed) {
    const moved_weights weights(c, seed);
    // OSF, at the end of the list, is computed first, because its factors of every weight take longest.
    ::test::each_in_parallel(static_cast<int>(open.size()), [&](int i) {
      const auto m = static_cast<std::size_t>(open[open.size() - 1 - static_cast<std::size_t>(i)]);
      oracles[m] = oracle_of(c, weights, seed, configs[m], batch);
    });
    std::erase_if(open, [&](int m) {
      const result<oracle>& o = oracles[static_cast<std::size_t>(m)];
      return !o || o->jump <= 1e-3;
    });
  }
  for (std::size_t m = 0; m < methods.size(); ++m) {
    result<oracle>& o = oracles[m];
    INFO(described(s, methods[m]), ": ", std::string(o.message()));
    REQUIRE(bool(o));
    CHECK(o->jump < 0.03);
    random_weights weights(c, o->seed);
    auto wide = first_step_of<gpu::engine<float>>(c, weights.wide, o->adapter, batch);
    REQUIRE_MESSAGE(bool(wide), std::string(wide.message()));
    if (c.activation == activation_kind::relu && !agrees_in_float(*wide, o->want, o->sensitivity)) {
      const std::uint64_t other = o->seed + seeds;
      o = oracle_of(c, moved_weights(c, other), other, configs[m], batch);
      REQUIRE_MESSAGE(bool(o), std::string(o.message()));
      weights = random_weights(c, other);
      wide = first_step_of<gpu::engine<float>>(c, weights.wide, o->adapter, batch);
      REQUIRE_MESSAGE(bool(wide), std::string(wide.message()));
    }
    compare_in_float(*wide, o->want, o->sensitivity);
    if (!bf16_too) continue;
    const auto narrow = first_step_of<gpu::engine<__nv_bfloat16>>(c, weights.narrow, o->adapter, batch);
    REQUIRE_MESSAGE(bool(narrow), std::string(narrow.message()));
    compare_in_bf16(*narrow, o->want);
  }
}

}  // namespace

TEST_CASE("gpu gradients: OPT 96 x 384, 52 tokens") { sweep({&families::opt, 96, 384, 4, 4, 4, 13}, true); }
TEST_CASE("gpu gradients: OPT 32 x 40, 2 tokens") { sweep({&families::opt, 32, 40, 2, 1, 1, 2}, false); }
TEST_CASE("gpu gradients: OPT 200 x 136, 270 tokens") { sweep({&families::opt, 200, 136, 5, 16, 3, 90}, true); }
TEST_CASE("gpu gradients: OPT 328 x 488, 600 tokens") { sweep({&families::opt, 328, 488, 2, 33, 8, 75}, true); }
TEST_CASE("gpu gradients: GPT-2 72 x 264, 35 tokens") { sweep({&families::gpt2, 72, 264, 3, 5, 5, 7}, true); }
TEST_CASE("gpu gradients: GPT-2 120 x 480, 128 tokens") { sweep({&families::gpt2, 120, 480, 4, 8, 2, 64}, true); }
TEST_CASE("gpu gradients: GPT-2 392 x 168, 130 tokens") { sweep({&families::gpt2, 392, 168, 7, 64, 1, 130}, true); }
TEST_CASE("gpu gradients: Llama 40 x 56, 66 tokens") { sweep({&families::llama, 40, 56, 1, 2, 6, 11}, true); }
TEST_CASE("gpu gradients: Llama 96 x 384, 52 tokens") { sweep({&families::llama, 96, 384, 4, 4, 4, 13}, true); }
TEST_CASE("gpu gradients: Llama 264 x 456, 164 tokens") { sweep({&families::llama, 264, 456, 3, 20, 4, 41}, true); }
TEST_CASE("gpu gradients: Llama 512 x 72, 17 tokens") { sweep({&families::llama, 512, 72, 8, 12, 1, 17}, true); }
TEST_CASE("gpu gradients: Llama with biases 168 x 392, 600 tokens") {
  sweep({&families::mistral, 168, 392, 3, 7, 6, 100}, true);
}
