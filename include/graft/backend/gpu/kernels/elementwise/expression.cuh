// SPDX-License-Identifier: Apache-2.0
// Runs elementwise expressions of a plan as one kernel each (plan/launch/expression.h): builds the steps from graph
// nodes, then chooses a kernel with fixed steps, the interpreter on vectors of eight, the interpreter per element, or a
// reduction.
//
// Reductions of an elementwise expression, by form (dispatch/reduce_form.h):
//
//   narrow rows   A warp takes four rows of up to 256 elements, whose loads are in flight together.
//   rows          A CTA takes a row.
//   columns       A cluster takes sixteen columns. Its blocks split the rows, and the first block adds their sums in
//                 order through distributed shared memory.
//   matrices      A stack of large matrices is summed by one thread per eight elements.
//   any axes      A CTA takes each element of the result.
//
// Every sum has a fixed order, so results are bitwise deterministic. for_each.cuh says why the sums of warps and thread
// blocks are not CUB's.
#pragma once
#include <graft/backend/gpu/dispatch/reduce_form.h>
#include <graft/backend/gpu/kernels/elementwise/expression_interpreter.cuh>
#include <graft/core/algorithm.h>

namespace graft::gpu {

// ---- Sums

struct expression_row_reduce {
  expression_vec8<false> of;
  element_ptr<float> out;

  template <class Team> __device__ void operator()(long long row, Team t) const {
    const unsigned vec8_count = of.width / 8;
    float part = 0;
    for (auto c = static_cast<unsigned>(t.rank); c < vec8_count; c += static_cast<unsigned>(t.size)) {
      float v[8];
      of.value(v, row * vec8_count + c);
      for (int k = 0; k < 8; ++k) part += v[k];
    }
    const float sum = t.sum(part);
    if (t.is_leader()) out.put(row, sum);
  }
};
struct expression_narrow_row_reduce {
  static constexpr int rows_per_warp = 4;

  expression_vec8<false> of;
  element_ptr<float> out;
  unsigned rows;
  bool multiplies;

  template <class Team> __device__ void operator()(long long group, Team t) const {
    const unsigned vec8_count = of.width / 8, first = static_cast<unsigned>(group) * rows_per_warp;
    const auto mine = static_cast<unsigned>(t.rank);
    auto add = [&](unsigned row, const float(&v)[8]) {
      float part = 0;
      for (int k = 0; k < 8; ++k) part += v[k];
      const float sum = t.sum(part);
      if (t.is_leader()) out.put(row, sum);
    };
    if (multiplies && first + rows_per_warp <= rows) {
      float v[rows_per_warp][8] = {};
      if (mine < vec8_count) of.products(v, static_cast<long long>(first) * vec8_count + mine, vec8_count);
#pragma unroll
      for (int n = 0; n < rows_per_warp; ++n) add(first + n, v[n]);
      return;
    }
    for (unsigned row = first; row < rows && row < first + rows_per_warp; ++row) {
      float v[8] = {};
      if (mine < vec8_count) of.value(v, static_cast<long long>(row) * vec8_count + mine);
      add(row, v);
    }
  }
};
struct expression_column_reduce {
  static constexpr unsigned threads = 256, threads_x = 2, threads_y = threads / threads_x, wide = 8 * threads_x,
                            max_splits = 8;

  expression_vec8<false> of;
  element_ptr<float> out;
  unsigned rows;
  bool multiplies;

  // Adds eight columns over rows first, first + threads_y, … below `end`.
  __device__ void add(float (&sum)[8], unsigned eight, unsigned first, unsigned end) const {
    constexpr int in_flight = 4;
    const unsigned vec8_count = of.width / 8;
    unsigned r = first;
    for (; multiplies && r + (in_flight - 1) * threads_y < end; r += in_flight * threads_y) {
      float v[in_flight][8];
      of.products(v, static_cast<long long>(r) * vec8_count + eight, static_cast<long long>(threads_y) * vec8_count);
#pragma unroll
      for (int n = 0; n < in_flight; ++n)
        for (int k = 0; k < 8; ++k) sum[k] += v[n][k];
    }
    for (; r < end; r += threads_y) {
      float v[8];
      of.value(v, static_cast<long long>(r) * vec8_count + eight);
      for (int k = 0; k < 8; ++k) sum[k] += v[k];
    }
  }
};
// Grid (splits, column groups): a block sums sixteen columns over its split of the rows.
template <class Sums> __global__ void __launch_bounds__(Sums::threads) sum_columns_of(Sums g) {
  __shared__ float by_warp[Sums::threads / 32][Sums::wide], total[Sums::wide];
  pdl_begin();
  const unsigned part = blockIdx.x, splits = gridDim.x,
                 eight = blockIdx.y * Sums::threads_x + threadIdx.x % Sums::threads_x;
  const auto begin = [&](unsigned p) {
    return static_cast<unsigned>(static_cast<unsigned long long>(g.rows) * p / splits);
  };
  float sum[8] = {};
  if (eight < g.of.width / 8) g.add(sum, eight, begin(part) + threadIdx.x / Sums::threads_x, begin(part + 1));
#pragma unroll
  for (int k = 0; k < 8; ++k)
    for (unsigned d = 16; d >= Sums::threads_x; d /= 2)
      sum[k] += __shfl_xor_sync(0xffffffffU, sum[k], static_cast<int>(d));
  if (threadIdx.x % 32 < Sums::threads_x)
    for (int k = 0; k < 8; ++k) by_warp[threadIdx.x / 32][threadIdx.x % 32 * 8 + k] = sum[k];
  __syncthreads();
  const unsigned column = blockIdx.y * Sums::wide + threadIdx.x;
  const bool adds = threadIdx.x < Sums::wide;
  float all = 0;
  if (adds) {
    for (unsigned w = 0; w < Sums::threads / 32; ++w) all += by_warp[w][threadIdx.x];
    total[threadIdx.x] = all;
  }
#if __CUDA_ARCH__ >= 900
  if (splits > 1) {
    ptx::cluster_sync();
    if (part == 0 && adds)
      for (unsigned p = 1; p < splits; ++p) all += ptx::load_dsmem(ptx::shared_address(&total[threadIdx.x]), p);
    ptx::cluster_sync();  // a block must not exit while others read its shared memory
  }
#endif
  if (part == 0 && adds && column < g.of.width) g.out.put(column, all);
}
template <class Sums> status reduce_columns_split(cudaStream_t stream, Sums sums) {
  const unsigned groups = (sums.of.width + Sums::wide - 1) / Sums::wide;
  unsigned splits = device_has_pdl() ? Sums::max_splits : 1;  // clusters need compute capability 9.0 too
  while (splits > 1 && (groups * splits > 512 || sums.rows < splits * Sums::threads_y)) splits /= 2;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {splits, 1, 1};
  const cudaLaunchConfig_t config{dim3(splits, groups), dim3(Sums::threads),       0, stream,
                                  attributes,           device_has_pdl() ? 2U : 0U};
  void* arguments[] = {&sums};
  return launch(config, reinterpret_cast<const void*>(&sum_columns_of<Sums>), arguments, "column reduction");
}

struct expression_reduce {
  expression e;
  element_ptr<float> out;
  unsigned size[4], to[4];  // shape of the expression and of the result, which is 1 along summed axes

  __host__ __device__ unsigned terms() const {
    unsigned n = 1;
    for (int k = 0; k < 4; ++k) n *= to[k] == size[k] ? 1 : size[k];
    return n;
  }
  template <class Team> __host__ __device__ void operator()(long long i, Team t) const {
    unsigned first[4], rest_of_index = static_cast<unsigned>(i);
    for (int k = 3; k >= 0; --k) first[k] = rest_of_index % to[k], rest_of_index /= to[k];
    float part = 0;
    for (auto n = static_cast<unsigned>(t.rank); n < terms(); n += static_cast<unsigned>(t.size)) {
      unsigned c[4], rest = n;
      for (int k = 3; k >= 0; --k) {
        const bool summed = to[k] != size[k];
        c[k] = summed ? rest % size[k] : first[k];
        if (summed) rest /= size[k];
      }
      part += e.at(c);
    }
    const float sum = t.sum(part);
    if (t.is_leader()) out.put(i, sum);
  }
};

// Sums the matrices of a stack; a thread has eight elements of the result.
struct expression_matrix_reduce {
  expression_vec8<false> of;
  unsigned matrices;
  bool multiplies;

  __device__ void operator()(long long i) const {
    constexpr int in_flight = 4;
    const long long each = static_cast<long long>(of.rows[2]) * (of.width / 8);
    float sum[8] = {};
    unsigned m = 0;
    for (; multiplies && m + in_flight <= matrices; m += in_flight) {
      float v[in_flight][8];
      of.products(v, i + m * each, each);
#pragma unroll
      for (int n = 0; n < in_flight; ++n)
        for (int k = 0; k < 8; ++k) sum[k] += v[n][k];
    }
    for (; m < matrices; ++m) {
      float v[8];
      of.value(v, i + m * each);
      for (int k = 0; k < 8; ++k) sum[k] += v[k];
    }
    store_vec8(sum, of.out, 8 * i);
  }
};

// Pointers to the kernels of each form; a program compiles only those that it names.
struct reduce_functions {
  using vec8_function = status (*)(cudaStream_t, const expression_vec8<false>&, const element_ptr<float>& out,
                                   unsigned rows);
  vec8_function special[reduce_form_count - 1] = {};
  status (*any)(cudaStream_t, const expression_reduce&) = nullptr;
};
template <reduce_form Form>
status reduce_expression(cudaStream_t stream, const expression_vec8<false>& wide, const element_ptr<float>& out,
                         unsigned rows) {
  const on_stream on{stream};
  if constexpr (Form == reduce_form::narrow_rows)
    return on.rows((rows + 3LL) / expression_narrow_row_reduce::rows_per_warp,
                   expression_narrow_row_reduce{wide, out, rows, wide.multiplies()}, "row reduction");
  else if constexpr (Form == reduce_form::rows)
    return on.blocks(rows, between((wide.width / 8 + 31) / 32 * 32, 32U, 256U), expression_row_reduce{wide, out},
                     "row reduction");
  else
    return reduce_columns_split(stream, expression_column_reduce{wide, out, rows, wide.multiplies()});
}
template <class Sums = expression_reduce> status reduce_expression_any(cudaStream_t stream, const Sums& sums) {
  const unsigned threads = between((sums.terms() / 4 + 31) / 32 * 32, 32U, 1024U),
                 numbers = sums.to[0] * sums.to[1] * sums.to[2] * sums.to[3];
  const bool stack = sums.to[0] * sums.to[1] == 1 && sums.to[2] == sums.size[2] && sums.to[3] == sums.size[3];
  if (expression_vec8<false> wide{sums.e, sums.out, sums.size[3], {}};
      stack && numbers >= 16384 && wide.take(sums.size))
    return each(stream, numbers / 8, expression_matrix_reduce{wide, sums.terms(), wide.multiplies()},
                "matrix reduction");
  return on_stream{stream}.blocks(numbers, threads, sums, "expression reduction");
}

// Runs the kernel of the expression's form if it supports the operands, else the one for any axes.
inline status reduce_expression(cudaStream_t stream, const reduce_functions& by, const expression& e,
                                const unsigned (&size)[4], const unsigned (&to)[4], const element_ptr<float>& out) {
  const reduce_form form = reduce_form_of(size, to);
  const auto special = form == reduce_form::any ? nullptr : by.special[static_cast<int>(form)];
  expression_vec8<false> wide{e, {}, size[3], {}};
  if (special != nullptr && wide.take(size)) return special(stream, wide, out, size[0] * size[1] * size[2]);
  if (by.any == nullptr) return launch_not_compiled("expression reductions");
  return by.any(stream, {e, out, {size[0], size[1], size[2], size[3]}, {to[0], to[1], to[2], to[3]}});
}

// ---- Launching expressions

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
