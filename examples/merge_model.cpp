// SPDX-License-Identifier: Apache-2.0
// Merges an adapter into the weights of a model and writes a model folder, which transformers loads without PEFT.
//     merge_model MODEL ADAPTER OUT [quantized|bf16|f32]      format of merged weights whose base is quantized
// run: merge_model test/golden/models/llama/base test/golden/models/llama/lora/adapter_init build/merged-model
#include <graft/models.h>

#include <cmath>
#include <cstdio>

#include "arguments.h"

using engine = graft::cpu::engine<float>;
namespace hf = graft::io::hf;

// Returns the largest difference between the logits of the adapted model and those of the written folder.
graft::result<double> difference(graft::causal_lm<engine>& adapted, const std::string& folder) {
  auto merged = hf::load_model<engine>(folder);
  if (!merged) return merged.failure();
  const std::vector<std::int64_t> ids{1, 5, 7, 3};
  const graft::sequence_chunk rows[] = {{ids, 0, 0}};
  std::vector<float> a(ids.size() * static_cast<std::size_t>(adapted.config().vocabulary)), b = a;
  if (graft::status s = adapted.logits(rows, a); !s) return s.failure();
  if (graft::status s = merged->logits(rows, b); !s) return s.failure();
  double largest = 0, most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i])));
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most / largest;
}

graft::status run(const std::string& base, const std::string& adapter, const std::string& out,
                  graft::merged_format as) {
  auto model = hf::load_model<engine>(base);
  if (!model) return model.failure();
  auto adapters = hf::load_adapters(adapter, *model);
  if (!adapters) return adapters.failure();
  if (graft::status s = model->set_adapters(std::move(adapters->set)); !s) return s;
  auto weights = model->merged_weights(model->active(), as);
  if (!weights) return weights.failure();
  if (graft::status s = hf::save_model(out, *weights, base); !s) return s;
  const graft::result<double> difference_found = difference(*model, out);
  if (!difference_found) return difference_found.failure();
  std::printf("%zu tensors written to %s; its logits differ from the adapted model's by %.1e of the largest\n",
              weights->tensors.size(), out.c_str(), *difference_found);
  // The merge rounds bf16 weights; the rounding error of quantized weights depends on the adapter and is not checked.
  const bool quantized = model->config().quantized && as == graft::merged_format::quantized;
  return quantized || *difference_found < 0.05
             ? graft::status(graft::ok)
             : graft::status(graft::fail("the merged model does not compute what the adapted one does"));
}

int main(int argc, char** argv) {
  std::string base, adapter, out, as;
  arguments in("merge_model",
               "Writes a model with an adapter merged into its weights: transformers loads it without PEFT.");
  in.word("MODEL", base, "folder of the model");
  in.word("ADAPTER", adapter, "folder of the adapter");
  in.word("OUT", out, "folder that the merged model is written to");
  in.optional_word(
      "AS", as,
      "quantized, bf16 or f32: merged weights that were quantized are quantized again, or stored in this type; not "
      "given: quantized");
  if (const auto code = in.read(argc, argv)) return *code;
  if (!as.empty() && as != "quantized" && as != "bf16" && as != "f32")
    return in.mistake("AS is quantized, bf16 or f32, not '" + as + "'");
  const graft::status s = run(base, adapter, out,
                              as == "bf16"  ? graft::merged_format::bf16
                              : as == "f32" ? graft::merged_format::f32
                                            : graft::merged_format::quantized);
  if (!s) std::fprintf(stderr, "merge_model: %s\n", s.message());
  return s ? 0 : 1;
}
