// SPDX-License-Identifier: Apache-2.0
// describe_layer(): the steps of io::read_peft_layer() that need no data of tensors, so that the tensors stay those of
// the PyTorch module. What PEFT computes instead of storing lies in its modules already, so nothing is recomputed here.
#include <graft/io/peft/adapter_config.h>
#include <graft/io/peft/layer_reader.h>

#include <cstdio>

#include "layer_spec.h"

namespace graft::pytorch {
namespace {

const char* name_of_shape(io::tensor_shape_kind k) {
  switch (k) {
    case io::tensor_shape_kind::itself: return "itself";
    case io::tensor_shape_kind::corner: return "corner";
    case io::tensor_shape_kind::flat: return "flat";
    case io::tensor_shape_kind::parts: return "parts";
    case io::tensor_shape_kind::column: return "column";
    case io::tensor_shape_kind::kernel:
    case io::tensor_shape_kind::point:
    case io::tensor_shape_kind::channel: break;
  }
  return "convolution";
}
std::string number_text(double v) {
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.17g", v);
  return digits;
}
void add(std::string& to, const char* separator, const std::string& name, const std::string& value) {
  to.append(separator).append(io::json_text(name)).append(": ").append(value);
}

result<std::string> described(const io::peft_layer_state& s, const graph& g, const graph& base) {
  std::string out = "{\"method\": ";
  out.append(io::json_text(s.layer.formula.name)).append(", \"trains_bias\": ");
  out.append(s.layer.formula.of.trains_bias ? "true" : "false").append(", \"scalars\": {");
  for (const char* separator = ""; const auto& [name, v] : s.layer.scalars)
    add(out, std::exchange(separator, ", "), name, number_text(v));
  out.append("}, \"sizes\": {");
  for (const char* separator = ""; const auto& [name, v] : s.layer.sizes)
    add(out, std::exchange(separator, ", "), name, std::to_string(v));
  out.append("}, \"leaves\": [");
  const char* separator = "";
  for (id i = 0; i < g.size; ++i) {
    const op what = g[i].what;
    if (what != op::param && what != op::frozen && what != op::index) continue;
    const std::string name = g.name(i).c_str();
    if (base.find(name.c_str()) >= 0) continue;
    const io::tensor_layout layout = io::layout_of(s.config, s.base, name);
    out.append(std::exchange(separator, ", ")).append("{\"name\": ").append(io::json_text(name));
    const char* const role = what == op::param ? "param" : what == op::frozen ? "frozen" : "index";
    out.append(", \"role\": \"").append(role).append("\", \"layout\": \"").append(name_of_shape(layout.shape));
    out.append("\", \"shape\": [");
    const char* comma = "";
    for (const long long n : io::leaf_shape(g, i, s.base, s.layer.sizes))
      out.append(std::exchange(comma, ", ")).append(std::to_string(n));
    out.append("]}");
  }
  return out.append("]}");
}

}  // namespace

result<std::string> describe_layer(const std::string& config, const std::string& kind, const std::string& module,
                                   long long out, long long in, bool bias, const std::string& tensors) {
  const std::string where = "the configuration of this adapter";
  return io::guarded(where, [&]() -> result<std::string> {
    const result<io::adapter_config> c = io::parse_adapter_config(config, where);
    if (!c) return c.failure();
    const result<io::json> shapes = io::parse_json(tensors, where);
    if (!shapes) return shapes.failure();
    io::safetensors file;
    file.file = where;
    const io::base_layer base{kind, module, out, in, {out, in}, bias};
    for (std::size_t i = 0; i < shapes->keys.size(); ++i) {
      io::tensor_view t{"base_model.model." + module + "." + shapes->keys[i], io::safetensors_type::f32, {}, {}};
      for (const io::json& n : shapes->items[i].items) t.shape.push_back(n.whole);
      file.tensors.push_back(std::move(t));
    }
    std::sort(file.tensors.begin(), file.tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    io::peft_layer_state s{*c, file, base};
    s.layer.file = where;
    s.layer.formula = io::chosen_method(s);
    s.layer.formula.of.trains_bias = c->bias != io::trained_bias::none && bias;
    const result<layer_graphs> made = built_in_methods().graphs(kind.c_str(), s.layer.formula, bias);
    if (!made) return made.failure();
    if (status got = io::read_numbers_of(s, made->literal, made->base_forward); !got) return got.failure();
    return described(s, made->literal, made->base_forward);
  });
}

}  // namespace graft::pytorch
