// SPDX-License-Identifier: Apache-2.0
// The contract of an executor, tested for every engine: Executor is one for float, Memory is where its tensors are:
//     static void* allocate(bytes);   static void copy_in(to, from, bytes);   static void copy_out(to, from, bytes);
// Results are compared with a plain loop in double over the formulas of two LoRAs and an IA3.
#pragma once
#include <doctest/doctest.h>

#include "../support/random_layer.h"

namespace test {

template <class Memory> class held {
 public:
  explicit held(std::vector<float> v)
      : n_(v.size()), p_(static_cast<float*>(Memory::allocate(v.size() * sizeof(float)))) {
    write(v);
  }
  void write(const std::vector<float>& v) { Memory::copy_in(p_, v.data(), n_ * sizeof(float)); }
  std::vector<float> read() const {
    std::vector<float> v(n_);
    Memory::copy_out(v.data(), p_, n_ * sizeof(float));
    return v;
  }
  view as(long long rows, long long cols) const { return view_of(p_, rows, cols); }
  mutable_view into(long long rows, long long cols) { return view_into(p_, rows, cols); }
  const float* data() const { return p_; }

 private:
  std::size_t n_;
  float* p_;
};

inline std::vector<float> random_floats(long long n, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> number(-1, 1);
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = number(engine);
  return v;
}
using matrix = std::vector<double>;
// a [m, k] b [k, n]
inline matrix multiply(const matrix& a, const matrix& b, long long m, long long k, long long n) {
  matrix c(static_cast<std::size_t>(m * n));
  for (long long i = 0; i < m; ++i)
    for (long long j = 0; j < n; ++j)
      for (long long l = 0; l < k; ++l)
        c[static_cast<std::size_t>(i * n + j)] +=
            a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
  return c;
}
inline matrix transposed(const matrix& a, long long rows, long long cols) {
  matrix t(a.size());
  for (long long i = 0; i < rows; ++i)
    for (long long j = 0; j < cols; ++j)
      t[static_cast<std::size_t>(j * rows + i)] = a[static_cast<std::size_t>(i * cols + j)];
  return t;
}
inline matrix wide(const std::vector<float>& v) { return {v.begin(), v.end()}; }
inline matrix sum(matrix a, const matrix& b, double s) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += s * b[i];
  return a;
}

template <class Executor, class Memory> struct contract {
  static constexpr long long out = 24, in = 32, most = 40;
  layer_graphs lora_graphs = graphs_for("linear", "lora", false), ia3_graphs = graphs_for("linear", "ia3", false);
  std::vector<float> W = random_floats(out * in, 1), X = random_floats(most * in, 2), DY = random_floats(most * out, 3);
  held<Memory> w{W}, x{X}, dy{DY};
  Executor e{lora_graphs};

  struct factors {
    long long r;
    std::vector<float> A, B;
    held<Memory> a, b;
    double s;
    factors(long long rank, unsigned seed, double scale)
        : r(rank), A(random_floats(rank * in, seed)), B(random_floats(out * rank, seed + 1)), a(A), b(B), s(scale) {}
    matrix delta() const { return multiply(wide(B), wide(A), out, r, in); }
    named_values values() const {
      return {{{"lora_A.weight", a.as(r, in)}, {"lora_B.weight", b.as(out, r)}}, {{"scaling", s}}};
    }
  };
  factors one{4, 10, 0.5};

  contract() {
    good(e.set("weight", w.as(out, in)));
    give(0, one);
  }
  static void good(const status& s) {
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
  }
  static std::string message_of(const status& s) { return s.message(); }
  void give(int adapter, const factors& f) {
    for (const auto& [name, v] : f.values().tensors) good(e.set(name.c_str(), v, adapter));
    good(e.set("scaling", f.s, adapter));
  }
  std::vector<float> forward(long long rows) {
    held<Memory> y(std::vector<float>(static_cast<std::size_t>(rows * out), NAN));
    good(e.forward(x.as(rows, in), y.into(rows, out)));
    return y.read();
  }
  matrix expected(const matrix& adapted, long long rows) const {
    matrix some = wide(X);
    some.resize(static_cast<std::size_t>(rows * in));
    return multiply(some, transposed(adapted, out, in), rows, in, out);
  }
  matrix with(const factors& f) const { return sum(wide(W), f.delta(), f.s); }
  void computes(const matrix& adapted, long long rows = 7) {
    CHECK(difference(forward(rows), expected(adapted, rows)) < 1e-5);
  }

  void forward_and_backward() {
    computes(with(one));
    constexpr long long rows = 7;
    held<Memory> dx(std::vector<float>(rows * in, NAN)), dA(one.A), dB(one.B);
    good(e.backward(x.as(rows, in), dy.as(rows, out), dx.into(rows, in),
                    {{"lora_A.weight", dA.into(one.r, in)}, {"lora_B.weight", dB.into(out, one.r)}}));
    matrix g = wide(DY), some = wide(X);
    g.resize(rows * out), some.resize(rows * in);
    CHECK(difference(dx.read(), multiply(g, with(one), rows, out, in)) < 1e-5);
    const matrix dW = multiply(transposed(g, rows, out), some, out, rows, in);  // dA = s Bᵀ dW, dB = s dW Aᵀ
    const matrix a = multiply(transposed(wide(one.B), out, one.r), dW, one.r, out, in);
    const matrix b = multiply(dW, transposed(wide(one.A), one.r, in), out, in, one.r);
    CHECK(difference(dA.read(), sum(matrix(a.size()), a, one.s)) < 1e-5);
    CHECK(difference(dB.read(), sum(matrix(b.size()), b, one.s)) < 1e-5);
  }
  void capacity_is_kept() {
    good(e.bind({.tokens = 8}));
    computes(with(one), 8);
    held<Memory> y(std::vector<float>(9 * out, 7));
    CHECK(message_of(e.forward(x.as(9, in), y.into(9, out))) ==
          "x has 9 rows, the layer was bound for 8; bind() it with a larger capacity");
    CHECK(difference(y.read(), std::vector<float>(9 * out, 7)) == 0);
    computes(with(one), 8);
    good(e.bind({.tokens = most}));
    computes(with(one), most);
  }
  void parameters_are_read_again() {
    computes(with(one));
    for (float& v : one.A) v = 0.5F - v;
    one.a.write(one.A);
    good(e.parameters_changed());
    computes(with(one));
  }
  void merges() {
    held<Memory> merged(W), back(W);
    good(e.merge(merged.into(out, in)));
    CHECK(difference(merged.read(), with(one)) < 1e-6);
    good(e.unmerge("weight", merged.as(out, in), back.into(out, in)));
    CHECK(difference(back.read(), W) < 1e-5);
  }
  // Two LoRAs of different ranks active at once, an IA3, and the base alone.
  void several_adapters() {
    computes(with(one));
    const auto second = e.add(lora_graphs), third = e.add(ia3_graphs);
    REQUIRE((second && third));
    factors two{6, 20, -0.25};
    std::vector<float> l = random_floats(out, 30);
    held<Memory> scale(l);
    give(*second, two);
    good(e.set("ia3_l", view_of(scale.data(), out, 1), *third));
    computes(with(one));

    good(e.activate({*second}));
    computes(with(two));
    good(e.activate({0, *second}));
    const matrix both = sum(with(one), two.delta(), two.s);
    computes(both);
    held<Memory> merged(W);
    good(e.merge(merged.into(out, in)));
    CHECK(difference(merged.read(), both) < 1e-6);

    good(e.activate({*second, *third}));  // IA3 scales the weight with the update
    matrix scaled = with(two);
    for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= static_cast<double>(l[i / in]);
    computes(scaled);
    good(e.merge(merged.into(out, in)));
    CHECK(difference(merged.read(), scaled) < 1e-6);

    good(e.enable(false));
    computes(wide(W));
    CHECK_FALSE(e.enabled());
    good(e.enable(true));
    computes(scaled);

    CHECK(message_of(e.remove(*third)) ==
          "adapter 2 is active; activate another one, or enable(false), before it is removed");
    computes(scaled);
    good(e.activate({0}));
    good(e.remove(*third));
    computes(with(one));
    CHECK(message_of(e.activate({*third})) == "there is no adapter 2; this layer was given 3");
    CHECK(message_of(e.activate({9})) == "there is no adapter 9; this layer was given 3");
    CHECK(message_of(e.activate({})) == "activate() needs an adapter; enable(false) runs the base alone");
    CHECK(message_of(e.set("lora_A.weight", w.as(out, in), -1)) == "there is no adapter -1; this layer was given 3");
    CHECK(message_of(e.remove(0)) ==
          "adapter 0 is active; activate another one, or enable(false), before it is removed");
    CHECK_FALSE(bool(e.add(graphs_for("linear", "lora", true))));
    CHECK_FALSE(bool(e.add(graphs_for("conv2d", "lora", false))));
    CHECK(e.active() == std::vector<int>{0});
    computes(with(one));
  }
  void replaced_whole_or_not_at_all() {
    computes(with(one));
    factors larger{9, 40, 2};
    good(e.replace(0, larger.values()));
    computes(with(larger));
    named_values wrong = one.values();
    wrong.tensors["lora_B.weight"] = one.b.as(one.r, out);  // transposed
    const std::string why = message_of(e.replace(0, wrong));
    CHECK(why == "tensor 'lora_B.weight' has shape [4, 24], expected [out, r] = [24, 4]");
    computes(with(larger));
    named_values missing = one.values();
    missing.tensors.erase("lora_A.weight");
    CHECK(message_of(e.replace(0, missing)).starts_with("tensor 'lora_A.weight' is not set"));
    computes(with(larger));
    CHECK(message_of(e.replace(3, one.values())) == "there is no adapter 3; this layer was given 1");
    good(e.replace(0, one.values()));
    computes(with(one));
  }
  void replaced_while_several_are_active() {
    const auto second = e.add(lora_graphs);
    REQUIRE(bool(second));
    factors two{6, 20, -0.25}, other{3, 50, 1.5};
    give(*second, two);
    good(e.activate({0, *second}));
    computes(sum(with(one), two.delta(), two.s));
    named_values wrong = other.values();
    wrong.tensors["lora_A.weight"] = other.b.as(other.r, out);
    CHECK(message_of(e.replace(*second, wrong)) ==
          "adapter 1: tensor 'lora_A.weight' has shape [3, 24], expected [r, in] = [?, 32]");
    CHECK(message_of(e.set("lora_A.weight", other.a.as(other.r, in), *second)) ==
          "adapter 1: tensor 'lora_A.weight' has shape [3, 32], expected [r, in] = [6, 32]");
    computes(sum(with(one), two.delta(), two.s));
    good(e.replace(*second, other.values()));
    computes(sum(with(one), other.delta(), other.s));
    for (float& v : other.A) v = 1 - v;
    other.a.write(other.A);
    good(e.parameters_changed());
    computes(sum(with(one), other.delta(), other.s));
  }
};

}  // namespace test
