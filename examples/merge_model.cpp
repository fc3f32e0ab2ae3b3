// SPDX-License-Identifier: Apache-2.0
// Merges an adapter into the weights of a model and writes the model: a folder, which transformers loads without PEFT,
// or a GGUF file for llama.cpp.
//     merge_model MODEL ADAPTER OUT [quantized|bf16|f32]      format of merged weights whose base is quantized
//     merge_model MODEL ADAPTER merged.gguf [q8_0|q4_k_m|…]   GGUF from GGUF or a folder; the type of its matrices
// ADAPTER none: the model as it is.
// run: merge_model test/golden/models/llama/base test/golden/models/llama/lora/adapter_init build/merged-model
#include <graft/io/gguf/save_model.h>
#include <graft/io/load_model.h>
#include <graft/models.h>

#include <cmath>
#include <cstdio>

#include "arguments.h"

using engine = graft::cpu::engine<float>;
namespace io = graft::io;
namespace hf = graft::io::hf;

// Returns the largest difference between the logits of the adapted model and those of the written one.
graft::result<double> difference(graft::causal_lm<engine>& adapted, const std::string& written) {
  auto merged = io::load_model<engine>(written);
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

// What merged weights are stored as. Without `matrices` those that were quantized have the format `merged`.
struct stored_as {
  graft::merged_format merged = graft::merged_format::quantized;
  const io::gguf_matrix_type* matrices = nullptr;  // of a GGUF file
  // The error of rounding depends on the adapter and is not checked.
  bool rounds(const graft::model_config& c) const {
    return matrices != nullptr ? matrices->quant != nullptr
                               : c.quantized.has_value() && merged == graft::merged_format::quantized;
  }
};

graft::status run(const std::string& base, const std::string& adapter, const std::string& out, const stored_as& as) {
  const bool gguf = out.ends_with(".gguf");
  if (!gguf && io::is_gguf_path(base))
    return graft::fail("a model from a GGUF file is written as one: name OUT.gguf, not ", out.c_str());
  auto model = io::load_model<engine>(base);
  if (!model) return model.failure();
  if (adapter != "none") {
    auto adapters = io::load_adapters(adapter, *model);
    if (!adapters) return adapters.failure();
    if (graft::status s = model->set_adapters(std::move(adapters->set)); !s) return s;
  }
  auto weights = model->merged_weights(model->active(), as.merged);
  if (!weights) return weights.failure();
  if (graft::status s = gguf ? io::save_gguf(out, *weights, base, as.matrices) : hf::save_model(out, *weights, base);
      !s)
    return s;
  const graft::result<double> difference_found = difference(*model, out);
  if (!difference_found) return difference_found.failure();
  std::printf("%zu tensors written to %s; its logits differ from the adapted model's by %.1e of the largest\n",
              weights->tensors.size(), out.c_str(), *difference_found);
  bool rounds = as.rounds(model->config());  // otherwise the merge rounds bf16 weights at most
  for (const auto& [name, v] : model->weights().tensors)
    rounds = rounds || (as.matrices == nullptr && gguf && v.quant != nullptr);
  return rounds || *difference_found < 0.05
             ? graft::status(graft::ok)
             : graft::status(graft::fail("the merged model does not compute what the adapted one does"));
}

int main(int argc, char** argv) {
  std::string base, adapter, out, as;
  arguments in(
      "merge_model",
      "Writes a model with an adapter merged into its weights: a folder, which transformers loads without PEFT, or "
      "a GGUF\nfile.");
  in.word("MODEL", base, "Hugging Face folder or GGUF file of the model");
  in.word("ADAPTER", adapter, "PEFT folder or GGUF file of the adapter; none: the model is written as it is");
  in.word("OUT", out, "what is written: a name that ends in .gguf is a GGUF file, any other one a folder");
  in.optional_word(
      "AS", as,
      "of a folder quantized, bf16 or f32: merged weights that were quantized are quantized again, or stored in this "
      "type; of a GGUF file quantized, or the type of its matrices: f32, f16, bf16, q8_0, q4_0, q4_k_m, q6_k ...; not "
      "given: quantized");
  if (const auto code = in.read(argc, argv)) return *code;
  stored_as stored;
  if (out.ends_with(".gguf") && !as.empty() && as != "quantized") {
    stored = {graft::merged_format::f32, io::find_gguf_matrix_type(as)};
    if (stored.matrices == nullptr)
      return in.mistake(std::string("AS is quantized or one of ") + io::gguf_matrix_type_names().c_str() + ", not '" +
                        as + "'");
  } else if (as == "bf16" || as == "f32") {
    stored.merged = as == "bf16" ? graft::merged_format::bf16 : graft::merged_format::f32;
  } else if (!as.empty() && as != "quantized") {
    return in.mistake("AS is quantized, bf16 or f32, not '" + as + "'");
  }
  const graft::status s = run(base, adapter, out, stored);
  if (!s) std::fprintf(stderr, "merge_model: %s\n", s.message());
  return s ? 0 : 1;
}
