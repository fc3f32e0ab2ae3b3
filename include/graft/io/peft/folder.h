// SPDX-License-Identifier: Apache-2.0
// PEFT folders: opened once and read layer by layer, or written for all layers at once.
//     result<peft_folder> f = open_peft_folder("adapter");
//     result<peft_layer> q = read_module(*f, {.module = "model.layers.0.self_attn.q_proj", .out = 4096, .in = 4096});
//     write_peft_folder("copy", f->config, modules);        // PEFT's from_pretrained loads it
#pragma once
#include <graft/io/json/writer.h>
#include <graft/io/peft/layer.h>

namespace graft::io {

struct peft_folder {
  adapter_config config;
  safetensors weights;
};
struct adapted_module {
  base_layer base;
  peft_layer layer;
};

GRAFT_LIBRARY result<peft_folder> open_peft_folder(const std::string& folder,
                                                   const method_table& methods = built_in_methods());
GRAFT_LIBRARY result<peft_layer> read_module(const peft_folder& f, const base_layer& base);
// Makes a configuration from PEFT's type, the target modules and the keys that differ from PEFT's defaults. The other
// keys are written too, so that the file does not depend on the defaults of a PEFT release.
GRAFT_LIBRARY result<adapter_config> make_adapter_config(const char* type,
                                                         const std::vector<std::string>& target_modules,
                                                         const std::vector<std::pair<std::string, json>>& keys = {},
                                                         const method_table& methods = built_in_methods());
// Writes a folder, whose parent must exist. `more` is further tensors, such as those of modules_to_save.
GRAFT_LIBRARY status write_peft_folder(const std::string& folder, const adapter_config& c,
                                       std::span<const adapted_module> modules, std::span<const tensor_view> more = {});

}  // namespace graft::io

#if GRAFT_BODIES
#include <graft/core/bf16.h>
#include <graft/core/f16.h>
#include <graft/io/atomic_folder.h>
#include <graft/io/peft/all.h>
#include <graft/io/peft/tensor_layout.h>
#include <graft/io/safetensors/writer.h>

#include <map>

namespace graft::io {

// Writes adapter_model.safetensors and adapter_config.json of a PEFT folder: the tensors of the adapted modules under
// PEFT's keys, in the types and shapes that the file gives them. A tensor that modules share is written once.
class peft_file_writer {
 public:
  status add(const adapter_config& c, const adapted_module& m) {
    for (const auto& [leaf, t] : m.layer.tensors) {
      const tensor_layout p = layout_of(c, m.base, leaf);
      loaded_tensor flat;
      if (p.shape == tensor_shape_kind::flat) flat = t, flat.indices = flat_indices(t.indices, m.base.in);
      const loaded_tensor& whole = t.whole ? *t.whole : p.shape == tensor_shape_kind::flat ? flat : t;
      if (!whole.stored) continue;
      if (p.shape == tensor_shape_kind::parts) {
        if (status s = write_parts(m.base, leaf, t); !s) return s;
        continue;
      }
      const bool has_own_key = !t.key.empty() && (p.shared || c.custom_name);
      const std::string key = has_own_key ? t.key : key_of(c, p, m.base, leaf);
      const std::vector<long long> shape = shape_in_file(whole.shape, p.shape, m.base);
      if (status s = put(key, whole, shape); !s) return s;
      if (p.copied)
        if (status s = put("base_model.model." + m.base.file_path() + "." + leaf, whole, shape); !s) return s;
    }
    for (const loaded_tensor& t : m.layer.extra_tensors)
      if (status s = put(t.key, t, t.shape); !s) return s;
    const std::string prefix = "base_model.model." + m.base.file_path() + ".";
    if (m.layer.base_weight)
      if (status s = put(prefix + "base_layer.weight", *m.layer.base_weight, m.layer.base_weight->shape); !s) return s;
    if (!m.layer.base_bias) return ok;
    return put(prefix + "base_layer.bias", *m.layer.base_bias, m.layer.base_bias->shape);
  }
  std::vector<tensor_view> views() const {
    std::vector<tensor_view> all;
    for (const auto& [key, e] : entries_) all.push_back({key, e.type, e.shape, e.bytes});
    return all;
  }

 private:
  struct entry {
    safetensors_type type;
    std::vector<std::uint64_t> shape;
    std::vector<std::byte> bytes;
  };
  template <class To, class From, class Narrow>
  static std::vector<std::byte> encoded(const std::vector<From>& v, Narrow narrowed) {
    std::vector<std::byte> out(v.size() * sizeof(To));
    for (std::size_t i = 0; i < v.size(); ++i) {
      const To one = narrowed(v[i]);
      std::memcpy(out.data() + i * sizeof(To), &one, sizeof(To));
    }
    return out;
  }
  status write_parts(const base_layer& base, const std::string& leaf, const loaded_tensor& t) {
    auto at = t.data.begin();
    for (std::size_t k = 0; k < t.parts.size(); ++k) {
      const auto end = at + t.parts[k][0] * t.parts[k][1];
      const loaded_tensor part{"", {at, end}, t.parts[k], t.type};
      const std::string key = "base_model.model." + base.module + "." + leaf + "." + std::to_string(k);
      if (status s = put(key, part, part.shape); !s) return s;
      at = end;
    }
    return ok;
  }
  status put(const std::string& key, const loaded_tensor& t, const std::vector<long long>& shape) {
    entry e{t.type, {}, {}};
    for (const long long n : shape) e.shape.push_back(static_cast<std::uint64_t>(n));
    if (t.type == safetensors_type::i32)
      e.bytes = encoded<std::int32_t>(t.indices, [](std::int64_t v) { return static_cast<std::int32_t>(v); });
    else if (t.type == safetensors_type::i64)
      e.bytes = encoded<std::int64_t>(t.indices, [](std::int64_t v) { return v; });
    else if (!t.indices.empty())
      e.type = safetensors_type::f32,
      e.bytes = encoded<float>(t.indices, [](std::int64_t v) { return static_cast<float>(v); });
    else if (t.type == safetensors_type::bf16)
      e.bytes = encoded<graft::bf16>(t.data, [](float v) { return narrow(v); });
    else if (t.type == safetensors_type::f16)
      e.bytes = encoded<graft::f16>(t.data, [](float v) { return narrow_to_f16(v); });
    else
      e.type = safetensors_type::f32, e.bytes = encoded<float>(t.data, [](float v) { return v; });
    const auto [at, fresh] = entries_.try_emplace(key, e);
    if (fresh || at->second.bytes == e.bytes) return ok;
    return fail("tensor ", in_quotes(key), " is shared by all modules, and two of them have different values for it");
  }
  std::map<std::string, entry> entries_;
};

GRAFT_LIBRARY status write_peft_folder(const std::string& folder, const adapter_config& c,
                                       std::span<const adapted_module> modules, std::span<const tensor_view> more) {
  return guarded(folder, [&]() -> status {
    peft_file_writer writer;
    for (const adapted_module& m : modules)
      if (status s = writer.add(c, m); !s) return fail_in(folder, s.message());
    std::vector<tensor_view> tensors = writer.views();
    tensors.insert(tensors.end(), more.begin(), more.end());
    const result<safetensors_layout> weights = lay_out_safetensors(tensors, pt_metadata(), folder);
    if (!weights) return weights.failure();
    const std::string config = json_file(c.parsed);
    const file_to_save files[] = {{"adapter_config.json", {std::as_bytes(std::span(config))}},
                                  {"adapter_model.safetensors", weights->parts()}};
    return save_folder(folder, files);
  });
}

GRAFT_LIBRARY result<peft_folder> open_peft_folder(const std::string& folder, const method_table& methods) {
  result<adapter_config> c = read_adapter_config(folder, methods);
  if (!c) return c.failure();
  result<safetensors> w = read_adapter_weights(folder);
  if (!w) return w.failure();
  return peft_folder{std::move(*c), std::move(*w)};
}
GRAFT_LIBRARY result<peft_layer> read_module(const peft_folder& f, const base_layer& base) {
  return read_peft_layer(f.config, f.weights, base);
}

GRAFT_LIBRARY result<adapter_config> make_adapter_config(const char* type,
                                                         const std::vector<std::string>& target_modules,
                                                         const std::vector<std::pair<std::string, json>>& keys,
                                                         const method_table& methods) {
  return guarded("adapter_config.json", [&]() -> result<adapter_config> {
    json o;
    o.what = json::kind::object;
    const auto add = [&](std::string_view key, json v) {
      if (o.find(key) != nullptr) return;
      o.keys.emplace_back(key);
      o.items.push_back(std::move(v));
    };
    json modules;
    modules.what = json::kind::list;
    for (const std::string& m : target_modules) modules.items.push_back(json_string(m));
    for (const auto& [key, v] : keys) add(key, v);
    add("peft_type", json_string(type));
    add("target_modules", modules);
    add("inference_mode", json_bool(true));
    for (const peft_method* m : peft::all)
      for (const peft_key& k : m->keys)
        if (same_text(m->type, type) && k.required != nullptr && k.form != key_form::unread)
          add(k.name, json_number(k.otherwise));
    if (const auto stated = parse_adapter_config(json_file(o), "adapter_config.json", methods); !stated)
      return stated.failure();
    add("base_model_name_or_path", {});
    add("task_type", {});
    for (const peft_method* m : peft::all) {
      if (!same_text(m->type, type)) continue;
      if (m->bias_only != nullptr) add("bias", json_string("none"));
      for (const peft_key& k : m->keys) {
        const bool literal = same_text(k.word, "true") || same_text(k.word, "false");
        if (k.form == key_form::flag) add(k.name, json_bool(k.otherwise != 0));
        if (k.form == key_form::word) add(k.name, literal ? json_bool(same_text(k.word, "true")) : json_string(k.word));
        if (k.form == key_form::seed && !k.nullable) add(k.name, json_number(k.otherwise));
        if ((k.form == key_form::whole || k.form == key_form::real) && !k.nullable)
          add(k.name, json_number(k.otherwise));
      }
    }
    return parse_adapter_config(json_file(o), "adapter_config.json", methods);
  });
}

}  // namespace graft::io
#endif
