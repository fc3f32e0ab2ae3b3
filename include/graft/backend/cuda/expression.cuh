// SPDX-License-Identifier: Apache-2.0
// An expression of a plan as one kernel: a thread evaluates it for an element of the result, or a block of threads adds it
// up for one. Operands are read through steps along the axes of the result: none along an axis that repeats them, the last
// two exchanged below a transposition.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/known_expression.cuh>
#include <graft/backend/cuda/pointwise.cuh>
#include <graft/plan/expression.h>

namespace graft::cuda {

struct expression {
  static constexpr unsigned char reads = expression_reads;

  unsigned char step[most_expression_steps];  // the operands of an operation before it
  cells<float> operand[most_expression_operands];
  unsigned stride[most_expression_operands][4];
  int steps = 0, operands = 0;

  __host__ __device__ float at(const unsigned (&c)[4]) const {
    // The top is always the first, so that all of the stack is in registers.
    float stack[most_expression_depth] = {};
    for (int k = 0; k < steps; ++k) {
      const auto what = static_cast<op>(step[k]);
      if ((step[k] & reads) != 0) {
        const unsigned* const s = stride[step[k] & ~reads];
        for (int d = most_expression_depth - 1; d > 0; --d) stack[d] = stack[d - 1];
        stack[0] = operand[step[k] & ~reads][c[0] * s[0] + c[1] * s[1] + c[2] * s[2] + c[3] * s[3]];
      } else if (takes_two(what)) {
        stack[0] = combined<float>(what, stack[1], stack[0]);
        for (int d = 1; d + 1 < most_expression_depth; ++d) stack[d] = stack[d + 1];
      } else {
        stack[0] = mapped<float>(what, stack[0]);
      }
    }
    return stack[0];
  }
};

// The same on eight neighbours of a row at once, by 16-byte accesses: where operands have all elements, or are one row or
// one number. A step is uniform, so that the place of each value on the stack is known when the code is written: it stays
// in registers. `Rounds`: the result is stored in 16 bits, and exponentials and quotients need no more than that.
template <bool Rounds> struct expression_eights {
  enum class form : unsigned char { none, whole, row, number };
  static constexpr int deep = most_expression_depth_by_token;

  expression e;
  cells<float> out;
  unsigned width;
  form as[most_expression_operands];

  static form form_of(const unsigned (&stride)[4], const unsigned (&size)[4]) {
    bool whole = true, row = true, number = true;
    unsigned expected = 1;
    for (int k = 3; k >= 0; --k) {
      if (size[k] > 1) {
        whole = whole && stride[k] == expected, number = number && stride[k] == 0;
        row = row && stride[k] == (k == 3 ? 1U : 0U);
      }
      expected *= size[k];
    }
    return number ? form::number : whole ? form::whole : row ? form::row : form::none;
  }
  // False where it does not fit.
  bool take(const unsigned (&size)[4]) {
    bool fits = width % 8 == 0 && by_sixteen_bytes(out);
    int depth = 0;
    for (int k = 0; k < e.steps && fits; ++k) {
      depth += (e.step[k] & expression::reads) != 0 ? 1 : takes_two(static_cast<op>(e.step[k])) ? -1 : 0;
      fits = depth <= deep;
    }
    for (int k = 0; k < e.operands && fits; ++k) {
      as[k] = form_of(e.stride[k], size);
      fits = as[k] == form::number || (as[k] != form::none && by_sixteen_bytes(e.operand[k]));
    }
    return fits;
  }

  // Is it the product of its operands, and nothing else?
  bool multiplies() const {
    int reads = 0;
    for (int k = 0; k < e.steps; ++k) {
      const bool read = (e.step[k] & expression::reads) != 0;
      if (!read && static_cast<op>(e.step[k]) != op::mul) return false;
      reads += read ? 1 : 0;
    }
    return reads == e.operands;
  }
  // The eights i, i + step, … of such a product; what is asked for of an operand is in flight together.
  template <int N> __device__ void products(float (&to)[N][8], long long i, long long step) const {
#pragma unroll
    for (int n = 0; n < N; ++n) read(to[n], 0, 8 * (i + n * step));
    for (int k = 1; k < e.operands; ++k) {
      float v[N][8];
#pragma unroll
      for (int n = 0; n < N; ++n) read(v[n], k, 8 * (i + n * step));
#pragma unroll
      for (int n = 0; n < N; ++n) each_of(to[n], [&](int c) { return to[n][c] * v[n][c]; });
    }
  }
  // Is operand k one number, or a row of floats, where the bits say so, and else all elements in the type of the result?
  template <int N> bool is_like(unsigned numbers, unsigned rows) const {
    bool all = e.operands == N;
    for (int k = 0; k < N && all; ++k)
      all = (numbers >> k & 1) != 0 ? as[k] == form::number
            : (rows >> k & 1) != 0  ? as[k] == form::row && e.operand[k].type == dtype::f32
                                    : as[k] == form::whole && e.operand[k].type == out.type;
    return all;
  }
  __device__ void read(float (&to)[8], int operand, long long first) const {
    const cells<float>& from = e.operand[operand];
    if (as[operand] == form::row) return load_eight(to, from, 8 * (static_cast<unsigned>(first / 8) % (width / 8)));
    if (as[operand] != form::number) return load_eight(to, from, first);
    const float v = from[0];
    for (int k = 0; k < 8; ++k) to[k] = v;
  }
  __device__ static void two(op what, float (&a)[8], const float (&b)[8]) {
    switch (what) {
      case op::add: return each_of(a, [&](int k) { return a[k] + b[k]; });
      case op::sub: return each_of(a, [&](int k) { return a[k] - b[k]; });
      case op::mul: return each_of(a, [&](int k) { return a[k] * b[k]; });
      default: return each_of(a, [&](int k) { return combined<float>(what, a[k], b[k]); });
    }
  }
  __device__ static void one(op what, float (&a)[8]) {
    if (Rounds && what == op::sigmoid) return each_of(a, [&](int k) { return __fdividef(1, 1 + __expf(-a[k])); });
    if (Rounds && what == op::silu) return each_of(a, [&](int k) { return __fdividef(a[k], 1 + __expf(-a[k])); });
    each_of(a, [&](int k) { return another(what, a[k]); });
  }
  __device__ __noinline__ static float another(op what, float v) { return mapped<float>(what, v); }
  template <class F> __device__ static void each_of(float (&a)[8], const F& f) {
#pragma unroll
    for (int k = 0; k < 8; ++k) a[k] = f(k);
  }
  __device__ void operator()(long long i) const {
    float v[8];
    value(v, i);
    store_eight(v, out, 8 * i);
  }
  // The eight elements behind 8 i.
  __device__ __forceinline__ void value(float (&to)[8], long long i) const {
    float v[deep][8];
    int depth = 0;
    for (int s = 0; s < e.steps; ++s) {
      const unsigned step = e.step[s];
      const auto what = static_cast<op>(step);
      const bool reads = (step & expression::reads) != 0, combines = !reads && takes_two(what);
#pragma unroll
      for (int d = 0; d < deep; ++d) {
        if (reads && depth == d) read(v[d], static_cast<int>(step & ~unsigned{expression::reads}), 8 * i);
        if (d > 0 && combines && depth == d + 1) two(what, v[d - 1], v[d]);
        if (!reads && !combines && depth == d + 1) one(what, v[d]);
      }
      depth += reads ? 1 : combines ? -1 : 0;
    }
    each_of(to, [&](int k) { return v[0][k]; });
  }
};
// The sum of each row of it, and of each column.
struct expression_row_sums {
  expression_eights<false> of;
  cells<float> out;

  template <class Team> __device__ void operator()(long long row, Team t) const {
    const unsigned eights = of.width / 8;
    float part = 0;
    for (auto c = static_cast<unsigned>(t.rank); c < eights; c += static_cast<unsigned>(t.size)) {
      float v[8];
      of.value(v, row * eights + c);
      for (int k = 0; k < 8; ++k) part += v[k];
    }
    const float sum = t.sum(part);
    if (t.leads()) out.put(row, sum);
  }
};
struct expression_column_sums {
  expression_eights<false> of;
  cells<float> out;
  unsigned rows;
  bool multiplies;

  template <class Team> __device__ void operator()(long long eight, Team t) const {
    constexpr int ahead = 4;
    const auto size = static_cast<unsigned>(t.size), eights = of.width / 8;
    float part[8] = {};
    auto r = static_cast<unsigned>(t.rank);
    for (; multiplies && r + (ahead - 1) * size < rows; r += ahead * size) {
      float v[ahead][8];
      of.products(v, static_cast<long long>(r) * eights + eight, static_cast<long long>(size) * eights);
      for (int n = 0; n < ahead; ++n)
        for (int k = 0; k < 8; ++k) part[k] += v[n][k];
    }
    for (; r < rows; r += size) {
      float v[8];
      of.value(v, static_cast<long long>(r) * eights + eight);
      for (int k = 0; k < 8; ++k) part[k] += v[k];
    }
    for (int k = 0; k < 8; ++k) {
      const float sum = t.sum(part[k]);
      if (t.leads()) out.put(8 * eight + k, sum);
    }
  }
};

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
struct expression_sums {
  expression e;
  cells<float> out;
  unsigned size[4], to[4];  // of what is added up, and of the result: 1 along the axes that are summed

  __host__ __device__ unsigned added() const {
    unsigned n = 1;
    for (int k = 0; k < 4; ++k) n *= to[k] == size[k] ? 1 : size[k];
    return n;
  }
  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    unsigned first[4], place = static_cast<unsigned>(i);
    for (int k = 3; k >= 0; --k) first[k] = place % to[k], place /= to[k];
    float part = 0;
    for (auto n = static_cast<unsigned>(t.rank); n < added(); n += static_cast<unsigned>(t.size)) {
      unsigned c[4], rest = n;
      for (int k = 3; k >= 0; --k) {
        const bool summed = to[k] != size[k];
        c[k] = summed ? rest % size[k] : first[k];
        if (summed) rest /= size[k];
      }
      part += e.at(c);
    }
    const float sum = t.sum(part);
    if (t.leads()) out.put(i, sum);
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
    int at = 0;  // an operand that is read again is the same one
    while (at < e_.operands && !(e_.operand[at].at == t.p.at && std::equal(steps, steps + 4, e_.stride[at]))) ++at;
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
status evaluate(cudaStream_t stream, const expression& e, const tensor<float>& of, const tensor<float>& out) {
  if (out.count() == 0) return ok;
  unsigned size[4], to[4];
  for (int k = 0; k < 4; ++k) size[k] = static_cast<unsigned>(of.d[k]), to[k] = static_cast<unsigned>(out.d[k]);
  if (of.count() == out.count() && of.count() < 1LL << 35) {
    const long long eights = out.count() / 8;
    const auto width = static_cast<unsigned>(of.d[3]);
    expression_eights<false> wide{e, out.p, width, {}};
    if (out.p.type == dtype::f32 && wide.take(size)) return each(stream, eights, wide, "expression");
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
  const bool each_row = to[0] == size[0] && to[1] == size[1] && to[2] == size[2],
             each_column = size[0] == 1 && size[1] == 1 && to[2] == 1 && to[3] == size[3];
  expression_eights<false> wide{e, {}, size[3], {}};
  auto fitting = [](unsigned n) { return std::clamp((n + 31) / 32 * 32, 32U, 1024U); };
  if (each_row && wide.take(size))
    return on_stream{stream}.blocks(out.count(), std::min(fitting(size[3] / 8), 256U), expression_row_sums{wide, out.p},
                                    "sums of rows");
  if (each_column && size[3] >= 256 && wide.take(size))  // of fewer columns one at a time keeps more threads busy
    return on_stream{stream}.blocks(size[3] / 8, std::min(fitting(size[2]), 256U),
                                    expression_column_sums{wide, out.p, size[2], wide.multiplies()}, "sums of columns");
  const expression_sums sums{e, out.p, {size[0], size[1], size[2], size[3]}, {to[0], to[1], to[2], to[3]}};
  const auto threads = static_cast<unsigned>(std::clamp((sums.added() / 4 + 31) / 32 * 32, 32U, 1024U));
  return on_stream{stream}.blocks(out.count(), threads, sums, "sum of an expression");
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
