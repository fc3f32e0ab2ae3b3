// SPDX-License-Identifier: Apache-2.0
// quantization_config of config.json: which weights of a folder are codes, and of which kind (transformers,
// utils/quantization_config.py). bitsandbytes in 4 and 8 bits, and FP8 with a scale for a tensor or a row; other methods
// are refused by name. The tensors say themselves what they are; here they are held against what was said of them.
#pragma once
#include <graft/core/encodings.h>
#include <graft/io/config_reader.h>
#include <graft/model/config.h>

#include <map>

namespace graft::io::hf {

inline void read_quantization(config_reader& in, model_config& c) {
  const json* const v = in.set("quantization_config");
  if (v == nullptr) return;
  if (!v->is_object()) return in.expected("quantization_config", *v, "an object");
  config_reader of{*v, in.file + " (quantization_config)"};
  std::string method = "bitsandbytes", type = "fp4", storage = "uint8";
  bool four = false, eight = false;
  coded_weights w;
  of.word("quant_method", method);
  of.flag("load_in_4bit", four), of.flag("load_in_8bit", eight);
  of.word("bnb_4bit_quant_type", type), of.word("bnb_4bit_quant_storage", storage);
  for (const char* key : {"llm_int8_skip_modules", "modules_to_not_convert", "ignore"}) of.words(key, w.plain_modules);
  if (method == "bitsandbytes") {
    if (four == eight)
      of.reject("'load_in_4bit' and 'load_in_8bit' are both ", four ? "true" : "false", ", expected one of them");
    if (four && type != "nf4" && type != "fp4")
      of.expected("bnb_4bit_quant_type", *of.at("bnb_4bit_quant_type"), "nf4 or fp4");
    if (four && storage != "uint8")
      of.expected("bnb_4bit_quant_storage", *of.at("bnb_4bit_quant_storage"),
                  "uint8; save the model with that storage");
    w.codes = eight ? dtype::int8 : type == "nf4" ? dtype::nf4 : dtype::fp4;
  } else if (method == "fp8" || method == "fbgemm_fp8" || method == "compressed-tensors") {
    w.codes = dtype::f8_e4m3;
  } else {
    of.reject("'quant_method' is ", in_quotes(method),
              ", expected bitsandbytes or fp8; load the model in bfloat16 and save it again");
  }
  if (of.problem) return void(in.problem = of.problem);
  c.coded = std::move(w);
}

// The module of a list that a tensor belongs to: a whole path, or names of it.
inline const std::string* named_in(const std::vector<std::string>& modules, const std::string& tensor) {
  for (const std::string& module : modules)
    if (tensor.starts_with(module + ".") || tensor.find("." + module + ".") != tensor.npos) return &module;
  return nullptr;
}

// The weights of a folder against what its configuration says: codes of another kind, or where none should be.
inline status check_quantization(const model_config& c, const std::map<std::string, view, std::less<>>& tensors,
                                 std::string_view folder) {
  bool any = false;
  for (const auto& [name, v] : tensors) {
    if (v.beside == nullptr) {
      // Where codes are [out, in], a projection that was left as it was would still be [in, out].
      if (c.family == model_family::gpt2 && !stored_in_out(c) && v.rank == 2 && name.find(".h.") != name.npos)
        return fail_in(folder, "tensor ", in_quotes(name),
                       " is no codes: GPT-2 is read with all of its projections "
                       "quantized or none; quantize it again without naming them in llm_int8_skip_modules");
      continue;
    }
    any = true;
    if (!c.coded)
      return fail_in(folder, "tensor ", in_quotes(name), " is ", name_of(v.beside->how),
                     ", and config.json has no quantization_config");
    if (c.coded->codes != v.type)
      return fail_in(folder, "tensor ", in_quotes(name), " is ", name_of(v.beside->how),
                     ", and quantization_config says ", name_of(c.coded->codes));
    if (const std::string* module = named_in(c.coded->plain_modules, name))
      return fail_in(folder, "tensor ", in_quotes(name), " is codes, and quantization_config leaves ",
                     in_quotes(*module), " as it was");
  }
  if (c.coded && !any) return fail_in(folder, "quantization_config is set, and no weight is codes");
  return ok;
}

}  // namespace graft::io::hf
