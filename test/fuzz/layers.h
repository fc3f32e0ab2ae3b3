// SPDX-License-Identifier: Apache-2.0
// What is fuzzed beyond single readers: quantized weights by every reader that takes them, and whole layers from a
// configuration and a file of tensors.
#pragma once
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/bitsandbytes/reader.h>
#include <graft/io/gptq/reader.h>
#include <graft/io/microscaling/reader.h>
#include <graft/io/peft/layer.h>
#include <graft/io/peft/layer_source.h>
#include <graft/run/cpu_layer.h>

#include "readers.h"

namespace fuzz {

// An accepted weight must dequantize to finite numbers.
template <class Reader> bool feed_weight(Reader& in, const io::tensor_view& t) {
  const auto v = in.read(t);
  if (!v && *v.message() == '\0') return false;
  if (!v || !*v) return true;
  std::vector<float> numbers(static_cast<std::size_t>((*v)->count()));
  cpu::read(**v, 0, (*v)->count(), numbers.data());
  return std::all_of(numbers.begin(), numbers.end(), [](float n) { return io::finite_bits(n); });
}
// Reads quantized weights, by every reader that takes a tensor of that name.
inline bool feed_quantized(std::string_view s) {
  const auto f = io::parse_safetensors(as_bytes(s), "fuzz.safetensors");
  if (!f) return true;
  const auto find = [&](const std::string& name) { return f->get(name); };
  for (const io::tensor_view& t : f->tensors) {
    io::quant_state_pool states;
    io::quantized_reader codes("fuzz", find, states);
    if (t.name.ends_with(".weight") && !feed_weight(codes, t)) return false;
    for (const bool nvfp4 : {false, true}) {
      io::microscaling_reader floats("fuzz", find, states, nvfp4);
      if (!floats.weight_name(t.name).empty() && !feed_weight(floats, t)) return false;
    }
    if (io::gptq_reader::weight_name(t.name).empty()) continue;
    for (const quantized_weights& how : {quantized_weights{dtype::u4, {}, quantized_storage::awq, 32},
                                         quantized_weights{dtype::u4, {}, quantized_storage::gptq, 32, true, true},
                                         quantized_weights{dtype::u3, {}, quantized_storage::gptq, 64, true, true}}) {
      io::gptq_pool rows;
      io::gptq_reader integers("fuzz", find, rows, how);
      if (!feed_weight(integers, t)) return false;
    }
  }
  return true;
}

// A golden case: the files of an adapter as text, and its layer, with the tensors that the views of the layer refer to.
struct layer_case {
  std::string config, weights;
  io::base_layer base;
  std::vector<float> weight, bias;
};
// Runs from the files to y if every step accepts. With `others` the layer is the last of several targets.
inline bool feed_layer(const layer_case& c, std::string_view config, std::string_view weights, std::size_t others) {
  const auto read = io::parse_adapter_config(config, "fuzz/adapter_config.json");
  if (!read) return true;
  const auto file = io::parse_safetensors(as_bytes(weights), "fuzz/adapter_model.safetensors");
  if (!file) return true;
  io::base_layer base = c.base;
  if (others > 0) {
    base.all_targets = std::make_shared<io::target_layers>();
    base.all_targets->all.assign(others + 1, {base.out, base.in});
    base.number = others;
  }
  const auto layer = io::read_peft_layer(*read, *file, base);
  if (!layer) return *layer.message() != '\0';
  const auto graphs = built_in_methods().graphs(base.kind.c_str(), layer->formula.name, base.bias);
  if (!graphs) return true;
  cpu::executor<float> e(*graphs);
  view weight{c.weight.data(), dtype::f32, {1, 1, 1, 1}, static_cast<int>(base.shape.size())};
  for (std::size_t k = 0; k < base.shape.size(); ++k) weight.size[k] = base.shape[k];
  static_cast<void>(e.set("weight", weight));
  if (base.bias) static_cast<void>(e.set("bias", view_of(c.bias.data(), static_cast<long long>(c.bias.size()))));
  if (!io::attach(e, *layer)) return true;
  const std::vector<float> x(static_cast<std::size_t>(2 * base.in), 0.25F);
  std::vector<float> y(4096, 7.0F);
  const status s = e.forward(view_of(x.data(), 2, base.in), view_into(y.data(), 2, base.out));
  const auto written = static_cast<std::size_t>(2 * base.out);
  return std::all_of(y.begin() + static_cast<std::ptrdiff_t>(s ? written : 0), y.end(),
                     [](float v) { return v == 7.0F; });
}

}  // namespace fuzz
