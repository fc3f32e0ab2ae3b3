// SPDX-License-Identifier: Apache-2.0
// GGUF files of models with experts, under llama.cpp's names: what is read gives the logits of the same numbers as
// plain tensors, in blocks and in floats; adapters run, train, merge and switch on it; writing gives what was read.
#include <doctest/doctest.h>
#include <graft/io/gguf/adapter.h>
#include <graft/io/gguf/save_model.h>
#include <graft/io/gguf/writer.h>
#include <graft/io/hf/config.h>
#include <graft/io/hf/modules.h>
#include <graft/io/load_model.h>
#include <graft/model/on_cpu.h>
#include <graft/model/training_run.h>

#include <cmath>
#include <random>

#include "../support.h"

using namespace graft;
using namespace graft::io;
using namespace graft::io::test;

namespace {

using engine = cpu::engine<float>;

struct numbers {
  std::vector<float> v;
  std::vector<long long> size;
  view as_view() const {
    view of{v.data(), dtype::f32};
    for (const long long n : size) of.size[of.rank++] = n;
    return of;
  }
};
using tensors = std::map<std::string, numbers>;

// What a GGUF file of a small model has: hidden 64, experts of 32 columns, so that rows are blocks of 32.
struct architecture_in_file {
  const char* name;
  bool shared_expert, head_norms;
};
const architecture_in_file architectures[] = {
    {"llama", false, false}, {"qwen2moe", true, false}, {"qwen3moe", false, true}};
constexpr long long hidden = 64, inner = 32, expert_count = 4, vocabulary = 96;

tensors random_tensors(const architecture_in_file& a) {
  tensors all;
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.25F);
  const auto add = [&](const std::string& name, std::vector<long long> size) {
    numbers& t = all[name];
    t.size = std::move(size);
    long long n = 1;
    for (const long long k : t.size) n *= k;
    for (; n > 0; --n) t.v.push_back(normal(random) + (t.size.size() == 1 ? 1 : 0));
  };
  add("token_embd.weight", {vocabulary, hidden}), add("output_norm.weight", {hidden});
  add("output.weight", {vocabulary, hidden});
  for (const char* block : {"blk.0.", "blk.1."}) {
    const std::string b = block;
    add(b + "attn_norm.weight", {hidden}), add(b + "ffn_norm.weight", {hidden});
    add(b + "attn_q.weight", {hidden, hidden}), add(b + "attn_output.weight", {hidden, hidden});
    add(b + "attn_k.weight", {hidden / 2, hidden}), add(b + "attn_v.weight", {hidden / 2, hidden});
    if (a.head_norms) add(b + "attn_q_norm.weight", {16}), add(b + "attn_k_norm.weight", {16});
    if (a.shared_expert) {
      add(b + "attn_q.bias", {hidden}), add(b + "attn_k.bias", {hidden / 2}), add(b + "attn_v.bias", {hidden / 2});
      add(b + "ffn_gate_inp_shexp.weight", {hidden}), add(b + "ffn_gate_shexp.weight", {inner, hidden});
      add(b + "ffn_up_shexp.weight", {inner, hidden}), add(b + "ffn_down_shexp.weight", {hidden, inner});
    }
    add(b + "ffn_gate_inp.weight", {expert_count, hidden});
    add(b + "ffn_gate_exps.weight", {expert_count, inner, hidden});
    add(b + "ffn_up_exps.weight", {expert_count, inner, hidden});
    add(b + "ffn_down_exps.weight", {expert_count, hidden, inner});
  }
  return all;
}
// Writes the tensors; those of experts in the given types.
void write(const std::string& file, const architecture_in_file& a, const tensors& all, const char* gates,
           const char* ups, const char* downs) {
  gguf_writer to;
  const std::string p = std::string(a.name) + ".";
  to.put("general.architecture", a.name);
  const std::pair<const char*, std::uint32_t> facts[] = {{"block_count", 2},
                                                         {"embedding_length", hidden},
                                                         {"feed_forward_length", inner},
                                                         {"context_length", 64},
                                                         {"attention.head_count", 4},
                                                         {"attention.head_count_kv", 2},
                                                         {"expert_count", expert_count},
                                                         {"expert_used_count", 2}};
  for (const auto& [key, n] : facts) to.put(p + key, n);
  if (std::string_view(a.name) != "llama") to.put(p + "expert_feed_forward_length", std::uint32_t{inner});
  if (a.shared_expert) to.put(p + "expert_shared_feed_forward_length", std::uint32_t{inner});
  to.put(p + "attention.layer_norm_rms_epsilon", 1e-5F), to.put(p + "rope.freq_base", 10000.0F);
  std::deque<owned_bytes> memory;
  for (const auto& [name, t] : all) {
    view v = t.as_view();
    const char* const type = name.find("gate_exps") != name.npos   ? gates
                             : name.find("up_exps") != name.npos   ? ups
                             : name.find("down_exps") != name.npos ? downs
                                                                   : nullptr;
    if (type != nullptr) {
      const gguf_matrix_type& as = *find_gguf_matrix_type(type);
      auto converted = convert_tensor(v, as, name);
      REQUIRE(converted);
      memory.push_back(std::move(*converted));
      v.data = memory.back().all.data(), v.type = as.type, v.quant = as.quant;
    }
    REQUIRE(bool(to.add(name, v)));
  }
  const status saved = to.save(file);
  INFO(std::string(saved.message()));
  REQUIRE(bool(saved));
}
void must(const status& s) {
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
}
causal_lm<engine> load(const std::string& file) {
  auto m = load_gguf<engine>(file);
  INFO(std::string(m.message()));
  REQUIRE(m);
  return std::move(*m);
}
const std::vector<std::int64_t> prompt{3, 17, 42, 8, 5, 90, 17};
std::vector<float> logits_of(causal_lm<engine>& m, std::span<const std::int64_t> tokens = prompt) {
  const sequence_chunk one[] = {{tokens}};
  std::vector<float> out(tokens.size() * vocabulary);
  must(m.logits(one, out));
  return out;
}
void close(const std::vector<float>& a, const std::vector<float>& b, double by) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(static_cast<double>(a[i]) == doctest::Approx(static_cast<double>(b[i])).epsilon(by).scale(1));
}
// The norm of a - b in norms of b.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double off = 0, all = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    off += d * d, all += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(off / all);
}
// The numbers that a model has, as floats.
causal_lm<engine> in_floats(causal_lm<engine>& m) {
  model_weights w = m.weights();
  auto memory = std::make_shared<std::deque<std::vector<float>>>();
  for (auto& [name, v] : w.tensors) {
    if (v.quant == nullptr) continue;
    std::vector<float>& to = memory->emplace_back(static_cast<std::size_t>(v.count()));
    cpu::convert(v, to.data());
    v.data = to.data(), v.type = dtype::f32, v.quant = nullptr;
  }
  using owner = std::shared_ptr<const void>;
  w.owner = std::make_shared<std::pair<owner, owner>>(w.owner, memory);
  auto made = causal_lm<engine>::make(m.config(), w);
  REQUIRE(made);
  return std::move(*made);
}
adapter_set random_lora(const causal_lm<engine>& m, unsigned seed) {
  adapter_set set;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.2F);
  for (const base_layer& b : hf::modules_of(m.config(), m.weights())) {
    if (b.kind != "experts" && !b.module.ends_with("q_proj")) continue;
    module_adapter a;
    a.module = b.module, a.of = formula_of<lora<>>(), a.scalars["scaling"] = 0.5;
    for (const auto& [name, rows, cols] : {std::tuple{"lora_A.weight", 2LL, b.in}, {"lora_B.weight", b.out, 2LL}}) {
      std::vector<long long> shape{rows, cols};
      if (b.kind == "experts") shape.insert(shape.begin(), b.shape[0]);
      auto data = std::make_shared<std::vector<float>>();
      for (long long n = rows * cols * (shape.size() == 3 ? shape[0] : 1); n > 0; --n) data->push_back(normal(random));
      a.tensors[name] = adapter_tensor{"", data, shape};
    }
    set.modules.push_back(std::move(a));
  }
  return set;
}

}  // namespace

TEST_CASE("gguf: experts in floats and in blocks, with adapters") {
  for (const architecture_in_file& a : architectures) {
    CAPTURE(std::string(a.name));
    temp_folder folder;
    const std::string file = (folder.path / "model.gguf").string();
    const tensors all = random_tensors(a);
    write(file, a, all, "f32", "f32", "f32");
    causal_lm<engine> plain = load(file);
    CHECK(plain.weights().tensors.at("model.layers.1.mlp.experts.gate_up_proj").size[1] == 2 * inner);
    const std::vector<float> exact = logits_of(plain);
    // Of each expert the gates come first, then the ups.
    const auto* const both =
        static_cast<const float*>(plain.weights().tensors.at("model.layers.0.mlp.experts.gate_up_proj").data);
    CHECK(both[hidden * inner] == all.at("blk.0.ffn_up_exps.weight").v[0]);
    CHECK(both[2 * hidden * inner] == all.at("blk.0.ffn_gate_exps.weight").v[hidden * inner]);

    for (const auto& types : {std::pair{"q8_0", "q8_0"}, {"q4_0", "q5_1"}, {"f16", "q4_0"}, {"q8_0", "bf16"}}) {
      const char *const gates_and_ups = types.first, *const downs = types.second;
      CAPTURE(std::string(downs));
      const bool in_bf16 = std::string_view(downs) == "bf16";
      write(file, a, all, gates_and_ups, gates_and_ups, downs);
      causal_lm<engine> m = load(file), floats = in_floats(m);
      const std::vector<float> base = logits_of(m);
      close(base, logits_of(floats), 1e-3);
      if (std::string_view(gates_and_ups) == "q8_0") close(base, exact, 0.1);
      const std::int64_t one[] = {17};
      close(logits_of(m, one), logits_of(floats, one), 1e-3);

      const std::vector<labeled_sequence> batch{{prompt}};
      std::vector<float> gradients[2];
      std::vector<float> adapted[2];
      int k = 0;
      for (causal_lm<engine>* of : {&m, &floats}) {
        must(of->add("a", random_lora(*of, 1))), must(of->add("b", random_lora(*of, 2)));
        must(of->activate({"a", "b"}));
        adapted[k] = logits_of(*of);
        must(of->activate({"a"}));
        auto t = training_run<engine>::make(*of);
        REQUIRE(t);
        const auto loss = t->add(batch);
        REQUIRE(loss);
        gradients[k].push_back(static_cast<float>(*loss));
        for (const trained_parameter& p : t->parameters())
          gradients[k].insert(gradients[k].end(), static_cast<const float*>(p.gradient.data),
                              static_cast<const float*>(p.gradient.data) + p.gradient.count());
        ++k;
      }
      close(adapted[0], adapted[1], 1e-3), close(gradients[0], gradients[1], 1e-3);
      CHECK(adapted[0] != base);

      // Merged in full width the weights give what the adapter gives; in the blocks of the base they are rounded.
      const std::vector<float> with_a = logits_of(m);
      auto wide = m.merged_weights({"a"}, merged_format::f32);
      REQUIRE(wide);
      auto merged = causal_lm<engine>::make(m.config(), *wide);
      REQUIRE(merged);
      close(logits_of(*merged), with_a, in_bf16 ? 3e-2 : 3e-3);  // weights in 16 bits are merged in 16 bits
      must(m.merge({"a"}));
      CHECK(m.merge_quantization_error().contains("model.layers.0.mlp.experts.down_proj") == !in_bf16);
      must(m.unmerge()), must(m.activate({}));
      CHECK(logits_of(m) == base);

      // Writing gives the tensors that were read.
      const std::string again = (folder.path / "again.gguf").string();
      must(save_gguf(again, m.weights(), file));
      const auto from = map_gguf(file), to = map_gguf(again);
      REQUIRE(from);
      REQUIRE(to);
      REQUIRE(from->tensors.size() == to->tensors.size());
      for (const auto& [name, v] : from->tensors) {
        const view& t = to->tensors.at(name);
        REQUIRE(t.rank == v.rank);
        CHECK(std::equal(t.size, t.size + 4, v.size));
        CHECK(t.quant == v.quant);
        const auto bytes = v.quant != nullptr ? quantized_bytes(v) : v.count() * bits_of(v.type) / 8;
        CHECK(std::memcmp(t.data, v.data, static_cast<std::size_t>(bytes)) == 0);
      }
      // The file may be written in other types. Blocks of 5 bits make routers choose another expert for some rows;
      // logits of other weights would be off by more than their norm.
      for (const auto& [type, by] : {std::pair{"q8_0", 0.1}, {"q4_k_m", 0.5}}) {
        must(save_gguf(again, m.weights(), file, find_gguf_matrix_type(type)));
        causal_lm<engine> converted = load(again);
        CHECK(converted.weights().tensors.at("model.layers.0.mlp.experts.down_proj").quant != nullptr);
        CHECK(difference(logits_of(converted), base) < by);
      }
    }
  }
}

TEST_CASE("gguf adapters: LoRA on experts, from PEFT to GGUF and back") {
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"}) {
    CAPTURE(std::string(name));
    const std::string golden = std::string(GRAFT_GOLDEN_DIR) + "/experts/models/" + name;
    const auto model = open_model(golden + "/base");
    REQUIRE_MESSAGE(model, model.message());
    const auto peft = read_adapters(golden + "/lora_experts/adapter_init", model->config, model->weights);
    REQUIRE_MESSAGE(peft, peft.message());
    temp_folder folder;
    const std::string file = (folder.path / "a.gguf").string(), again = (folder.path / "b.gguf").string(),
                      back = (folder.path / "peft").string();
    must(save_adapters(file, *peft, model->config));
    const auto read = read_adapters(file, model->config, model->weights);
    REQUIRE_MESSAGE(read, read.message());
    REQUIRE(read->set.modules.size() == peft->set.modules.size());
    for (const module_adapter& m : peft->set.modules) {
      CAPTURE(m.module);
      const module_adapter* const other = read->set.find(m.module);
      REQUIRE(other != nullptr);
      CHECK((other->of.weight == m.of.weight));
      CHECK(other->scalars.at("scaling") == doctest::Approx(m.scalars.at("scaling")));
      for (const auto& [tensor, t] : m.tensors) {
        CHECK(other->tensors.at(tensor).shape == t.shape);
        CHECK(*other->tensors.at(tensor).data == *t.data);
      }
    }
    must(save_adapters(back, *read, model->config));
    const auto repeated = read_adapters(back, model->config, model->weights);
    REQUIRE_MESSAGE(repeated, repeated.message());
    must(save_adapters(again, *repeated, model->config));
    CHECK(*read_file(again) == *read_file(file));
    // The gates and the ups of a matrix share A.
    const auto stored = map_gguf(file);
    REQUIRE(stored);
    const view &gate = stored->tensors.at("blk.1.ffn_gate_exps.weight.lora_a"),
               &up = stored->tensors.at("blk.1.ffn_up_exps.weight.lora_a"),
               &down = stored->tensors.at("blk.1.ffn_down_exps.weight.lora_b");
    CHECK((gate.rank == 3 && gate.size[0] == model->config.experts && gate.size[2] == model->config.hidden_size));
    CHECK((down.rank == 3 && down.size[1] == model->config.hidden_size));
    CHECK(std::memcmp(gate.data, up.data, static_cast<std::size_t>(gate.count()) * sizeof(float)) == 0);
  }
}

TEST_CASE("gguf adapters: the gates and the ups of experts may have adapters of their own") {
  temp_folder folder;
  const std::string file = (folder.path / "model.gguf").string(), adapter = (folder.path / "a.gguf").string();
  write(file, architectures[2], random_tensors(architectures[2]), "f32", "f32", "f32");
  causal_lm<engine> m = load(file);
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.3F);
  const std::pair<const char*, long long> parts[] = {{"gate", 2}, {"up", 3}};
  for (const float alpha : {6.0F, 0.0F})
    for (const bool both : {true, false}) {
      CAPTURE(alpha);
      CAPTURE(both);
      tensors factors;
      gguf_writer to;
      to.put("general.architecture", "qwen3moe"), to.put("general.type", "adapter"), to.put("adapter.type", "lora");
      to.put("adapter.lora.alpha", alpha);
      for (const auto& [part, rank] : parts) {
        if (!both && part[0] == 'g') continue;
        const std::string name = std::string("blk.1.ffn_") + part + "_exps.weight";
        factors[name + ".lora_a"].size = {expert_count, rank, hidden};
        factors[name + ".lora_b"].size = {expert_count, inner, rank};
      }
      factors["blk.1.attn_q.weight.lora_a"].size = {4, hidden};  // of another rank
      factors["blk.1.attn_q.weight.lora_b"].size = {hidden, 4};
      for (auto& [name, t] : factors) {
        for (long long n = t.as_view().count(); n > 0; --n) t.v.push_back(normal(random));
        must(to.add(name, t.as_view()));
      }
      must(to.save(adapter));
      const auto read = read_adapters(adapter, m.config(), m.weights());
      REQUIRE_MESSAGE(read, read.message());
      must(m.add("a", read->set)), must(m.activate({"a"}));
      const auto merged = m.merged_weights({"a"}, merged_format::f32);
      REQUIRE(merged);
      const std::string changed = "model.layers.1.mlp.experts.gate_up_proj";
      const auto* const before = static_cast<const float*>(m.weights().tensors.at(changed).data);
      const auto* const after = static_cast<const float*>(merged->tensors.at(changed).data);
      for (long long e = 0; e < expert_count; ++e)
        for (long long row = 0; row < 2 * inner; row += 5)
          for (long long col = 0; col < hidden; col += 7) {
            const auto& [part, rank] = parts[row / inner];
            double expected = static_cast<double>(before[(e * 2 * inner + row) * hidden + col]);
            const std::string name = std::string("blk.1.ffn_") + part + "_exps.weight";
            if (factors.contains(name + ".lora_a"))
              for (long long k = 0; k < rank; ++k)
                expected +=
                    (alpha != 0 ? static_cast<double>(alpha) / static_cast<double>(rank) : 1) *
                    static_cast<double>(factors.at(name + ".lora_b")
                                            .v[static_cast<std::size_t>((e * inner + row % inner) * rank + k)]) *
                    static_cast<double>(
                        factors.at(name + ".lora_a").v[static_cast<std::size_t>((e * rank + k) * hidden + col)]);
            CHECK(static_cast<double>(after[(e * 2 * inner + row) * hidden + col]) ==
                  doctest::Approx(expected).epsilon(1e-5));
          }
      must(m.activate({})), must(m.remove("a"));
    }
  // A file with other sizes is refused by name.
  gguf_writer to;
  to.put("general.architecture", "qwen3moe"), to.put("general.type", "adapter"), to.put("adapter.type", "lora");
  const std::vector<float> some(expert_count * 2 * hidden);
  const view a{some.data(), dtype::f32, {expert_count, 2, hidden, 1}, 3},
      b{some.data(), dtype::f32, {inner, 2, 1, 1}, 2};
  must(to.add("blk.0.ffn_up_exps.weight.lora_a", a)), must(to.add("blk.0.ffn_up_exps.weight.lora_b", b));
  must(to.save(adapter));
  CHECK(std::string(read_adapters(adapter, m.config(), m.weights()).message())
            .find("are no LoRA of 4 experts of 32 x 64") != std::string::npos);
}

TEST_CASE("gguf: experts that do not fit are refused") {
  temp_folder folder;
  const std::string file = (folder.path / "model.gguf").string();
  const auto message_of = [&](const char* gates, const char* ups, auto change) {
    tensors all = random_tensors(architectures[0]);
    change(all);
    write(file, architectures[0], all, gates, ups, "q8_0");
    return std::string(load_gguf<engine>(file).message());
  };
  CHECK(message_of("q8_0", "q4_0", [](tensors&) {}).find("the gates and the ups of 'model.layers.0.mlp.experts'") !=
        std::string::npos);
  CHECK(message_of("q8_0", "q8_0", [](tensors& all) {
          all.erase("blk.1.ffn_up_exps.weight");
        }).find("'model.layers.1.mlp.experts' has gates and no ups") != std::string::npos);
  CHECK(message_of("q8_0", "q8_0", [](tensors& all) {
          all.erase("blk.1.ffn_gate_exps.weight");
        }).find("'model.layers.1.mlp.experts' has ups and no gates") != std::string::npos);
}
