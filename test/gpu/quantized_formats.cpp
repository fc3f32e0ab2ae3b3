// SPDX-License-Identifier: Apache-2.0
// Layers on bases of every quantization format: forward, backward, merging, look-ups and experts against the dequantized
// weight in double. quantized.cpp has the sizes at which skinny kernels differ.
#include "quantized_case.h"

using namespace test;

namespace {

std::vector<named_quant_format> every_format() {
  std::vector<named_quant_format> all = every_quant_format();
  for (const auto* more : {&every_wide_quant_format(), &every_checkpoint_format()})
    all.insert(all.end(), more->begin(), more->end());
  return all;
}
bool stacks(const quant_format& e) { return e.block_bytes > 0 || e.type == dtype::f4_e2m1; }

// A layer in double with the numbers of the quantized weight.
random_layer<double> in_double(const random_layer<float>& l) {
  random_layer<double> d(l.graphs, l.shape);
  for (auto& [name, values] : d.data) std::copy(l.data.at(name).begin(), l.data.at(name).end(), values.begin());
  d.ids = l.ids;
  if (d.views.at("x").type == dtype::i64) d.views.at("x").data = d.ids.data();
  return d;
}
// Forward, backward and merge of a case. `near` bounds the relative distance of y and dx, gradients have ten times it.
void computes(const quantized_case& c, dtype type, execution_mode how, double near) {
  const random_layer<float>& l = c.layer;
  gpu_layer g = c.bound(type, how);
  random_layer<double> exact = in_double(l);
  cpu::executor<double> e(l.graphs, execution_mode::eager);
  REQUIRE(bool(exact.bind(e)));

  std::vector<float> y = l.buffer_for("y", l.graphs.forward);
  status s = g.forward(l.x(), into(y));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  CHECK(distance(y, reference(l)) < near);

  const bool has_dx = l.views.at("x").type != dtype::i64;
  std::vector<float> dx = has_dx ? l.buffer_for("dx", l.graphs.backward) : std::vector<float>{};
  std::vector<double> exact_dx = has_dx ? exact.buffer_for("dx", l.graphs.backward) : std::vector<double>{};
  std::vector<std::vector<float>> ours;
  std::vector<std::vector<double>> theirs;
  const std::vector<std::string> names = l.parameters();
  for (const std::string& name : names) {
    ours.push_back(l.buffer_for(name.c_str(), l.graphs.backward));
    theirs.push_back(exact.buffer_for(name.c_str(), l.graphs.backward));
  }
  std::vector<gradient> wanted, exact_wanted;
  for (std::size_t i = 0; i < names.size(); ++i) {
    wanted.push_back({names[i], into(ours[i])});
    exact_wanted.push_back({names[i], into(theirs[i])});
  }
  s = g.backward(l.x(), l.dy(), has_dx ? into(dx) : mutable_view{}, wanted);
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  REQUIRE(bool(e.backward(exact.x(), exact.dy(), has_dx ? into(exact_dx) : mutable_view{}, exact_wanted)));
  if (has_dx) CHECK(distance(dx, exact_dx) < near);
  for (std::size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    CHECK(distance(ours[i], theirs[i]) < 10 * near);
  }

  std::vector<float> merged(l.data.at("weight").size(), NAN);
  std::vector<double> exact_merged(merged.size());
  s = g.merge(into(merged));
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  REQUIRE(bool(e.merge(into(exact_merged))));
  CHECK(distance(merged, exact_merged) < 1e-5);
}

}  // namespace

TEST_CASE("gpu: layers on every format, forward, backward and merged") {
  if (no_gpu()) return;
  const std::vector<std::pair<const char*, sizes>> methods{{"lora", {{"r", 12}}}, {"dora", {{"r", 5}}}, {"ia3", {}}};
  std::size_t turn = 0;
  for (const named_quant_format& e : every_format())
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f16})
      for (const long long in : {256, 352, 768}) {
        if (!exists_on(e.format, in)) continue;
        const long long tokens = std::vector<long long>{1, 13, 40, 130}[turn % 4];
        const auto& [method, more] = methods[turn % methods.size()];
        ++turn;
        INFO(e.name, ", ", std::string(method), ", in ", in, ", ", tokens, " tokens, ", std::string(name_of(type)));
        const quantized_case c(graphs_for("linear", method, true),
                               with(with(usual_sizes(), {{"tokens", tokens}, {"out", 200}, {"in", in}}), more),
                               e.format);
        computes(c, type, execution_mode::fused, type == dtype::f32 ? 1e-5 : 1e-2);
      }
}
TEST_CASE("gpu: an eager layer on every format") {
  if (no_gpu()) return;
  for (const named_quant_format& e : every_format()) {
    INFO(e.name);
    const quantized_case c(graphs_for("linear", "lora", false),
                           with(usual_sizes(), {{"tokens", 5}, {"out", 72}, {"in", 256}}), e.format);
    computes(c, dtype::f32, execution_mode::eager, 1e-5);
  }
}
TEST_CASE("gpu: look-ups in quantized tables of every format") {
  if (no_gpu()) return;
  for (const named_quant_format& e : every_format()) {
    INFO(e.name);
    const quantized_case c(graphs_for("embedding", "lora_embedding", false),
                           with(usual_sizes(), {{"tokens", 50}, {"vocab", 40}, {"dim", 256}}), e.format);
    computes(c, dtype::f32, execution_mode::fused, 1e-5);
  }
}
TEST_CASE("gpu: experts in every format of blocks, with a branch on each and without") {
  if (no_gpu()) return;
  for (const named_quant_format& e : every_format()) {
    if (!stacks(e.format)) continue;
    for (const char* const method : {"none", "lora_on_experts"})
      for (const dtype type : {dtype::f32, dtype::bf16}) {
        INFO(e.name, ", ", std::string(method), ", ", std::string(name_of(type)));
        const quantized_case c(graphs_for("experts", method, false),
                               with(usual_sizes(), {{"tokens", 9}, {"experts", 5}, {"out", 72}, {"in", 256}}),
                               e.format);
        computes(c, type, execution_mode::fused, type == dtype::f32 ? 1e-5 : 1e-2);
      }
  }
}
