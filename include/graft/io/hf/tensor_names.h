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
  const auto collect = [&](const block_formula& f, const std::string& prefix) {
    const block_spec spec{f, {}, facts_of(c), false, operation_of(c.activation)};
    const builder g = capture_forward(f, block_options_of(spec, pass_kind::forward));
    for (id i = 0; i < g.n.size(); ++i)
      if (g.n[i].what == op::base) all.insert(prefix + graph(g).name(i).c_str());
  };
  collect(a.embed, "");
  collect(a.head, "");
  std::set<std::string> ends;
  ends.swap(all);
  collect(a.block, "");
  for (int l = 0; l < c.layers; ++l)
    for (const std::string& name : all) ends.insert(std::string(a.layers) + "." + std::to_string(l) + "." + name);
  return ends;
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
