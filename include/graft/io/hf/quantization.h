// SPDX-License-Identifier: Apache-2.0
// quantization_config of config.json: which weights of a folder are quantized, and how (transformers,
// utils/quantization_config.py). Supported are bitsandbytes in 4 and 8 bits, and FP8 with a scale per tensor or row;
// other methods are refused by name. check_quantization compares the tensors, which describe their own format.
#pragma once
#include <graft/core/quant_formats.h>
#include <graft/io/json/config_reader.h>
#include <graft/model/model_config.h>

#include <map>

namespace graft::io::hf {

inline void read_quantization(config_reader& in, model_config& c) {
  const json* const v = in.set("quantization_config");
  if (v == nullptr) return;
  if (!v->is_object()) return in.expected("quantization_config", *v, "an object");
  config_reader of{*v, in.file + " (quantization_config)"};
  std::string method = "bitsandbytes", type = "fp4", storage = "uint8";
  bool four = false, eight = false;
  quantized_weights w;
  of.word("quant_method", method);
  of.flag("load_in_4bit", four), of.flag("load_in_8bit", eight);
  of.word("bnb_4bit_quant_type", type), of.word("bnb_4bit_quant_storage", storage);
  for (const char* key : {"llm_int8_skip_modules", "modules_to_not_convert", "ignore"})
    of.words(key, w.unquantized_modules);
  if (method == "bitsandbytes") {
    if (four == eight)
      of.reject("'load_in_4bit' and 'load_in_8bit' are both ", four ? "true" : "false", ", expected one of them");
    if (four && type != "nf4" && type != "fp4")
      of.expected("bnb_4bit_quant_type", *of.at("bnb_4bit_quant_type"), "nf4 or fp4");
    if (four && storage != "uint8")
      of.expected("bnb_4bit_quant_storage", *of.at("bnb_4bit_quant_storage"),
                  "uint8; save the model with that storage");
    w.type = eight ? dtype::int8 : type == "nf4" ? dtype::nf4 : dtype::fp4;
  } else if (method == "fp8" || method == "fbgemm_fp8" || method == "compressed-tensors") {
    w.type = dtype::f8_e4m3;
  } else {
    of.reject("'quant_method' is ", in_quotes(method),
              ", expected bitsandbytes or fp8; load the model in bfloat16 and save it again");
  }
  if (of.problem) return void(in.problem = of.problem);
  c.quantized = std::move(w);
}

// Returns the entry of `modules`, a path or some components of one, that a tensor belongs to; null if none does.
inline const std::string* named_in(const std::vector<std::string>& modules, const std::string& tensor) {
  for (const std::string& module : modules)
    if (tensor.starts_with(module + ".") || tensor.find("." + module + ".") != tensor.npos) return &module;
  return nullptr;
}

// Checks that every quantized weight has the format that the configuration states, and is not in its skip list.
inline status check_quantization(const model_config& c, const std::map<std::string, view, std::less<>>& tensors,
                                 std::string_view folder) {
  bool any = false;
  for (const auto& [name, v] : tensors) {
    if (v.quant == nullptr) {
      // Quantized projections are [out, in], and an unquantized one of the same model would be stored [in, out].
      if (stored_out_in(c) && v.rank == 2 && is_in_layers(c, name))
        return fail_in(folder, "tensor ", in_quotes(name), " is not quantized: ", c.family->name,
                       " is read with all of its projections quantized or none; "
                       "quantize it again without naming them in llm_int8_skip_modules");
      continue;
    }
    any = true;
    if (!c.quantized)
      return fail_in(folder, "tensor ", in_quotes(name), " is ", name_of(v.quant->format),
                     ", and config.json has no quantization_config");
    if (c.quantized->type != v.type)
      return fail_in(folder, "tensor ", in_quotes(name), " is ", name_of(v.quant->format),
                     ", and quantization_config says ", name_of(c.quantized->type));
    if (const std::string* module = named_in(c.quantized->unquantized_modules, name))
      return fail_in(folder, "tensor ", in_quotes(name), " is quantized, and quantization_config names ",
                     in_quotes(*module), " as a module to skip");
  }
  if (c.quantized && !any) return fail_in(folder, "quantization_config is set, and no weight is quantized");
  return ok;
}

}  // namespace graft::io::hf
