// SPDX-License-Identifier: Apache-2.0
// An expression of a plan as one kernel: a thread evaluates it for an element of the result, or several add it up for one.
#pragma once
#include <graft/backend/cuda/expression_sums.cuh>

namespace graft::cuda {

struct expression_elements {
  expression e;
  cells<float> out;
  unsigned size[4];

  __host__ __device__ void operator()(long long i) const {
    unsigned c[4], rest = static_cast<unsigned>(i);
    for (int k = 3; k >= 0; --k) c[k] = rest % size[k], rest /= size[k];
    out.put(i, e.at(c));
  }
};
// The expression of the nodes that `inside` holds, below node `root`; value(i) is where another one lies.
template <class Inside, class Value> class expression_writer {
 public:
  expression_writer(const graph& g, Inside inside, Value value) : g_(g), inside_(inside), value_(value) {}
  expression write(id root) {
    put(root, false);
    return e_;
  }

 private:
  void put(id i, bool across) {
    if (!inside_(i)) return read(value_(i), across);
    const node& v = g_[i];
    put(v.a, v.what == op::transpose ? !across : across);
    if (v.b >= 0) put(v.b, across);
    if (v.what != op::transpose) e_.step[e_.steps++] = static_cast<unsigned char>(v.what);
  }
  void read(const tensor<float>& t, bool across) {
    unsigned steps[4], stride = 1;
    for (int k = 3; k >= 0; --k) steps[k] = t.d[k] == 1 ? 0 : stride, stride *= static_cast<unsigned>(t.d[k]);
    if (across) std::swap(steps[2], steps[3]);
    const auto is = [&](int at) {
      bool same = e_.operand[at].at == t.p.at;
      for (int k = 0; k < 4; ++k) same = same && e_.stride[at][k] == steps[k];
      return same;
    };
    int at = 0;  // an operand that is read again is the same one
    while (at < e_.operands && !is(at)) ++at;
    if (at == e_.operands) ++e_.operands;
    for (int k = 0; k < 4; ++k) e_.stride[at][k] = steps[k];
    e_.operand[at] = t.p;
    e_.step[e_.steps++] = reading(at);
  }

  const graph& g_;
  Inside inside_;
  Value value_;
  expression e_{};
};

// As a kernel of its own where its steps are these; `fits` says whether they are.
template <dtype Type, class Steps, unsigned Numbers = 0, unsigned Rows = 0> struct as_known {
  using kernel = known_expression<Type, Numbers, Rows, Steps>;
  static bool fits(const expression_eights<true>& f) {
    return f.out.type == Type && Steps::are(f.e.step, f.e.steps) && f.is_like<kernel::operands>(Numbers, Rows);
  }
  static kernel of(const expression_eights<true>& f) {
    kernel known;
    for (int k = 0; k < kernel::operands; ++k) known.operand[k] = f.e.operand[k];
    known.out = f.out, known.width = f.width;
    return known;
  }
};
using known_gate = as_known<dtype::bf16, silu_gate>;
using known_gate_by_second = as_known<dtype::bf16, silu_gate_by_second>;
using known_gate_by_first = as_known<dtype::bf16, silu_gate_by_first, 1U << 3>;
using known_scaled_gate = as_known<dtype::bf16, scaled_gate, 0, 1U << 1 | 1U << 3>;
using known_scaled_by_second = as_known<dtype::bf16, scaled_gate_by_second, 0, 1U << 2>;
using known_sum = as_known<dtype::bf16, sum_of_three>;
using known_residual = as_known<dtype::bf16, scaled_residual, 0, 1U << 2>;
using known_scaled_by_first = as_known<dtype::bf16, scaled_gate_by_first, 1U << 5, 1U << 2 | 1U << 4>;

// Two expressions for the same elements.
template <class F> struct both_expressions {
  F first, second;
  __device__ void operator()(long long i) const { first(i), second(i); }
};
// False where no such kernel knows it.
template <class T> result<bool> evaluate_known(cudaStream_t stream, const expression_eights<true>& f, long long n) {
  bool found = false;
  status s = ok;
  auto as = [&]<class Known>(Known, const char* name) {
    if (found || !Known::fits(f)) return;
    found = true, s = each(stream, n, Known::of(f), name);
  };
  if constexpr (dtype_of<T> == dtype::bf16) {
    as(known_gate{}, "gate"), as(known_scaled_gate{}, "gate"), as(known_residual{}, "residual");
    as(known_sum{}, "sum");
    as(known_gate_by_second{}, "gradient of a gate"), as(known_gate_by_first{}, "gradient of a gate");
    as(known_scaled_by_second{}, "gradient of a gate"), as(known_scaled_by_first{}, "gradient of a gate");
  }
  if (!s) return s.failure();
  return found;
}
// The same for both gradients of a gate.
template <class T>
result<bool> evaluate_known(cudaStream_t stream, const expression_eights<true>& a, const expression_eights<true>& b,
                            long long n) {
  bool found = false;
  status s = ok;
  auto as = [&]<class First, class Second>(First, Second) {
    if (found || !First::fits(a) || !Second::fits(b)) return;
    using both = known_pair<typename First::kernel, typename Second::kernel>;
    found = true, s = each(stream, n, both{First::of(a), Second::of(b)}, "gradients of a gate");
  };
  if constexpr (dtype_of<T> == dtype::bf16)
    as(known_gate_by_second{}, known_gate_by_first{}), as(known_scaled_by_second{}, known_scaled_by_first{});
  if (!s) return s.failure();
  return found;
}
// `of`: what is computed element by element, the root itself or what it sums. Results are floats or T.
template <class T>
status evaluate(cudaStream_t stream, const sum_functions& sums, const expression& e, const tensor<float>& of,
                const tensor<float>& out) {
  if (out.count() == 0) return ok;
  unsigned size[4], to[4];
  for (int k = 0; k < 4; ++k) size[k] = static_cast<unsigned>(of.d[k]), to[k] = static_cast<unsigned>(out.d[k]);
  if (of.count() == out.count() && of.count() < 1LL << 35) {
    const long long eights = out.count() / 8;
    const auto width = static_cast<unsigned>(of.d[3]);
    expression_eights<false> wide{e, out.p, width, {}};
    const bool exact = out.p.type == dtype::f32 || sizeof(T) != 2;
    if (exact && wide.take(size)) return each(stream, eights, wide, "expression");
    if constexpr (sizeof(T) == 2)
      if (expression_eights<true> narrow{e, out.p, width, {}}; out.p.type != dtype::f32 && narrow.take(size)) {
        const result<bool> known = evaluate_known<T>(stream, narrow, eights);
        if (!known) return known.failure();
        return *known ? status(ok) : each(stream, eights, narrow, "expression");
      }
  }
  if (of.count() >= 1LL << 32) return fail("an expression of ", of.count(), " elements is more than its kernel counts");
  if (of.count() == out.count())
    return each(stream, out.count(), expression_elements{e, out.p, {size[0], size[1], size[2], size[3]}}, "expression");
  return add_up(stream, sums, e, size, to, out.p);
}
template <class T>
status evaluate(cudaStream_t stream, const expression& first, const expression& second, const tensor<float>& out,
                const tensor<float>& other) {
  const long long n = out.count(), eights = n / 8;
  if (n == 0) return ok;
  unsigned size[4];
  for (int k = 0; k < 4; ++k) size[k] = static_cast<unsigned>(out.d[k]);
  const auto width = static_cast<unsigned>(out.d[3]);
  if (out.p.type == dtype::f32 && other.p.type == dtype::f32) {
    expression_eights<false> a{first, out.p, width, {}}, b{second, other.p, width, {}};
    if (a.take(size) && b.take(size))
      return each(stream, eights, both_expressions<expression_eights<false>>{a, b}, "expressions");
  }
  if constexpr (sizeof(T) == 2)
    if (out.p.type != dtype::f32 && other.p.type != dtype::f32) {
      expression_eights<true> a{first, out.p, width, {}}, b{second, other.p, width, {}};
      if (a.take(size) && b.take(size)) {
        const result<bool> known = evaluate_known<T>(stream, a, b, eights);
        if (!known) return known.failure();
        if (*known) return ok;
        return each(stream, eights, both_expressions<expression_eights<true>>{a, b}, "expressions");
      }
    }
  if (n >= 1LL << 32) return fail("an expression of ", n, " elements is more than its kernel counts");
  const expression_elements a{first, out.p, {size[0], size[1], size[2], size[3]}},
      b{second, other.p, {size[0], size[1], size[2], size[3]}};
  return each(stream, n, both_expressions<expression_elements>{a, b}, "expressions");
}

}  // namespace graft::cuda
