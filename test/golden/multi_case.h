// SPDX-License-Identifier: Apache-2.0
// A folder with several adapters of one base: logits with each of them, with several at once, with one per row of a
// batch, with some of them merged, and with every weighted combination that case.json names, each computed here from
// its adapters and read from the folder that PEFT wrote.
#pragma once
#include <graft/io/hf/combine_adapters.h>

#include "model_case.h"

namespace golden {

template <class engine> class multi_case {
 public:
  static result<model_checks> run(const std::filesystem::path& folder, const model_comparison& within = {}) {
    auto model = model_case<engine>::open_base(folder.parent_path() / "base", within);
    if (!model) return model.failure();
    auto file = io::read_safetensors(folder / "expected.safetensors");
    if (!file) return file.failure();
    auto what = io::read_json(folder / "case.json");
    if (!what) return what.failure();
    multi_case c(std::move(*model), std::move(*file), std::move(*what), folder);
    c.within_ = within;
    if (status s = c.all(); !s) return s.failure();
    return c.out_;
  }

 private:
  multi_case(causal_lm<engine> model, io::safetensors file, io::json what, std::filesystem::path folder)
      : model_(std::move(model)), file_(std::move(file)), what_(std::move(what)), folder_(std::move(folder)) {}

  status all() {
    auto prompts = read_prompts(file_);
    if (!prompts) return prompts.failure();
    prompts_ = std::move(*prompts);
    for (const io::tensor_view& t : file_)
      if (t.name.starts_with("logits."))
        if (status s = compare(t.name.substr(7)); !s) return s;
    return ok;
  }
  status load(const std::string& name) {
    if (model_.find(name) != nullptr) return ok;
    return io::hf::load_adapter(model_, name, folder_ / name);
  }
  // "active_ac" names adapters by one letter each, after the underscore.
  result<adapter_registry::names> letters(const std::string& word) {
    adapter_registry::names list;
    for (const char c : word) {
      list.emplace_back(1, c);
      if (status s = load(list.back()); !s) return s.failure();
    }
    return list;
  }
  status compare(const std::string& name) {
    if (std::filesystem::exists(folder_ / name)) {
      if (status s = load(name); !s) return s;
      if (status s = model_.activate({name}); !s) return s;
      if (status s = logits(name); !s) return s;
    }
    if (const io::json* one = weighted(name)) return combined(name, *one);
    if (std::filesystem::exists(folder_ / name)) return ok;
    if (name.starts_with("active_") || name.starts_with("merged_")) {
      const auto list = letters(name.substr(7));
      if (!list) return list.failure();
      if (status s = name[0] == 'a' ? model_.activate(*list) : model_.merge(*list); !s) return s;
      if (status s = logits(name); !s) return s;
      return model_.unmerge();
    }
    if (name != "mixed") return fail("'logits.", name.c_str(), "' says nothing about the adapters it was made with");
    const io::json* const rows = what_.find("mixed_batch");
    if (rows == nullptr || !rows->is_list()) return fail("case.json has no list 'mixed_batch'");
    std::vector<adapter_registry::names> chunk_adapters;
    for (const io::json& r : rows->items) {
      chunk_adapters.emplace_back();
      if (r.word == "__base__") continue;
      if (status s = load(r.word); !s) return s;
      chunk_adapters.back().push_back(r.word);
    }
    return logits(name, chunk_adapters);
  }
  const io::json* weighted(const std::string& name) const {
    const io::json* const all = what_.find("weighted");
    for (std::size_t i = 0; all != nullptr && i < all->items.size(); ++i)
      if (const io::json* n = all->items[i].find("name"); n != nullptr && n->word == name) return &all->items[i];
    return nullptr;
  }
  status combined(const std::string& name, const io::json& said) {
    const io::json *const of = said.find("adapters"), *const type = said.find("combination_type"),
                          *const by = said.find("weights");
    if (of == nullptr || type == nullptr || by == nullptr) return fail("case.json says too little of ", name.c_str());
    adapter_registry::names list;
    std::vector<double> weights;
    for (const io::json& a : of->items)
      if (status s = load(list.emplace_back(a.word)); !s) return s;
    for (const io::json& w : by->items) weights.push_back(w.real);
    combination_settings how;
    const auto known = std::find_if(std::begin(combination_names), std::end(combination_names),
                                    [&](const char* n) { return type->word == n; });
    if (known == std::end(combination_names)) return fail("no combination is called ", type->word.c_str());
    how.type = static_cast<combination>(known - std::begin(combination_names));
    if (const io::json* d = said.find("density")) how.density = d->real;
    if (const io::json* s = said.find("majority_sign_method"); s != nullptr && s->word == "frequency")
      how.sign = majority::frequency;
    if (const io::json* r = said.find("svd_rank"); r != nullptr && r->is_unsigned())
      how.rank = static_cast<int>(r->real);
    const std::string made = "made here: " + name;
    if (status s = io::hf::combine(model_, made, list, weights, how); !s) return s;
    if (status s = model_.activate({made}); !s) return s;
    return logits(name, {}, "combined");
  }
  status logits(const std::string& name, std::span<const adapter_registry::names> chunk_adapters = {},
                const char* how = "") {
    const auto wanted = within_.wanted(file_, "logits." + name);
    if (!wanted) return wanted.failure();
    std::vector<sequence_chunk> runs;
    const std::size_t count = chunk_adapters.empty() ? prompts_.size() : chunk_adapters.size();
    for (std::size_t i = 0; i < count; ++i) runs.push_back({prompts_[i % prompts_.size()], 0, 0});
    std::vector<float> got(wanted->size());
    if (status s = model_.logits(runs, got, false, chunk_adapters); !s) return s;
    within_.note("logits." + name, got);
    out_.push_back(within_.logits_check(how[0] == '\0' ? name : how, "logits." + name, got, *wanted));
    return ok;
  }

  causal_lm<engine> model_;
  io::safetensors file_;
  io::json what_;
  std::filesystem::path folder_;
  std::vector<std::vector<std::int64_t>> prompts_;
  model_comparison within_;
  model_checks out_;
};

}  // namespace golden
