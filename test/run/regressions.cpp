// SPDX-License-Identifier: Apache-2.0
// Regression tests. The comment above each test states the case that was once computed wrongly.
#include <doctest/doctest.h>

#include "../support/random_layer.h"
#include "../support/subprocess.h"

using namespace test;

namespace {

constexpr float numbers[64 * 64]{};

struct lora_layer {
  layer_graphs graphs = graphs_for("linear", "lora", false);
  random_layer<float> l{graphs, usual_sizes()};
  cpu::executor<float> e{graphs};
  std::vector<float> y = l.buffer_for("y", graphs.literal);
  lora_layer() { REQUIRE(bool(l.bind(e))); }
};

}  // namespace

// The literal backward graph of an embedding has a scatter and no gather.
TEST_CASE("ids outside the table are refused in an eager backward") {
  CHECK(test::in_subprocess("ids outside the table are refused in an eager backward", [] {
    const layer_graphs g = graphs_for("embedding", "lora_embedding", false);
    const random_layer<float> l(g, usual_sizes());
    cpu::executor<float> e(g, execution_mode::eager);
    if (!l.bind(e)) return false;
    const std::int64_t ids[] = {0, 1, 13, 2};
    std::vector<float> d(4 * 13);
    return !e.backward(view_of(ids, 4), view_of(numbers, 4, 24), {}, {{"lora_embedding_A", into(d)}});
  }));
}

// The butterfly order of an odd block, or of an odd number of blocks, would write past the end of the row.
TEST_CASE("BOFT factors that do not fit are refused") {
  CHECK(test::in_subprocess("BOFT factors that do not fit are refused", [] {
    bool all_refused = true;
    struct shape {
      long long m, n, b;
    };
    for (const shape& s : {shape{2, 2, 3}, shape{2, 3, 4}, shape{3, 2, 4}}) {
      cpu::executor<float> e(graphs_for("linear", "boft", false));
      const long long in = s.n * s.b;
      std::vector<float> y(24);
      const bool refused = !e.set("weight", view_of(numbers, 24, in)) ||
                           !e.set("boft_R", view_of(numbers, s.m, s.n, s.b, s.b)) ||
                           !e.set("boft_s", view_of(numbers, 24, 1)) || !e.forward(view_of(numbers, 1, in), into(y));
      all_refused = all_refused && refused;
    }
    return all_refused;
  }));
}

// A moved executor must not refer to members of the object that it was moved from.
TEST_CASE("an executor can be moved after a call") {
  CHECK(test::in_subprocess("an executor can be moved after a call", [] {
    lora_layer t;
    if (!t.e.forward(t.l.x(), into(t.y))) return false;
    std::vector<cpu::executor<float>> several;
    several.push_back(std::move(t.e));
    for (int i = 0; i < 8; ++i) several.emplace_back(t.graphs);
    std::vector<float> again(t.y.size());
    return several.front().forward(t.l.x(), into(again)) && difference(again, t.y) == 0;
  }));
}

// A call on a layer whose exists() is false must give an error.
TEST_CASE("a layer without graphs says so") {
  CHECK(test::in_subprocess("a layer without graphs says so", [] {
    cpu::executor<float> e(graphs_for("embedding", "oft", false));
    std::vector<float> y(24);
    return !e.forward(view_of(numbers, 1, 32), into(y));
  }));
}

// All threads of the first call widen a table in bf16.
TEST_CASE("a bf16 embedding on several threads") {
  CHECK(test::in_subprocess("a bf16 embedding on several threads", [] {
    cpu::executor<float> e(graphs_for("embedding", "none", false));
    const std::vector<bf16> table(20000 * 64, narrow(1.5F));
    const std::vector<std::int64_t> ids(1000, 3);
    std::vector<float> y(1000 * 64);
    for (int i = 0; i < 50; ++i) {
      if (!e.set("weight", view_of(table.data(), 20000, 64))) return false;
      if (!e.forward(view_of(ids.data(), 1000), into(y)) || y.back() != 1.5F) return false;
    }
    return true;
  }));
}

// In the dy' W of a convolution the other operand is transposed while the weight is dequantized tile by tile.
TEST_CASE("backward of a convolution whose weight is bf16") {
  CHECK(test::in_subprocess("backward of a convolution whose weight is bf16", [] {
    random_layer<float> l(graphs_for("conv2d", "lora", false), usual_sizes());
    std::vector<bf16> half;
    for (float& v : l.data.at("weight")) half.push_back(narrow(v)), v = widen(half.back());
    cpu::executor<float> wide(l.graphs), stored(l.graphs);
    if (!l.bind(wide) || !l.bind(stored)) return false;
    view w = l.views.at("weight");
    w.data = half.data(), w.type = dtype::bf16;
    if (!stored.set("weight", w)) return false;
    std::vector<float> expected = l.buffer_for("dx", l.graphs.backward), dx = expected;
    return wide.backward(l.x(), l.dy(), into(expected), {}) && stored.backward(l.x(), l.dy(), into(dx), {}) &&
           difference(dx, expected) < 1e-5;
  }));
}

// A stack of no matrices is multiplied with a stack of one matrix.
TEST_CASE("no images in an eager convolution") {
  CHECK(test::in_subprocess("no images in an eager convolution", [] {
    sizes s = usual_sizes();
    s["tokens"] = 0;
    const random_layer<float> l(graphs_for("conv2d", "lora", false), s);
    cpu::executor<float> e(l.graphs, execution_mode::eager);
    if (!l.bind(e)) return false;
    view x = l.x(), dy = l.dy();
    x.data = dy.data = numbers;
    std::vector<float> d = l.buffer_for("lora_A.weight", l.graphs.backward);
    return e.backward(x, dy, {}, {{"lora_A.weight", into(d)}}) && d[0] == 0;
  }));
}

// nf4 and int8 are no element types of an input.
TEST_CASE("an input of a type the CPU does not read is refused") {
  lora_layer t;
  for (const dtype type : {dtype::nf4, dtype::int8})
    CHECK_FALSE(bool(t.e.forward(view{numbers, type, {7, 32, 1, 1}, 2}, into(t.y))));
}

// The CPU has no conversion to nf4 or int8 for an output.
TEST_CASE("an output of a type the CPU does not write is refused") {
  lora_layer t;
  std::vector<std::int64_t> y(168);
  CHECK_FALSE(bool(t.e.forward(t.l.x(), into(y))));
}

// After disabling an adapter, backward must belong to the forward of the base layer.
TEST_CASE("backward of a disabled adapter is that of the base layer") {
  lora_layer t;
  std::vector<float> dx(224), base_dx(224);
  cpu::executor<float> base(graphs_for("linear", "none", false));
  REQUIRE(bool(base.set("weight", t.l.views.at("weight"))));
  REQUIRE(bool(base.backward(t.l.x(), t.l.dy(), into(base_dx), {})));
  REQUIRE(bool(t.e.enable(false)));
  REQUIRE(bool(t.e.backward(t.l.x(), t.l.dy(), into(dx), {})));
  CHECK(difference(dx, base_dx) == 0);
}

// unmerge() must not take another name for "weight".
TEST_CASE("unmerging something that is neither weight nor bias is refused") {
  lora_layer t;
  std::vector<float> w(768);
  CHECK_FALSE(bool(t.e.unmerge("lora_A.weight", view_of(numbers, 24, 32), into(w))));
}

// The identity, constants and scalars of a formula are leaves, but set(name, view) must not find them.
TEST_CASE("the identity and a scalar are no tensors") {
  lora_layer t;
  cpu::executor<float> rotated(graphs_for("linear", "oft", false));
  CHECK_FALSE(bool(rotated.set("I", view_of(numbers, 8, 8))));
  CHECK_FALSE(bool(t.e.set("scaling", view{numbers, dtype::f32, {1, 1, 1, 1}, 0})));
}

// A view with negative sizes is invalid.
TEST_CASE("negative sizes of a view are refused") {
  cpu::executor<float> e(graphs_for("linear", "lora", false));
  CHECK_FALSE(bool(e.set("weight", view_of(numbers, -2, 32))));
  CHECK_FALSE(bool(e.set("weight", view_of(numbers, -1, 32))));
}

// An empty std::vector has a null address, which is valid for zero tokens.
TEST_CASE("no tokens need no memory") {
  lora_layer t;
  CHECK(bool(t.e.forward(view_of(static_cast<const float*>(nullptr), 0, 32), mutable_view{})));
}
