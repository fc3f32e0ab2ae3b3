// SPDX-License-Identifier: Apache-2.0
// The GPU's node evaluator against the CPU's in double: every op with explicit cases, then every node of every graph of
// every method. A loop on the host calls the functors on every machine, and kernels call them if there is a GPU.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/evaluate_node.cuh>
#include <graft/backend/gpu/dispatch/targets.h>

#include <deque>
#include <set>

#include "../support/instances.h"
#include "../support/random_layer.h"

using namespace test;

namespace {

struct on_host {
  mutable int launches = 0;

  template <class Element> status elements(long long n, const Element& e, const char*) const {
    for (long long i = 0; i < n; ++i) e(i);
    return ++launches, ok;
  }
  template <class Row> status rows(long long n, const Row& r, const char*) const {
    for (long long i = 0; i < n; ++i) r(i, gpu::single_thread{});
    return ++launches, ok;
  }
  template <class Column> status columns(long long n, const Column& c, const char* name) const {
    return rows(n, c, name);
  }
  template <class Matrix> status matrices(long long n, long long, const Matrix& m, const char* name) const {
    return rows(n, m, name);
  }
};
// The tiled kernel cannot run on the host, so this loop reads its operands instead.
template <class Real> status multiply(const on_host& on, const gpu::products<Real>& p, Real* = nullptr) {
  ++on.launches;
  const long long results = p.sum ? 1 : p.count(), each = p.sum ? p.count() : 1;
  for (long long m = 0; m < results; ++m)
    for (long long r = 0; r < p.rows; ++r)
      for (long long c = 0; c < p.cols; ++c) {
        Real sum = 0;
        for (long long s = m * each; s < (m + 1) * each; ++s) {
          const gpu::element_ptr<Real> a = p.matrix(p.a, s) + r * p.a.step, b = p.matrix(p.b, s) + c * p.b.step;
          for (long long k = 0; k < p.depth; ++k) sum += a[k * p.a.inner] * b[k * p.b.inner];
        }
        p.store(m, r, c, sum);
      }
  return ok;
}
// Multiplies expert by expert. Rows of experts that another rank has become zero, as in the kernel.
template <class Real> status multiply_groups(const on_host& on, const gpu::grouped_products<Real>& g) {
  if (!g.is_wgrad && g.mine.end != 0)
    for (long long i = 0; i < g.out.count(); ++i) g.out.p.put(i, Real(0));
  for (long long e = 0; e < g.experts; ++e) {
    const long long first = g.routing.begin(g.mine.first + e), end = g.routing.begin(g.mine.first + e + 1);
    if (status s = multiply(on, g.of(e, first, end - first)); !s) return s;
    if (!g.has_branch()) continue;
    gpu::products<Real> branch = g.of_branch(e, first, end - first);
    branch.accumulate = 1, --on.launches;
    if (status s = multiply(on, branch); !s) return s;
  }
  return on.launches -= static_cast<int>(g.experts) - 1, ok;
}
// Attention by its definition, for each row and head.
template <class Real> struct attention_on_host {
  const gpu::attention_operands<Real>& a;
  long long row, head;
  std::vector<Real> p, slope;
  Real of_sink = 0;
  attention_on_host(const gpu::attention_operands<Real>& of, long long unit)
      : a(of), row(unit / of.queries), head(unit % of.queries) {
    Real most = 0, sum = 0;
    for (long long k = a.range[row]; k < a.range[a.rows + row]; ++k) {
      Real s = 0;
      for (int c = 0; c < a.head; ++c) s += query(c) * key(a.k, k, c);
      p.push_back(a.capped(s * a.scale())), slope.push_back(a.slope(p.back())), most = std::max(most, p.back());
    }
    for (Real& s : p) s = std::exp(s - most), sum += s;
    if (a.has_sinks()) of_sink = std::exp(a.sink(row, static_cast<int>(head)) - most), sum += of_sink;
    for (Real& s : p) s /= sum;
    of_sink /= sum;
  }
  Real query(int c) const { return a.q[row * a.q_row + head * a.head + c]; }
  Real key(const gpu::element_ptr<Real>& of, long long k, int c) const {
    return of[k * a.k_row + head / a.group_size() * a.head + c];
  }
};
template <class Real>
status attention_forward(const on_host& on, const gpu::attention_operands<Real>& a, const gpu::element_ptr<Real>& out,
                         long long width) {
  ++on.launches;
  for (long long unit = 0; unit < a.rows * a.queries; ++unit) {
    const attention_on_host<Real> h(a, unit);
    for (int c = 0; c < a.head; ++c) {
      Real sum = 0;
      for (std::size_t k = 0; k < h.p.size(); ++k)
        sum += h.p[k] * h.key(a.v, a.range[h.row] + static_cast<long long>(k), c);
      out.put(h.row * width + h.head * a.head + c, sum);
    }
  }
  return ok;
}
template <class Real>
status attention_backward(const on_host& on, const gpu::attention_operands<Real>& a, const gpu::element_ptr<Real>& dout,
                          long long width, const gpu::element_ptr<Real>& d, Real*) {
  on.launches += 2;
  const long long q_width = static_cast<long long>(a.queries) * a.head,
                  kv = static_cast<long long>(a.kv_heads) * a.head;
  std::vector<Real> sum(static_cast<std::size_t>(a.rows * a.q_row));
  for (long long unit = 0; unit < a.rows * a.queries; ++unit) {
    const attention_on_host<Real> h(a, unit);
    const long long own = h.head * a.head, shared = h.head / a.group_size() * a.head;
    std::vector<Real> dp(h.p.size());
    Real mean = 0;
    for (std::size_t k = 0; k < dp.size(); ++k) {
      for (int c = 0; c < a.head; ++c)
        dp[k] += dout[h.row * width + own + c] * h.key(a.v, a.range[h.row] + static_cast<long long>(k), c);
      mean += h.p[k] * dp[k];
    }
    for (std::size_t k = 0; k < dp.size(); ++k)
      for (int c = 0; c < a.head; ++c) {
        const long long at = a.range[h.row] + static_cast<long long>(k);
        const Real ds = a.scale() * h.p[k] * (dp[k] - mean) * h.slope[k];
        sum[static_cast<std::size_t>(h.row * a.q_row + own + c)] += ds * h.key(a.k, at, c);
        sum[static_cast<std::size_t>(at * a.q_row + q_width + shared + c)] += ds * h.query(c);
        sum[static_cast<std::size_t>(at * a.q_row + q_width + kv + shared + c)] +=
            h.p[k] * dout[h.row * width + own + c];
      }
    if (a.has_sinks()) sum[static_cast<std::size_t>(h.row * a.q_row + q_width + 2 * kv + h.head)] = -h.of_sink * mean;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) d.put(static_cast<long long>(i), sum[i]);
  return ok;
}

bool has_device() {
  static const bool found = [] {
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) MESSAGE("kernels are not run: ", std::string(cudaGetErrorString(e)));
    return e == cudaSuccess && n > 0;
  }();
  return found;
}
// A block of device memory from which every comparison allocates anew.
class device_memory {
 public:
  template <class T> T* allocate(long long n) {
    if (base_ == nullptr) REQUIRE(cudaMalloc(&base_, size) == cudaSuccess);
    T* const p = reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<std::size_t>(n) * sizeof(T) + 255) / 256 * 256;
    REQUIRE(used_ <= size);
    return p;
  }
  template <class T> T* put(const T* from, long long n) {
    T* const p = allocate<T>(n);
    if (n > 0) REQUIRE(cudaMemcpy(p, from, static_cast<std::size_t>(n) * sizeof(T), cudaMemcpyDefault) == cudaSuccess);
    return p;
  }
  void reset() { used_ = 0; }

 private:
  static constexpr std::size_t size = 64U << 20U;
  char* base_ = nullptr;
  std::size_t used_ = 0;
};
device_memory& device() {
  static device_memory d;
  return d;
}

// The largest difference relative to the largest number; NaN where NaN is expected is no difference.
template <class Real> double distance(const std::vector<Real>& found, const std::vector<double>& expected) {
  double most = 0, scale = 1e-30;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double f = static_cast<double>(found[i]), e = expected[i];
    if (std::isfinite(e)) scale = std::max(scale, std::abs(e));
    if ((std::isnan(f) && std::isnan(e)) || f == e) continue;
    const double d = std::abs(f - e);
    most = std::isnan(d) ? INFINITY : std::max(most, d);
  }
  return most / scale;
}

template <class Real> struct wide {  // an operand in double
  std::vector<double> v;
  cpu::tensor<double> t;
  explicit wide(const gpu::tensor<Real>& x) {
    if (x.p.at != nullptr)
      for (long long i = 0; i < x.count(); ++i) v.push_back(static_cast<double>(x.p[i]));
    t = {v.data(), {x.d[0], x.d[1], x.d[2], x.d[3]}};
  }
};

std::set<op> met;

// Numbers in the memory of a storage type.
template <class Real> struct stored {
  std::vector<char> bytes;
  gpu::element_ptr<Real> p;
  stored(const std::vector<Real>& numbers, dtype type)
      : bytes(numbers.size() * static_cast<std::size_t>(bits_of(type)) / 8), p(bytes.data(), type) {
    for (std::size_t k = 0; k < numbers.size(); ++k) p.put(static_cast<long long>(k), numbers[k]);
  }
  std::vector<Real> read(long long n) const {
    std::vector<Real> v;
    for (long long k = 0; k < n; ++k) v.push_back(p[k]);
    return v;
  }
};

// Computes node i of g from operands on the host in every mode. The result begins with one half, because some ops add
// to it. Sums over rows of experts overwrite it on the GPU, and add to it on the CPU, where a call may come in chunks.
template <class Real>
void agree(const graph& g, id i, const size_values& s, const gpu::operands<Real>& x, double tolerance,
           dtype to = gpu::dtype_of<Real>) {
  const node& v = g[i];
  met.insert(v.what);
  const gpu::evaluator<Real> evaluate{g, s};
  const long long n = element_count(g, i, s), extra = evaluate.scratch(i);
  wide<Real> a(x.a), b(x.b), c(x.c);
  for (const int accumulate : {0, 1, -1}) {
    if (accumulate != 0 && v.what != op::matmul) continue;
    INFO("op ", std::string(traits_of(v.what).name), ", node ", i, ", accumulate ", accumulate, ", elements ", n,
         ", from ", std::string(name_of(x.a.p.type)), " to ", std::string(name_of(to)));
    const double begins_with = v.what == op::combine || v.what == op::grouped_wgrad ? 0 : 0.5;
    std::vector<double> expected(static_cast<std::size_t>(n), begins_with);
    cpu::evaluator<double>{g, s, cpu::every_operation<double>().evaluate}(i, cpu::shaped(g, i, s, expected.data()),
                                                                          {a.t, b.t, c.t, x.ids}, accumulate);

    const std::vector<Real> begin(expected.size(), Real(0.5));
    stored<Real> result(begin, to);
    std::vector<double> scratch(static_cast<std::size_t>(extra), NAN);  // aligned for doubles
    on_host here;
    const status done_here =
        evaluate.run(here, i, gpu::shaped(g, i, s, result.p), x, reinterpret_cast<Real*>(scratch.data()), accumulate);
    INFO(std::string(done_here.message()));
    CHECK(bool(done_here));
    CHECK(distance(result.read(n), expected) <= tolerance);
    CHECK(here.launches == evaluate.launches(i));

    if (!has_device()) continue;
    device().reset();
    auto there = [](gpu::tensor<Real> t) {
      if (t.p.at != nullptr) t.p.at = device().put(static_cast<char*>(t.p.at), t.count() * bits_of(t.p.type) / 8);
      return t;
    };
    gpu::operands<Real> y{there(x.a), there(x.b), there(x.c)};
    if (x.ids != nullptr) y.ids = device().put(x.ids, element_count(g, v.b, s));
    result = stored<Real>(begin, to);
    const gpu::element_ptr<Real> out(device().put(result.bytes.data(), static_cast<long long>(result.bytes.size())),
                                     to);
    Real* const device_scratch = device().put(reinterpret_cast<const Real*>(scratch.data()), extra);
    const status done = evaluate(nullptr, i, gpu::shaped(g, i, s, out), y, device_scratch, accumulate);
    INFO(std::string(done.message()));
    CHECK(bool(done));
    CHECK(std::string(cudaGetErrorString(cudaDeviceSynchronize())) == "no error");
    if (n > 0) REQUIRE(cudaMemcpy(result.bytes.data(), out.at, result.bytes.size(), cudaMemcpyDefault) == cudaSuccess);
    CHECK(distance(result.read(n), expected) <= tolerance);
  }
}

struct shape {
  int d[4];
};
// A graph of one op on random operands.
template <class Real> struct single_op {
  node n[4];
  int operands = 0;
  size_table sizes;
  std::vector<Real> data[3];
  std::vector<std::int64_t> ids;

  single_op(op what, const std::vector<shape>& in, shape out, double around = 0) {
    std::mt19937 engine(7);
    std::uniform_real_distribution<double> uniform(around - 1, around + 1);
    for (const shape& from : in) {
      node& v = n[operands];
      v.what = op::input;
      for (int k = 0; k < 4; ++k) v.d[k] = {from.d[k]};
      for (int k = 0; k < from.d[0] * from.d[1] * from.d[2] * from.d[3]; ++k)
        data[operands].push_back(static_cast<Real>(uniform(engine)));
      ++operands;
    }
    op_node().what = what;
    for (int k = 0; k < 4; ++k) op_node().d[k] = {out.d[k]};
    id* const from[3] = {&op_node().a, &op_node().b, &op_node().c};
    for (int k = 0; k < operands; ++k) *from[k] = static_cast<id>(k);
  }
  node& op_node() { return n[operands]; }
  single_op& with(int k0, int k1 = 0, int k2 = 0, int k3 = 0) {
    dim* const k = op_node().k;
    k[0] = {k0}, k[1] = {k1}, k[2] = {k2}, k[3] = {k3};
    return *this;
  }
  single_op& flags(bool ta, bool tb = false, bool sum = false) {
    op_node().ta = ta, op_node().tb = tb, op_node().sum = sum;
    return *this;
  }
  single_op& second_is_third() {
    op_node().c = op_node().b;
    return *this;
  }
  single_op& look_up(std::vector<std::int64_t> which) { return whole_numbers(op::ids, 1, std::move(which)); }
  single_op& at_places(std::vector<std::int64_t> rows_then_columns) {
    return whole_numbers(op::index, 2, std::move(rows_then_columns));
  }
  single_op& whole_numbers(op leaf, int rows, std::vector<std::int64_t> which) {
    ids = std::move(which);
    n[operands + 1] = n[operands];
    n[operands].what = leaf;
    const int shape[4] = {1, 1, rows, static_cast<int>(ids.size()) / rows};
    for (int k = 0; k < 4; ++k) n[operands].d[k] = {shape[k]};
    n[operands + 1].b = static_cast<id>(operands);
    ++operands;
    return *this;
  }
  single_op& spans(std::vector<std::int64_t> first_end_own) {
    return whole_numbers(op::ids, 3, std::move(first_end_own));
  }
  // Checks in Real, and from and to narrower storage types: the inputs are exact there, and the outputs are rounded.
  void check(double tolerance = sizeof(Real) == 4 ? 1e-5 : 1e-11) {
    const dtype own = gpu::dtype_of<Real>;
    check(own, own, own, tolerance);
    if (sizeof(Real) == 8 || data[0].size() + data[1].size() > 4096) return;
    check(dtype::bf16, dtype::f16, own, tolerance);
    check(own, dtype::bf16, dtype::bf16, 1e-2);
    check(dtype::f16, own, dtype::f16, 2e-3);
  }
  void check(dtype first, dtype others, dtype result, double tolerance) {
    const graph g{n, operands + 1, sizes, nullptr, 0, nullptr, 0, {}};
    const size_values none;
    gpu::operands<Real> x;
    gpu::tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    std::deque<stored<Real>> kept;
    for (int o = 0; o < 3; ++o)
      if (const id k = op_node().operand(o); k >= 0 && n[k].what == op::input) {
        kept.emplace_back(data[k], k == 0 ? first : others);
        *to[o] = gpu::shaped(g, k, none, kept.back().p);
      }
    x.ids = ids.empty() ? nullptr : ids.data();
    agree<Real>(g, static_cast<id>(operands), none, x, tolerance, result);
  }
};

template <class Real> void pointwise_ops() {
  for (const op what : {op::add, op::sub, op::mul, op::div, op::minimum, op::maximum})
    for (int m = 0; m < 16; ++m)
      for (int k = 0; k < 16; ++k) {
        auto of = [](int mask) {
          const int full[4] = {2, 3, 4, 5};
          shape s{};
          for (int d = 0; d < 4; ++d) s.d[d] = (mask >> d & 1) != 0 ? full[d] : 1;
          return s;
        };
        single_op<Real>(what, {of(m), of(k)}, of(m | k), 1.5).check();
      }
  for (const op what : {op::exp, op::sin, op::cos, op::tanh, op::erf, op::sigmoid, op::relu, op::silu, op::gelu,
                        op::gelu_tanh, op::heaviside, op::detach, op::reshape})
    for (const double around : {-3.0, 0.0, 3.0}) single_op<Real>(what, {{1, 2, 3, 7}}, {1, 2, 3, 7}, around).check();
  for (const op what : {op::sqrt, op::log}) single_op<Real>(what, {{1, 2, 3, 7}}, {1, 2, 3, 7}, 1.5).check();
  single_op<Real>(op::add, {{1, 1, 0, 5}, {1, 1, 1, 5}}, {1, 1, 0, 5}).check();
}
template <class Real> void layout_ops() {
  single_op<Real> constant(op::constant, {}, {1, 1, 1, 1});
  constant.op_node().value = 0.3;
  constant.check();
  single_op<Real>(op::number, {}, {1, 1, 1, 1}).with(4096).check();
  single_op<Real>(op::eye, {}, {1, 1, 5, 5}).check();
  single_op<Real>(op::zero, {}, {2, 1, 5, 3}).check();
  single_op<Real>(op::transpose, {{2, 3, 4, 5}}, {2, 3, 5, 4}).check();
  int axes[4] = {0, 1, 2, 3};
  const int full[4] = {2, 3, 4, 5};
  do {
    const shape turned{full[axes[0]], full[axes[1]], full[axes[2]], full[axes[3]]};
    single_op<Real>(op::permute, {{2, 3, 4, 5}}, turned).with(axes[0], axes[1], axes[2], axes[3]).check();
  } while (std::next_permutation(axes, axes + 4));
  for (int axis = 0; axis < 4; ++axis)
    for (int from = 0; from < full[axis]; ++from)
      for (int size = 0; size <= full[axis] - from; ++size) {
        shape part{2, 3, 4, 5}, rest{2, 3, 4, 5};
        part.d[axis] = size, rest.d[axis] = full[axis] - size;
        single_op<Real>(op::slice, {{2, 3, 4, 5}}, part).with(axis, from).check();
        single_op<Real>(op::pad, {part}, {2, 3, 4, 5}).with(axis, from).check();
        single_op<Real>(op::concat, {part, rest}, {2, 3, 4, 5}).with(axis).check();
      }
  for (const int width : {4, 8, 10, 3}) {
    single_op<Real>(op::repeat, {{1, 2, 3, 4}}, {1, 2, 3, width}).check();
    single_op<Real>(op::fold_columns, {{1, 2, 3, width}}, {1, 2, 3, 4}).check();
  }
  single_op<Real>(op::strict_upper, {{1, 2, 4, 4}}, {1, 2, 4, 4}).check();
  single_op<Real>(op::skew, {{1, 1, 3, 10}}, {1, 3, 5, 5}).check();
  single_op<Real>(op::unskew, {{1, 3, 5, 5}}, {1, 1, 3, 10}).check();
  for (const bool mirrored : {false, true})
    for (const int b : {1, 2, 5, 8}) {
      single_op<Real>(op::circulant, {{2, 3, 4, b}}, {2, 3, b, 4 * b}).flags(false, mirrored).check();
      single_op<Real>(op::circulant, {{2, 3, b, 4 * b}}, {2, 3, 4, b}).flags(true, mirrored).check();
    }
  single_op<Real>(op::kron, {{1, 1, 3, 4}, {1, 1, 2, 5}}, {1, 1, 6, 20}).check();
  single_op<Real>(op::row_kron, {{1, 1, 3, 4}, {1, 1, 3, 5}}, {1, 1, 3, 20}).check();
  single_op<Real>(op::gather, {{1, 1, 7, 3}}, {1, 1, 5, 3}).look_up({4, 0, 4, 2, 6}).check();
  single_op<Real>(op::gather, {{1, 1, 3, 7}}, {1, 1, 5, 3}).flags(true).look_up({4, 0, 4, 2, 6}).check();
  single_op<Real>(op::scatter, {{1, 1, 5, 70}}, {1, 1, 7, 70}).look_up({4, 0, 4, 2, 6}).check();
  single_op<Real>(op::scatter, {{1, 1, 5, 3}}, {1, 1, 3, 7}).flags(true).look_up({4, 0, 4, 2, 6}).check();
  std::vector<std::int64_t> often;  // more tokens than a warp has threads; ids occur many times, once or never
  for (int t = 0; t < 150; ++t) often.push_back(t % 3 == 0 ? 5 : t * 7 % 61);
  single_op<Real>(op::scatter, {{1, 1, 150, 300}}, {1, 1, 61, 300}).look_up(often).check();
  single_op<Real>(op::scatter, {{1, 1, 150, 16}}, {1, 1, 16, 61}).flags(true).look_up(often).check();
  std::vector<std::int64_t> far_apart;  // more entries than a warp has threads, some indices twice
  for (int e = 0; e < 200; ++e) far_apart.push_back(e < 100 ? e * 7 % 11 : (e - 100) * 5 % 37);
  single_op<Real>(op::scatter_elements, {{1, 1, 100, 1}}, {1, 1, 11, 37}).at_places(far_apart).check();
  single_op<Real>(op::gather_elements, {{1, 1, 11, 37}}, {1, 1, 100, 1}).at_places(far_apart).check();
  single_op<Real>(op::scatter_elements, {{1, 1, 4, 1}}, {1, 1, 3, 40}).at_places({2, 0, 2, 2, 33, 1, 33, 33}).check();
  const int geometry[][4] = {{1, 1, 1, 0}, {3, 3, 1, 1}, {3, 2, 2, 1}, {5, 6, 1, 0}, {2, 2, 3, 2}};
  for (const auto& k : geometry) {
    const int h = 5, w = 6, oh = (h + 2 * k[3] - k[0]) / k[2] + 1, ow = (w + 2 * k[3] - k[1]) / k[2] + 1;
    const shape image{2, 3, h, w}, rows{1, 2, oh * ow, 3 * k[0] * k[1]};
    single_op<Real>(op::im2col, {image}, rows).with(k[0], k[1], k[2], k[3]).check();
    single_op<Real>(op::col2im, {rows}, image).with(k[0], k[1], k[2], k[3]).check();
  }
}
// Operations on the rows of experts by a routing table, of a rank that has `some` experts from `first` on, or all.
struct expert_sizes {
  int tokens, experts, k, in, out;
};
template <class Real>
void routed_op(const std::vector<double>& table, op what, std::vector<shape> from, shape result, routed_by by,
               int first, int some, bool transposed = false) {
  from.push_back({1, 1, static_cast<int>(table.size()) / 3, 3});
  single_op<Real> made(what, from, result);
  made.with(static_cast<int>(by), first, some).flags(false, transposed);
  std::vector<Real>& last = made.data[from.size() - 1];
  for (std::size_t k = 0; k < table.size(); ++k) last[k] = static_cast<Real>(table[k]);
  made.check();
}
template <class Real> void routed_ops(const std::vector<double>& table, const expert_sizes& n, int first, int some) {
  const int here = some > 0 ? some : n.experts, rows = n.tokens * n.k;
  for (const int columns : {n.in, 16}) {
    const shape sorted{1, 1, rows, columns}, of_tokens{1, 1, n.tokens, columns}, of_experts{1, here, 1, columns};
    routed_op<Real>(table, op::dispatch, {of_tokens}, sorted, routed_by::token, first, some);
    routed_op<Real>(table, op::combine, {sorted}, of_tokens, routed_by::token, first, some);
    routed_op<Real>(table, op::dispatch, {of_experts}, sorted, routed_by::expert, first, some);
    routed_op<Real>(table, op::combine, {sorted}, of_experts, routed_by::expert, first, some);
    routed_op<Real>(table, op::combine, {sorted}, sorted, routed_by::row, first, some);
  }
  const shape scores{1, 1, n.tokens, n.experts}, weights{1, 1, rows, 1};
  if (some == 0) routed_op<Real>(table, op::dispatch, {scores}, weights, routed_by::both, first, some);
  routed_op<Real>(table, op::combine, {weights}, scores, routed_by::both, first, some);
  const shape x{1, 1, rows, n.in}, y{1, 1, rows, n.out}, w{1, here, n.out, n.in}, wt{1, here, n.in, n.out};
  routed_op<Real>(table, op::grouped_matmul, {x, w}, y, routed_by::token, first, some, true);
  routed_op<Real>(table, op::grouped_matmul, {x, wt}, y, routed_by::token, first, some);
  routed_op<Real>(table, op::grouped_wgrad, {y, x}, w, routed_by::token, first, some);
}
// Mixture of experts. The experts of the tokens are skewed: one has most of the rows, and some have none.
template <class Real> void expert_ops(int tokens, int experts, int k, int in, int out) {
  const int rows = tokens * k;
  std::mt19937 engine(11);
  std::uniform_real_distribution<double> uniform(-1, 1);
  single_op<Real> chosen(op::route, {{1, 1, tokens, experts}}, {1, 1, rows, 3});
  for (int t = 0; t < tokens; ++t)
    for (int e = 0; e < experts; ++e)  // multiples of 1/4, so that scores are equal often, and exact in every type
      chosen.data[0][static_cast<std::size_t>(t * experts + e)] =
          static_cast<Real>(std::round(4 * (uniform(engine) + (e == 1       ? 1.5
                                                               : e % 5 == 4 ? -3
                                                                            : 0))) /
                            4);
  if (tokens > 3) chosen.data[0][static_cast<std::size_t>(3 * experts)] = static_cast<Real>(NAN);
  chosen.with(k).check();

  // The table, by the definition in graph/rules_experts.h.
  std::vector<double> scores(chosen.data[0].begin(), chosen.data[0].end()), table(static_cast<std::size_t>(rows) * 3);
  cpu::tensor<double> from{scores.data(), {1, 1, tokens, experts}}, to{table.data(), {1, 1, rows, 3}};
  cpu::route(to, from, k);
  const int third = experts / 3;
  for (const int some : {0, experts - 2 * third})  // 0: all experts
    routed_ops<Real>(table, {tokens, experts, k, in, out}, some > 0 ? third : 0, some);
}
template <class Real> void algebra_ops() {
  for (const int b : {1, 2, 5, 16, 33, 70}) {
    single_op<Real> f(op::inverse, {{2, 3, b, b}}, {2, 3, b, b});
    for (int m = 0; m < 6; ++m)  // well-conditioned, with pivots off the diagonal
      for (int r = 0; r < b; ++r) f.data[0][static_cast<std::size_t>((m * b + r) * b + (r + m) % b)] += Real(b);
    f.check();
  }
  for (const int b : {1, 2, 5, 16, 33})
    for (const int more : {0, 1, 40})
      single_op<Real>(op::orthonormal, {{1, 2, b + more, b}}, {1, 2, b + more, b}).check();
  for (const int b : {1, 4, 17})
    for (int terms = 0; terms <= 6; ++terms) {
      single_op<Real>(op::neumann, {{1, 2, b, b}}, {1, 2, b, b}).with(terms).check();
      single_op<Real>(op::neumann_grad, {{1, 2, b, b}, {1, 2, b, b}}, {1, 2, b, b}).with(terms).check();
    }
  for (const int b : {2, 3, 4, 5, 8, 12, 16})  // two factors of 12: groups of 24 columns, which cross 32
    for (const int factors : {1, 2, 3})
      for (const int blocks : {1, 8})
        for (const bool flip : {false, true}) {
          if (factors > 1 && b % 2 != 0) continue;
          const shape x{2, 1, 9, 8 * b}, q{factors, blocks, b, b};
          single_op<Real>(op::rotate, {x, q}, x).flags(false, flip).check();
          single_op<Real>(op::rotate_grad, {x, x, q}, q).flags(false, flip).check();
        }
}
template <class Real> void row_ops() {
  for (const int n : {1, 5, 32, 100, 16384}) {
    const shape x{1, 2, 3, n}, one{1, 1, 1, 1};
    single_op<Real>(op::row_dot, {x, x}, {1, 2, 3, 1}, 1.5).check();
    for (const int rms : {0, 1}) {
      single_op<Real> f(op::normalize, {x, one}, x, 0.3), d(op::normalize_grad, {x, one, x}, x, 0.3);
      f.data[1][0] = d.data[1][0] = Real(0.1);
      f.with(rms).check();
      d.with(rms).check();
    }
    if (n > 1000) continue;
    single_op<Real>(op::softmax_grad, {x, x}, x).check();
    for (const double around : {-200.0, 0.0, 200.0}) single_op<Real>(op::softmax, {x}, x, around).check();
    for (const int k : {1, 2, 7, 200}) {
      single_op<Real>(op::topk_softmax, {x}, x).with(k).check();
      single_op<Real> ties(op::topk_softmax, {x}, x);
      for (Real& z : ties.data[0]) z = std::round(z * 2);
      ties.with(k).check();
    }
  }
  for (int mask = 0; mask < 16; ++mask) {
    const int full[2][4] = {{2, 3, 4, 5}, {2, 3, 50, 70}};
    for (const auto& s : full) {
      shape out{};
      for (int k = 0; k < 4; ++k) out.d[k] = (mask >> k & 1) != 0 ? 1 : s[k];
      single_op<Real>(op::sum_to, {{s[0], s[1], s[2], s[3]}}, out, 1.5).check();
    }
  }
  single_op<Real>(op::sum_to, {{1, 1, 16384, 5}}, {1, 1, 1, 5}, 1.5).check();
  single_op<Real>(op::sum_to, {{1, 1, 5, 16384}}, {1, 1, 5, 1}, 1.5).check();
}
template <class Real> void products() {
  const int sizes[][3] = {{1, 1, 1}, {64, 64, 16}, {65, 63, 17}, {7, 130, 33}, {200, 5, 70}, {3, 4, 0}, {0, 4, 3}};
  const int stacks[][4] = {{1, 1, 1, 1}, {2, 3, 1, 1}, {1, 1, 2, 3}, {2, 3, 2, 3}, {2, 1, 1, 3}, {1, 0, 1, 0}};
  for (const auto& s : sizes)
    for (const auto& t : stacks)
      for (int flags = 0; flags < 8; ++flags) {
        const bool ta = (flags & 1) != 0, tb = (flags & 2) != 0, sum = (flags & 4) != 0;
        const shape a{t[0], t[1], ta ? s[2] : s[0], ta ? s[0] : s[2]},
            b{t[2], t[3], tb ? s[1] : s[2], tb ? s[2] : s[1]};
        const int n0 = t[0] == 1 ? t[2] : t[0], n1 = t[1] == 1 ? t[3] : t[1];
        single_op<Real>(op::matmul, {a, b}, {sum ? 1 : n0, sum ? 1 : n1, s[0], s[1]}).flags(ta, tb, sum).check();
      }
  single_op<Real>(op::matmul, {{1, 70000, 1, 2}, {1, 70000, 2, 1}}, {1, 70000, 1, 1})
      .check();  // above the grid's limit
}

template <class Real> void model_ops() {
  for (const bool back : {false, true})
    single_op<Real>(op::rope, {{1, 1, 5, 24}, {1, 1, 5, 8}}, {1, 1, 5, 24}).flags(false, back).check();
  for (const double rate : {0.0, 0.3, 1.0}) {
    single_op<Real> f(op::dropout, {{1, 1, 7, 33}, {1, 1, 1, 1}}, {1, 1, 7, 33});
    f.data[1][0] = static_cast<Real>(rate);
    f.second_is_third().look_up({-77}).with(1234567).check();
  }
  for (const int vocabulary : {3, 100, 3000}) {
    const shape z{1, 1, 4, vocabulary};
    const std::vector<std::int64_t> labels{2, -100, 0, vocabulary - 1};
    for (const double around : {-90.0, 0.0, 90.0}) {
      single_op<Real>(op::cross_entropy, {z}, {1, 1, 4, 1}, around).look_up(labels).check();
      single_op<Real>(op::cross_entropy_grad, {z, {1, 1, 4, 1}}, z, around).second_is_third().look_up(labels).check();
    }
  }
  // Two sequences, the second with a window; one row has an empty range.
  const std::vector<std::int64_t> own{0, 0, 0, 3, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7, 6, 0, 1, 2, 3, 4, 5, 6, 7};
  for (const int head : {2, 8, 64, 80, 256})
    for (const int kv_heads : {1, 2}) {
      const int q = 4 * head, kv = kv_heads * head;
      for (const bool sinks : {false, true})
        for (const double cap : {0.0, 1.5}) {
          const int all = q + 2 * kv + (sinks ? 4 : 0);
          const auto check = [&](op what, const std::vector<shape>& from, shape to,
                                 const std::vector<std::int64_t>& at) {
            single_op<Real> f(what, from, to);
            if (what != op::attention) f.second_is_third();
            f.with(head, 0, sinks ? 1 : 0).spans(at), f.n[f.operands].value = cap;
            f.check();
          };
          check(op::attention, {{1, 1, 8, all}}, {1, 1, 8, q}, own);
          check(op::attention_grad, {{1, 1, 8, all}, {1, 1, 8, q}}, {1, 1, 8, all}, own);
          // One row of each sequence, into a cache that has 40 slots for the first and 9 for the second.
          check(op::cached_attention, {{1, 1, 2, all}, {1, 1, 49, 2 * kv}}, {1, 1, 2, q}, {0, 40, 37, 49, 36, 48});
        }
    }
}

template <class Real> void every_node(const graph& g, const random_layer<Real>& l, double tolerance) {
  if (g.size == 0 || g.bad.what != formula_error::none) return;
  random_layer<Real> own = l;  // adds tensors that only this graph reads, such as the merged weight
  std::mt19937 engine(5);
  own.fill(g, engine);
  const size_values s = values_of(g, l.shape);
  leaf_views leaves(g.size);
  for (int k = 0; k < g.size; ++k) {
    const node& v = g.n[k];
    if (v.what == op::scalar)
      leaves[k] = view_of(&l.scalars.at(v.name), 1);
    else if (const auto found = own.views.find(v.name); is_leaf(v.what) && found != own.views.end())
      leaves[k] = found->second;
  }
  auto values = cpu::evaluate_all<Real>(g, s, leaves, cpu::every_operation<Real>(), cpu::rotations::blockwise);
  for (int k = 0; k < g.size; ++k) {
    const node& v = g.n[k];
    if (leaves[k].data != nullptr || v.what == op::host) continue;
    gpu::operands<Real> x;
    gpu::tensor<Real>* const to[3] = {&x.a, &x.b, &x.c};
    for (int o = 0; o < 3; ++o) {
      if (v.operand(o) < 0) continue;
      if (const op leaf = g[v.operand(o)].what; leaf == op::ids || leaf == op::index)
        x.ids = values.ids(v.operand(o));
      else
        *to[o] = gpu::shaped(g, v.operand(o), s, gpu::element_ptr<Real>(values[v.operand(o)].p));
    }
    agree<Real>(g, static_cast<id>(k), s, x, tolerance);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("gpu node: every op equals the CPU's", Real, float, double) {
  met.clear();
  pointwise_ops<Real>();
  layout_ops<Real>();
  algebra_ops<Real>();
  row_ops<Real>();
  products<Real>();
  model_ops<Real>();
  expert_ops<Real>(1, 4, 2, 7, 5);
  expert_ops<Real>(23, 6, 2, 24, 40);
  expert_ops<Real>(41, 33, 4, 9, 8);
  for (int k = 0; k <= static_cast<int>(op::host); ++k) {
    const op what = static_cast<op>(k);
    const bool computed =
        !is_leaf(what) || what == op::constant || what == op::number || what == op::eye || what == op::zero;
    const bool outside = what == op::host || traits_of(what).kind == op_class::collective;  // no kernel computes these
    INFO(std::string(traits_of(what).name));
    CHECK((!computed || outside || met.contains(what)));
  }
}

TEST_CASE_TEMPLATE("gpu node: every node of every graph", Real, float, double) {
  for (const layer_variant& c : every_layer_variant())
    for (const sizes& s : {usual_sizes(), ragged_sizes()}) {
      if (c.what == "miss_bat" && s.at("out") % s.at("r") != 0) continue;  // the formula requires whole blocks
      INFO(c.name, ", in ", s.at("in"));
      const random_layer<Real> l(c.graphs, s);
      const layer_graphs& g = c.graphs;
      for (const graph* each : {&g.literal, &g.literal_backward, &g.forward, &g.folded, &g.backward, &g.base_forward,
                                &g.base_backward, &g.merge, &g.unmerge_weight, &g.unmerge_bias})
        every_node<Real>(*each, l, sizeof(Real) == 4 ? 1e-5 : 1e-12);
    }
}

TEST_CASE("gpu node: a matrix of 256 rows is inverted in double for every type") {
  single_op<float> f(op::inverse, {{1, 1, 256, 256}}, {1, 1, 256, 256});
  f.check(1e-5);
  single_op<float> close(op::inverse, {{1, 1, 2, 2}}, {1, 1, 2, 2});
  close.data[0] = {1.0001F, 1, 1, 1.0001F};  // float would lose most digits of the difference
  close.check(1e-6);
}

TEST_CASE("gpu node: a host function is refused") {
  single_op<float> f(op::host, {{1, 1, 2, 2}}, {1, 1, 2, 2});
  f.op_node().name = "clip";
  const graph g{f.n, 2, f.sizes, nullptr, 0, nullptr, 0, {}};
  const size_values none;
  const status s = gpu::evaluator<float>{g, none}(nullptr, 1, {}, {}, nullptr);
  CHECK(std::string(s.message()) == "host function 'clip' cannot run on the GPU");
}

namespace {

// Compares two implementations of a conversion by the functor that copies.
void conversion(const std::vector<float>& numbers, dtype from_type, dtype to_type) {
  const auto n = static_cast<long long>(numbers.size());
  const stored<float> from(numbers, from_type), to(numbers, to_type);
  std::vector<double> exact(numbers.size()), expected(numbers.size());
  cpu::convert(from.bytes.data(), from_type, 0, n, exact.data());
  stored<float> encoded(numbers, to_type);
  cpu::convert_to(exact.data(), n, encoded.bytes.data(), to_type, 0);
  cpu::convert(encoded.bytes.data(), to_type, 0, n, expected.data());
  INFO(std::string(name_of(from_type)), " to ", std::string(name_of(to_type)));
  for (long long i = 0; i < n; ++i) gpu::unary<float>{op::detach, to.p, from.p}(i);
  CHECK(distance(to.read(n), expected) == 0);
}

}  // namespace

TEST_CASE("gpu node: storage types round to nearest even, as on the CPU") {
  std::vector<float> numbers{0,      -0.0F, 1,        -1.5F,       1e-20F,          3e38F,
                             -1e38F, NAN,   INFINITY, 1 + 0x1p-8F, 1 + 3 * 0x1p-8F, 0x1p-140F};
  std::mt19937 engine(3);
  std::uniform_real_distribution<float> uniform(-10, 10);
  for (int i = 0; i < 5000; ++i) numbers.push_back(uniform(engine));
  for (const dtype from : {dtype::f32, dtype::bf16, dtype::f16})
    for (const dtype to : {dtype::f32, dtype::bf16, dtype::f16}) conversion(numbers, from, to);
}
TEST_CASE("gpu node: a tensor of indices is refused") {
  single_op<float> f(op::exp, {{1, 1, 2, 2}}, {1, 1, 2, 2});
  const graph g{f.n, 2, f.sizes, nullptr, 0, nullptr, 0, {}};
  gpu::operands<float> x;
  x.a = gpu::shaped(g, 0, {}, gpu::element_ptr<float>(f.data[0].data(), dtype::i64));
  const status s =
      gpu::evaluator<float>{g, {}}(nullptr, 1, gpu::shaped(g, 1, {}, gpu::element_ptr<float>()), x, nullptr);
  CHECK(std::string(s.message()) == "exp computes with f32, bf16 and f16, not with i64");
}
