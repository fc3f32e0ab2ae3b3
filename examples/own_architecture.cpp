// SPDX-License-Identifier: Apache-2.0
// A model and a method of your own: an architecture is a formula and a row of the table of families, an adapter is a
// formula and a row of the table of methods. The model is loaded from a folder, trained, saved and loaded again.
//     own_architecture LLAMA       (the weights of a Llama serve as those of the new model)
// run: own_architecture test/golden/models/llama/base
#include <graft/io/hf/config_families.h>
#include <graft/models.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "arguments.h"

using engine = graft::cpu::engine<float>;
namespace hf = graft::io::hf;

// ---- The architecture: attention and feed-forward layer read the same rows, as in GPT-NeoX.
struct two_branches : graft::llama {
  static constexpr const char* name = "two_branches";
  static constexpr graft::ex run(graft::block_scope m, graft::ex h) {
    const graft::extent d = m.size("head_dim"), heads = m.size("heads") * d, kv = m.size("kv_heads") * d;
    auto x = m.rms_norm("input_layernorm", h);
    auto q = m.rope(m.linear("self_attn.q_proj", x, heads)), k = m.rope(m.linear("self_attn.k_proj", x, kv));
    auto mixed = m.linear("self_attn.o_proj", m.attention(q, k, m.linear("self_attn.v_proj", x, kv)), h.cols());
    x = m.rms_norm("post_attention_layernorm", h);
    auto gate = silu(m.linear("mlp.gate_proj", x, m.size("intermediate")));
    auto up = m.linear("mlp.up_proj", x, m.size("intermediate"));
    return h + mixed + m.linear("mlp.down_proj", mul(gate, up), h.cols());
  }
};
// The row of the family, and how config.json states its numbers: absent fields have Llama's defaults.
constexpr graft::model_family family{.name = "two_branches", .formulas = graft::architecture_of<two_branches>()};
void read_fields(graft::io::config_reader& in, graft::model_config& c) {
  hf::read_decoder(in, c), hf::read_rope(in, c);
  hf::must_be(in, "attention_bias", false, "these layers have no biases");
}

// ---- The method: LoRA with a gate for each output, 1 + g.
struct gated_lora {
  static constexpr const char* name = "gated LoRA";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("lora_A.weight", p.size("r"), W.cols()), B = p.param("lora_B.weight", W.rows(), p.size("r"));
    return (1.0 + p.param("gate", W.rows())) * (W + p.scalar("scaling") * (B * A));
  }
};

using own_model = graft::causal_lm<engine>;

// Copies a Llama folder and gives its config.json the new model_type.
void write_folder(const std::filesystem::path& llama, const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  std::filesystem::copy_file(llama / "model.safetensors", to / "model.safetensors");
  std::stringstream config;
  config << std::ifstream(llama / "config.json").rdbuf();
  std::string text = config.str();
  text.replace(text.find("\"llama\""), 7, "\"two_branches\"");
  std::ofstream(to / "config.json") << text;
}
graft::result<std::vector<float>> logits(own_model& m) {
  const std::vector<std::int64_t> ids{10, 11, 12, 13, 14};
  const std::vector<graft::sequence_chunk> chunks{{ids}};
  std::vector<float> out(ids.size() * static_cast<std::size_t>(m.config().vocabulary));
  if (graft::status s = m.logits(chunks, out); !s) return s.failure();
  return out;
}
graft::status train(own_model& m) {
  auto training = graft::training_run<engine>::make(m);
  if (!training) return training.failure();
  auto optimizer = training->optimizer({.rate = 1e-2});
  if (!optimizer) return optimizer.failure();
  std::vector<std::int64_t> text;  // counts from 10 to 49, repeatedly
  for (std::int64_t i = 0; i < 120; ++i) text.push_back(10 + i % 40);
  const std::vector<graft::labeled_sequence> batch{{text}};
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    training->clear();
    const auto loss = training->add(batch);
    if (!loss) return loss.failure();
    if (graft::status s = optimizer->step(); !s) return s;
    if (graft::status s = training->parameters_changed(); !s) return s;
    last = *loss, first = step == 0 ? last : first;
  }
  std::printf("loss %.4f after 20 steps, %.4f before\n", last, first);
  return last < first ? training->fetch() : graft::status(graft::fail("the loss did not fall"));
}
// Compares the logits of two models up to rounding.
graft::status same(const char* what, own_model& a, own_model& b) {
  const auto p = logits(a), q = logits(b);
  if (!p || !q) return p ? q.failure() : p.failure();
  float most = 0;
  for (std::size_t i = 0; i < p->size(); ++i) most = std::max(most, std::abs((*p)[i] - (*q)[i]));
  std::printf("%s: logits differ by at most %.1e\n", what, static_cast<double>(most));
  return most < 1e-4F ? graft::ok : graft::status(graft::fail(what, " has other logits"));
}

graft::status run(const std::string& llama, const std::string& at) {
  hf::family_table families;
  graft::method_table methods;
  if (graft::status s = families.add({&family, hf::llama::set_defaults, read_fields}); !s) return s;
  if (graft::status s = methods.add<gated_lora>("GATED_LORA"); !s) return s;

  write_folder(llama, at + "/base");
  auto made = hf::load_model<engine>(at + "/base", {}, families);
  if (!made) return made.failure();
  const auto config =
      graft::io::make_adapter_config("GATED_LORA", {"q_proj", "v_proj", "down_proj"},
                                     {{"r", graft::io::json_number(4)}, {"alpha", graft::io::json_number(8)}}, methods);
  if (!config) return config.failure();
  // Gates begin with 0; false: A and B begin as LoRA's.
  const auto start = [](const graft::io::base_layer&, const std::string& leaf, const std::vector<long long>&,
                        std::span<float>) -> graft::result<bool> { return leaf == "gate"; };
  if (graft::status s = hf::add_adapter(*made, "mine", *config, 1, start); !s) return s;
  if (graft::status s = made->activate({"mine"}); !s) return s;
  if (graft::status s = train(*made); !s) return s;

  if (graft::status s = hf::save_adapter(at + "/adapter", *made, "mine"); !s) return s;
  const auto merged = made->merged_weights();
  if (!merged) return merged.failure();
  if (graft::status s = hf::save_model(at + "/merged", *merged, at + "/base", families); !s) return s;

  auto again = hf::load_model<engine>(at + "/base", {}, families),
       whole = hf::load_model<engine>(at + "/merged", {}, families);
  if (!again || !whole) return again ? whole.failure() : again.failure();
  if (graft::status s = hf::load_adapter(*again, "again", at + "/adapter", methods); !s) return s;
  if (graft::status s = again->activate({"again"}); !s) return s;
  if (graft::status s = same("the adapter, loaded again", *again, *made); !s) return s;
  return same("the merged model", *whole, *made);
}

int main(int argc, char** argv) {
  std::string llama;
  arguments in("own_architecture", "Loads, trains and saves a model of one's own with a method of one's own.");
  in.word("LLAMA", llama, "folder of a Llama, whose weights the model begins with");
  if (const auto code = in.read(argc, argv)) return *code;
  const auto at = std::filesystem::temp_directory_path() / ("graft-own-architecture-" + std::to_string(::getpid()));
  const graft::status s = run(llama, at.string());
  if (!s) std::fprintf(stderr, "%s\n", s.message());
  std::filesystem::remove_all(at);
  return s ? 0 : 1;
}
