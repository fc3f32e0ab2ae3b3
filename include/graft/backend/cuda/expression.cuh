// SPDX-License-Identifier: Apache-2.0
// An expression of a plan as one kernel: a thread evaluates it for an element of the result, or a block of threads adds it
// up for one. Operands are read through steps along the axes of the result: none along an axis that repeats them, the last
// two exchanged below a transposition.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/pointwise.cuh>
#include <graft/plan/expression.h>

namespace graft::cuda {

struct expression {
  static constexpr unsigned char reads = 0x80;  // a step that is no operation: the rest is the number of an operand

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
  __host__ __device__ static bool takes_two(op o) {
    return o == op::add || o == op::sub || o == op::mul || o == op::div || o == op::minimum || o == op::maximum;
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
    for (int k = 0; k < 4; ++k) e_.stride[e_.operands][k] = steps[k];
    e_.operand[e_.operands] = t.p;
    e_.step[e_.steps++] = static_cast<unsigned char>(expression::reads | static_cast<unsigned>(e_.operands++));
  }

  const graph& g_;
  Inside inside_;
  Value value_;
  expression e_{};
};

// `of`: what is computed element by element, the root itself or what it sums.
inline status evaluate(cudaStream_t stream, const expression& e, const tensor<float>& of, const tensor<float>& out) {
  if (out.count() == 0) return ok;
  if (of.count() >= 1LL << 32) return fail("an expression of ", of.count(), " elements is more than its kernel counts");
  unsigned size[4], to[4];
  for (int k = 0; k < 4; ++k) size[k] = static_cast<unsigned>(of.d[k]), to[k] = static_cast<unsigned>(out.d[k]);
  if (of.count() == out.count())
    return each(stream, out.count(), expression_elements{e, out.p, {size[0], size[1], size[2], size[3]}}, "expression");
  const expression_sums sums{e, out.p, {size[0], size[1], size[2], size[3]}, {to[0], to[1], to[2], to[3]}};
  const auto threads = static_cast<unsigned>(std::clamp((sums.added() / 4 + 31) / 32 * 32, 32U, 1024U));
  return on_stream{stream}.blocks(out.count(), threads, sums, "sum of an expression");
}

}  // namespace graft::cuda
