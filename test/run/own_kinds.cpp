// SPDX-License-Identifier: Apache-2.0
// Kinds of layer that a user defines: one whose rows depend on each other, and one with an activation and a residual
// around its GEMM. Both are compared with plain loops in double.
#include <doctest/doctest.h>

#include "../support/random_layer.h"

using namespace test;

namespace {

// The members that these kinds share.
struct square_kind {
  static constexpr extent outputs(scope p) { return p.size("n"); }
  static constexpr ex weight(scope p) { return p.leaf(op::base, "weight", 2, 1, 1, outputs(p), outputs(p)); }
  static constexpr ex matrix(scope, ex W) { return W; }
  static constexpr ex stored(scope, ex M) { return M; }
  static constexpr ex input(scope p, ex) { return p.leaf(op::input, "x", 2, 1, 1, p.tokens(), outputs(p)); }
};
struct self_attention : square_kind {  // y = softmax(x xᵀ) x
  static constexpr const char* name = "self-attention";
  static constexpr ex run(scope, ex, ex, ex x, lowering) { return softmax(x * t(x)) * x; }
};
struct residual_block : square_kind {  // y = x + silu(x W'ᵀ + b')
  static constexpr const char* name = "residual block";
  static constexpr ex run(scope p, ex M, ex b, ex x, lowering form) {
    const ex inner = linear_kind::run(p, M, b, x, form);
    return x + silu(inner);
  }
};
struct two_inputs : square_kind {  // y = x + z, and no call provides z
  static constexpr const char* name = "two inputs";
  static constexpr ex run(scope p, ex, ex, ex x, lowering) {
    return x + p.leaf(op::input, "z", 2, 1, 1, p.tokens(), outputs(p));
  }
};

struct results {
  std::vector<float> y, dx;
  std::map<std::string, std::vector<float>> d;
};
results run(const random_layer<float>& l, execution_mode run_mode) {
  cpu::executor<float> e(l.graphs, run_mode);
  REQUIRE(bool(l.bind(e)));
  results r{l.buffer_for("y", l.graphs.literal), l.buffer_for("dx", l.graphs.backward), {}};
  std::vector<gradient> wanted;
  for (const std::string& p : l.parameters())
    wanted.push_back({p, into(r.d[p] = l.buffer_for(p.c_str(), l.graphs.backward))});
  const status f = e.forward(l.x(), into(r.y)), b = e.backward(l.x(), l.dy(), into(r.dx), wanted);
  INFO(std::string(f.message()), std::string(b.message()));
  REQUIRE((f && b));
  return r;
}
std::size_t place(long long row, long long col, long long cols) { return static_cast<std::size_t>(row * cols + col); }

// y and dx of softmax(x xᵀ) x, computed one row of the softmax at a time.
struct plain_attention {
  std::vector<double> y, dx;
  plain_attention(const std::vector<float>& x, const std::vector<float>& dy, long long rows, long long n)
      : y(x.size()), dx(x.size()) {
    std::vector<double> p(static_cast<std::size_t>(rows)), dp(p.size());
    for (long long i = 0; i < rows; ++i) {
      double top = -INFINITY, total = 0, mean = 0;
      auto dot = [&](const std::vector<float>& a, const std::vector<float>& b, long long r, long long s) {
        double d = 0;
        for (long long k = 0; k < n; ++k)
          d += static_cast<double>(a[place(r, k, n)]) * static_cast<double>(b[place(s, k, n)]);
        return d;
      };
      for (long long j = 0; j < rows; ++j) top = std::max(top, p[static_cast<std::size_t>(j)] = dot(x, x, i, j));
      for (double& v : p) total += v = std::exp(v - top);
      for (long long j = 0; j < rows; ++j) {
        const auto k = static_cast<std::size_t>(j);
        p[k] /= total, dp[k] = dot(dy, x, i, j), mean += p[k] * dp[k];
      }
      for (long long j = 0; j < rows; ++j)
        for (long long k = 0; k < n; ++k) {
          const double pj = p[static_cast<std::size_t>(j)], ds = pj * (dp[static_cast<std::size_t>(j)] - mean);
          y[place(i, k, n)] += pj * static_cast<double>(x[place(j, k, n)]);
          dx[place(j, k, n)] +=
              pj * static_cast<double>(dy[place(i, k, n)]) + ds * static_cast<double>(x[place(i, k, n)]);
          dx[place(i, k, n)] += ds * static_cast<double>(x[place(j, k, n)]);
        }
    }
  }
};

}  // namespace

TEST_CASE("own kinds: one whose rows depend on each other") {
  const layer_graphs g = built_in_methods().graphs(rules_of<self_attention>(), formula_of<none>(), false);
  struct size {
    long long rows, n;
  };
  for (const size s : {size{100, 8}, size{600, 8}, size{5000, 3}}) {
    random_layer<float> l(g, {{"tokens", s.rows}, {"n", s.n}});
    INFO(s.rows, " rows");
    const plain_attention plain(l.data.at("x"), l.data.at("dy"), s.rows, s.n);
    for (const execution_mode run_mode : {execution_mode::fused, execution_mode::eager}) {
      const results r = run(l, run_mode);
      INFO((run_mode == execution_mode::fused ? "fused" : "eager"));
      CHECK(difference(r.y, plain.y) < 2e-5);
      CHECK(difference(r.dx, plain.dx) < 5e-5);
    }
  }
}

TEST_CASE("own kinds: an activation and a residual are part of the launch") {
  const layer_graphs g = built_in_methods().graphs(rules_of<residual_block>(), formula_of<lora<>>(), true);
  CHECK(fuse(g.forward).launches.size() == 1);
  CHECK(fuse(g.forward).launches[0].is<rows_launch>());
  const launch_plan forward = fuse(g.forward);
  CHECK(std::string(forward.name_of(g.forward, forward.launches[0])) == "GEMM");
  for (const long long tokens : {1LL, 7LL, 300LL}) {
    constexpr long long n = 32, r = 4;
    const random_layer<float> l(g, {{"tokens", tokens}, {"n", n}, {"r", r}});
    INFO(tokens, " tokens");
    const results fused = run(l, execution_mode::fused), eager = run(l, execution_mode::eager);
    std::vector<double> y(fused.y.size());
    auto of = [&](const char* name, std::size_t i) { return static_cast<double>(l.data.at(name)[i]); };
    for (long long t = 0; t < tokens; ++t)
      for (long long o = 0; o < n; ++o) {
        double sum = of("bias", static_cast<std::size_t>(o));
        for (long long i = 0; i < n; ++i) {
          double w = of("weight", place(o, i, n));
          for (long long k = 0; k < r; ++k)
            w += l.scalars.at("scaling") * of("lora_B.weight", place(o, k, r)) * of("lora_A.weight", place(k, i, n));
          sum += w * of("x", place(t, i, n));
        }
        y[place(t, o, n)] = of("x", place(t, o, n)) + sum / (1 + std::exp(-sum));
      }
    CHECK(difference(fused.y, y) < 1e-5);
    CHECK(difference(eager.y, y) < 1e-5);
    CHECK(difference(fused.dx, eager.dx) < 2e-5);
    for (const auto& [name, d] : fused.d) CHECK(difference(d, eager.d.at(name)) < 5e-5);
  }
}

TEST_CASE("own kinds: an input that no call provides is refused") {
  const layer_graphs g = built_in_methods().graphs(rules_of<two_inputs>(), formula_of<none>(), false);
  cpu::executor<float> e(g);
  const std::vector<float> x(8);
  std::vector<float> y(8);
  CHECK(std::string(e.forward(view_of(x.data(), 2, 4), into(y)).message()) ==
        "the kind of layer has an input 'z', a call brings only x; give it as a frozen tensor");
}
