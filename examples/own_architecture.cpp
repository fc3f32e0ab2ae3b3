// SPDX-License-Identifier: Apache-2.0
// An architecture of your own: a formula, and a row of the table of families. The model is loaded from a folder, a LoRA
// is trained on it, and adapter and merged model are saved and loaded again. A method of your own: own_method.cpp.
//     own_architecture LLAMA       (the weights of a Llama serve as those of the new model)
// run: own_architecture test/golden/models/llama/base
#include <graft/io/hf/config_families.h>

#include <fstream>
#include <sstream>

#include "train_and_compare.h"

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
graft::status run(const std::string& llama, const std::string& at) {
  hf::family_table families;
  if (graft::status s = families.add({&family, hf::llama::set_defaults, read_fields}); !s) return s;

  write_folder(llama, at + "/base");
  auto made = hf::load_model<engine>(at + "/base", {}, families);
  if (!made) return made.failure();
  const auto config =
      graft::io::make_adapter_config("LORA", {"q_proj", "v_proj", "down_proj"}, {{"r", graft::io::json_number(4)}});
  if (!config) return config.failure();
  if (graft::status s = hf::add_adapter(*made, "mine", *config, 1); !s) return s;
  if (graft::status s = made->activate({"mine"}); !s) return s;
  if (graft::status s = train(*made); !s) return s;

  if (graft::status s = hf::save_adapter(at + "/adapter", *made, "mine"); !s) return s;
  const auto merged = made->merged_weights();
  if (!merged) return merged.failure();
  if (graft::status s = hf::save_model(at + "/merged", *merged, at + "/base", families); !s) return s;

  auto again = hf::load_model<engine>(at + "/base", {}, families),
       whole = hf::load_model<engine>(at + "/merged", {}, families);
  if (!again || !whole) return again ? whole.failure() : again.failure();
  if (graft::status s = hf::load_adapter(*again, "again", at + "/adapter"); !s) return s;
  if (graft::status s = again->activate({"again"}); !s) return s;
  if (graft::status s = same("the adapter, loaded again", *again, *made); !s) return s;
  return same("the merged model", *whole, *made);
}

int main(int argc, char** argv) {
  return run_with_llama(argc, argv, "own_architecture", "Loads, trains and saves a model of one's own architecture.",
                        run);
}
