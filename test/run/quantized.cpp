// SPDX-License-Identifier: Apache-2.0
// Every method on every quantization format: an adapter on a quantized weight computes what it computes on the numbers
// that the weight means, forward and backward, merged and disabled; and nothing is folded into a copy of the weight.
#include "../support/quantized.h"

#include <doctest/doctest.h>

#include "../support/instances.h"
#include "../support/random_layer.h"

using namespace test;

namespace {

// The same layer twice: with a quantized weight, and with its dequantized numbers.
struct pair_of_layers {
  quantized_and_plain w;
  random_layer<float> quantized, plain;

  pair_of_layers(const layer_variant& c, const sizes& s, const quant_format& format)
      : w(random_layer<float>(c.graphs, s).data.at("weight"), s.at("out"), s.at("in"), format),
        quantized(c.graphs, s),
        plain(c.graphs, s) {
    quantized.views["weight"] = w.quantized.as_view();
    plain.views["weight"].data = w.numbers.data();
  }
};
// Rows of one block of 256, where the sizes of a method allow them.
sizes wide_sizes() {
  sizes s = usual_sizes();
  s.at("in") = 256;
  return s;
}
// LoRA and DoRA on all of them; the others take turns, so that every method meets some and every format most methods.
template <class F> void on_every_quant_format(F f) {
  int turn = 0;
  for (const layer_variant& c : every_layer_variant()) {
    if (c.kind != "linear" || c.what == "none") continue;
    for (const sizes& s : {usual_sizes(), ragged_sizes()}) {
      if (c.what == "miss_bat" && s.at("out") % s.at("r") != 0) continue;
      for (const named_quant_format& e : every_quant_format()) {
        if (!exists_on(e.format, s.at("in")) || e.format.block == 64) continue;
        if (const bool always = c.what == "lora" || c.what == "dora"; !always && turn++ % 7 != 0) continue;
        INFO(c.name, ", in ", s.at("in"), ", ", e.name);
        f(pair_of_layers(c, s, e.format), c);
      }
    }
  }
}
std::map<std::string, std::vector<float>> numbers_of(cpu::executor<float>& e, const random_layer<float>& l,
                                                     const layer_graphs& g) {
  std::map<std::string, std::vector<float>> all;
  all["y"] = l.buffer_for("y", g.literal), all["dx"] = l.buffer_for("dx", g.backward),
  all["W'"] = l.buffer_for("weight", g.merge);
  std::vector<gradient> wanted;
  for (const std::string& p : l.parameters()) all[p] = l.buffer_for(p.c_str(), g.backward);
  for (const std::string& p : l.parameters()) wanted.push_back({p, into(all[p])});
  REQUIRE(bool(e.forward(l.x(), into(all["y"]))));
  REQUIRE(bool(e.backward(l.x(), l.dy(), into(all["dx"]), wanted)));
  REQUIRE(bool(e.merge(into(all["W'"]))));
  return all;
}

}  // namespace

TEST_CASE("an adapter on a quantized weight computes what it computes on the dequantized one") {
  on_every_quant_format([](const pair_of_layers& p, const layer_variant& c) {
    cpu::executor<float> quantized(c.graphs), plain(c.graphs);
    const status bound = p.quantized.bind(quantized);
    INFO(std::string(bound.message()));
    REQUIRE(bool(bound));
    REQUIRE(bool(p.plain.bind(plain)));
    const auto ours = numbers_of(quantized, p.quantized, c.graphs), theirs = numbers_of(plain, p.plain, c.graphs);
    for (const auto& one : ours) {
      INFO(one.first);
      CHECK(difference(one.second, theirs.at(one.first)) < 2e-5);
    }
    CHECK_FALSE(quantized.runs_folded());
  });
}

TEST_CASE("an adapter on blocks of 256 computes what it computes on the numbers that they mean") {
  std::size_t turn = 0;
  for (const layer_variant& c : every_layer_variant()) {
    if (c.kind != "linear" || c.what == "none") continue;
    const bool always = c.what == "lora" || c.what == "dora";
    for (std::size_t k = 0; k < every_wide_quant_format().size(); ++k) {
      if (!always && k != turn % every_wide_quant_format().size()) continue;
      const named_quant_format& e = every_wide_quant_format()[k];
      INFO(c.name, ", ", e.name);
      const pair_of_layers p(c, wide_sizes(), e.format);
      cpu::executor<float> quantized(c.graphs), plain(c.graphs);
      const status bound = p.quantized.bind(quantized);
      INFO(std::string(bound.message()));
      CHECK(bool(bound));
      if (!bound) continue;
      REQUIRE(bool(p.plain.bind(plain)));
      const auto ours = numbers_of(quantized, p.quantized, c.graphs), theirs = numbers_of(plain, p.plain, c.graphs);
      for (const auto& one : ours) {
        INFO(one.first);
        CHECK(difference(one.second, theirs.at(one.first)) < 2e-5);
      }
    }
    ++turn;
  }
}

TEST_CASE("an adapter on weights of GPTQ, AWQ, MXFP4 and NVFP4 computes what it computes on their numbers") {
  std::size_t turn = 0;
  const std::vector<named_quant_format>& all = every_checkpoint_format();
  for (const layer_variant& c : every_layer_variant()) {
    if (c.kind != "linear" || c.what == "none") continue;
    const bool always = c.what == "lora" || c.what == "dora";
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (!always && k % 7 != turn % 7) continue;
      INFO(c.name, ", ", all[k].name);
      const pair_of_layers p(c, wide_sizes(), all[k].format);
      cpu::executor<float> quantized(c.graphs), plain(c.graphs);
      const status bound = p.quantized.bind(quantized);
      INFO(std::string(bound.message()));
      CHECK(bool(bound));
      if (!bound) continue;
      REQUIRE(bool(p.plain.bind(plain)));
      const auto ours = numbers_of(quantized, p.quantized, c.graphs), theirs = numbers_of(plain, p.plain, c.graphs);
      for (const auto& one : ours) {
        INFO(one.first);
        CHECK(difference(one.second, theirs.at(one.first)) < 2e-5);
      }
    }
    ++turn;
  }
}

TEST_CASE("quantized: eager computes it too, in training forward saves what backward reads, disabled is the base") {
  const named_quant_format& e = every_quant_format()[1];
  for (const layer_variant& c : every_layer_variant()) {
    if (c.kind != "linear" || c.what == "none") continue;
    INFO(c.name);
    const pair_of_layers p(c, usual_sizes(), e.format);
    cpu::executor<float> fused(c.graphs), eager(c.graphs, execution_mode::eager),
        base(graphs_for("linear", "none", c.bias));
    REQUIRE(bool(p.quantized.bind(fused)));
    REQUIRE(bool(p.quantized.bind(eager)));
    const auto ours = numbers_of(fused, p.quantized, c.graphs);
    for (const auto& one : numbers_of(eager, p.quantized, c.graphs)) {
      INFO(one.first);
      CHECK(difference(ours.at(one.first), one.second) < 5e-5);
    }
    fused.train(true);
    for (const auto& [name, v] : numbers_of(fused, p.quantized, c.graphs)) CHECK(difference(v, ours.at(name)) < 2e-5);
    REQUIRE(bool(fused.enable(false)));
    REQUIRE(bool(base.set("weight", p.w.quantized.as_view())));
    if (c.bias) REQUIRE(bool(base.set("bias", p.quantized.views.at("bias"))));
    std::vector<float> y = p.quantized.buffer_for("y", c.graphs.literal), expected = y;
    REQUIRE(bool(fused.forward(p.quantized.x(), into(y))));
    REQUIRE(bool(base.forward(p.quantized.x(), into(expected))));
    CHECK(difference(y, expected) == 0);
  }
}

TEST_CASE("quantized: views that layers cannot read are refused by name") {
  const layer_variant* lora = nullptr;
  for (const layer_variant& c : every_layer_variant())
    if (c.kind == "linear" && c.what == "lora" && !c.bias) lora = &c;
  const pair_of_layers p(*lora, usual_sizes(), {dtype::nf4, scale_granularity::flat_block, 64});
  cpu::executor<float> e(lora->graphs);
  auto message_of = [&](const view& v) { return std::string(e.set("weight", v).message()); };
  view v = p.w.quantized.as_view();
  v.quant = nullptr;
  CHECK(message_of(v) ==
        "tensor 'weight' is a quantized weight of type nf4 without its quantization state; set view::quant");
  quant_state wrong = *p.w.quantized.quant;
  v.quant = &wrong;
  wrong.scales = nullptr;
  CHECK(message_of(v) == "tensor 'weight' is quantized and has no scales");
  wrong = *p.w.quantized.quant, wrong.format.block = 48;
  CHECK(message_of(v) == "tensor 'weight' is stored as nf4 with scales that this format does not have");
  wrong = *p.w.quantized.quant, wrong.format.scales = dtype::u8, wrong.format.second_block = 256,
  wrong.second_codebook = nullptr;
  CHECK(message_of(v) ==
        "tensor 'weight' has quantized scales (double quantization) without their own scales and table");
  const quantized_and_plain groups({}, p.w.quantized.rows, p.w.quantized.cols / 8 * 8,
                                   {.type = dtype::u4, .scaled = scale_granularity::column_group, .block = 64});
  view g = groups.quantized.as_view();
  g.quant = &wrong;
  wrong = *groups.quantized.quant, wrong.zeros = nullptr;
  CHECK(message_of(g) == "tensor 'weight' is u4 and has no zero points");
  wrong = *groups.quantized.quant, wrong.column_group = nullptr;
  CHECK(message_of(g) == "tensor 'weight' has scales per group of columns and does not say which group a column is in");
  wrong = *groups.quantized.quant, g.size[1] = 5;
  CHECK(message_of(g) == "tensor 'weight' has rows of 5 elements of 4 bits, expected rows of whole bytes");
  wrong = *groups.quantized.quant, g.size[1] = 40, g.type = dtype::f4_e2m1;
  wrong.format = quant_formats::mxfp4_format::format();
  CHECK(message_of(g) == "tensor 'weight' has rows of 40 elements, expected a multiple of the block size 32");
  wrong = *p.w.quantized.quant;
  CHECK(message_of(v.transposed()) == "tensor 'weight' is quantized, expected a row-major matrix");
  view a = p.quantized.views.at("lora_A.weight");
  a.type = dtype::nf4, a.quant = &wrong;
  CHECK(std::string(e.set("lora_A.weight", a).message()) ==
        "tensor 'lora_A.weight' is stored as nf4, expected f32, f64, bf16 or f16");
}
