// SPDX-License-Identifier: Apache-2.0
// An expression of a plan in device code: its steps on a small stack, for one element or for eight neighbours. Operands are
// read through steps along the axes of the result: none along an axis that repeats them, the last two exchanged below a
// transposition.
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
// one number. Here too the top of the stack is the first. `Rounds`: the result is stored in 16 bits, and exponentials and
// quotients need no more than that.
template <bool Rounds> struct expression_eights {
  enum class form : unsigned char { none, whole, row, number, stepped };  // stepped: by whole rows, some of them again
  static constexpr int deep = most_expression_depth_by_token;

  expression e;
  cells<float> out;
  unsigned width;
  form as[most_expression_operands];
  unsigned rows[3] = {};  // of the matrices and stacks of them

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
    if (number || whole || row) return number ? form::number : whole ? form::whole : form::row;
    return !Rounds && stride[3] <= 1 ? form::stepped : form::none;
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
      for (int a = 0; a < 3; ++a)
        rows[a] = size[a], fits = fits && (as[k] != form::stepped || e.stride[k][3] == 0 || e.stride[k][a] % 8 == 0);
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
    unsigned one = 0;
    if (!Rounds && as[operand] == form::stepped) {
      const auto eight = static_cast<unsigned>(first / 8);
      const unsigned row = eight / (width / 8), matrix = row / rows[2], *const step = e.stride[operand];
      one = row % rows[2] * step[2] + matrix % rows[1] * step[1] + matrix / rows[1] * step[0];
      if (step[3] != 0) return load_eight(to, from, one + 8 * (eight % (width / 8)));
    } else if (as[operand] != form::number) {
      return load_eight(to, from, first);
    }
    const float v = from[one];
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
    float v[deep][8] = {};
    for (int s = 0; s < e.steps; ++s) {
      const unsigned step = e.step[s];
      const auto what = static_cast<op>(step);
      if ((step & expression::reads) != 0) {
#pragma unroll
        for (int d = deep - 1; d > 0; --d) each_of(v[d], [&](int k) { return v[d - 1][k]; });
        read(v[0], static_cast<int>(step & ~unsigned{expression::reads}), 8 * i);
      } else if (takes_two(what)) {
        two(what, v[1], v[0]);
#pragma unroll
        for (int d = 0; d + 1 < deep; ++d) each_of(v[d], [&](int k) { return v[d + 1][k]; });
      } else {
        one(what, v[0]);
      }
    }
    each_of(to, [&](int k) { return v[0][k]; });
  }
};

}  // namespace graft::cuda
