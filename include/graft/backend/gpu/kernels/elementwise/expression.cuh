// SPDX-License-Identifier: Apache-2.0
// Runs elementwise expressions of a plan as one kernel each (plan/launch/expression.h): builds the steps from graph
// nodes, then chooses a kernel with fixed steps, the interpreter on vectors of eight, the interpreter per element, or a
// reduction.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/expression_reduce.cuh>

namespace graft::gpu {

struct expression_elements {
  expression e;
  element_ptr<float> out;
  unsigned size[4];

  __host__ __device__ void operator()(long long i) const {
    unsigned c[4], rest = static_cast<unsigned>(i);
    for (int k = 3; k >= 0; --k) c[k] = rest % size[k], rest /= size[k];
    out.put(i, e.at(c));
  }
};
// Writes the postfix steps of the nodes for which inside(i) holds, with a given root; value(i) returns the tensor of
// any other node.
template <class Inside, class Value> class expression_writer {
 public:
  expression_writer(const graph& g, Inside inside, Value value) : g_(g), inside_(inside), value_(value) {}
  expression write(id root) {
    put(root, false);
    return e_;
  }

 private:
  void put(id i, bool transposed) {
    if (!inside_(i)) return read(value_(i), transposed);
    const node& v = g_[i];
    put(v.a, v.what == op::transpose ? !transposed : transposed);
    if (v.b >= 0) put(v.b, transposed);
    if (v.what != op::transpose) e_.step[e_.steps++] = static_cast<unsigned char>(v.what);
  }
  void read(const tensor<float>& t, bool transposed) {
    unsigned steps[4], stride = 1;
    for (int k = 3; k >= 0; --k) steps[k] = t.d[k] == 1 ? 0 : stride, stride *= static_cast<unsigned>(t.d[k]);
    if (transposed) std::swap(steps[2], steps[3]);
    const auto is = [&](int at) {
      bool same = e_.operand[at].at == t.p.at;
      for (int k = 0; k < 4; ++k) same = same && e_.stride[at][k] == steps[k];
      return same;
    };
    int at = 0;  // an operand that is read twice is stored once
    while (at < e_.operands && !is(at)) ++at;
    if (at == e_.operands) ++e_.operands;
    for (int k = 0; k < 4; ++k) e_.stride[at][k] = steps[k];
    e_.operand[at] = t.p;
    e_.step[e_.steps++] = read_step(at);
  }

  const graph& g_;
  Inside inside_;
  Value value_;
  expression e_{};
};

// A fixed_expression kernel for given steps; fits() says whether an expression has exactly these.
template <dtype Type, class Steps, unsigned Numbers = 0, unsigned Rows = 0> struct as_fixed {
  using kernel = fixed_expression<Type, Numbers, Rows, Steps>;
  static bool fits(const expression_vec8<true>& f) {
    return f.out.type == Type && Steps::are(f.e.step, f.e.steps) && f.is_like<kernel::operands>(Numbers, Rows);
  }
  static kernel of(const expression_vec8<true>& f) {
    kernel known;
    for (int k = 0; k < kernel::operands; ++k) known.operand[k] = f.e.operand[k];
    known.out = f.out, known.width = f.width;
    return known;
  }
};
using fixed_swiglu = as_fixed<dtype::bf16, swiglu>;
using fixed_swiglu_grad_up = as_fixed<dtype::bf16, swiglu_grad_up>;
using fixed_swiglu_grad_gate = as_fixed<dtype::bf16, swiglu_grad_gate, 1U << 3>;
using fixed_scaled_swiglu = as_fixed<dtype::bf16, scaled_swiglu, 0, 1U << 1 | 1U << 3>;
using fixed_scaled_swiglu_grad_up = as_fixed<dtype::bf16, scaled_swiglu_grad_up, 0, 1U << 2>;
using fixed_sum = as_fixed<dtype::bf16, sum_of_three>;
using fixed_residual = as_fixed<dtype::bf16, scaled_residual, 0, 1U << 2>;
using fixed_scaled_swiglu_grad_gate = as_fixed<dtype::bf16, scaled_swiglu_grad_gate, 1U << 5, 1U << 2 | 1U << 4>;

// Evaluates two expressions for the same elements.
template <class F> struct both_expressions {
  F first, second;
  __device__ void operator()(long long i) const { first(i), second(i); }
};
// Runs the fixed kernel of an expression; returns false if there is none.
template <class T> result<bool> evaluate_fixed(cudaStream_t stream, const expression_vec8<true>& f, long long n) {
  bool found = false;
  status s = ok;
  auto as = [&]<class Fixed>(Fixed, const char* name) {
    if (found || !Fixed::fits(f)) return;
    found = true, s = each(stream, n, Fixed::of(f), name);
  };
  if constexpr (dtype_of<T> == dtype::bf16) {
    as(fixed_swiglu{}, "gate"), as(fixed_scaled_swiglu{}, "gate"), as(fixed_residual{}, "residual");
    as(fixed_sum{}, "reduction");
    as(fixed_swiglu_grad_up{}, "gradient of a gate"), as(fixed_swiglu_grad_gate{}, "gradient of a gate");
    as(fixed_scaled_swiglu_grad_up{}, "gradient of a gate"), as(fixed_scaled_swiglu_grad_gate{}, "gradient of a gate");
  }
  if (!s) return s.failure();
  return found;
}
// Runs the fixed kernel for both gradients of a gate; returns false if there is none.
template <class T>
result<bool> evaluate_fixed(cudaStream_t stream, const expression_vec8<true>& a, const expression_vec8<true>& b,
                            long long n) {
  bool found = false;
  status s = ok;
  auto as = [&]<class First, class Second>(First, Second) {
    if (found || !First::fits(a) || !Second::fits(b)) return;
    using both = fixed_pair<typename First::kernel, typename Second::kernel>;
    found = true, s = each(stream, n, both{First::of(a), Second::of(b)}, "gradients of a gate");
  };
  if constexpr (dtype_of<T> == dtype::bf16)
    as(fixed_swiglu_grad_up{}, fixed_swiglu_grad_gate{}),
        as(fixed_scaled_swiglu_grad_up{}, fixed_scaled_swiglu_grad_gate{});
  if (!s) return s.failure();
  return found;
}
// Evaluates an expression into `out`, as float or T. `of` has the shape of the elementwise part: the root itself, or
// the value that the root sums.
template <class T>
status evaluate(cudaStream_t stream, const reduce_functions& sums, const expression& e, const tensor<float>& of,
                const tensor<float>& out) {
  if (out.count() == 0) return ok;
  unsigned size[4], to[4];
  for (int k = 0; k < 4; ++k) size[k] = static_cast<unsigned>(of.d[k]), to[k] = static_cast<unsigned>(out.d[k]);
  if (of.count() == out.count() && of.count() < 1LL << 35) {
    const long long vec8_count = out.count() / 8;
    const auto width = static_cast<unsigned>(of.d[3]);
    expression_vec8<false> wide{e, out.p, width, {}};
    const bool exact = out.p.type == dtype::f32 || sizeof(T) != 2;
    if (exact && wide.take(size)) return each(stream, vec8_count, wide, "expression");
    if constexpr (sizeof(T) == 2)
      if (expression_vec8<true> narrow{e, out.p, width, {}}; out.p.type != dtype::f32 && narrow.take(size)) {
        const result<bool> known = evaluate_fixed<T>(stream, narrow, vec8_count);
        if (!known) return known.failure();
        return *known ? status(ok) : each(stream, vec8_count, narrow, "expression");
      }
  }
  if (of.count() >= 1LL << 32) return fail("an expression of ", of.count(), " elements is more than its kernel counts");
  if (of.count() == out.count())
    return each(stream, out.count(), expression_elements{e, out.p, {size[0], size[1], size[2], size[3]}}, "expression");
  return reduce_expression(stream, sums, e, size, to, out.p);
}
// Evaluates two expressions of the same shape in one pass.
template <class T>
status evaluate(cudaStream_t stream, const expression& first, const expression& second, const tensor<float>& out,
                const tensor<float>& other) {
  const long long n = out.count(), vec8_count = n / 8;
  if (n == 0) return ok;
  unsigned size[4];
  for (int k = 0; k < 4; ++k) size[k] = static_cast<unsigned>(out.d[k]);
  const auto width = static_cast<unsigned>(out.d[3]);
  if (out.p.type == dtype::f32 && other.p.type == dtype::f32) {
    expression_vec8<false> a{first, out.p, width, {}}, b{second, other.p, width, {}};
    if (a.take(size) && b.take(size))
      return each(stream, vec8_count, both_expressions<expression_vec8<false>>{a, b}, "expressions");
  }
  if constexpr (sizeof(T) == 2)
    if (out.p.type != dtype::f32 && other.p.type != dtype::f32) {
      expression_vec8<true> a{first, out.p, width, {}}, b{second, other.p, width, {}};
      if (a.take(size) && b.take(size)) {
        const result<bool> known = evaluate_fixed<T>(stream, a, b, vec8_count);
        if (!known) return known.failure();
        if (*known) return ok;
        return each(stream, vec8_count, both_expressions<expression_vec8<true>>{a, b}, "expressions");
      }
    }
  if (n >= 1LL << 32) return fail("an expression of ", n, " elements is more than its kernel counts");
  const expression_elements a{first, out.p, {size[0], size[1], size[2], size[3]}},
      b{second, other.p, {size[0], size[1], size[2], size[3]}};
  return each(stream, n, both_expressions<expression_elements>{a, b}, "expressions");
}

}  // namespace graft::gpu
