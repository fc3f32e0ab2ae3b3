// SPDX-License-Identifier: Apache-2.0
// Models with experts of every family, with random weights, and random adapters on their experts.
#pragma once
#include <doctest/doctest.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/on_cpu.h>
#include <graft/run/synthetic_index.h>

#include <random>

#include "../support.h"

namespace graft::io::test {

using engine = cpu::engine<float>;

inline std::string config_text(const std::string& family, const std::string& more = "") {
  return "{\"model_type\": \"" + family +
         R"(", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "head_dim": 8,
             "max_position_embeddings": 64, "vocab_size": 99, "intermediate_size": 40, "num_experts_per_tok": 2,
             "num_local_experts": 5)" +
         more + "}";
}
inline const std::string qwen = R"(, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 16)";

// Random weights of any configuration, as its formulas need them.
inline model_weights random_weights(const model_config& c) {
  model_weights w;
  auto memory = std::make_shared<std::deque<std::vector<float>>>();
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 0.3F);
  const auto fill = [&](const block_formula& f, const std::string& prefix, int layer) {
    const block_spec spec{f, {}, facts_of(c, layer), false, operation_of(c.activation)};
    const builder g = capture_forward(f, block_options_of(spec, pass_kind::forward));
    const named_values values = values_of(c, 64);
    size_values s;
    for (const auto& [name, n] : values.sizes)
      if (const int at = graph(g).sizes.find(name.c_str()); at >= 0) s.v[at] = n;
    for (id i = 0; i < g.n.size(); ++i) {
      if (g.n[i].what != op::base) continue;
      std::vector<float>& v = memory->emplace_back();
      for (long long k = element_count(g, i, s); k > 0; --k) v.push_back(normal(random));
      view t{v.data(), dtype::f32};
      const axis_range listed = listed_axes(g.n[i]);
      for (int k = listed.first; k < listed.last; ++k) t.size[t.rank++] = graph(g).sizes.value(g.n[i].d[k], s);
      w.tensors[prefix + graph(g).name(i).c_str()] = t;
    }
  };
  const architecture& a = c.family->formulas;
  fill(a.embed, "", ends_of_model), fill(a.head, "", ends_of_model);
  for (int l = 0; l < c.layers; ++l) fill(a.block, std::string(a.layers) + "." + std::to_string(l) + ".", l);
  w.owner = memory;
  return w;
}
inline model_config config_of(const std::string& text) {
  const auto c = hf::parse_config(text, "config.json");
  INFO(std::string(c.message()));
  REQUIRE(c);
  return *c;
}
inline causal_lm<engine> model_of(const std::string& text) {
  const model_config c = config_of(text);
  auto m = causal_lm<engine>::make(c, random_weights(c));
  INFO(std::string(m.message()));
  REQUIRE(m);
  return std::move(*m);
}
inline void must(const status& s) {
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
}
inline const std::vector<std::int64_t> prompt{3, 17, 42, 8, 5, 90, 17};
inline std::vector<float> logits_of(causal_lm<engine>& m, std::span<const causal_lm<engine>::names> of = {}) {
  std::vector<sequence_chunk> chunks(std::max<std::size_t>(1, of.size()), sequence_chunk{prompt});
  std::vector<float> out(chunks.size() * prompt.size() * 99);
  must(m.logits(chunks, out, false, of));
  return out;
}
inline void close(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(static_cast<double>(a[i]) == doctest::Approx(static_cast<double>(b[i])).epsilon(1e-3).scale(1));
}
// A random adapter of any method on one module, whose formula lists the tensors and sizes that it needs.
inline module_adapter random_adapter_of(const base_layer& b, const formula& of, std::mt19937& random) {
  const kind_rules kind = b.kind != "experts" ? rules_of<linear_kind>()
                          : b.stored_in_out   ? rules_of<experts_kind<true>>()
                                              : rules_of<experts_kind<false>>();
  builder g;
  const scope p{&g};
  const ex W = kind.matrix(p, kind.weight(p));
  g.add_output(of.weight(p, W).i, "weight");
  size_values s;
  module_adapter m;
  m.module = b.module, m.of = of, m.transposed_storage = b.stored_in_out;
  const std::map<std::string, long long> known{
      {"out", b.out}, {"in", b.in}, {"r", 2}, {"experts", b.kind == "experts" ? b.shape[0] : 1}};
  for (const size_entry& e : g.size_list) {
    if (e.index < 0) continue;
    const auto at = known.find(e.name);
    s.v[e.index] = at != known.end() ? at->second : of.adapter_size(e.name, b.out, b.in);
    if (s.v[e.index] == unknown) m.sizes[e.name] = s.v[e.index] = 4;  // an adapter's configuration states it
  }
  std::normal_distribution<float> normal(0, 0.3F);
  for (id i = 0; i < g.n.size(); ++i) {
    const node& v = g.n[i];
    const std::string name = graph(g).name(i).c_str();
    if (v.what == op::scalar) m.scalars[name] = 0.5;
    if (v.what == op::base || !is_named(v.what) || traits_of(v.what).from == source::scalar) continue;
    adapter_tensor& t = m.tensors[name];
    const axis_range listed = listed_axes(v);
    for (int k = listed.first; k < listed.last; ++k) t.shape.push_back(graph(g).sizes.value(v.d[k], s));
    if (v.what == op::index) {
      t.indices = std::make_shared<std::vector<std::int64_t>>(synthetic_index(g, i, s));
      continue;
    }
    t.data = std::make_shared<std::vector<float>>();
    for (long long n = element_count(g, i, s); n > 0; --n) t.data->push_back(normal(random));
  }
  return m;
}
// A random adapter of rank 2 on both parameters of the experts of each sparse layer, and a LoRA on queries.
inline adapter_set adapter_on_experts(const model_config& c, const model_weights& w, unsigned seed,
                                      const formula& of = formula_of<lora<>>()) {
  adapter_set set;
  std::mt19937 random(seed);
  for (const base_layer& b : hf::modules_of(c, w))
    if (b.kind == "experts" || b.module.ends_with("q_proj"))
      set.modules.push_back(random_adapter_of(b, b.kind == "experts" ? of : formula_of<lora<>>(), random));
  return set;
}
inline const std::string configs[] = {
    config_text("mixtral"), config_text("qwen2_moe", qwen + R"(, "decoder_sparse_step": 2)"),
    config_text("qwen3_moe", qwen + R"(, "mlp_only_layers": [0], "norm_topk_prob": true)"),
    config_text("gpt_oss", R"(, "sliding_window": 3)")};

}  // namespace graft::io::test
