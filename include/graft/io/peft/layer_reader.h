// SPDX-License-Identifier: Apache-2.0
// The steps of reading one layer of a PEFT folder: check that it is a target, choose the formula, read its numbers, its
// tensors, and the tensors that replace those of the base layer. graft_torch runs those that need no data of tensors.
#pragma once
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/peft/tensor_layout.h>

namespace graft::io {

inline status check_target(const peft_layer_state& s) {
  if (s.base.kind == "experts") return ok;  // io/hf/target_parameters.h has found it
  const result<bool> hit = is_target(s.config, s.base.module, {s.base.kind == "linear", false});
  if (!hit) return fail_in(s.file.file, hit.message());
  if (*hit) return ok;
  return fail_in(s.file.file, "module ", in_quotes(s.base.module),
                 " is not a target of this adapter; see target_modules in adapter_config.json beside it");
}

// Returns the first variant whose condition holds and whose formula exists for this kind of layer. If none exists, it
// returns the first whose condition holds, and the method table reports the error.
inline const method& chosen_method(const peft_layer_state& s) {
  if (s.config.custom_name) return *s.config.custom_name;
  const method* otherwise = nullptr;
  for (const peft_variant& v : s.config.type->variants) {
    if (v.when != nullptr && !v.when(s)) continue;
    const method* m = built_in_methods().find(v.method);
    if (exists_on(*m, s.base.kind.c_str())) return *m;
    if (otherwise == nullptr) otherwise = m;
  }
  return *otherwise;
}

// The number of a configuration key with this name; empty if there is no such key.
inline std::optional<double> stated_number(const peft_layer_state& s, const char* name) {
  if (s.config.key(name) != nullptr) return s.config.number(name);
  const json* v = s.config.custom_name ? s.config.set(name) : nullptr;
  if (v == nullptr || !v->is_number()) return std::nullopt;
  return v->real;
}
inline status read_scalar(peft_layer_state& s, const char* name) {
  if (s.layer.scalars.contains(name)) return ok;
  const std::optional<double> v = stated_number(s, name), r = stated_number(s, "r"),
                              alpha = stated_number(s, s.config.set("alpha") != nullptr ? "alpha" : "lora_alpha");
  if (v)
    s.layer.scalars[name] = *v;
  else if (same_text(name, "scaling") && r && alpha)
    s.layer.scalars[name] = *alpha / *r;
  else
    return fail_in(s.file.file, "adapter_config.json beside it has no number ", in_quotes(name), ", which ",
                   s.layer.formula.name, " needs");
  return ok;
}
inline status read_size(peft_layer_state& s, const char* name) {
  if (s.layer.sizes.contains(name)) return ok;
  std::optional<double> v = stated_number(s, name);
  if (!v) return ok;  // a tensor's shape tells it
  if (same_text(name, "r") && !s.config.custom_name) {
    const result<int> r = s.rank();
    if (!r) return r.failure();
    v = *r;
  }
  if (*v < 1 || *v > std::numeric_limits<int>::max() || *v != static_cast<double>(static_cast<long long>(*v)))
    return fail_in(s.file.file, "adapter_config.json beside it states a size ", in_quotes(name),
                   " that is no positive integer");
  s.layer.sizes[name] = static_cast<long long>(*v);
  return ok;
}
inline status read_numbers_of(peft_layer_state& s, const graph& g, const graph& base) {
  if (s.config.type->numbers != nullptr)
    if (status got = s.config.type->numbers(s); !got) return got;
  std::erase_if(s.layer.scalars, [&](const auto& e) { return g.find(e.first.c_str()) < 0; });
  std::erase_if(s.layer.sizes, [&](const auto& e) { return g.sizes.find(e.first.c_str()) < 0; });
  for (id i = 0; i < g.size; ++i)
    if (g[i].what == op::scalar && base.find(g[i].name) < 0)
      if (status got = read_scalar(s, g.name(i).c_str()); !got) return got;
  for (int i = 0; i < g.sizes.count; ++i)
    if (const char* name = g.sizes.e[i].name; name != nullptr && *name != '\0' && base.sizes.find(name) < 0)
      if (status got = read_size(s, name); !got) return got;
  for (const auto& [name, v] : s.layer.scalars)
    if (!(v >= -largest_real && v <= largest_real))
      return fail_in(s.file.file, "adapter_config.json beside it gives ", in_quotes(name),
                     " a value that no float can hold; the largest is 3.4e38");
  return ok;
}

inline status read_tensors_of(peft_layer_state& s, const graph& g) {
  const auto each = [&](op what) -> status {
    for (id i = 0; i < g.size; ++i) {
      const std::string name = g.name(i).c_str();
      if (g[i].what != what || s.layer.tensors.contains(name)) continue;
      tensor_layout p = layout_of(s.config, s.base, name);
      if (s.config.custom_name) p.shared = !s.has(name.c_str()) && s.file.get("base_model." + name) != nullptr;
      const std::string key = key_of(s.config, p, s.base, name);
      if (status got = p.shape == tensor_shape_kind::parts ? s.read_parts(name, key, g[i].rank == 2)
                                                           : s.take(name, key, what == op::index);
          !got)
        return got;
      if (p.copied) s.used.push_back(s.prefix() + name);
    }
    return ok;
  };
  const auto shape_leaves = [&](bool trained) -> status {
    for (auto& [name, t] : s.layer.tensors) {
      const id leaf = g.find(name.c_str());
      if ((g[leaf].what == op::param) != trained) continue;
      const std::vector<long long> shape = leaf_shape(g, leaf, s.base, s.layer.sizes);
      if (status got = shape_as_leaf(t, layout_of(s.config, s.base, name).shape, shape, s.base, s.file.file); !got)
        return got;
    }
    return ok;
  };
  if (status got = each(op::param); !got) return got;
  if (status got = shape_leaves(true); !got) return got;
  if (s.config.type->frozen != nullptr) {
    if (status got = check_parameters(s, g); !got) return got;
    if (status got = s.config.type->frozen(s); !got) return got;
  }
  for (const op what : {op::frozen, op::index})
    if (status got = each(what); !got) return got;
  return shape_leaves(false);
}

// Returns true if a stored base_layer.weight equals the base weight: PEFT always writes it for adapted embeddings and
// heads.
inline bool is_base_weight(const base_layer& base, const loaded_tensor& t) {
  const view& w = base.weight;
  if (w.data == nullptr || !is_floating(w.type) || w.rank != 2 || t.shape != base.shape) return false;
  std::vector<float> row(static_cast<std::size_t>(w.size[1]));
  for (long long i = 0; i < w.size[0]; ++i) {
    cpu::read(w, i * w.size[1], w.size[1], row.data());
    if (!std::equal(row.begin(), row.end(), t.data.begin() + i * w.size[1])) return false;
  }
  return true;
}
// Reads tensors of the base layer that the file replaces.
inline status read_base(peft_layer_state& s) {
  const auto replaced = [&](const char* name, std::optional<loaded_tensor>& into) -> status {
    result<loaded_tensor> t = s.read(s.prefix() + name);
    if (!t) return t.failure();
    into = std::move(*t);
    return ok;
  };
  if ((s.base.kind == "embedding" || s.base.kind == "linear") && s.has("base_layer.weight")) {
    if (status got = replaced("base_layer.weight", s.layer.base_weight); !got) return got;
    if (s.base.kind == "linear")
      if (status got = check_shape(*s.layer.base_weight, s.base.shape, s.file.file); !got) return got;
    if (is_base_weight(s.base, *s.layer.base_weight)) s.layer.base_weight.reset();
  }
  if (!s.layer.formula.of.trains_bias) return ok;
  return replaced("base_layer.bias", s.layer.base_bias);
}

}  // namespace graft::io
