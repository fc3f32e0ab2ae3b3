// SPDX-License-Identifier: Apache-2.0
// What is fuzzed: each reader of the library on bytes, and a whole layer from a configuration and a file of tensors. A
// reader answers with a value or an error; whatever it accepts must be usable.
#pragma once
#include <graft/backend/cpu/storage.h>
#include <graft/io/adapter_config.h>
#include <graft/io/bitsandbytes.h>
#include <graft/io/gguf.h>
#include <graft/io/peft/source.h>
#include <graft/io/peft_layer.h>
#include <graft/run/layer.h>

namespace fuzz {

using namespace graft;

inline std::vector<std::byte> as_bytes(std::string_view s) {
  const auto* p = reinterpret_cast<const std::byte*>(s.data());
  return {p, p + s.size()};
}
inline bool feed_json(std::string_view s) {
  const auto v = io::parse_json(s, "fuzz.json");
  return !v || v->what <= io::json::kind::object;
}
inline bool feed_safetensors(std::string_view s) {
  const auto f = io::parse_safetensors(as_bytes(s), "fuzz.safetensors");
  if (!f) return true;
  for (const io::tensor_view& t : f->tensors) {
    const auto v = io::to_float(t);
    const auto n = io::byte_count(t.type, t.shape);
    if (!n || *n != t.data.size() || (v && v->size() > 8 * t.data.size())) return false;
  }
  return true;
}
// Weights that are codes: what is accepted can be decoded, and is finite.
inline bool feed_codes(std::string_view s) {
  const auto f = io::parse_safetensors(as_bytes(s), "fuzz.safetensors");
  if (!f) return true;
  io::kept_planes planes;
  io::coded_reader in(
      "fuzz", [&](const std::string& name) { return f->get(name); }, planes);
  for (const io::tensor_view& t : f->tensors) {
    if (!t.name.ends_with(".weight")) continue;
    const auto v = in.read(t);
    if (!v && *v.message() == '\0') return false;
    if (!v || !*v) continue;
    std::vector<float> numbers(static_cast<std::size_t>((*v)->count()));
    cpu::read(**v, 0, (*v)->count(), numbers.data());
    for (const float n : numbers)
      if (!io::finite_bits(n)) return false;
  }
  return true;
}
// What is accepted lies within the file and can be decoded.
inline bool feed_gguf(std::string_view s) {
  const auto f = io::parse_gguf(io::hold(as_bytes(s)), "fuzz.gguf");
  if (!f) return *f.message() != '\0';
  for (const auto& [name, v] : f->tensors) {
    std::vector<float> numbers(static_cast<std::size_t>(v.count()));
    cpu::read(v, 0, v.count(), numbers.data());
  }
  return true;
}
inline bool feed_adapter_config(std::string_view s) {
  const auto c = io::parse_adapter_config(s, "fuzz/adapter_config.json");
  if (!c) return true;
  const auto hit = io::is_target(*c, "model.layers.3.self_attn.q_proj");
  return hit || *hit.message() != '\0';
}
inline bool feed_pattern(std::string_view s) {
  const auto hit = io::full_match(s.substr(0, s.size() / 2), s.substr(s.size() / 2));
  return hit || *hit.message() != '\0';
}

// A golden case: the files of an adapter as text, and the layer it belongs to.
struct layer_case {
  std::string config, weights;
  io::base_layer base;
};
// From the files to y; where every step accepts, y is computed on a weight of ones.
inline bool feed_layer(const layer_case& c, std::string_view config, std::string_view weights) {
  const auto read = io::parse_adapter_config(config, "fuzz/adapter_config.json");
  if (!read) return true;
  const auto file = io::parse_safetensors(as_bytes(weights), "fuzz/adapter_model.safetensors");
  if (!file) return true;
  const auto layer = io::read_peft_layer(*read, *file, c.base);
  if (!layer) return true;
  const auto graphs = built_in_methods().graphs(c.base.kind.c_str(), layer->formula.name, c.base.bias);
  if (!graphs) return true;
  cpu::executor<float> e(*graphs);
  const std::vector<float> w(static_cast<std::size_t>(c.base.out * c.base.in), 1.0F),
      b(static_cast<std::size_t>(c.base.out), 0.5F), x(w.size() + 64 * b.size(), 0.25F);
  std::vector<float> y(4096, 7.0F);
  view weight{w.data(), dtype::f32, {1, 1, 1, 1}, static_cast<int>(c.base.shape.size())};
  for (std::size_t k = 0; k < c.base.shape.size(); ++k) weight.size[k] = c.base.shape[k];
  static_cast<void>(e.set("weight", weight));
  if (c.base.bias) static_cast<void>(e.set("bias", view_of(b.data(), c.base.out)));
  if (!io::attach(e, *layer)) return true;
  const status s = e.forward(view_of(x.data(), 2, c.base.in), view_into(y.data(), 2, c.base.out));
  const auto written = static_cast<std::size_t>(2 * c.base.out);
  return std::all_of(y.begin() + static_cast<std::ptrdiff_t>(s ? written : 0), y.end(),
                     [](float v) { return v == 7.0F; });
}

}  // namespace fuzz
