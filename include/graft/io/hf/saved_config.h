// SPDX-License-Identifier: Apache-2.0
// config.json for weights that are no longer those it was read with. A head that is no longer the table of the tokens is
// said to be its own. Weights that were codes and are numbers now, as after a merge, are named beside the modules that were
// never quantized (transformers, quantizers/base.py: a list that is given replaces the default, the head); where no codes
// are left, nothing is said of codes.
#pragma once
#include <graft/io/hf/modules.h>
#include <graft/io/hf/quantization.h>
#include <graft/io/json_write.h>

#include <algorithm>

namespace graft::io::hf {

struct saved_config {
  json said;
  bool turned = false;  // GPT-2's projections: [out, in] as codes, [in, out] as numbers
};

namespace detail {
inline json& entry(json& of, std::string_view key) {
  for (std::size_t i = 0; i < of.keys.size(); ++i)
    if (of.keys[i] == key) return of.items[i];
  of.keys.emplace_back(key);
  return of.items.emplace_back();
}
inline void erase(json& of, std::string_view key) {
  const auto at = std::find(of.keys.begin(), of.keys.end(), key);
  if (at == of.keys.end()) return;
  of.items.erase(of.items.begin() + (at - of.keys.begin()));
  of.keys.erase(at);
}
inline const char* key_of_plain_modules(dtype codes) {
  return codes == dtype::f8_e4m3 ? "modules_to_not_convert" : "llm_int8_skip_modules";
}
}  // namespace detail

inline result<saved_config> config_for(json said, const model_config& c, const model_weights& weights,
                                       std::string_view folder) {
  saved_config out{std::move(said)};
  if (weights.tensors.contains("lm_head.weight")) detail::entry(out.said, "tie_word_embeddings") = json_flag(false);
  if (!c.coded) return out;
  std::vector<std::string> plain = c.coded->plain_modules;
  if (plain.empty()) plain.emplace_back("lm_head");
  const std::size_t before = plain.size();
  bool any = false;
  for (const base_layer& b : modules_of(c, weights)) {
    if (b.kind != "linear") continue;
    if (b.weight.beside != nullptr)
      any = true;
    else if (named_in(plain, b.module + ".weight") == nullptr)
      plain.push_back(b.module);
  }
  if (!any) {
    detail::erase(out.said, "quantization_config");
    out.turned = c.family == model_family::gpt2 && !stored_in_out(c);
  } else if (plain.size() > before) {
    if (c.family == model_family::gpt2)
      return fail_in(folder, "module ", in_quotes(plain[before]),
                     " is numbers beside others that are codes, which GPT-2 keeps in another order; merge to codes, or "
                     "adapt all of "
                     "its projections");
    json& list =
        detail::entry(detail::entry(out.said, "quantization_config"), detail::key_of_plain_modules(c.coded->codes));
    list = {};
    list.what = json::kind::list;
    for (const std::string& module : plain) list.items.push_back(json_word(module));
  }
  return out;
}

}  // namespace graft::io::hf
