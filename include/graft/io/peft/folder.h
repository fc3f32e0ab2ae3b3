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
#include <graft/io/peft/all.h>
#include <graft/io/peft/file_writer.h>

namespace graft::io {

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
