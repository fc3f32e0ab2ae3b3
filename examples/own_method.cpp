// SPDX-License-Identifier: Apache-2.0
// A method of your own in a whole model: a formula, and a row of the table of methods. Its adapter is added to a model
// from a folder, trained, saved and loaded again. On a layer: own_adapter.cpp; an architecture: own_architecture.cpp.
//     own_method LLAMA
// run: own_method test/golden/models/llama/base
#include "train_and_compare.h"

namespace hf = graft::io::hf;

// LoRA with a gate for each output, 1 + g.
struct gated_lora {
  static constexpr const char* name = "gated LoRA";
  static constexpr graft::ex weight(graft::scope p, graft::ex W) {
    auto A = p.param("lora_A.weight", p.size("r"), W.cols()), B = p.param("lora_B.weight", W.rows(), p.size("r"));
    return (1.0 + p.param("gate", W.rows())) * (W + p.scalar("scaling") * (B * A));
  }
};

graft::status run(const std::string& llama, const std::string& at) {
  graft::method_table methods;
  if (graft::status s = methods.add<gated_lora>("GATED_LORA"); !s) return s;

  auto made = hf::load_model<engine>(llama);
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
  if (graft::status s = hf::save_model(at + "/merged", *merged, llama); !s) return s;

  auto again = hf::load_model<engine>(llama), whole = hf::load_model<engine>(at + "/merged");
  if (!again || !whole) return again ? whole.failure() : again.failure();
  if (graft::status s = hf::load_adapter(*again, "again", at + "/adapter", methods); !s) return s;
  if (graft::status s = again->activate({"again"}); !s) return s;
  if (graft::status s = same("the adapter, loaded again", *again, *made); !s) return s;
  return same("the merged model", *whole, *made);
}

int main(int argc, char** argv) {
  return run_with_llama(argc, argv, "own_method", "Trains and saves an adapter of one's own method.", run);
}
