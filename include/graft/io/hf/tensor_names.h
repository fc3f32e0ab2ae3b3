// SPDX-License-Identifier: Apache-2.0
// The names of a model's tensors, collected from the formulas that read them; check_names requires exactly these.
#pragma once
#include <graft/io/error_text.h>
#include <graft/model/architectures.h>
#include <graft/model/block_stack.h>

#include <map>
#include <set>
#include <string>

namespace graft::io::hf {

inline std::set<std::string> names_of(const model_config& c) {
  std::set<std::string> all;
  const architecture& a = c.family->formulas;
  const auto collect = [&](const block_formula& f, const std::vector<const char*>& facts) {
    std::vector<std::string> names;
    const block_spec spec{f, {}, facts, false, operation_of(c.activation)};
    const builder g = capture_forward(f, block_options_of(spec, pass_kind::forward));
    for (id i = 0; i < g.n.size(); ++i)
      if (g.n[i].what == op::base) names.emplace_back(graph(g).name(i).c_str());
    return names;
  };
  for (const block_formula& f : {a.embed, a.head})
    for (std::string& name : collect(f, facts_of(c, ends_of_model))) all.insert(std::move(name));
  std::map<std::vector<const char*>, std::vector<std::string>> by_kind;  // layers with equal facts have equal names
  for (int l = 0; l < c.layers; ++l) {
    const std::vector<const char*> facts = facts_of(c, l);
    auto at = by_kind.find(facts);
    if (at == by_kind.end()) at = by_kind.emplace(facts, collect(a.block, facts)).first;
    const std::string path = std::string(a.layers) + "." + std::to_string(l) + ".";
    for (const std::string& name : at->second) all.insert(path + name);
  }
  return all;
}

inline status check_names(const model_config& c, const model_weights& w, const std::string& folder) {
  const std::set<std::string> wanted = names_of(c);
  const bool tied = c.tied && !w.tensors.contains("lm_head.weight");
  for (const std::string& name : wanted)
    if (!w.tensors.contains(name) && !(tied && name == "lm_head.weight"))
      return fail_in(folder, "there is no tensor ", in_quotes(name), ", which a ", c.family->name, " model of ",
                     c.layers, " layers needs");
  for (const auto& [name, v] : w.tensors)
    if (!wanted.contains(name))
      return fail_in(folder, "tensor ", in_quotes(name), " is not part of a ", c.family->name, " model of ", c.layers,
                     " layers");
  return ok;
}

}  // namespace graft::io::hf
