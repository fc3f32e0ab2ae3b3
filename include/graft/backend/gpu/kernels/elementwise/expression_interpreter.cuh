// SPDX-License-Identifier: Apache-2.0
// Interprets an elementwise expression (plan/launch/expression.h) in a kernel: the steps run on a small stack in
// registers, for one element or for eight neighboring ones. Operands are read with strides along the axes of the
// result: stride 0 repeats an operand along an axis (broadcast), and a transposed operand has its last two strides
// exchanged.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/fixed_expression.cuh>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/elementwise/pointwise.cuh>
#include <graft/plan/launch/expression.h>

namespace graft::gpu {

struct expression {
  static constexpr unsigned char reads = read_operand_bit;

  unsigned char step[max_expression_steps];  // in postfix order
  element_ptr<float> operand[max_expression_operands];
  unsigned stride[max_expression_operands][4];
  int steps = 0, operands = 0;

  __host__ __device__ float at(const unsigned (&c)[4]) const {
    // The top of the stack is always stack[0]: constant indices keep the stack in registers.
    float stack[max_expression_depth] = {};
    for (int k = 0; k < steps; ++k) {
      const auto what = static_cast<op>(step[k]);
      if ((step[k] & reads) != 0) {
        const unsigned* const s = stride[step[k] & ~reads];
        for (int d = max_expression_depth - 1; d > 0; --d) stack[d] = stack[d - 1];
        stack[0] = operand[step[k] & ~reads][c[0] * s[0] + c[1] * s[1] + c[2] * s[2] + c[3] * s[3]];
      } else if (is_binary(what)) {
        stack[0] = combined<float>(what, stack[1], stack[0]);
        for (int d = 1; d + 1 < max_expression_depth; ++d) stack[d] = stack[d + 1];
      } else {
        stack[0] = mapped<float>(what, stack[0]);
      }
    }
    return stack[0];
  }
};

// Evaluates an expression for eight neighboring elements of a row with 16-byte accesses, if every operand has all
// elements, or is one row or one number. The top of the stack is v[0]. `Rounds`: the result is stored in 16 bits, so
// the fast exponential and division suffice.
template <bool Rounds> struct expression_vec8 {
  enum class form : unsigned char { none, whole, row, number, stepped };  // stepped: other axes may repeat
  static constexpr int deep = max_expression_depth_by_token;

  expression e;
  element_ptr<float> out;
  unsigned width;
  form as[max_expression_operands];
  unsigned rows[3] = {};  // sizes of the first three axes

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
  // Determines the form of each operand; returns false if the expression cannot be evaluated in vectors.
  bool take(const unsigned (&size)[4]) {
    bool fits = width % 8 == 0 && is_aligned16(out);
    int depth = 0;
    for (int k = 0; k < e.steps && fits; ++k) {
      depth += (e.step[k] & expression::reads) != 0 ? 1 : is_binary(static_cast<op>(e.step[k])) ? -1 : 0;
      fits = depth <= deep;
    }
    for (int k = 0; k < e.operands && fits; ++k) {
      as[k] = form_of(e.stride[k], size);
      fits = as[k] == form::number || (as[k] != form::none && is_aligned16(e.operand[k]));
      for (int a = 0; a < 3; ++a)
        rows[a] = size[a], fits = fits && (as[k] != form::stepped || e.stride[k][3] == 0 || e.stride[k][a] % 8 == 0);
    }
    return fits;
  }

  // Is the expression a product of its operands and nothing else?
  bool multiplies() const {
    int reads = 0;
    for (int k = 0; k < e.steps; ++k) {
      const bool read = (e.step[k] & expression::reads) != 0;
      if (!read && static_cast<op>(e.step[k]) != op::mul) return false;
      reads += read ? 1 : 0;
    }
    return reads == e.operands;
  }
  // Evaluates such a product for the N vectors i, i + step, …; the N loads of an operand are in flight together.
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
  // Is operand k one number or a row of floats where bit k of `numbers` or `rows` is set, and otherwise all elements in
  // the type of the result?
  template <int N> bool is_like(unsigned numbers, unsigned rows) const {
    bool all = e.operands == N;
    for (int k = 0; k < N && all; ++k)
      all = (numbers >> k & 1) != 0 ? as[k] == form::number
            : (rows >> k & 1) != 0  ? as[k] == form::row && e.operand[k].type == dtype::f32
                                    : as[k] == form::whole && e.operand[k].type == out.type;
    return all;
  }
  __device__ void read(float (&to)[8], int operand, long long first) const {
    const element_ptr<float>& from = e.operand[operand];
    if (as[operand] == form::row) return load_vec8(to, from, 8 * (static_cast<unsigned>(first / 8) % (width / 8)));
    unsigned one = 0;
    if (!Rounds && as[operand] == form::stepped) {
      const auto eight = static_cast<unsigned>(first / 8);
      const unsigned row = eight / (width / 8), matrix = row / rows[2], *const step = e.stride[operand];
      one = row % rows[2] * step[2] + matrix % rows[1] * step[1] + matrix / rows[1] * step[0];
      if (step[3] != 0) return load_vec8(to, from, one + 8 * (eight % (width / 8)));
    } else if (as[operand] != form::number) {
      return load_vec8(to, from, first);
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
    each_of(a, [&](int k) { return apply_mapped(what, a[k]); });
  }
  __device__ __noinline__ static float apply_mapped(op what, float v) { return mapped<float>(what, v); }
  template <class F> __device__ static void each_of(float (&a)[8], const F& f) {
#pragma unroll
    for (int k = 0; k < 8; ++k) a[k] = f(k);
  }
  __device__ void operator()(long long i) const {
    float v[8];
    value(v, i);
    store_vec8(v, out, 8 * i);
  }
  // Evaluates elements 8 i to 8 i + 7.
  __device__ __forceinline__ void value(float (&to)[8], long long i) const {
    float v[deep][8] = {};
    for (int s = 0; s < e.steps; ++s) {
      const unsigned step = e.step[s];
      const auto what = static_cast<op>(step);
      if ((step & expression::reads) != 0) {
#pragma unroll
        for (int d = deep - 1; d > 0; --d) each_of(v[d], [&](int k) { return v[d - 1][k]; });
        read(v[0], static_cast<int>(step & ~unsigned{expression::reads}), 8 * i);
      } else if (is_binary(what)) {
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

}  // namespace graft::gpu
