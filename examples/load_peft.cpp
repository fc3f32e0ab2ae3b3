// SPDX-License-Identifier: Apache-2.0
// Loads what PEFT saved: a base layer (base.safetensors) and an adapter folder (adapter/adapter_config.json and
// adapter/adapter_model.safetensors). Method, rank and shapes come from the files, so every size in this program is
// `dyn`. The result is compared with the y that PEFT computed (expected.safetensors).
//     load_peft [DIR]
// run: load_peft test/golden/layers/dora
#include <graft/io.h>

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "arguments.h"

using graft::status;
namespace io = graft::io;

struct matrix {
  std::vector<float> data;
  long long rows = 0, cols = 0;
  graft::view view() const { return graft::view_of(data.data(), rows, cols); }
};
// Reads a tensor as a matrix: the last axis gives the columns, so [batch, time, features] becomes batch * time rows.
graft::result<matrix> read_matrix(const io::safetensors& file, const std::string& name) {
  const auto stored = file.find(name);
  if (!stored) return stored.failure();
  auto values = io::to_float(*stored);
  if (!values) return values.failure();
  const long long cols = stored->shape.empty() ? 1 : static_cast<long long>(stored->shape.back());
  const long long rows = cols == 0 ? 0 : static_cast<long long>(values->size()) / cols;
  return matrix{std::move(*values), rows, cols};
}

// Returns the largest difference to PEFT's y, relative to the largest y.
graft::result<double> run(const std::filesystem::path& folder) {
  const auto base_file = io::read_safetensors(folder / "base.safetensors");
  if (!base_file) return base_file.failure();
  const auto config = io::read_adapter_config(folder / "adapter");
  if (!config) return config.failure();
  const auto adapter_file = io::read_adapter_weights(folder / "adapter");
  if (!adapter_file) return adapter_file.failure();
  const auto expected_file = io::read_safetensors(folder / "expected.safetensors");
  if (!expected_file) return expected_file.failure();

  const auto weight = read_matrix(*base_file, "lin.weight"), bias = read_matrix(*base_file, "lin.bias");
  const auto x = read_matrix(*expected_file, "x"), expected = read_matrix(*expected_file, "y");
  for (const auto* needed : {&weight, &x, &expected})
    if (!*needed) return needed->failure();

  // read_peft_layer() takes the tensors of this layer from the folder, under the names of its formula.
  const io::base_layer base{
      "linear", "lin", weight->rows, weight->cols, {weight->rows, weight->cols}, static_cast<bool>(bias)};
  const auto adapter = io::read_peft_layer(*config, *adapter_file, base);
  if (!adapter) return adapter.failure();
  std::printf("peft_type %s, a layer of %lld x %lld%s\n", config->type_name(), base.out, base.in,
              base.bias ? " with a bias" : "");
  for (const auto& [name, tensor] : adapter->tensors) {
    std::printf("  %-24s", name.c_str());
    for (const long long size : tensor.shape) std::printf(" %lld", size);
    std::printf("\n");
  }
  for (const auto& [name, value] : adapter->scalars) std::printf("  %-24s %g\n", name.c_str(), value);
  for (const auto& [name, value] : adapter->sizes) std::printf("  %-24s %lld\n", name.c_str(), value);

  const auto graphs = graft::built_in_methods().graphs("linear", adapter->formula.name, base.bias);
  if (!graphs) return graphs.failure();
  graft::cpu::executor<float> layer(*graphs);
  if (status s = layer.set("weight", weight->view()); !s) return s.failure();
  if (bias)
    if (status s = layer.set("bias", graft::view_of(bias->data.data(), bias->cols)); !s) return s.failure();
  if (status s = io::attach(layer, *adapter); !s) return s.failure();
  std::vector<float> y(expected->data.size());
  if (status s = layer.forward(x->view(), graft::view_into(y.data(), y.size())); !s) return s.failure();

  float error = 0, largest = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float difference = std::abs(y[i] - expected->data[i]);
    if (!(difference <= error)) error = std::isnan(difference) ? INFINITY : difference;
    largest = std::max(largest, std::abs(expected->data[i]));
  }
  return static_cast<double>(error / largest);
}

int main(int argc, char** argv) {
  std::string argument;
  arguments in("load_peft", "Loads a layer and an adapter that PEFT saved, and compares y with PEFT's.");
  in.optional_word(
      "DIR", argument,
      "folder with base.safetensors, adapter and expected.safetensors; not given: test/golden/layers/dora");
  if (const auto code = in.read(argc, argv)) return *code;
  const std::filesystem::path folder = argument.empty() ? "test/golden/layers/dora" : argument;
  const auto error = run(folder);
  if (!error) return std::fprintf(stderr, "%s\n", error.message()), 1;
  std::printf("largest relative difference to PEFT's y: %.1e\n\n", *error);

  // A bad file is an error value: one sentence with the file, the position in it and what was expected.
  const auto absent = run(folder / "no-such-folder");
  std::printf("%s\n", absent.message());
  const auto wrong =
      io::parse_adapter_config(R"({"peft_type": "LORA", "target_modules": ["lin"], "r": 0})", "my_config.json");
  std::printf("%s\n", wrong.message());
  return *error < 2e-5 && !absent && !wrong ? 0 : 1;
}
