// SPDX-License-Identifier: Apache-2.0
// Loads a PEFT folder for a whole model: target modules, what each of them gets, and the modules it replaces
// (modules_to_save). Every tensor of the file must belong to a module. Saving writes the same file with the present
// values, and PEFT can read it.
#pragma once
#include <graft/io/hf/modules.h>
#include <graft/model/adalora.h>

namespace graft::io::hf {

// Configuration and layers of a PEFT folder, as needed to save an adapter again.
struct peft_origin : adapter_origin {
  static constexpr const char* name = "PEFT folder";
  const char* kind() const override { return name; }
  adapter_config config;
  std::vector<adapted_module> modules;
};
struct loaded_adapters {
  adapter_set set;
  adapter_config config;
  std::vector<adapted_module> modules;

  // Returns the set for a model, together with the origin that saving needs.
  adapter_set with_origin() && {
    auto from = std::make_shared<peft_origin>();
    from->config = std::move(config), from->modules = std::move(modules);
    set.origin = std::move(from);
    return std::move(set);
  }
};

GRAFT_LIBRARY result<loaded_adapters> adapters_from(const peft_folder& folder, const model_config& c,
                                                    const model_weights& w);
template <class Engine>
result<loaded_adapters> load_adapters(const std::string& folder, const causal_lm<Engine>& model,
                                      const method_table& methods = built_in_methods()) {
  const result<peft_folder> opened = open_peft_folder(folder, methods);
  if (!opened) return opened.failure();
  return adapters_from(*opened, model.config(), model.weights());
}

// AdaLoRA's rank schedule from its configuration.
inline adalora_settings adalora_settings_of(const adapter_config& c) {
  return {c.whole("target_r"),   c.whole("tinit"),  c.whole("tfinal"), c.whole("deltaT"),
          c.whole("total_step"), c.number("beta1"), c.number("beta2"), c.number("orth_reg_weight")};
}

// Writes the folder with the present values of the tensors.
GRAFT_LIBRARY status save_adapter(const std::string& folder, const adapter_set& set, const adapter_config& config,
                                  std::vector<adapted_module> modules);
GRAFT_LIBRARY status save_adapters(const std::string& folder, const loaded_adapters& a);

}  // namespace graft::io::hf

#if GRAFT_BODIES
#include <graft/io/hf/default_targets.h>
#include <graft/io/hf/module_adapter.h>
#include <graft/io/hf/target_modules.h>
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/peft/trainable_tokens.h>

namespace graft::io::hf {

// Builds the adapters of a model's modules from an opened PEFT folder: target modules, modules_to_save, trained biases,
// and trainable token rows.

// Finds the module that PEFT would wrap for these rows; an empty module name means the input embedding.
inline result<const base_layer*> module_of(const trainable_token_rows& rows, const std::vector<base_layer>& all,
                                           const model_config& c, std::string_view file) {
  const std::string table = c.family->token_embedding;
  for (const base_layer& b : all)
    if (rows.module.empty() ? table == b.module + ".weight" : b.module.ends_with(rows.module)) return &b;
  return fail_in(file, "'trainable_token_indices' of adapter_config.json beside it names module ",
                 in_quotes(rows.module), ", which this model does not have");
}

// Reads the rows of trainable_token_indices, which PEFT stores as <module>.token_adapter.trainable_tokens_delta.
inline result<peft_layer> read_token_rows(const peft_folder& from, const base_layer& b,
                                          const trainable_token_rows& rows) {
  peft_layer_state s{from.config, from.weights, b};
  s.layer.file = from.weights.file;
  s.layer.formula = *built_in_methods().find(trainable_tokens<>::method);
  const std::string key = s.prefix() + "token_adapter.trainable_tokens_delta";
  if (status got = s.take("trainable_tokens_delta", key); !got) return got.failure();
  const std::vector<long long> expected{static_cast<long long>(rows.tokens.size()), b.in},
      &has = s.layer.tensors["trainable_tokens_delta"].shape;
  if (has != expected)
    return fail_in(s.layer.file, "tensor ", in_quotes(key), " has shape ", shape_text(has), ", expected ",
                   shape_text(expected));
  if (status got = peft::select_rows(s, rows.tokens); !got) return got.failure();
  return std::move(s.layer);
}

class adapter_loader {
 public:
  adapter_loader(peft_folder from, const model_config& c, const model_weights& w)
      : from_(std::move(from)), config_(c), all_(modules_of(c, w)) {}

  result<loaded_adapters> load() {
    out_.config = from_.config;
    if (status s = find_targets(); !s) return s.failure();
    for (base_layer* b : targets_)
      if (status s = add_target(*b); !s) return s.failure();
    for (const base_layer& b : all_)
      if (status s = add_saved_module(b); !s) return s.failure();
    for (const trainable_token_rows& rows : from_.config.trainable_tokens)
      if (status s = add_token_rows(rows); !s) return s.failure();
    if (status s = tie_head_rows(); !s) return s.failure();
    if (out_.set.modules.empty()) return fail_in(from_.weights.file, no_targets(from_.config, all_));
    if (status s = check_all_used(); !s) return s.failure();
    return std::move(out_);
  }

 private:
  status find_targets() {
    result<std::vector<base_layer*>> found = targets_of(from_.config, all_, &config_);
    if (!found) return fail_in(from_.weights.file, found.message());
    targets_ = std::move(*found);
    return ok;
  }
  status add_target(const base_layer& b) {
    result<peft_layer> layer = read_module(from_, b);
    if (!layer) return layer.failure();
    module_adapter m = adapter_of(b, *layer);
    if (b.kind == "linear") read_dropout(m);
    for (const loaded_tensor& t : layer->extra_tensors) used_.push_back(t.key);
    for (auto& [name, t] : layer->tensors)  // the module_adapter owns these values, and saving does not need them
      if (!t.stored) t.data = {}, t.indices = {}, t.whole = nullptr;
    used_.push_back("base_model.model." + b.file_path() + ".");
    out_.set.modules.push_back(std::move(m));
    out_.modules.push_back({b, std::move(*layer)});
    out_.modules.back().base.all_targets = nullptr;
    return ok;
  }
  // Reads the dropout rates of the adapter; the method's keys say what each rate drops.
  void read_dropout(module_adapter& m) const {
    const adapter_config& c = from_.config;
    const double acts = c.type->dropout_factor != nullptr ? c.type->dropout_factor(c) : 1;
    for (const peft_key& k : c.type->keys) {
      const double rate = acts * c.number(k.name);
      switch (k.dropout_kind) {
        case dropout_target::nothing: break;
        case dropout_target::inputs: m.dropout = rate; break;
        case dropout_target::ranks: m.rank_dropout = rate; break;
        case dropout_target::the_whole: m.module_dropout = rate; break;
        case dropout_target::blocks: m.block_dropout = rate; break;
      }
    }
    m.rank_dropout_scale = c.on("rank_dropout_scale");
  }
  module_adapter adapter_of(const base_layer& b, const peft_layer& layer) {
    return module_adapter_of(b, layer, [&](const loaded_tensor& t) { return shared(t); });
  }
  // Adds rows of an embedding or head that are trained in addition to the adapters (trainable_token_indices).
  status add_token_rows(const trainable_token_rows& rows) {
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
  // A head tied to the embedding uses the embedding's trained rows too.
  status tie_head_rows() {
    const std::string table = config_.family->token_embedding;
    const module_adapter* rows = nullptr;
    for (const module_adapter& m : out_.set.modules)
      if (table == m.module + ".weight" && m.tensors.contains("trainable_tokens_delta")) rows = &m;
    if (rows == nullptr || !config_.tied) return ok;
    if (out_.set.find("lm_head") != nullptr)
      return fail_in(from_.weights.file,
                     "the head is tied to the embedding, whose rows are trained, and is adapted "
                     "itself, expected one of them");
    module_adapter head = *rows;
    head.module = "lm_head", head.tied_to = rows->module, head.table = false;
    std::string key = head.tensors.at("trainable_tokens_delta").key;  // PEFT may write the rows under the head as well
    used_.push_back(key.replace(key.find(rows->module), rows->module.size(), head.module));
    out_.set.modules.push_back(std::move(head));
    return ok;
  }
  // Tensors with the same key and shape are one tensor that several modules share (VB-LoRA's bank).
  adapter_tensor shared(const loaded_tensor& t) {
    used_.push_back(t.key);
    if (t.whole) used_.push_back(t.whole->key);
    adapter_tensor& one = by_key_[t.key + " " + shape_text(t.shape).c_str()];
    if (one.shape.empty()) one = adapter_tensor_of(t);
    return one;
  }
  // Adds modules in modules_to_save, and biases that were trained with the adapter.
  status add_saved_module(const base_layer& b) {
    const std::string key = "base_model.model." + b.module + ".";
    const bool whole = is_saved_module(from_.config, b.module);
    const bool target = std::find(targets_.begin(), targets_.end(), &b) != targets_.end();
    const bool bias_only = !target && !whole && from_.config.bias == trained_bias::all && b.bias;
    if (!whole && !bias_only) return ok;
    if (b.kind == "experts")
      return fail_in(from_.weights.file, "'modules_to_save' of adapter_config.json beside it names ",
                     in_quotes(b.module), ": the weights of experts are adapted and not trained in full");
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
      m.of = norm ? (b.bias ? formula_of<fully_trained_norm_with_bias>() : formula_of<fully_trained_norm>())
                  : (b.bias ? formula_of<fully_trained_module_with_bias>() : formula_of<fully_trained_module>());
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
    result<std::vector<float>> values = read_factor(*t, from_.weights.file);
    if (!values) return values.failure();
    used_.push_back(key);
    return adapter_tensor{key, std::make_shared<std::vector<float>>(std::move(*values)), shape};
  }
  status check_all_used() const {
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

  peft_folder from_;  // with the modules that PEFT targets by default
  const model_config& config_;
  std::vector<base_layer> all_;
  std::vector<base_layer*> targets_;
  std::vector<std::string> used_;  // keys, and key prefixes that end in a dot
  std::map<std::string, adapter_tensor> by_key_;
  loaded_adapters out_;
};

GRAFT_LIBRARY result<loaded_adapters> adapters_from(const peft_folder& folder, const model_config& c,
                                                    const model_weights& w) {
  return guarded(folder.weights.file, [&]() -> result<loaded_adapters> {
    result<adapter_config> stated = with_default_targets(folder.config, *c.family);
    if (!stated) return fail_in(folder.weights.file, stated.message());
    return adapter_loader({std::move(*stated), folder.weights}, c, w).load();
  });
}

GRAFT_LIBRARY status save_adapter(const std::string& folder, const adapter_set& set, const adapter_config& config,
                                  std::vector<adapted_module> modules) {
  std::vector<tensor_view> more;
  for (const module_adapter& m : set.modules) {
    if (!m.tied_to.empty()) continue;
    const auto at =
        std::find_if(modules.begin(), modules.end(), [&](const auto& e) { return e.base.module == m.module; });
    for (const auto& [name, t] : m.tensors) {
      if (at == modules.end()) {
        if (t.stored)
          more.push_back(
              {t.key, safetensors_type::f32, {t.shape.begin(), t.shape.end()}, std::as_bytes(std::span(*t.data))});
        continue;
      }
      loaded_tensor& to = at->layer.tensors.at(name);
      if (!to.whole && to.stored && t.indices == nullptr) to.data = *t.data;
    }
    for (const auto& [name, t] : m.base) {
      if (at == modules.end())
        more.push_back(
            {t.key, safetensors_type::f32, {t.shape.begin(), t.shape.end()}, std::as_bytes(std::span(*t.data))});
      else if (name == "bias")
        at->layer.base_bias->data = *t.data;
    }
  }
  return write_peft_folder(folder, config, modules, more);
}
GRAFT_LIBRARY status save_adapters(const std::string& folder, const loaded_adapters& a) {
  return save_adapter(folder, a.set, a.config, a.modules);
}

}  // namespace graft::io::hf
#endif
