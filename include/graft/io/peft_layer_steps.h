// SPDX-License-Identifier: Apache-2.0
// The steps of reading one layer's share of a PEFT folder: is it a target, which formula is it, then its numbers, its
// tensors, and what the file brings for the base layer.
#pragma once
#include <graft/backend/cpu/storage.h>
#include <graft/io/peft/places.h>

namespace graft::io {

inline status check_target(const peft_source& s) {
  const result<bool> hit = is_target(s.config, s.base.module, {s.base.kind == "linear", false});
  if (!hit) return fail_in(s.file.file, hit.message());
  if (*hit) return ok;
  return fail_in(s.file.file, "module ", in_quotes(s.base.module),
                 " is not a target of this adapter; see target_modules in adapter_config.json beside it");
}

// The first variant that exists on this kind of layer; where none does, the table says so.
inline const method& chosen_method(const peft_source& s) {
  if (!s.config.own.empty()) return *s.methods.find(s.config.own.c_str());
  const method* otherwise = nullptr;
  for (const peft_variant& v : s.config.type->variants) {
    if (v.when != nullptr && !v.when(s)) continue;
    const method* m = s.methods.find(v.method);
    if (exists_on(*m, s.base.kind.c_str())) return *m;
    if (otherwise == nullptr) otherwise = m;
  }
  return *otherwise;
}

// What the formula calls by a name that the configuration has too.
inline std::optional<double> stated_number(const peft_source& s, const char* name) {
  if (s.config.key(name) != nullptr) return s.config.number(name);
  const json* v = s.config.own.empty() ? nullptr : s.config.set(name);
  if (v == nullptr || !v->is_number()) return std::nullopt;
  return v->real;
}
inline status take_scalar(peft_source& s, const char* name) {
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
inline status take_size(peft_source& s, const char* name) {
  if (s.layer.sizes.contains(name)) return ok;
  std::optional<double> v = stated_number(s, name);
  if (!v) return ok;  // a tensor tells
  if (same_text(name, "r") && s.config.own.empty()) {
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
inline status take_numbers(peft_source& s, const graph& g, const graph& base) {
  if (s.config.type->numbers != nullptr)
    if (status got = s.config.type->numbers(s); !got) return got;
  std::erase_if(s.layer.scalars, [&](const auto& e) { return g.find(e.first.c_str()) < 0; });
  std::erase_if(s.layer.sizes, [&](const auto& e) { return g.sizes.find(e.first.c_str()) < 0; });
  for (id i = 0; i < g.size; ++i)
    if (g[i].what == op::scalar && base.find(g[i].name) < 0)
      if (status got = take_scalar(s, g.name(i).c_str()); !got) return got;
  for (int i = 0; i < g.sizes.count; ++i)
    if (const char* name = g.sizes.e[i].name; name != nullptr && *name != '\0' && base.sizes.find(name) < 0)
      if (status got = take_size(s, name); !got) return got;
  return ok;
}

inline status take_tensors(peft_source& s, const graph& g) {
  const auto each = [&](op what) -> status {
    for (id i = 0; i < g.size; ++i) {
      const std::string name = g.name(i).c_str();
      if (g[i].what != what || s.layer.tensors.contains(name)) continue;
      peft_place p = place_of(s.config, s.base, name);
      if (!s.config.own.empty()) p.shared = !s.has(name.c_str()) && s.file.find("base_model." + name);
      const std::string key = key_of(s.config, p, s.base, name);
      if (status got = p.shape == stored_as::parts ? s.take_parts(name, key, g[i].rank == 2)
                                                   : s.take(name, key, what == op::index);
          !got)
        return got;
      if (p.copied) s.used.push_back(s.prefix() + name);
    }
    return ok;
  };
  if (status got = each(op::param); !got) return got;
  if (s.config.type->frozen != nullptr)
    if (status got = s.config.type->frozen(s); !got) return got;
  for (const op what : {op::frozen, op::index})
    if (status got = each(what); !got) return got;
  for (auto& [name, t] : s.layer.tensors) {
    const id leaf = g.find(name.c_str());
    const std::vector<long long> shape = leaf_shape(g, leaf, s.base, s.layer.sizes);
    if (status got = shape_as_leaf(t, place_of(s.config, s.base, name).shape, shape, s.base, s.file.file); !got)
      return got;
  }
  return ok;
}

// PEFT writes the weight of an adapted embedding or head beside the adapter, changed or not.
inline bool is_base_weight(const base_layer& base, const loaded_tensor& t) {
  const view& w = base.weight;
  if (w.data == nullptr || !computes_in(w.type) || w.rank != 2 || t.shape != base.shape) return false;
  std::vector<float> row(static_cast<std::size_t>(w.size[1]));
  for (long long i = 0; i < w.size[0]; ++i) {
    cpu::read(w, i * w.size[1], w.size[1], row.data());
    if (!std::equal(row.begin(), row.end(), t.data.begin() + i * w.size[1])) return false;
  }
  return true;
}
// Tensors of the base layer that came with the adapter.
inline status take_base(peft_source& s) {
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
