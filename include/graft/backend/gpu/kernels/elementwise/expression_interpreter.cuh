// SPDX-License-Identifier: Apache-2.0
// Interprets an elementwise expression (plan/launch/expression.h) in a kernel: the steps run on a small stack in
// registers, for one element or for eight neighboring ones. Operands are read with strides along the axes of the
// result: stride 0 repeats an operand along an axis (broadcast), and a transposed operand has its last two strides
// exchanged.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/elementwise/pointwise.cuh>
#include <graft/backend/gpu/tile/vector8.cuh>
#include <graft/graph/op.h>
#include <graft/plan/launch/expression.h>

namespace graft::gpu {

// ---- Fixed steps

// Elementwise expressions with steps known at compile time: SwiGLU and its gradients, sums and residuals, the largest
// elementwise passes of a training step, in 16 bits. A thread loads all operands of eight elements at once and no step
// is decoded, so the kernels are bound by memory bandwidth. expression.cuh evaluates every other expression.

// A step with this bit reads an operand; any other step is an operation, in postfix order.
inline constexpr unsigned char read_operand_bit = 0x80;
constexpr unsigned char read_step(int operand) { return static_cast<unsigned char>(read_operand_bit | operand); }
constexpr unsigned char op_step(op o) { return static_cast<unsigned char>(o); }
constexpr bool is_binary(op o) {
  return o == op::add || o == op::sub || o == op::mul || o == op::div || o == op::minimum || o == op::maximum;
}

template <unsigned char... Steps> struct fixed_steps {
  static constexpr int count = sizeof...(Steps);
  static constexpr unsigned char at(int k) {
    constexpr unsigned char all[] = {Steps...};
    return all[k];
  }
  static constexpr int operands() {
    int n = 0;
    for (int k = 0; k < count; ++k)
      if ((at(k) & read_operand_bit) != 0 && (at(k) & ~read_operand_bit) >= n) n = (at(k) & ~read_operand_bit) + 1;
    return n;
  }
  static constexpr int depth() {  // stack depth
    int now = 0, most = 0;
    for (int k = 0; k < count; ++k) {
      now += (at(k) & read_operand_bit) != 0 ? 1 : is_binary(static_cast<op>(at(k))) ? -1 : 0;
      most = now > most ? now : most;
    }
    return most;
  }
  static bool are(const unsigned char* steps, int n) {
    bool same = n == count;
    for (int k = 0; k < count && same; ++k) same = steps[k] == at(k);
    return same;
  }
};
// SwiGLU silu(a) ⊙ b, and with its incoming gradient t the gradients of up, t ⊙ silu(a), and of gate,
// t ⊙ b ⊙ (σ(a) + silu(a) (1 - σ(a))).
using swiglu = fixed_steps<read_step(0), op_step(op::silu), read_step(1), op_step(op::mul)>;
using swiglu_grad_up = fixed_steps<read_step(0), read_step(1), op_step(op::silu), op_step(op::mul)>;
using swiglu_grad_gate = fixed_steps<read_step(0), read_step(1), op_step(op::mul), read_step(2), op_step(op::sigmoid),
                                     read_step(2), op_step(op::silu), read_step(3), read_step(2), op_step(op::sigmoid),
                                     op_step(op::sub), op_step(op::mul), op_step(op::add), op_step(op::mul)>;
// SwiGLU with a ⊙ p and b ⊙ q in place of a and b, where a and b are saved without the column factors p and q (DoRA).
using scaled_swiglu = fixed_steps<read_step(0), read_step(1), op_step(op::mul), op_step(op::silu), read_step(2),
                                  read_step(3), op_step(op::mul), op_step(op::mul)>;
using scaled_swiglu_grad_up =
    fixed_steps<read_step(0), read_step(1), read_step(2), op_step(op::mul), op_step(op::silu), op_step(op::mul)>;
using scaled_swiglu_grad_gate =
    fixed_steps<read_step(0), read_step(1), read_step(2), op_step(op::mul), op_step(op::mul), read_step(3),
                read_step(4), op_step(op::mul), op_step(op::sigmoid), read_step(3), read_step(4), op_step(op::mul),
                op_step(op::silu), read_step(5), read_step(3), read_step(4), op_step(op::mul), op_step(op::sigmoid),
                op_step(op::sub), op_step(op::mul), op_step(op::add), op_step(op::mul)>;
// Sum of the input gradients of three layers that read the same rows (Q, K, V).
using sum_of_three = fixed_steps<read_step(0), read_step(1), op_step(op::add), read_step(2), op_step(op::add)>;
// x + a ⊙ p, a residual that backward recomputes.
using scaled_residual = fixed_steps<read_step(0), read_step(1), read_step(2), op_step(op::mul), op_step(op::add)>;

// `Numbers` and `Rows` have a bit for each operand that is one number, or one row of floats that all rows share. All
// other operands, and the result, have all elements in `Type`.
template <dtype Type, unsigned Numbers, unsigned Rows, class Steps> struct fixed_expression {
  static constexpr int operands = Steps::operands(), deep = Steps::depth();
  element_ptr<float> operand[operands], out;
  unsigned width;

  template <class F> __device__ static void each_of(float (&a)[8], const F& f) {
#pragma unroll
    for (int k = 0; k < 8; ++k) a[k] = f(k);
  }
  template <op What> __device__ static void apply(float (&a)[8], const float (&b)[8]) {
    static_assert(What == op::add || What == op::sub || What == op::mul);
    each_of(a, [&](int k) { return What == op::add ? a[k] + b[k] : What == op::sub ? a[k] - b[k] : a[k] * b[k]; });
  }
  // The result is rounded to 16 bits, so the fast exponential and division suffice.
  template <op What> __device__ static void apply(float (&a)[8]) {
    static_assert(What == op::sigmoid || What == op::silu);
    each_of(a, [&](int k) { return __fdividef(What == op::silu ? a[k] : 1, 1 + __expf(-a[k])); });
  }
  static constexpr int row_operand_index(int k) {  // row operands before operand k
    int n = 0;
    for (int i = 0; i < k; ++i) n += (Rows >> i & 1) != 0 ? 1 : 0;
    return n;
  }
  // The operands of eight elements.
  struct inputs {
    uint4 wide[operands] = {};
    float number[operands] = {}, row[row_operand_index(operands) + 1][8] = {};
  };
  template <int At, int Depth> __device__ __forceinline__ static void run(float (&v)[deep][8], const inputs& in) {
    if constexpr (At < Steps::count) {
      constexpr unsigned char step = Steps::at(At);
      if constexpr ((step & read_operand_bit) != 0) {
        constexpr int from = step & ~read_operand_bit;
        if constexpr ((Numbers >> from & 1) != 0)
          each_of(v[Depth], [&](int) { return in.number[from]; });
        else if constexpr ((Rows >> from & 1) != 0)
          each_of(v[Depth], [&](int k) { return in.row[row_operand_index(from)][k]; });
        else
          widen_vec8<Type>(v[Depth], in.wide[from]);
        run<At + 1, Depth + 1>(v, in);
      } else if constexpr (is_binary(static_cast<op>(step))) {
        apply<static_cast<op>(step)>(v[Depth - 2], v[Depth - 1]);
        run<At + 1, Depth - 1>(v, in);
      } else {
        apply<static_cast<op>(step)>(v[Depth - 1]);
        run<At + 1, Depth>(v, in);
      }
    }
  }
  __device__ __forceinline__ void load(inputs& in, long long i) const {
    const unsigned column =
        Rows == 0 ? 0 : 8 * (static_cast<unsigned>(i) % (width / 8));  // 64-bit modulo takes ten times as long
#pragma unroll
    for (int k = 0; k < operands; ++k)
      if (((Numbers | Rows) >> k & 1) == 0) in.wide[k] = static_cast<const uint4*>(operand[k].at)[i];
#pragma unroll
    for (int k = 0; k < operands; ++k) {
      if ((Numbers >> k & 1) != 0) in.number[k] = operand[k][0];
      if ((Rows >> k & 1) == 0) continue;
      const auto* const from = reinterpret_cast<const float4*>(static_cast<const float*>(operand[k].at) + column);
      const float4 low = from[0], high = from[1];
      float* const to = in.row[row_operand_index(k)];
      to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
      to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    }
  }
  __device__ __forceinline__ void finish(const inputs& in, long long i) const {
    float v[deep][8];
    run<0, 0>(v, in);
    static_cast<uint4*>(out.at)[i] = narrow_vec8<Type>(v[0]);
  }
  __device__ void operator()(long long i) const {
    inputs in;
    load(in, i), finish(in, i);
  }
};
// Two expressions in one pass. Operands that both read come from memory once: the second load hits the L1 cache.
template <class First, class Second> struct fixed_pair {
  First first;
  Second second;
  __device__ void operator()(long long i) const {
    typename First::inputs one;
    typename Second::inputs other;
    first.load(one, i), second.load(other, i);
    first.finish(one, i), second.finish(other, i);
  }
};

// ---- Expressions of any steps

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

  // Returns true if the expression is a product of its operands and nothing else.
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
  // Returns true if each operand k is one number or a row of floats where bit k of `numbers` or `rows` is set, and
  // otherwise has all elements in the type of the result.
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
