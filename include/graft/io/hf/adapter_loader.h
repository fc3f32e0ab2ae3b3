// SPDX-License-Identifier: Apache-2.0
// From an opened PEFT folder to the adapters of a model's modules: targets, modules that are saved whole, trained biases,
// rows of tokens.
#pragma once
#include <graft/io/hf/load_adapters.h>
#include <graft/io/hf/module_adapter.h>
#include <graft/io/hf/targets.h>
#include <graft/io/hf/token_rows.h>
#include <graft/io/peft/places.h>

namespace graft::io::hf {

class adapter_loader {
 public:
  adapter_loader(const peft_folder& from, const model_config& c, const model_weights& w)
      : from_(from), config_(c), all_(modules_of(c, w)) {}

  result<loaded_adapters> load() {
    out_.config = from_.config;
    if (status s = find_targets(); !s) return s.failure();
    for (base_layer* b : targets_)
      if (status s = adapt(*b); !s) return s.failure();
    for (const base_layer& b : all_)
      if (status s = replace(b); !s) return s.failure();
    for (const token_rows& rows : from_.config.trainable_tokens)
      if (status s = replace_rows(rows); !s) return s.failure();
    if (status s = follow_table(); !s) return s.failure();
    if (out_.set.modules.empty())
      return fail_in(from_.weights.file,
                     "target_modules of adapter_config.json beside it names no module of this model");
    if (status s = all_used(); !s) return s.failure();
    return std::move(out_);
  }

 private:
  status find_targets() {
    result<std::vector<base_layer*>> found = targets_of(from_.config, all_, &config_);
    if (!found) return fail_in(from_.weights.file, found.message());
    targets_ = std::move(*found);
    return ok;
  }
  status adapt(const base_layer& b) {
    result<peft_layer> layer = read_module(from_, b);
    if (!layer) return layer.failure();
    module_adapter m = adapter_of(b, *layer);
    if (b.kind == "linear") take_dropout(m);
    for (const loaded_tensor& t : layer->beside) used_.push_back(t.key);
    for (auto& [name, t] : layer->tensors)  // the model has what no file will
      if (!t.stored) t.data = {}, t.places = {}, t.whole = nullptr;
    used_.push_back("base_model.model." + b.module + ".");
    out_.set.modules.push_back(std::move(m));
    out_.modules.push_back({b, std::move(*layer)});
    out_.modules.back().base.among = nullptr;
    return ok;
  }
  // What training leaves out, as the keys of the method say.
  void take_dropout(module_adapter& m) const {
    const adapter_config& c = from_.config;
    const double acts = c.type->dropped != nullptr ? c.type->dropped(c) : 1;
    for (const peft_key& k : c.type->keys) {
      const double rate = acts * c.number(k.name);
      switch (k.leaves_out) {
        case rate_of::nothing: break;
        case rate_of::inputs: m.dropout = rate; break;
        case rate_of::ranks: m.rank_dropout = rate; break;
        case rate_of::the_whole: m.module_dropout = rate; break;
        case rate_of::blocks: m.block_dropout = rate; break;
      }
    }
    m.rank_dropout_scale = c.on("rank_dropout_scale");
  }
  module_adapter adapter_of(const base_layer& b, const peft_layer& layer) {
    return module_adapter_of(b, layer, [&](const loaded_tensor& t) { return shared(t); });
  }
  // Rows that are trained beside the adapters.
  status replace_rows(const token_rows& rows) {
    const result<const base_layer*> b = module_of(rows, all_, config_, from_.weights.file);
    if (!b) return b.failure();
    if (out_.set.find((*b)->module) != nullptr)
      return fail_in(from_.weights.file, "module ", in_quotes((*b)->module),
                     " has rows in 'trainable_token_indices' and is adapted or saved whole, expected one of them");
    const result<peft_layer> layer = read_token_rows(from_, **b, rows);
    if (!layer) return layer.failure();
    out_.set.modules.push_back(adapter_of(**b, *layer));
    return ok;
  }
  // A head that is the table of the tokens has its trained rows too.
  status follow_table() {
    const std::string table = token_table(config_.family);
    const module_adapter* rows = nullptr;
    for (const module_adapter& m : out_.set.modules)
      if (table == m.module + ".weight" && m.tensors.contains("trainable_tokens_delta")) rows = &m;
    if (rows == nullptr || !config_.tied) return ok;
    if (out_.set.find("lm_head") != nullptr)
      return fail_in(from_.weights.file,
                     "the head is tied to the embedding, whose rows are trained, and is adapted "
                     "itself, expected one of them");
    module_adapter head = *rows;
    head.module = "lm_head", head.follows = rows->module, head.table = false;
    std::string key = head.tensors.at("trainable_tokens_delta").key;  // PEFT may write it under the head too
    used_.push_back(key.replace(key.find(rows->module), rows->module.size(), head.module));
    out_.set.modules.push_back(std::move(head));
    return ok;
  }
  // Tensors of the same key and shape are one.
  adapter_tensor shared(const loaded_tensor& t) {
    used_.push_back(t.key);
    if (t.whole) used_.push_back(t.whole->key);
    adapter_tensor& one = by_key_[t.key + " " + shape_text(t.shape).c_str()];
    if (one.shape.empty()) one = adapter_tensor_of(t);
    return one;
  }
  // Modules that were saved whole, and biases that were trained beside the adapters.
  status replace(const base_layer& b) {
    const std::string key = "base_model.model." + b.module + ".";
    const bool whole = is_saved_module(from_.config, b.module);
    const bool target = std::find(targets_.begin(), targets_.end(), &b) != targets_.end();
    const bool bias_only = !target && !whole && from_.config.bias == trained_bias::all && b.bias;
    if (!whole && !bias_only) return ok;
    module_adapter m = module_adapter_of(b, {}, [](const loaded_tensor&) { return adapter_tensor{}; });
    for (const char* name : {"weight", "bias"}) {
      const bool is_bias = name[0] == 'b';
      if ((is_bias && !b.bias) || (bias_only && !is_bias)) continue;
      result<adapter_tensor> t = take(key + name, is_bias ? std::vector<long long>{b.out} : b.shape);
      if (!t) return t.failure();
      if (whole)
        m.tensors[std::string("modules_to_save.") + name] = std::move(*t);
      else
        m.base[name] = std::move(*t), m.trains_bias = true;
    }
    const bool norm = b.shape.size() == 1;
    if (whole)
      m.of = norm ? (b.bias ? formula_of<whole_norm_with_bias>() : formula_of<whole_norm>())
                  : (b.bias ? formula_of<whole_module_with_bias>() : formula_of<whole_module>());
    out_.set.modules.push_back(std::move(m));
    return ok;
  }
  result<adapter_tensor> take(const std::string& key, const std::vector<long long>& shape) {
    const result<tensor_view> t = from_.weights.find(key);
    if (!t) return t.failure();
    std::vector<long long> has(t->shape.begin(), t->shape.end());
    if (has != shape)
      return fail_in(from_.weights.file, "tensor ", in_quotes(key), " has shape ", shape_text(has), ", expected ",
                     shape_text(shape));
    result<std::vector<float>> values = to_float(*t);
    if (!values) return values.failure();
    used_.push_back(key);
    return adapter_tensor{key, std::make_shared<std::vector<float>>(std::move(*values)), shape};
  }
  status all_used() const {
    for (const tensor_view& t : from_.weights) {
      const bool known = std::any_of(used_.begin(), used_.end(), [&](const std::string& u) {
        return u.ends_with('.') ? t.name.starts_with(u) : t.name == u;
      });
      if (!known)
        return fail_in(from_.weights.file, "tensor ", in_quotes(t.name),
                       " belongs to no module that this adapter changes");
    }
    return ok;
  }

  const peft_folder& from_;
  const model_config& config_;
  std::vector<base_layer> all_;
  std::vector<base_layer*> targets_;
  std::vector<std::string> used_;  // keys, and beginnings of keys that end in a dot
  std::map<std::string, adapter_tensor> by_key_;
  loaded_adapters out_;
};

#if GRAFT_BODIES
GRAFT_LIBRARY result<loaded_adapters> adapters_from(const peft_folder& folder, const model_config& c,
                                                    const model_weights& w) {
  return guarded(folder.weights.file, [&] { return adapter_loader(folder, c, w).load(); });
}
#endif

}  // namespace graft::io::hf
