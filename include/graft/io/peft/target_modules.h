// SPDX-License-Identifier: Apache-2.0
// Which modules an adapter changes, by PEFT's rules (peft/tuners/tuners_utils.py): exclude_modules, modules_to_save,
// target_modules and layers_to_transform, in this order. A list matches a path that is the name or ends with "." +
// name; a string is a regular expression for the whole path. rank_pattern and alpha_pattern apply the first key in file
// order for which
//     ^(.*\.)?(key)$      matches the path
#pragma once
#include <graft/io/peft/adapter_fields.h>
#include <graft/io/regex/parser.h>

#include <algorithm>
#include <optional>

namespace graft::io {

inline bool ends_with_name(std::string_view path, std::string_view name) {
  return path == name ||
         (path.size() > name.size() && path.ends_with(name) && path[path.size() - name.size() - 1] == '.');
}

// Facts for "all-linear": PEFT targets the linear layers except the one that makes the logits.
struct module_role {
  bool linear = true, output = false;
};

inline result<bool> matches(const name_pattern& p, std::string_view path, module_role role = {}) {
  if (p.kind == name_pattern::form::regex) return full_match(p.regex, path);
  if (p.kind == name_pattern::form::all_linear) return role.linear && !role.output;
  return std::any_of(p.names.begin(), p.names.end(), [&](const auto& n) { return ends_with_name(path, n); });
}

// The number after a container: 3 for "model.layers.3.mlp". PEFT requires names before the container and after it.
inline result<std::optional<int>> layer_number(std::string_view path, const std::vector<std::string>& containers) {
  const auto first_after = [&](std::string_view container) -> result<std::optional<int>> {
    const result<pattern> before = parse_pattern(std::string(".*?\\.").append(container));
    if (!before) return before.failure();
    for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
      int n = 0;
      std::size_t k = dot + 1;
      for (; k < path.size() && path[k] >= '0' && path[k] <= '9' && n < 100'000'000; ++k) n = n * 10 + (path[k] - '0');
      if (k == dot + 1 || k >= path.size() || path[k] != '.') continue;
      const result<bool> hit = full_match(*before, path.substr(0, dot));
      if (!hit) return hit.failure();
      if (*hit) return std::optional<int>(n);
    }
    return std::optional<int>();
  };
  if (containers.empty()) return first_after("[^.]*");
  for (const std::string& c : containers)
    if (auto n = first_after(c); !n || *n) return n;
  return std::optional<int>();
}

// Returns true for modules_to_save and everything inside them: they are replaced, not adapted.
inline result<bool> inside_saved_module(const adapter_config& c, std::string_view path) {
  for (const std::string& name : c.modules_to_save)
    if (result<bool> hit = full_match("(^|.*\\.)" + name + "($|\\..*)", path); !hit || *hit) return hit;
  return false;
}

// Returns true for a module in modules_to_save. As in PEFT, the name may match the end of a path without a dot before
// it.
inline bool is_saved_module(const adapter_config& c, std::string_view path) {
  return std::any_of(c.modules_to_save.begin(), c.modules_to_save.end(),
                     [&](const auto& n) { return path.ends_with(n); });
}

inline result<bool> is_target(const adapter_config& c, std::string_view path, module_role role = {}) {
  if (const result<bool> out = matches(c.exclude_modules, path); !out || *out) return out ? result<bool>(false) : out;
  if (const result<bool> out = inside_saved_module(c, path); !out || *out) return out ? result<bool>(false) : out;
  result<bool> hit = matches(c.target_modules, path, role);
  if (!hit || !*hit || c.layers_to_transform.empty() || c.target_modules.kind != name_pattern::form::list) return hit;
  const std::vector<std::string>& names = c.target_modules.names;
  if (std::find(names.begin(), names.end(), path) != names.end()) return true;
  const result<std::optional<int>> layer = layer_number(path, c.layers_pattern);
  if (!layer) return layer.failure();
  if (!*layer) return false;
  return std::find(c.layers_to_transform.begin(), c.layers_to_transform.end(), **layer) != c.layers_to_transform.end();
}

// A number for one module: that of the first pattern in file order that matches its path, otherwise the key's.
inline result<double> number_of(const adapter_config& c, const char* key, const char* patterns, std::string_view path) {
  const json* p = c.set(patterns);
  for (std::size_t i = 0; p != nullptr && i < p->keys.size(); ++i) {
    const result<bool> hit = full_match("^(.*\\.)?(" + p->keys[i] + ")$", path);
    if (!hit) return hit.failure();
    if (*hit) return p->items[i].real;
  }
  return c.number(key);
}
inline result<int> rank_of(const adapter_config& c, std::string_view path) {
  const result<double> r = number_of(c, "r", "rank_pattern", path);
  if (!r) return r.failure();
  return static_cast<int>(*r);
}
inline result<double> alpha_of(const adapter_config& c, std::string_view path) {
  return number_of(c, c.key("alpha") != nullptr ? "alpha" : "lora_alpha", "alpha_pattern", path);
}

}  // namespace graft::io
