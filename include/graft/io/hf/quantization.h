// SPDX-License-Identifier: Apache-2.0
// quantization_config of config.json: which weights of a folder are quantized, and how (transformers,
// utils/quantization_config.py; ModelOpt writes hf_quant_config.json as well or instead). Supported are bitsandbytes in
// 4 and 8 bits, FP8 with a scale per tensor or row, GPTQ, AWQ, MXFP4, and NVFP4 of ModelOpt. Other methods, and
// settings that would change what the tensors mean, are refused by name. check_quantization compares the tensors, which
// describe their own format.
#pragma once
#include <graft/core/quant_formats.h>
#include <graft/io/json/config_reader.h>
#include <graft/model/model_config.h>

#include <map>

namespace graft::io::hf {

namespace detail {

inline void read_bitsandbytes(config_reader& of, quantized_weights& w) {
  std::string type = "fp4", storage = "uint8";
  bool four = false, eight = false;
  of.flag("load_in_4bit", four), of.flag("load_in_8bit", eight);
  of.word("bnb_4bit_quant_type", type), of.word("bnb_4bit_quant_storage", storage);
  if (four == eight)
    of.reject("'load_in_4bit' and 'load_in_8bit' are both ", four ? "true" : "false", ", expected one of them");
  if (four && type != "nf4" && type != "fp4")
    of.expected("bnb_4bit_quant_type", *of.at("bnb_4bit_quant_type"), "nf4 or fp4");
  if (four && storage != "uint8")
    of.expected("bnb_4bit_quant_storage", *of.at("bnb_4bit_quant_storage"), "uint8; save the model with that storage");
  w.type = eight ? dtype::int8 : type == "nf4" ? dtype::nf4 : dtype::fp4;
}

// FP8 with a scale per tensor or row. compressed-tensors writes many other formats under one name.
inline void read_fp8(config_reader& of, quantized_weights& w) {
  w.type = dtype::f8_e4m3, w.stored_as = quantized_storage::fp8;
  if (const json* v = of.set("weight_block_size"))
    of.expected("weight_block_size", *v,
                "null: scales of square blocks are not read; load the model in bfloat16 and "
                "save it again");
  std::string format = "float-quantized";
  of.word("format", format);
  if (format != "float-quantized" && format != "naive-quantized")
    of.expected("format", *of.at("format"), "float-quantized or naive-quantized");
}

// Bits and columns of a group, which GPTQ and AWQ share.
inline void read_groups(config_reader& of, quantized_weights& w) {
  int bits = 4;
  w.group_size = 128;
  of.integer("bits", bits, 2, 8), of.integer("group_size", w.group_size, -1);
  if (of.problem) return;
  switch (bits) {
    case 2: w.type = dtype::u2; break;
    case 3: w.type = dtype::u3; break;
    case 4: w.type = dtype::u4; break;
    case 8: w.type = dtype::u8; break;
    default: return of.expected("bits", *of.at("bits"), "2, 3, 4 or 8");
  }
  const int g = w.group_size;
  if (g != -1 && (g < 16 || (g & (g - 1)) != 0))
    of.expected("group_size", *of.at("group_size"), "-1 (a group per row) or a power of two from 16 on");
}

inline void read_gptq(config_reader& of, quantized_weights& w) {
  w.stored_as = quantized_storage::gptq;
  read_groups(of, w);
  bool symmetric = true, marlin = false;
  of.flag("desc_act", w.act_order), of.flag("sym", symmetric), of.flag("is_marlin_format", marlin);
  std::string format = "gptq", packed = "int32";
  const char* const key = of.set("checkpoint_format") != nullptr ? "checkpoint_format" : "format";
  of.word(key, format), of.word("pack_dtype", packed);
  if (of.problem) return;
  if (marlin) of.reject("'is_marlin_format' is true, expected false; save the model in the format gptq");
  if (format != "gptq" && format != "gptq_v2") of.expected(key, *of.at(key), "gptq or gptq_v2");
  if (packed != "int32") of.expected("pack_dtype", *of.at("pack_dtype"), "int32");
  if (const json* v = of.set("dynamic"); v != nullptr && !(v->is_object() && v->items.empty()))
    of.expected("dynamic", *v, "null: settings of single modules are not read");
  w.zeros_less_one = format == "gptq";
}

inline void read_awq(config_reader& of, quantized_weights& w) {
  w.stored_as = quantized_storage::awq;
  read_groups(of, w);
  bool zero_point = true;
  of.flag("zero_point", zero_point);
  std::string version = "gemm";
  const char* const key = of.set("version") != nullptr ? "version" : "format";
  of.word(key, version);
  if (of.problem) return;
  if (w.type != dtype::u4) of.expected("bits", *of.at("bits"), "4 for AWQ");
  if (version != "gemm" && version != "GEMM") of.expected(key, *of.at(key), "gemm");
  if (!zero_point) of.reject("'zero_point' is false, expected true; AWQ's gemm format has zero points");
}

inline void read_modelopt(config_reader& of, quantized_weights& w) {
  w.type = dtype::f4_e2m1, w.stored_as = quantized_storage::nvfp4;
  std::string algorithm;
  int group = quant_formats::nvfp4_format::block;
  of.word("quant_algo", algorithm), of.integer("group_size", group, 1);
  if (of.problem) return;
  if (algorithm != "NVFP4")
    of.reject("'quant_algo' is ", in_quotes(algorithm),
              ", expected NVFP4; load the model in bfloat16 and save it again");
  if (group != quant_formats::nvfp4_format::block)
    of.expected("group_size", *of.at("group_size"), quant_formats::nvfp4_format::block);
}

// Reads the object that states a quantization.
inline std::optional<quantized_weights> read_quantized_weights(config_reader& of) {
  using reader = void (*)(config_reader&, quantized_weights&);
  static constexpr std::pair<std::string_view, reader> methods[] = {
      {"bitsandbytes", read_bitsandbytes},
      {"fp8", read_fp8},
      {"fbgemm_fp8", read_fp8},
      {"compressed-tensors", read_fp8},
      {"gptq", read_gptq},
      {"awq", read_awq},
      {"mxfp4",
       [](config_reader&, quantized_weights& w) { w.type = dtype::f4_e2m1, w.stored_as = quantized_storage::mxfp4; }},
      {"modelopt", read_modelopt},
      {"modelopt_fp4", read_modelopt},
  };
  std::string method = "bitsandbytes";
  quantized_weights w;
  of.word("quant_method", method);
  for (const char* key : {"llm_int8_skip_modules", "modules_to_not_convert", "ignore", "exclude_modules"})
    of.words(key, w.unquantized_modules);
  const auto* const found =
      std::find_if(std::begin(methods), std::end(methods), [&](const auto& m) { return m.first == method; });
  if (found == std::end(methods)) {
    of.reject(
        "'quant_method' is ", in_quotes(method),
        ", expected bitsandbytes, fp8, gptq, awq, mxfp4 or modelopt; load the model in bfloat16 and save it again");
    return std::nullopt;
  }
  found->second(of, w);
  return w;
}

}  // namespace detail

inline void read_quantization(config_reader& in, model_config& c) {
  const json* const v = in.set("quantization_config");
  if (v == nullptr) return;
  if (!v->is_object()) return in.expected("quantization_config", *v, "an object");
  config_reader of{*v, in.file + " (quantization_config)"};
  c.quantized = detail::read_quantized_weights(of);
  if (of.problem) in.problem = of.problem;
}

// hf_quant_config.json of ModelOpt: {"producer": {..}, "quantization": {"quant_algo": .., "exclude_modules": [..]}}.
inline result<quantized_weights> parse_quant_config(std::string_view content, const std::string& file) {
  const result<json> parsed = parse_json(content, file);
  if (!parsed) return parsed.failure();
  const json* const v = parsed->is_object() ? parsed->find("quantization") : nullptr;
  if (v == nullptr || !v->is_object()) return fail_in(file, "there is no object 'quantization' in this file");
  config_reader of{*v, file + " (quantization)"};
  quantized_weights w;
  of.words("exclude_modules", w.unquantized_modules);
  detail::read_modelopt(of, w);
  if (of.problem) return *of.problem;
  return w;
}

// Returns true if the first components of a path are those of `module`, where * stands for any component.
inline bool begins_with_module(std::string_view path, std::string_view module) {
  while (!module.empty()) {
    const std::string_view wanted = module.substr(0, module.find('.')), has = path.substr(0, path.find('.'));
    if ((wanted != "*" && wanted != has) || has.size() == path.size()) return false;
    path.remove_prefix(has.size() + 1), module.remove_prefix(std::min(module.size(), wanted.size() + 1));
  }
  return true;
}
// Returns the entry of `modules`, a path or some components of one, that a tensor belongs to; null if none does.
inline const std::string* named_in(const std::vector<std::string>& modules, const std::string& tensor) {
  for (const std::string& module : modules)
    for (std::string_view path = tensor; !module.empty(); path.remove_prefix(path.find('.') + 1)) {
      if (begins_with_module(path, module)) return &module;
      if (path.find('.') == path.npos) break;
    }
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
      // Quantized experts of gpt-oss are [experts, out, in] too, unquantized ones [experts, in, out].
      if (c.family->experts_in_out && !experts_in_out(c) && v.rank == 3)
        return fail_in(folder, "tensor ", in_quotes(name), " is not quantized: ", c.family->name,
                       " is read with the experts of all layers in MXFP4 or none");
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
