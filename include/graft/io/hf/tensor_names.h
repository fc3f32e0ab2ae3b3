// SPDX-License-Identifier: Apache-2.0
// The names of a model's tensors, collected from the formulas that read them; check_names requires exactly these.
#pragma once
#include <graft/io/error_text.h>
#include <graft/model/architectures.h>
#include <graft/model/block_stack.h>

#include <set>
#include <string>

namespace graft::io::hf {

inline std::set<std::string> names_of(const model_config& c) {
  std::set<std::string> all;
  const architecture& a = c.family->formulas;
  const auto names_in = [&](const block_formula& f, const std::vector<const char*>& facts) {
    const block_spec spec{f, {}, facts, false, operation_of(c.activation)};
    const builder g = capture_forward(f, block_options_of(spec, pass_kind::forward));
    std::set<std::string> names;
    for (id i = 0; i < g.n.size(); ++i)
      if (g.n[i].what == op::base) names.insert(graph(g).name(i).c_str());
    return names;
  };
  for (const block_formula& end : {a.embed, a.head}) all.merge(names_in(end, facts_of(c, -1)));
  std::vector<const char*> facts;  // those of the last layer, which mostly has the tensors of the next one
  std::set<std::string> names;
  for (int l = 0; l < c.layers; ++l) {
    if (std::vector<const char*> here = facts_of(c, l); l == 0 || here != facts)
      facts = std::move(here), names = names_in(a.block, facts);
    for (const std::string& name : names) all.insert(std::string(a.layers) + "." + std::to_string(l) + "." + name);
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
