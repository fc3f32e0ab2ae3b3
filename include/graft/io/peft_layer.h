// SPDX-License-Identifier: Apache-2.0
// The part of a PEFT folder that belongs to one layer: which method it is, its tensors under the names of the formula,
// its scalars and sizes. Everything about a method is in io/peft/NAME.h; here its formula is asked what it needs: a tensor
// for every leaf, a number for every scalar and for the sizes that no tensor tells. A method that the program added is
// read in the same way; it may leave `scaling` out where its file states r and alpha or lora_alpha.
#pragma once
#include <graft/io/adapter_config.h>
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
      if (status got = s.take(name, key_of(p, s.base, name)); !got) return got;
      if (p.copied) s.used.push_back(s.prefix() + name);
    }
    return ok;
  };
  if (status got = each(op::param); !got) return got;
  if (s.config.type->frozen != nullptr)
    if (status got = s.config.type->frozen(s); !got) return got;
  if (status got = each(op::frozen); !got) return got;
  for (auto& [name, t] : s.layer.tensors) {
    const id leaf = g.find(name.c_str());
    const std::vector<long long> shape = leaf_shape(g, leaf, s.base, s.layer.sizes);
    if (status got = shape_as_leaf(t, place_of(s.config, s.base, name).shape, shape, s.base, s.file.file); !got)
      return got;
  }
  return ok;
}

// Tensors of the base layer that came with the adapter.
inline status take_base(peft_source& s) {
  const auto replaced = [&](const char* name, std::optional<loaded_tensor>& into) -> status {
    result<loaded_tensor> t = s.read(s.prefix() + name);
    if (!t) return t.failure();
    into = std::move(*t);
    return ok;
  };
  if (s.base.kind == "embedding" && s.has("base_layer.weight"))
    if (status got = replaced("base_layer.weight", s.layer.base_weight); !got) return got;
  if (!s.layer.formula.of.trains_bias) return ok;
  return replaced("base_layer.bias", s.layer.base_bias);
}

inline result<peft_layer> read_peft_layer(const adapter_config& c, const safetensors& f, const base_layer& b,
                                          const method_table& methods = built_in_methods()) {
  return guarded(f.file, [&]() -> result<peft_layer> {
    peft_source s{c, f, b, methods};
    s.layer.file = f.file;
    if (status got = check_target(s); !got) return got.failure();
    s.layer.formula = chosen_method(s);
    s.layer.formula.of.trains_bias = c.bias != trained_bias::none && b.bias;
    const result<layer_graphs> made = methods.graphs(b.kind.c_str(), s.layer.formula, b.bias);
    if (!made) return fail_in(f.file, made.message());
    if (status got = take_numbers(s, made->literal, made->base_forward); !got) return got.failure();
    if (status got = take_tensors(s, made->literal); !got) return got.failure();
    if (status got = take_base(s); !got) return got.failure();
    if (status got = s.all_keys_used(); !got) return got.failure();
    return std::move(s.layer);
  });
}

// Hands everything to an executor made for the layer's method; an error names the file and the key.
template <class Executor> status attach(Executor& to, const peft_layer& layer) {
  for (const auto& [name, value] : layer.sizes)
    if (status s = to.size(name.c_str(), value); !s) return fail_in(layer.file, s.message());
  for (const auto& [name, value] : layer.scalars)
    if (status s = to.set(name.c_str(), value); !s) return fail_in(layer.file, s.message());
  for (const auto& [name, t] : layer.tensors) {
    if (t.shape.size() > 4) return fail_in(layer.file, "tensor ", in_quotes(t.key), " has more than 4 dimensions");
    view v{t.data.data(), graft::dtype::f32, {1, 1, 1, 1}, static_cast<int>(t.shape.size())};
    for (std::size_t k = 0; k < t.shape.size(); ++k) v.size[k] = t.shape[k];
    if (status s = to.set(name.c_str(), v); !s) return fail_in(layer.file, "key ", in_quotes(t.key), ": ", s.message());
  }
  return ok;
}

}  // namespace graft::io
