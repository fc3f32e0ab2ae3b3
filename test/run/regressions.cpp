// SPDX-License-Identifier: Apache-2.0
// Mistakes that were here once. Each test says what must hold; the comment above it says what went wrong.
#include <doctest/doctest.h>

#include "../support/apart.h"
#include "../support/random_layer.h"

using namespace test;

namespace {

constexpr float numbers[64 * 64]{};

struct lora_layer {
  layer_graphs graphs = graphs_for("linear", "lora", false);
  random_layer<float> l{graphs, usual_sizes()};
  cpu::executor<float> e{graphs};
  std::vector<float> y = l.room("y", graphs.literal);
  lora_layer() { REQUIRE(bool(l.bind(e))); }
};

}  // namespace

// Only gather nodes were looked at; the literal backward graph of an embedding has only a scatter.
TEST_CASE("ids outside the table are refused in an eager backward") {
  CHECK(apart("ids outside the table are refused in an eager backward", [] {
    const layer_graphs g = graphs_for("embedding", "lora_embedding", false);
    const random_layer<float> l(g, usual_sizes());
    cpu::executor<float> e(g, mode::eager);
    if (!l.bind(e)) return false;
    const std::int64_t ids[] = {0, 1, 13, 2};
    std::vector<float> d(4 * 13);
    return !e.backward(view_of(ids, 4), view_of(numbers, 4, 24), {}, {{"lora_embedding_A", into(d)}});
  }));
}

// The butterfly order of an odd block, or of blocks that do not come in twos, left the row: a write past its end.
TEST_CASE("BOFT factors that do not fit are refused") {
  CHECK(apart("BOFT factors that do not fit are refused", [] {
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

// cpu::values kept references to members of the executor; after a move they pointed at the old place.
TEST_CASE("an executor can be moved after a call") {
  CHECK(apart("an executor can be moved after a call", [] {
    lora_layer t;
    if (!t.e.forward(t.l.x(), into(t.y))) return false;
    std::vector<cpu::executor<float>> several;
    several.push_back(std::move(t.e));
    for (int i = 0; i < 8; ++i) several.emplace_back(t.graphs);
    std::vector<float> again(t.y.size());
    return several.front().forward(t.l.x(), into(again)) && difference(again, t.y) == 0;
  }));
}

// Whoever did not ask exists() got no error.
TEST_CASE("a layer without graphs says so") {
  CHECK(apart("a layer without graphs says so", [] {
    cpu::executor<float> e(graphs_for("embedding", "oft", false));
    std::vector<float> y(24);
    return !e.forward(view_of(numbers, 1, 32), into(y));
  }));
}

// A table in bf16 was widened on first use, by all threads at once. Not every run met it.
TEST_CASE("a bf16 embedding on several threads") {
  CHECK(apart("a bf16 embedding on several threads", [] {
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

// A weight that is widened panel by panel was multiplied as if the other operand were never transposed: dy' W of a
// convolution.
TEST_CASE("backward of a convolution whose weight is bf16") {
  CHECK(apart("backward of a convolution whose weight is bf16", [] {
    random_layer<float> l(graphs_for("conv2d", "lora", false), usual_sizes());
    std::vector<bf16> half;
    for (float& v : l.data.at("weight")) half.push_back(narrow(v)), v = widen(half.back());
    cpu::executor<float> wide(l.graphs), stored(l.graphs);
    if (!l.bind(wide) || !l.bind(stored)) return false;
    view w = l.views.at("weight");
    w.data = half.data(), w.type = dtype::bf16;
    if (!stored.set("weight", w)) return false;
    std::vector<float> expected = l.room("dx", l.graphs.backward), dx = expected;
    return wide.backward(l.x(), l.dy(), into(expected), {}) && stored.backward(l.x(), l.dy(), into(dx), {}) &&
           difference(dx, expected) < 1e-5;
  }));
}

// A stack of no matrices against one of one matrix: the larger number was taken, and one product was written nowhere.
TEST_CASE("no images in an eager convolution") {
  CHECK(apart("no images in an eager convolution", [] {
    sizes s = usual_sizes();
    s["tokens"] = 0;
    const random_layer<float> l(graphs_for("conv2d", "lora", false), s);
    cpu::executor<float> e(l.graphs, mode::eager);
    if (!l.bind(e)) return false;
    view x = l.x(), dy = l.dy();
    x.data = dy.data = numbers;
    std::vector<float> d = l.room("lora_A.weight", l.graphs.backward);
    return e.backward(x, dy, {}, {{"lora_A.weight", into(d)}}) && d[0] == 0;
  }));
}

// bind_data() told ids from numbers and nothing else: nf4 and int8 were read as zeros.
TEST_CASE("an input of a type the CPU does not read is refused") {
  lora_layer t;
  for (const dtype type : {dtype::nf4, dtype::int8})
    CHECK_FALSE(bool(t.e.forward(view{numbers, type, {7, 32, 1, 1}, 2}, into(t.y))));
}

// encode() did nothing for such a type, and the call said that all was well.
TEST_CASE("an output of a type the CPU does not write is refused") {
  lora_layer t;
  std::vector<std::int64_t> y(168);
  CHECK_FALSE(bool(t.e.forward(t.l.x(), into(y))));
}

// forward() and backward() of one layer belonged to different functions.
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

// unmerge() took every name that is not "bias" for "weight".
TEST_CASE("unmerging something that is neither weight nor bias is refused") {
  lora_layer t;
  std::vector<float> w(768);
  CHECK_FALSE(bool(t.e.unmerge("lora_A.weight", view_of(numbers, 24, 32), into(w))));
}

// The leaves of the language itself, I and constants, and scalars were found by set(name, view) as if they were tensors.
TEST_CASE("the identity and a scalar are no tensors") {
  lora_layer t;
  cpu::executor<float> rotated(graphs_for("linear", "oft", false));
  CHECK_FALSE(bool(rotated.set("I", view_of(numbers, 8, 8))));
  CHECK_FALSE(bool(t.e.set("scaling", view{numbers, dtype::f32, {1, 1, 1, 1}, 0})));
}

// A view whose sizes are negative was taken for a view of something.
TEST_CASE("negative sizes of a view are refused") {
  cpu::executor<float> e(graphs_for("linear", "lora", false));
  CHECK_FALSE(bool(e.set("weight", view_of(numbers, -2, 32))));
  CHECK_FALSE(bool(e.set("weight", view_of(numbers, -1, 32))));
}

// An empty std::vector has no address, and zero tokens need none.
TEST_CASE("no tokens need no memory") {
  lora_layer t;
  CHECK(bool(t.e.forward(view_of(static_cast<const float*>(nullptr), 0, 32), mutable_view{})));
}
