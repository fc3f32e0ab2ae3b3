// SPDX-License-Identifier: Apache-2.0
// Elementwise expressions with steps known at compile time: SwiGLU and its gradients, sums and residuals, the largest
// elementwise passes of a training step, in 16 bits. A thread loads all operands of eight elements at once and no step
// is decoded, so the kernels are bound by memory bandwidth. expression.cuh evaluates every other expression.
#pragma once
#include <graft/backend/gpu/tile/vector8.cuh>
#include <graft/graph/op.h>

namespace graft::gpu {

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

}  // namespace graft::gpu
