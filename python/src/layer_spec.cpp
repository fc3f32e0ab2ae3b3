// SPDX-License-Identifier: Apache-2.0
#include "layer_spec.h"

#include <graft/derive/reassociate_wgrads.h>
#include <graft/io/json/json.h>
#include <graft/model/method_table.h>

#include <map>
#include <mutex>

namespace graft::pytorch {
namespace {

// Keeps alive what the formula of several adapters points to.
struct formula_parts {
  std::vector<formula> extra;
  std::vector<std::string> names;
  std::vector<const char*> paths;
  std::vector<std::shared_ptr<const void>> owners;
};

// The base layer of a branch: its weight is zero, so that W' is what an adapter adds.
struct linear_branch_kind : linear_kind {
  static constexpr ex weight(scope p) {
    return {p.g, p.g->leaf(op::zero, "0", 0, 2, {1}, {1}, outputs(p).d, p.size("in", dyn, 4096).d)};
  }
};
struct embedding_branch_kind : embedding_kind {
  static constexpr ex weight(scope p) {
    return {p.g, p.g->leaf(op::zero, "0", 0, 2, {1}, {1}, p.size("vocab", dyn, 4096).d, outputs(p).d)};
  }
};
// Whether W' is a sum of W and a value that does not follow from W.
bool adds_to_the_weight(const layer_formula& f) {
  const builder g = capture_weight(f);
  for (int k = 0; k < g.out.size(); ++k) {
    const node& v = g.n[g.out[k].at];
    if (!v.from_base) continue;
    if (v.what != op::add || g.n[v.b].from_base || g.n[v.a].what != op::base) return false;
  }
  return g.bad.what == formula_error::none;
}
result<layer_graphs> graphs_of_branch(const layer_graphs& whole, bool is_table, const char* method) {
  if (!adds_to_the_weight(whole.from))
    return fail("the update of '", method, "' reads the base weight, so it is no branch beside the base layer");
  layer_formula branch = whole.from;
  branch.kind = is_table ? rules_of<embedding_branch_kind>() : rules_of<linear_branch_kind>();
  return capture_graphs(branch, whole.owner);
}

result<layer_graphs> graphs_of_adapter(const io::json& adapter, const char* kind, bool bias) {
  const io::json *name = adapter.find("method"), *trains = adapter.find("trains_bias");
  if (name == nullptr || !name->is_string()) return fail("an adapter of the layer's description has no method");
  const method* const found = built_in_methods().find(name->word.c_str());
  if (found == nullptr) return built_in_methods().graphs(kind, name->word.c_str(), bias);
  method m = *found;
  m.of.trains_bias = bias && trains != nullptr && trains->flag;
  return built_in_methods().graphs(kind, m, bias);
}

// Several adapters are one formula: each works on the weight that the ones before it made. The tensors of the second
// and later ones have a path, "1.lora_A.weight".
result<layer_graphs> graphs_of_all(const std::vector<io::json>& adapters, const char* kind, bool bias) {
  result<layer_graphs> first = graphs_of_adapter(adapters[0], kind, bias);
  if (!first || adapters.size() == 1) return first;
  const auto parts = std::make_shared<formula_parts>();
  layer_formula all = first->from;
  parts->owners.push_back(first->owner);
  for (std::size_t k = 1; k < adapters.size(); ++k) {
    const result<layer_graphs> next = graphs_of_adapter(adapters[k], kind, bias);
    if (!next) return next;
    parts->extra.push_back(next->from.adapter), parts->names.push_back(std::to_string(k));
    parts->owners.push_back(next->owner);
  }
  for (const std::string& n : parts->names) parts->paths.push_back(n.c_str());
  all.extra = parts->extra.data(), all.extra_paths = parts->paths.data();
  all.extra_count = static_cast<int>(parts->extra.size());
  return capture_graphs(all, parts);
}

std::vector<saved_pair> training_steps(const layer_graphs& graphs) {
  std::vector<saved_pair> all;
  all.push_back(select_saved_tensors(graphs.forward, graphs.backward));
  if (graphs.from.kind.run == nullptr) return all;
  if (const builder bwd = reassociate_wgrads(capture_backward(graphs.from)); bwd.bad.what == formula_error::none)
    all.push_back(select_saved_tensors(graphs.forward, bwd));
  const builder fwd = capture_forward_by_rows(graphs.from), bwd = capture_backward_by_rows(graphs.from);
  if (fwd.bad.what == formula_error::none && bwd.bad.what == formula_error::none)
    all.push_back(select_saved_tensors(fwd, bwd));
  return all;
}

result<std::shared_ptr<const layer_spec>> parse(const std::string& text) {
  const result<io::json> parsed = io::parse_json(text, "the layer's description");
  if (!parsed) return parsed.failure();
  const io::json *bias = parsed->find("bias"), *adapters = parsed->find("adapters");
  if (bias == nullptr || !bias->is_boolean() || adapters == nullptr || !adapters->is_list() || adapters->items.empty())
    return fail("the layer's description has no bias or no adapters; accelerate() makes descriptions");
  const io::json *const branch = parsed->find("branch"), *const kind = parsed->find("kind");
  const bool is_table = kind != nullptr && kind->is_string() && kind->word == "embedding";
  if (kind != nullptr && !is_table && !(kind->is_string() && kind->word == "linear"))
    return fail("the kind of the layer's description is neither linear nor embedding");
  const io::json *out = nullptr, *in = nullptr;
  if (branch != nullptr) {
    out = branch->find("out"), in = branch->find("in");
    if (out == nullptr || in == nullptr || !out->is_number() || !in->is_number() || out->real < 1 || in->real < 1)
      return fail("the branch of the layer's description has no sizes 'out' and 'in'");
    if (bias->flag || adapters->items.size() != 1)
      return fail("a branch is what one adapter adds, without the bias of the base layer");
  }
  result<layer_graphs> graphs = graphs_of_all(adapters->items, is_table ? "embedding" : "linear", bias->flag);
  if (graphs && branch != nullptr)
    graphs = graphs_of_branch(*graphs, is_table, adapters->items[0].find("method")->word.c_str());
  if (!graphs) return graphs.failure();
  if (graphs->forward.bad.what != formula_error::none || graphs->backward.bad.what != formula_error::none)
    return fail("this formula has no gradient, or does not exist on this kind of layer");
  const auto spec = std::make_shared<layer_spec>(layer_spec{*graphs, training_steps(*graphs), {}, {}, {}, {}});
  spec->is_table = is_table;
  if (branch != nullptr) {
    spec->out = static_cast<long long>(out->real), spec->in = static_cast<long long>(in->real);
    spec->sizes = {{is_table ? "dim" : "out", spec->out}, {is_table ? "vocab" : "in", spec->in}};
  } else {
    spec->names.emplace_back("weight");
  }
  if (bias->flag) spec->names.emplace_back("bias");
  for (std::size_t k = 0; k < adapters->items.size(); ++k) {
    const std::string path = k == 0 ? "" : std::to_string(k) + ".";
    const io::json& one = adapters->items[k];
    if (const io::json* tensors = one.find("tensors"))
      for (const io::json& t : tensors->items) spec->names.push_back(path + t.word);
    if (const io::json* scalars = one.find("scalars"))
      for (std::size_t i = 0; i < scalars->keys.size(); ++i)
        spec->scalars.emplace_back(path + scalars->keys[i], scalars->items[i].real);
    if (const io::json* sizes = one.find("sizes"))
      for (std::size_t i = 0; i < sizes->keys.size(); ++i)
        spec->sizes.emplace_back(path + sizes->keys[i], static_cast<long long>(sizes->items[i].real));
  }
  for (const std::string& name : spec->names) {
    const graph& g = spec->graphs.literal;
    const id at = g.find(name.c_str());
    spec->trained.push_back(at >= 0 && g[at].what == op::param);
  }
  return std::shared_ptr<const layer_spec>(spec);
}

}  // namespace

result<std::shared_ptr<const layer_spec>> layer_spec_of(const std::string& text) {
  static std::mutex alone;
  static std::map<std::string, std::shared_ptr<const layer_spec>> known;
  const std::lock_guard<std::mutex> lock(alone);
  if (const auto at = known.find(text); at != known.end()) return at->second;
  result<std::shared_ptr<const layer_spec>> made = parse(text);
  if (made) known.emplace(text, *made);
  return made;
}

}  // namespace graft::pytorch
