// SPDX-License-Identifier: Apache-2.0
// Results do not depend on addresses: every op that sums or runs along a row is computed with all its tensors at
// several misaligned addresses, and compared bit for bit with the first result.
#include <doctest/doctest.h>
#include <graft/backend/cpu/gemm/matmul.h>
#include <graft/backend/cpu/ops/elementwise.h>
#include <graft/backend/cpu/ops/layout.h>
#include <graft/backend/cpu/ops/reduce.h>
#include <graft/backend/cpu/ops/rotate.h>
#include <graft/backend/cpu/ops/rowwise.h>

#include <cstring>

#include "../../support/tensors.h"

using namespace test;

namespace {

// A tensor that begins some elements after the start of its buffer.
template <class Real> struct moved {
  std::vector<Real> buffer;
  long long offset;
  four shape;

  moved(four s, unsigned seed, long long by) : offset(by), shape(s) {
    const owned<Real> numbers = random_tensor<Real>(s, seed);
    buffer.resize(numbers.v.size() + static_cast<std::size_t>(by));
    std::copy(numbers.v.begin(), numbers.v.end(), buffer.begin() + by);
  }
  cpu::tensor<Real> t() { return {buffer.data() + offset, {shape.d[0], shape.d[1], shape.d[2], shape.d[3]}}; }
  std::vector<Real> numbers() const { return {buffer.begin() + offset, buffer.end()}; }
};
template <class Real> bool same_bits(const std::vector<Real>& a, const std::vector<Real>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Real)) == 0;
}
// Compares the bits of f(offset), which computes one op, for all offsets.
template <class F> void wherever(const char* what, F f) {
  const auto first = f(0);
  bool same = true;
  for (long long offset = 1; offset <= 16; ++offset) same = same && same_bits(f(offset), first);
  INFO(std::string(what));
  CHECK(same);
}
constexpr long long lengths[] = {1, 3, 7, 16, 31, 33, 100, 259};

template <class Real> void reductions_and_rows() {
  for (const long long n : lengths) {
    const four s{1, 1, 3, n}, column{1, 1, 3, 1}, line{1, 1, 1, n};
    wherever("sum of columns", [&](long long o) {
      moved<Real> a(s, 1, o), to(column, 2, o);
      return cpu::sum_to(to.t(), a.t()), to.numbers();
    });
    wherever("sum of rows", [&](long long o) {
      moved<Real> a(s, 1, o), to(line, 2, o);
      return cpu::sum_to(to.t(), a.t()), to.numbers();
    });
    wherever("row_dot", [&](long long o) {
      moved<Real> a(s, 1, o), b(s, 2, o), to(column, 3, o);
      return cpu::row_dot(to.t(), a.t(), b.t()), to.numbers();
    });
    wherever("fold_columns", [&](long long o) {
      moved<Real> a({1, 1, 3, 4 * n}, 1, o), to(s, 2, o);
      return cpu::fold_columns(to.t(), a.t()), to.numbers();
    });
    wherever("softmax", [&](long long o) {
      moved<Real> a(s, 1, o), to(s, 2, o);
      return cpu::softmax(to.t(), a.t()), to.numbers();
    });
    wherever("topk_softmax", [&](long long o) {
      moved<Real> a(s, 1, o), to(s, 2, o);
      return cpu::topk_softmax(to.t(), a.t(), 5), to.numbers();
    });
    wherever("softmax_grad", [&](long long o) {
      moved<Real> a(s, 1, o), b(s, 2, o), to(s, 3, o);
      return cpu::softmax_grad(to.t(), a.t(), b.t()), to.numbers();
    });
    for (const bool rms : {false, true}) {
      wherever("normalize", [&](long long o) {
        moved<Real> a(s, 1, o), to(s, 2, o);
        return cpu::normalize(to.t(), a.t(), Real(1e-5), rms), to.numbers();
      });
      wherever("normalize_grad", [&](long long o) {
        moved<Real> a(s, 1, o), b(s, 2, o), to(s, 3, o);
        return cpu::normalize_grad(to.t(), a.t(), Real(1e-5), b.t(), rms), to.numbers();
      });
    }
    for (const op what : {op::exp, op::tanh, op::sigmoid, op::silu, op::gelu, op::gelu_tanh})
      wherever(traits_of(what).name, [&](long long o) {
        moved<Real> a(s, 1, o), to(s, 2, o);
        return cpu::unary(what, to.t(), a.t()), to.numbers();
      });
  }
}
template <class Real> void products() {
  struct sizes {
    long long m, n, k;
  };
  for (const sizes& s : {sizes{1, 50, 70}, sizes{37, 1, 65}, sizes{1, 1, 33}, sizes{3, 4, 5}, sizes{17, 29, 23},
                         sizes{64, 65, 130}, sizes{2, 300, 301}, sizes{300, 64, 33}})
    for (int flags = 0; flags < 4; ++flags)
      for (const int accumulate : {0, 1}) {
        const bool ta = (flags & 1) != 0, tb = (flags & 2) != 0;
        INFO("m ", s.m, ", n ", s.n, ", k ", s.k, ", flags ", flags);
        wherever("matmul", [&](long long o) {
          moved<Real> a(ta ? four{1, 1, s.k, s.m} : four{1, 1, s.m, s.k}, 1, o), c({1, 1, s.m, s.n}, 3, o);
          moved<Real> b(tb ? four{1, 1, s.n, s.k} : four{1, 1, s.k, s.n}, 2, o);
          return cpu::matmul(c.t(), a.t(), b.t(), {ta, tb, false, accumulate}), c.numbers();
        });
      }
  for (const long long b : {4, 8, 16, 48})
    for (const bool transposed : {false, true}) {
      wherever("rotate", [&](long long o) {
        moved<Real> x({1, 1, 19, 4 * b}, 1, o), q({2, 4, b, b}, 2, o), y(x.shape, 3, o);
        return cpu::rotate(y.t(), x.t(), q.t(), transposed), y.numbers();
      });
      wherever("rotate_grad", [&](long long o) {
        moved<Real> x({1, 1, 19, 4 * b}, 1, o), t(x.shape, 2, o), q({2, 4, b, b}, 3, o), to(q.shape, 4, o);
        return cpu::rotate_grad(to.t(), x.t(), t.t(), q.t(), transposed), to.numbers();
      });
    }
}

}  // namespace

TEST_CASE("addresses: reductions and functions of rows") {
  reductions_and_rows<float>();
  reductions_and_rows<double>();
}
TEST_CASE("addresses: products and rotations") {
  products<float>();
  products<double>();
}
