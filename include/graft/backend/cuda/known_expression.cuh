// SPDX-License-Identifier: Apache-2.0
// Expressions whose steps are known when the library is compiled: the gates of feed-forward layers and their gradients,
// the largest passes of a training step. All operands of eight elements are asked for at once, and no step is decoded, so
// that they run at the speed of memory. In 16 bits; every other expression is evaluated by expression.cuh.
#pragma once
#include <graft/backend/cuda/eights.cuh>
#include <graft/graph/op.h>

namespace graft::cuda {

// A step that reads an operand; every other one is an operation, whose operands come before it.
inline constexpr unsigned char expression_reads = 0x80;
constexpr unsigned char reading(int operand) { return static_cast<unsigned char>(expression_reads | operand); }
constexpr unsigned char doing(op o) { return static_cast<unsigned char>(o); }
constexpr bool takes_two(op o) {
  return o == op::add || o == op::sub || o == op::mul || o == op::div || o == op::minimum || o == op::maximum;
}

template <unsigned char... Steps> struct known_steps {
  static constexpr int count = sizeof...(Steps);
  static constexpr unsigned char at(int k) {
    constexpr unsigned char all[] = {Steps...};
    return all[k];
  }
  static constexpr int operands() {
    int n = 0;
    for (int k = 0; k < count; ++k)
      if ((at(k) & expression_reads) != 0 && (at(k) & ~expression_reads) >= n) n = (at(k) & ~expression_reads) + 1;
    return n;
  }
  static constexpr int depth() {  // values that wait for an operation at the same time
    int now = 0, most = 0;
    for (int k = 0; k < count; ++k) {
      now += (at(k) & expression_reads) != 0 ? 1 : takes_two(static_cast<op>(at(k))) ? -1 : 0;
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
// silu(a) ⊙ b, and with t the slope of it: t ⊙ silu(a); t ⊙ b ⊙ (σ(a) + silu(a) (1 - σ(a)))
using silu_gate = known_steps<reading(0), doing(op::silu), reading(1), doing(op::mul)>;
using silu_gate_by_second = known_steps<reading(0), reading(1), doing(op::silu), doing(op::mul)>;
using silu_gate_by_first = known_steps<reading(0), reading(1), doing(op::mul), reading(2), doing(op::sigmoid),
                                       reading(2), doing(op::silu), reading(3), reading(2), doing(op::sigmoid),
                                       doing(op::sub), doing(op::mul), doing(op::add), doing(op::mul)>;
// The same where a and b are kept without the factor of their columns (DoRA): a p and b q in their places.
using scaled_gate = known_steps<reading(0), reading(1), doing(op::mul), doing(op::silu), reading(2), reading(3),
                                doing(op::mul), doing(op::mul)>;
using scaled_gate_by_second =
    known_steps<reading(0), reading(1), reading(2), doing(op::mul), doing(op::silu), doing(op::mul)>;
using scaled_gate_by_first =
    known_steps<reading(0), reading(1), reading(2), doing(op::mul), doing(op::mul), reading(3), reading(4),
                doing(op::mul), doing(op::sigmoid), reading(3), reading(4), doing(op::mul), doing(op::silu), reading(5),
                reading(3), reading(4), doing(op::mul), doing(op::sigmoid), doing(op::sub), doing(op::mul),
                doing(op::add), doing(op::mul)>;
// The gradients of three layers that read the same rows.
using sum_of_three = known_steps<reading(0), reading(1), doing(op::add), reading(2), doing(op::add)>;
// x + a p: a residual that is computed again.
using scaled_residual = known_steps<reading(0), reading(1), reading(2), doing(op::mul), doing(op::add)>;

// `Numbers`, `Rows`: a bit for each operand that is one number, or one row of floats that all rows share; the others have
// all elements. `Type`: of all of those.
template <dtype Type, unsigned Numbers, unsigned Rows, class Steps> struct known_expression {
  static constexpr int operands = Steps::operands(), deep = Steps::depth();
  cells<float> operand[operands], out;
  unsigned width;

  template <class F> __device__ static void each_of(float (&a)[8], const F& f) {
#pragma unroll
    for (int k = 0; k < 8; ++k) a[k] = f(k);
  }
  template <op What> __device__ static void apply(float (&a)[8], const float (&b)[8]) {
    static_assert(What == op::add || What == op::sub || What == op::mul);
    each_of(a, [&](int k) { return What == op::add ? a[k] + b[k] : What == op::sub ? a[k] - b[k] : a[k] * b[k]; });
  }
  // The result is rounded to 16 bits: exponentials and quotients need no more than that.
  template <op What> __device__ static void apply(float (&a)[8]) {
    static_assert(What == op::sigmoid || What == op::silu);
    each_of(a, [&](int k) { return __fdividef(What == op::silu ? a[k] : 1, 1 + __expf(-a[k])); });
  }
  static constexpr int place_in_rows(int k) {  // how many rows come before operand k
    int n = 0;
    for (int i = 0; i < k; ++i) n += (Rows >> i & 1) != 0 ? 1 : 0;
    return n;
  }
  // What the operands of eight elements are.
  struct inputs {
    uint4 wide[operands] = {};
    float number[operands] = {}, row[place_in_rows(operands) + 1][8] = {};
  };
  template <int At, int Depth> __device__ __forceinline__ static void run(float (&v)[deep][8], const inputs& in) {
    if constexpr (At < Steps::count) {
      constexpr unsigned char step = Steps::at(At);
      if constexpr ((step & expression_reads) != 0) {
        constexpr int from = step & ~expression_reads;
        if constexpr ((Numbers >> from & 1) != 0)
          each_of(v[Depth], [&](int) { return in.number[from]; });
        else if constexpr ((Rows >> from & 1) != 0)
          each_of(v[Depth], [&](int k) { return in.row[place_in_rows(from)][k]; });
        else
          widen_eight<Type>(v[Depth], in.wide[from]);
        run<At + 1, Depth + 1>(v, in);
      } else if constexpr (takes_two(static_cast<op>(step))) {
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
        Rows == 0 ? 0 : 8 * (static_cast<unsigned>(i) % (width / 8));  // 32 bits: 64 take ten times as long
#pragma unroll
    for (int k = 0; k < operands; ++k)
      if (((Numbers | Rows) >> k & 1) == 0) in.wide[k] = static_cast<const uint4*>(operand[k].at)[i];
#pragma unroll
    for (int k = 0; k < operands; ++k) {
      if ((Numbers >> k & 1) != 0) in.number[k] = operand[k][0];
      if ((Rows >> k & 1) == 0) continue;
      const auto* const from = reinterpret_cast<const float4*>(static_cast<const float*>(operand[k].at) + column);
      const float4 low = from[0], high = from[1];
      float* const to = in.row[place_in_rows(k)];
      to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
      to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    }
  }
  __device__ __forceinline__ void finish(const inputs& in, long long i) const {
    float v[deep][8];
    run<0, 0>(v, in);
    static_cast<uint4*>(out.at)[i] = narrow_eight<Type>(v[0]);
  }
  __device__ void operator()(long long i) const {
    inputs in;
    load(in, i), finish(in, i);
  }
};
// Two of them in one pass; what both read is read once, since the second one finds it in the first level of memory.
template <class First, class Second> struct known_pair {
  First first;
  Second second;
  __device__ void operator()(long long i) const {
    typename First::inputs one;
    typename Second::inputs other;
    first.load(one, i), second.load(other, i);
    first.finish(one, i), second.finish(other, i);
  }
};

}  // namespace graft::cuda
