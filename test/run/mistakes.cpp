// SPDX-License-Identifier: Apache-2.0
// What users get wrong: each is one sentence that says what to do, and nothing was written.
#include <doctest/doctest.h>

#include <thread>

#include "../support/forward.h"

using namespace test;

namespace {

std::string message_of(const status& s) { return s.message(); }
bool all_are(const std::vector<float>& v, float expected) {
  return std::all_of(v.begin(), v.end(), [=](float x) { return x == expected; });
}

struct given_layer {
  layer_graphs graphs;
  random_layer<float> l;
  cpu::executor<float> e;
  std::vector<float> y;
  explicit given_layer(const char* method, const char* kind = "linear", execution_mode run_mode = execution_mode::fused)
      : graphs(graphs_for(kind, method, false)), l(graphs, usual_sizes()), e(graphs, run_mode) {
    y = l.buffer_for("y", graphs.literal);
    std::fill(y.begin(), y.end(), 7.0F);
    REQUIRE(bool(l.bind(e)));
  }
};

struct halved {  // W' = f(W) + W
  static constexpr const char* name = "halved";
  static constexpr ex weight(scope, ex W) { return host("halve", W) + W; }
};

}  // namespace

TEST_CASE("mistakes: an index that names a place outside of its matrix") {
  given_layer t("shira");
  std::vector<std::int64_t> far = t.l.indices.at("shira_indices");
  far[3] = 24;
  view v = t.l.views.at("shira_indices");
  v.data = far.data();
  REQUIRE(bool(t.e.set("shira_indices", v)));
  CHECK(message_of(t.e.forward(t.l.x(), into(t.y))) ==
        "tensor 'shira_indices' names the entry [24, 13] of a matrix of [24, 32]");
  CHECK(all_are(t.y, 7.0F));
}

TEST_CASE("mistakes: an output without memory") {
  given_layer t("dora");
  CHECK(message_of(t.e.forward(t.l.x(), {})) == "output 'y' has no data; give it memory for 168 elements");
  CHECK(message_of(t.e.forward(t.l.x(), view_into(static_cast<float*>(nullptr), 7, 24))) ==
        "output 'y' has no data; give it memory for 168 elements");
  CHECK(message_of(t.e.forward(t.l.x(), view_into(t.y.data(), 0, 24))) == "output 'y' has 0 elements, expected 168");
  CHECK(message_of(t.e.merge({})) == "merge() was given no memory; give it an output for 'weight'");
  std::vector<float> w(768);
  REQUIRE(bool(t.e.merge(into(w))));
  CHECK(message_of(t.e.unmerge("weight", view_of(w.data(), 24, 32), {})) ==
        "'weight' has no data; give it memory for 768 elements");
  CHECK(message_of(t.e.unmerge("weight", {}, into(w))) == "tensor 'merged' has no data");
  CHECK(all_are(t.y, 7));
  CHECK(bool(t.e.forward(view_of(t.y.data(), 0, 32), {})));  // no tokens: nothing to write
}

TEST_CASE("mistakes: no input, before and after a call that was good") {
  given_layer t("lora");
  CHECK(message_of(t.e.forward({}, into(t.y))) == "tensor 'x' has no data");
  REQUIRE(bool(t.e.forward(t.l.x(), into(t.y))));
  CHECK(message_of(t.e.forward({}, into(t.y))) == "tensor 'x' has no data");
  CHECK(message_of(t.e.backward(t.l.x(), {}, {}, {})) == "tensor 'dy' has no data");
}

TEST_CASE("mistakes: outputs of a type that no number is written as") {
  given_layer t("dora");
  std::vector<std::int64_t> whole(768, 7);
  std::vector<float> w(768);
  CHECK(message_of(t.e.merge(view_into(whole.data(), 24, 32))) == "'weight' is i64, expected f32, f64, bf16 or f16");
  REQUIRE(bool(t.e.merge(into(w))));
  CHECK(message_of(t.e.unmerge("weight", view_of(w.data(), 24, 32), view_into(whole.data(), 24, 32))) ==
        "'weight' is i64, expected f32, f64, bf16 or f16");
  CHECK(std::all_of(whole.begin(), whole.end(), [](std::int64_t v) { return v == 7; }));
}

TEST_CASE("mistakes: merging through a host function that was never given") {
  const layer_graphs g = graphs_of<linear_kind, halved, false>();
  const random_layer<float> l(g, usual_sizes());
  for (const execution_mode run_mode : {execution_mode::fused, execution_mode::eager}) {
    cpu::executor<float> e(g, run_mode);
    REQUIRE(bool(l.bind(e)));
    std::vector<float> w(768, 7);
    CHECK(message_of(e.merge(into(w))) == "host function 'halve' is not set; give it with host()");
    e.host(nullptr);
    CHECK(message_of(e.merge(into(w))) == "host function 'halve' is not set; give it with host()");
    CHECK(all_are(w, 7));
  }
}

TEST_CASE("mistakes: outputs that overlap what is read, or each other") {
  given_layer t("lora");
  std::vector<float> one(7 * 64, 0.5F), before = one;
  const view x = view_of(one.data(), 7, 32);
  CHECK(message_of(t.e.forward(x, view_into(one.data(), 7, 24))) ==
        "output 'y' overlaps tensor 'x'; give it memory of its own");
  CHECK(message_of(t.e.forward(x, view_into(one.data() + 223, 7, 24))) ==
        "output 'y' overlaps tensor 'x'; give it memory of its own");
  CHECK(one == before);
  CHECK(bool(t.e.forward(x, view_into(one.data() + 224, 7, 24))));

  one = before;  // parts of the same rows that do not touch
  view left = view_of(one.data(), 7, 32);
  mutable_view right = view_into(one.data() + 32, 7, 24);
  left.strides[0] = right.strides[0] = 64;
  CHECK(bool(t.e.forward(left, right)));
  right.data = one.data() + 31;
  CHECK(message_of(t.e.forward(left, right)) == "output 'y' overlaps tensor 'x'; give it memory of its own");
  right.data = one.data() + 41;  // its rows reach into the next rows of x
  CHECK(message_of(t.e.forward(left, right)) == "output 'y' overlaps tensor 'x'; give it memory of its own");

  std::vector<float> dy = t.l.data.at("dy"), dA(128, 7);
  CHECK(message_of(t.e.backward(x, view_of(dy.data(), 7, 24), view_into(one.data(), 7, 32), {})) ==
        "output 'dx' overlaps tensor 'x'; give it memory of its own");
  CHECK(message_of(t.e.backward(t.l.x(), view_of(one.data(), 7, 24), view_into(one.data(), 7, 32), {})) ==
        "output 'dx' overlaps tensor 'dy'; give it memory of its own");
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {},
                                {{"lora_A.weight", into(dA)}, {"lora_B.weight", view_into(dA.data() + 32, 24, 4)}})) ==
        "output 'lora_B.weight' overlaps output 'lora_A.weight'; give it memory of its own");
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"lora_A.weight", into(dA)}, {"lora_A.weight", into(dA)}})) ==
        "the gradient of 'lora_A.weight' was asked for twice");
  CHECK(all_are(dA, 7));
}

TEST_CASE("mistakes: merging over a part of what is read") {
  given_layer t("lora");
  std::vector<float> w(2 * 768, 0.5F);
  REQUIRE(bool(t.e.set("weight", view_of(w.data(), 24, 32))));
  CHECK(message_of(t.e.merge(view_into(w.data() + 32, 24, 32))) ==
        "'weight' overlaps tensor 'weight'; give it memory of its own, or exactly the tensor it replaces");
  std::vector<float>& a = t.l.data.at("lora_A.weight");
  a.resize(768);
  REQUIRE(bool(t.e.set("lora_A.weight", view_of(a.data(), 4, 32))));
  CHECK(message_of(t.e.merge(into(a))) ==
        "'weight' overlaps tensor 'lora_A.weight'; give it memory of its own, or exactly the tensor it replaces");
  CHECK(all_are(w, 0.5F));
  CHECK(bool(t.e.merge(view_into(w.data(), 24, 32))));  // in place
  CHECK(message_of(t.e.unmerge("weight", view_of(w.data(), 24, 32), view_into(w.data() + 1, 24, 32))) ==
        "'weight' overlaps tensor 'merged'; give it memory of its own, or exactly the tensor it replaces");
  REQUIRE(bool(t.e.unmerge("weight", view_of(w.data(), 24, 32), view_into(w.data(), 24, 32))));
  CHECK(difference(w, std::vector<float>(2 * 768, 0.5F)) < 1e-6);
}

TEST_CASE("mistakes: views that are none") {
  given_layer t("lora");
  static const float numbers[768]{};
  view nine = view_of(numbers, 24, 32), negative = nine, huge = nine;
  nine.rank = 9, negative.size[0] = -7, huge.size[0] = 1LL << 60;
  const std::string rank = " has 9 axes, expected at most 4",
                    sign = " has shape [-7, 32], expected sizes that are not negative",
                    many = " has shape [1152921504606846976, 32], more than any memory holds";
  for (const auto& [v, what] : {std::pair{nine, rank}, std::pair{negative, sign}, std::pair{huge, many}}) {
    CHECK(message_of(t.e.set("weight", v)) == "tensor 'weight'" + what);
    CHECK(message_of(t.e.forward(v, into(t.y))) == "tensor 'x'" + what);
    CHECK(message_of(t.e.backward(t.l.x(), v, {}, {})) == "tensor 'dy'" + what);
    const mutable_view to{t.y.data(), v.type, {v.size[0], v.size[1], 1, 1}, v.rank};
    CHECK(message_of(t.e.forward(t.l.x(), to)) == "output 'y'" + what);
    CHECK(message_of(t.e.merge(to)) == "'weight'" + what);
    CHECK(message_of(t.e.unmerge("weight", v, into(t.y))) == "tensor 'merged'" + what);
    CHECK(message_of(t.e.unmerge("weight", view_of(numbers, 24, 32), to)) == "'weight'" + what);
  }
  view minus_one = view_of(numbers, 24, 32);
  minus_one.rank = -1;
  CHECK(message_of(t.e.forward(minus_one, into(t.y))) == "tensor 'x' has -1 axes, expected at most 4");
  view far = view_of(numbers, 7, 32);  // few elements, far apart
  far.strides[0] = 1LL << 60;
  CHECK(message_of(t.e.forward(far, into(t.y))) == "tensor 'x' has shape [7, 32], more than any memory holds");
  CHECK(message_of(t.e.forward(view_of(numbers, 0, 1LL << 40, 1LL << 40), into(t.y))) ==
        "tensor 'x' has shape [0, 1099511627776, 1099511627776], more than any memory holds");
  CHECK(message_of(t.e.forward(view_of(numbers, -1, 32), into(t.y))) ==
        "tensor 'x' has shape [-1, 32], expected sizes that are not negative");
  CHECK(all_are(t.y, 7));
}

TEST_CASE("mistakes: room for more than there is") {
  given_layer t("lora");
  CHECK(message_of(t.e.bind({.tokens = -1})) ==
        "bind() was given a capacity of -1 tokens, expected a number that is not negative");
  CHECK(message_of(t.e.bind({.tokens = 1, .rank = -1})) ==
        "bind() was given a rank of -1, expected a number that is not negative");
  CHECK(message_of(t.e.bind({.tokens = 1LL << 60})) ==
        "a capacity of 1152921504606846976 tokens is more than any memory holds");
  CHECK(bool(t.e.forward(t.l.x(), into(t.y))));  // the capacity is what it was before
  CHECK(message_of(t.e.bind({.tokens = 7})) == "");
  CHECK(bool(t.e.forward(t.l.x(), into(t.y))));
}

TEST_CASE("mistakes: a name that is null") {
  given_layer t("lora");
  static const float numbers[768]{};
  std::vector<float> w(768, 7);
  CHECK(message_of(t.e.set(nullptr, view_of(numbers, 24, 32))) == "a name is null; name the tensor, scalar or size");
  CHECK(message_of(t.e.set(nullptr, 2.0)) == "a name is null; name the tensor, scalar or size");
  CHECK(message_of(t.e.size(nullptr, 2)) == "a name is null; name the tensor, scalar or size");
  CHECK(message_of(t.e.unmerge(nullptr, view_of(numbers, 24, 32), into(w))) == "a name is null; name weight or bias");
  CHECK(all_are(w, 7));
}

TEST_CASE("mistakes: a name that is nearly right") {
  given_layer t("lora");
  static const float numbers[768]{};
  auto ends = [](const std::string& s, const std::string& with) { return s.find(with) != s.npos; };
  CHECK(message_of(t.e.set("lora_a.weight", view_of(numbers, 4, 32))) ==
        "this layer has no tensor 'lora_a.weight'; did you mean 'lora_A.weight'? it has weight, "
        "lora_B.weight, lora_A.weight");
  CHECK(ends(message_of(t.e.set("lora_A", view_of(numbers, 4, 32))), "did you mean 'lora_A.weight'?"));
  CHECK(ends(message_of(t.e.set("base_model.model.q_proj.lora_B.weight", view_of(numbers, 24, 4))),
             "did you mean 'lora_B.weight'?"));
  CHECK(ends(message_of(t.e.set("scale", 2.0)), "no scalar 'scale'; it has"));
  CHECK(ends(message_of(t.e.set("scalng", 2.0)), "did you mean 'scaling'?"));
  CHECK(ends(message_of(t.e.size("R", 4)), "this layer has no size 'R'; did you mean 'r'?"));
  std::vector<float> dA(128);
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"lora_A", into(dA)}})) ==
        "this layer has no parameter 'lora_A'; did you mean 'lora_A.weight'?");
}

TEST_CASE("mistakes: a weight that was rewritten in place") {
  for (const char* method : {"dora", "lora", "miss_bat", "oft", "hra", "none"})
    for (const dtype stored : {dtype::f32, dtype::f64, dtype::bf16}) {
      given_layer t(method);
      INFO(method, " ", name_of(stored));
      std::vector<float> w(768), other(768);
      std::vector<double> wide(768);
      std::vector<bf16> half(768);
      auto write = [&](float times) {
        for (std::size_t i = 0; i < w.size(); ++i) {
          w[i] = times * widen(narrow(t.l.data.at("weight")[i] + 0.01F * static_cast<float>(i % 7)));
          half[i] = narrow(w[i]), wide[i] = w[i] = widen(half[i]);
        }
      };
      write(1);
      const view kept = stored == dtype::f64    ? view_of(wide.data(), 24, 32)
                        : stored == dtype::bf16 ? view_of(half.data(), 24, 32)
                                                : view_of(w.data(), 24, 32);
      REQUIRE(bool(t.e.set("weight", kept)));
      REQUIRE(bool(t.e.forward(t.l.x(), into(t.y))));
      std::vector<float> dx = t.l.buffer_for("dx", t.graphs.backward), expected_dx = dx;
      REQUIRE(bool(t.e.backward(t.l.x(), t.l.dy(), into(dx), {})));
      write(3);
      REQUIRE(bool(t.e.weight_changed()));
      given_layer fresh(method);
      REQUIRE(bool(fresh.e.set("weight", kept)));
      CHECK(difference(forward(t.e, t.l), forward(fresh.e, fresh.l)) == 0);
      REQUIRE(bool(t.e.backward(t.l.x(), t.l.dy(), into(dx), {})));
      REQUIRE(bool(fresh.e.backward(t.l.x(), t.l.dy(), into(expected_dx), {})));
      CHECK(difference(dx, expected_dx) == 0);
      REQUIRE(bool(t.e.enable(false)));
      REQUIRE(bool(fresh.e.enable(false)));
      CHECK(difference(forward(t.e, t.l), forward(fresh.e, fresh.l)) == 0);
    }
}

TEST_CASE("mistakes: merging into the layer's own weight changes the weight") {
  given_layer t("dora");
  std::vector<double> w(t.l.data.at("weight").begin(), t.l.data.at("weight").end());
  REQUIRE(bool(t.e.set("weight", view_of(w.data(), 24, 32))));  // a float layer keeps a copy of it
  REQUIRE(bool(t.e.enable(false)));
  REQUIRE(bool(t.e.forward(t.l.x(), into(t.y))));
  const std::vector<float> base = t.y;
  REQUIRE(bool(t.e.enable(true)));
  const std::vector<float> adapted = forward(t.e, t.l);
  REQUIRE(bool(t.e.merge(view_into(w.data(), 24, 32))));
  REQUIRE(bool(t.e.enable(false)));
  CHECK(difference(forward(t.e, t.l), adapted) < 1e-5);
  REQUIRE(bool(t.e.unmerge("weight", view_of(w.data(), 24, 32), view_into(w.data(), 24, 32))));
  CHECK(difference(forward(t.e, t.l), base) < 1e-5);
}

TEST_CASE("mistakes: unmerging after a parameter changed") {
  const std::string refused =
      "unmerge() belongs to another merge(): since then a parameter was changed or another adapter activated";
  for (const char* method : {"dora", "lora"}) {
    INFO(method);
    std::vector<float> w(768), back(768, 7), a(128, 0.25F);
    {
      given_layer t(method);
      REQUIRE(bool(t.e.merge(into(w))));
      REQUIRE(bool(t.e.set("lora_A.weight", view_of(a.data(), 4, 32))));
      CHECK(message_of(t.e.unmerge("weight", view_of(w.data(), 24, 32), into(back))) == refused);
      REQUIRE(bool(t.e.merge(into(w))));
      CHECK(message_of(t.e.unmerge("weight", view_of(w.data(), 24, 32), into(back))) == "");
      CHECK(difference(back, t.l.data.at("weight")) < 1e-5);
    }
    given_layer t(method);
    std::fill(back.begin(), back.end(), 7.0F);
    REQUIRE(bool(t.e.merge(into(w))));
    REQUIRE(bool(t.e.parameters_changed()));
    CHECK(message_of(t.e.unmerge("weight", view_of(w.data(), 24, 32), into(back))) == refused);
    CHECK(all_are(back, 7));
    REQUIRE(bool(t.e.merge(into(w))));
    const result<int> second = t.e.add(t.graphs);
    REQUIRE(bool(second));
    for (const auto& [name, v] : t.l.views)
      if (t.graphs.base_forward.find(name.c_str()) < 0 && name != "dy")
        REQUIRE(bool(t.e.set(name.c_str(), v, *second)));
    REQUIRE(bool(t.e.set("scaling", 0.3, *second)));
    REQUIRE(bool(t.e.activate({*second})));
    CHECK(message_of(t.e.unmerge("weight", view_of(w.data(), 24, 32), into(back))) == refused);
    REQUIRE(bool(t.e.activate({0})));
    CHECK(message_of(t.e.unmerge("weight", view_of(w.data(), 24, 32), into(back))) == "");
  }
}

TEST_CASE("mistakes: one layer called by two threads at once") {
  const layer_graphs g = graphs_of<linear_kind, halved, false>();
  const random_layer<float> l(g, usual_sizes());
  cpu::executor<float> e(g, execution_mode::eager);
  REQUIRE(bool(l.bind(e)));
  const std::string refused =
      "this layer is in a call of another thread; one call at a time, or a layer for each thread";
  std::string forward_message, merge_message, set_message;
  bool called = false;
  e.host([&](const char*, cpu::tensor<float> in, cpu::tensor<float> out) {
    for (long long i = 0; i < in.count(); ++i) out.p[i] = in.p[i] / 2;
    if (std::exchange(called, true)) return;
    std::thread([&] {
      std::vector<float> y(168, 7);
      forward_message = message_of(e.forward(l.x(), into(y)));
      merge_message = message_of(e.merge(into(y)));
      set_message = message_of(e.set("weight", l.views.at("weight")));
      if (!all_are(y, 7)) forward_message = "it wrote";
    }).join();
  });
  std::vector<float> y(168);
  CHECK(message_of(e.forward(l.x(), into(y))) == "");
  CHECK(called);
  CHECK(forward_message == refused);
  CHECK(merge_message == refused);
  CHECK(set_message == refused);
  CHECK(message_of(e.forward(l.x(), into(y))) == "");  // and afterwards it is free again
  cpu::executor<float> moved(std::move(e));
  CHECK(message_of(moved.forward(l.x(), into(y))) == "");
}

TEST_CASE("mistakes: calls on a layer that was moved from") {
  given_layer t("dora");
  t.e.train(true);
  cpu::executor<float> moved = std::move(t.e);
  const std::string refused =
      "this layer was moved from; use the one that it was moved to, or assign another one to it";
  std::vector<float> w(768, 7), d(24, 7);
  CHECK(message_of(t.e.forward(t.l.x(), into(t.y))) == refused);
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"lora_magnitude_vector", into(d)}})) == refused);
  CHECK(message_of(t.e.merge(into(w))) == refused);
  CHECK(message_of(t.e.unmerge("weight", t.l.views.at("weight"), into(w))) == refused);
  CHECK(message_of(t.e.set("weight", t.l.views.at("weight"))) == refused);
  CHECK(message_of(t.e.size("out", 24)) == refused);
  CHECK(message_of(t.e.bind({.tokens = 7})) == refused);
  CHECK(message_of(t.e.parameters_changed()) == refused);
  CHECK(message_of(t.e.weight_changed()) == refused);
  CHECK(message_of(t.e.activate({0})) == refused);
  CHECK(message_of(t.e.enable(false)) == refused);
  CHECK(message_of(t.e.remove(0)) == refused);
  CHECK(std::string(t.e.add(t.graphs).message()) == refused);
  CHECK_FALSE(t.e.has(0));
  CHECK(t.e.saved_bytes(7) == 0);
  CHECK(t.e.forward_plan() == nullptr);
  CHECK_FALSE(t.e.runs_folded());
  t.e.train(false);
  CHECK(all_are(t.y, 7));
  CHECK(all_are(w, 7));
  t.e = std::move(moved);
  CHECK(message_of(t.e.forward(t.l.x(), into(t.y))) == "");
}

TEST_CASE("mistakes: a layer that is assigned to itself stays as it is") {
  given_layer t("dora");
  REQUIRE(bool(t.e.forward(t.l.x(), into(t.y))));
  const std::vector<float> before = t.y;
  cpu::executor<float>& same = t.e;
  t.e = std::move(same);
  std::fill(t.y.begin(), t.y.end(), 7.0F);
  CHECK(message_of(t.e.forward(t.l.x(), into(t.y))) == "");
  CHECK(t.y == before);
}

TEST_CASE("mistakes: backward with another x than forward had") {
  given_layer t("lora");
  t.e.train(true);
  REQUIRE(bool(t.e.forward(t.l.x(), into(t.y))));
  std::vector<float> other(224, 0.25F), d(128, 7);
  CHECK(
      message_of(t.e.backward(view_of(other.data(), 7, 32), t.l.dy(), {}, {{"lora_A.weight", into(d)}})) ==
      "in training backward() follows a forward() with the same x, and this is another tensor than the last forward() "
      "was given; call forward() with it first");
  CHECK(all_are(d, 7));
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"lora_A.weight", into(d)}})) == "");
}

TEST_CASE("mistakes: training without parameters_changed() trains all the same") {
  for (const char* method : {"lora", "dora", "oft", "ia3", "vera"}) {
    INFO(std::string(method));
    std::vector<float> results[2];
    for (const bool says : {false, true}) {
      given_layer t(method);
      t.e.train(true);
      const std::string name = t.l.parameters()[0];
      std::vector<float>& parameter = t.l.data.at(name);
      std::vector<float> d = t.l.buffer_for(name.c_str(), t.graphs.backward);
      for (int step = 0; step < 3; ++step) {
        REQUIRE(bool(t.e.forward(t.l.x(), into(t.y))));
        REQUIRE(bool(t.e.backward(t.l.x(), t.l.dy(), {}, {{name, into(d)}})));
        for (std::size_t i = 0; i < d.size(); ++i) parameter[i] -= 0.01F * d[i];
        if (says) REQUIRE(bool(t.e.parameters_changed()));
      }
      REQUIRE(bool(t.e.forward(t.l.x(), into(t.y))));
      results[says ? 1 : 0] = t.y;
      std::vector<float> w(768);
      REQUIRE(bool(t.e.merge(view_into(w.data(), 24, 32))));
      results[says ? 1 : 0].insert(results[says ? 1 : 0].end(), w.begin(), w.end());
    }
    CHECK(results[0] == results[1]);
  }
}

TEST_CASE("mistakes: outputs whose axes are in another order") {
  given_layer t("lora");
  CHECK(message_of(t.e.forward(t.l.x(), view_into(t.y.data(), 24, 7))) ==
        "output 'y' has shape [24, 7], expected [7, 24]");
  CHECK(all_are(t.y, 7));
  CHECK(message_of(t.e.forward(t.l.x(), view_into(t.y.data(), 1, 7, 24))) == "");
  CHECK(message_of(t.e.forward(t.l.x(), into(t.y))) == "");  // flat memory
  std::vector<float> d(128, 7);
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"lora_A.weight", view_into(d.data(), 32, 4)}})) ==
        "output 'lora_A.weight' has shape [32, 4], expected [4, 32]");
  CHECK(all_are(d, 7));
}

TEST_CASE("mistakes: outputs over the layer's own tensors") {
  given_layer t("lora");
  std::vector<float>& a = t.l.data.at("lora_A.weight");
  const std::vector<float> before = a;
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"lora_A.weight", into(a)}})) ==
        "output 'lora_A.weight' overlaps tensor 'lora_A.weight' of the layer; give it memory of its own");
  CHECK(message_of(t.e.backward(t.l.x(), t.l.dy(), {}, {{"lora_A.weight", into(a), true}})) ==
        "output 'lora_A.weight' overlaps tensor 'lora_A.weight' of the layer; give it memory of its own");
  CHECK(message_of(t.e.forward(t.l.x(), view_into(t.l.data.at("weight").data(), 7, 24))) ==
        "output 'y' overlaps tensor 'weight' of the layer; give it memory of its own");
  CHECK(a == before);
}
