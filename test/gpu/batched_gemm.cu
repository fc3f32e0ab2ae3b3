// SPDX-License-Identifier: Apache-2.0
// Batched GEMMs of small matrices on tensor cores against loops in double: operands in both layouts, of 16 bits or
// floats, broadcast operands, ragged sizes; sums over the batch, with and without split-K; bitwise repeatable results.
// And Kronecker chains: a batch between two shared matrices, with the sums that are the gradients of these.
#include <doctest/doctest.h>
#include <graft/backend/gpu/dispatch/launchers.cuh>
#include <graft/backend/gpu/kernels/gemm/batched.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

using bf = __nv_bfloat16;

struct stack {
  long long count, rows, cols;
  std::vector<float> numbers;
  gpu::buffer memory;
  dtype type;
  stack(long long n, long long r, long long c, dtype t, unsigned seed) : count(n), rows(r), cols(c), type(t) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> any(-1, 1);
    std::vector<bf> narrow;
    for (long long i = 0; i < n * r * c; ++i)
      narrow.push_back(__float2bfloat16(any(engine))), numbers.push_back(__bfloat162float(narrow.back()));
    const bool wide = t == dtype::f32;
    REQUIRE(bool(memory.reserve(4 * n * r * c)));
    REQUIRE(cudaMemcpy(memory.data(), wide ? static_cast<const void*>(numbers.data()) : narrow.data(),
                       numbers.size() * (wide ? 4 : 2), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  gpu::tensor<float> tensor() const { return {{memory.data(), type}, {1, count, rows, cols}}; }
  double at(long long m, long long r, long long c, bool transposed) const {
    const long long in = count == 1 ? 0 : m;
    return numbers[static_cast<std::size_t>((in * rows + (transposed ? c : r)) * cols + (transposed ? r : c))];
  }
};
struct sizes {
  long long count, rows, cols, depth;
};
void check(const sizes& s, const gpu::matmul_mode& how, long long left_count, dtype left, long long right_count,
           dtype right, dtype result = dtype::f32) {
  std::string which = how.sum ? ", summed" : "";
  which += std::string(how.ta ? ", left transposed" : "") + (how.tb ? ", right transposed" : "");
  which += std::string(left == dtype::f32 ? ", floats left" : "") + (right == dtype::f32 ? ", floats right" : "");
  INFO(s.count, " of ", s.rows, " x ", s.cols, " x ", s.depth, which);
  const stack a(left_count, how.ta ? s.depth : s.rows, how.ta ? s.rows : s.depth, left, 1),
      b(right_count, how.tb ? s.cols : s.depth, how.tb ? s.depth : s.cols, right, 2);
  const long long results = how.sum ? 1 : s.count, entries = results * s.rows * s.cols;
  gpu::buffer out, scratch;
  REQUIRE(bool(out.reserve(4 * entries)));
  REQUIRE(bool(scratch.reserve(4 * 128 * entries)));
  const gpu::tensor<float> to{{out.data(), result}, {1, results, s.rows, s.cols}};
  const gpu::products<float> p = gpu::products_of(to, a.tensor(), b.tensor(), how);
  REQUIRE(gpu::takes_tensor_cores(p));
  REQUIRE(gpu::stacked_type(p) == dtype::bf16);
  std::vector<float> y[2];
  for (std::vector<float>& now : y) {
    now.resize(static_cast<std::size_t>(entries));
    REQUIRE(cudaMemset(out.data(), 0xff, now.size() * 4) == cudaSuccess);
    REQUIRE(bool(gpu::multiply(gpu::on_stream{nullptr}, p, scratch.as<float>())));
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    std::vector<bf> narrow(now.size());
    const bool wide = result == dtype::f32;
    REQUIRE(cudaMemcpy(wide ? static_cast<void*>(now.data()) : narrow.data(), out.data(), now.size() * (wide ? 4 : 2),
                       cudaMemcpyDeviceToHost) == cudaSuccess);
    for (std::size_t i = 0; !wide && i < now.size(); ++i) now[i] = __bfloat162float(narrow[i]);
  }
  CHECK(y[0] == y[1]);
  double d = 0, norm = 0;
  for (long long m = 0; m < results; ++m)
    for (long long r = 0; r < s.rows; ++r)
      for (long long c = 0; c < s.cols; ++c) {
        double want = 0;
        for (long long n = how.sum ? 0 : m; n < (how.sum ? s.count : m + 1); ++n)
          for (long long k = 0; k < s.depth; ++k) want += a.at(n, r, k, how.ta) * b.at(n, k, c, how.tb);
        const double off = static_cast<double>(y[0][static_cast<std::size_t>((m * s.rows + r) * s.cols + c)]) - want;
        d += off * off, norm += want * want;
      }
  const double bound = result != dtype::f32 ? 3e-3 : how.sum || s.depth > 1000 ? 5e-5 : 1e-5;
  CHECK(std::sqrt(d / norm) < bound);  // false for NaN
}

// Reads numbers of the device, stored in 16 bits or as floats.
std::vector<float> fetched(const gpu::buffer& from, std::size_t n, bool wide) {
  std::vector<float> to(n);
  std::vector<bf> narrow(n);
  REQUIRE(cudaMemcpy(wide ? static_cast<void*>(to.data()) : narrow.data(), from.data(), n * (wide ? 4 : 2),
                     cudaMemcpyDeviceToHost) == cudaSuccess);
  for (std::size_t i = 0; !wide && i < n; ++i) to[i] = __bfloat162float(narrow[i]);
  return to;
}
// The relative distance of `got` from want(m, r, c).
template <class Want>
double distance(const std::vector<float>& got, long long count, long long rows, long long cols, Want want) {
  double d = 0, norm = 0;
  for (long long i = 0; i < count * rows * cols; ++i) {
    const double w = want(i / cols / rows, i / cols % rows, i % cols),
                 off = static_cast<double>(got[static_cast<std::size_t>(i)]) - w;
    d += off * off, norm += w * w;
  }
  return std::sqrt(d / norm);
}
void check_chain(long long tokens, int l_rows, int z_rows, int z_cols, int r_cols, bool l_transposed, bool r_transposed,
                 bool sums) {
  INFO(tokens, " of ", l_rows, " x ", z_rows, " x ", z_cols, " x ", r_cols, sums ? ", summed" : "");
  const stack z(tokens, z_rows, z_cols, dtype::bf16, 1), x(tokens, l_rows, r_cols, dtype::bf16, 2),
      l(1, l_transposed ? z_rows : l_rows, l_transposed ? l_rows : z_rows, dtype::f32, 3),
      r(1, r_transposed ? r_cols : z_cols, r_transposed ? z_cols : r_cols, dtype::f32, 4);
  gpu::buffer d, e, f, parts;
  gpu::chain_args with;
  with.l_rows = l_rows, with.z_rows = z_rows, with.z_cols = z_cols, with.r_cols = r_cols, with.tokens = tokens;
  REQUIRE(bool(d.reserve(2 * tokens * l_rows * r_cols)));
  REQUIRE(bool(e.reserve(4LL * z_rows * l_rows)));
  REQUIRE(bool(f.reserve(4LL * z_cols * r_cols)));
  REQUIRE(bool(parts.reserve(4 * gpu::chain_blocks(tokens) * with.entries())));
  with.z = z.memory.data(), with.x = sums ? x.memory.data() : nullptr, with.d = d.data();
  with.l = l.tensor().p, with.r = r.tensor().p, with.l_transposed = l_transposed, with.r_transposed = r_transposed;
  with.e = {e.data(), dtype::f32}, with.f = {f.data(), dtype::f32}, with.partial = parts.as<float>();
  std::vector<float> of_d[2], of_e[2], of_f[2];
  for (int k = 0; k < 2; ++k) {
    REQUIRE(bool(gpu::all_launchers<__nv_bfloat16>().chain(nullptr, with)));
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    of_d[k] = fetched(d, static_cast<std::size_t>(tokens * l_rows * r_cols), false);
    of_e[k] = fetched(e, static_cast<std::size_t>(z_rows * l_rows), true);
    of_f[k] = fetched(f, static_cast<std::size_t>(z_cols * r_cols), true);
  }
  CHECK(of_d[0] == of_d[1]);
  auto between = [&](long long m, long long row, long long col) {
    double sum = 0;
    for (long long k = 0; k < z_rows; ++k) sum += l.at(0, row, k, l_transposed) * z.at(m, k, col, false);
    return sum;
  };
  auto other = [&](long long m, long long row, long long col) {
    double sum = 0;
    for (long long k = 0; k < r_cols; ++k) sum += x.at(m, row, k, false) * r.at(0, col, k, r_transposed);
    return sum;
  };
  CHECK(distance(of_d[0], tokens, l_rows, r_cols, [&](long long m, long long row, long long col) {
          double sum = 0;
          for (long long k = 0; k < z_cols; ++k) sum += between(m, row, k) * r.at(0, k, col, r_transposed);
          return sum;
        }) < 5e-3);
  if (!sums) return;
  CHECK(of_e[0] == of_e[1]);
  CHECK(of_f[0] == of_f[1]);
  CHECK(distance(of_e[0], 1, z_rows, l_rows, [&](long long, long long row, long long col) {
          double sum = 0;
          for (long long m = 0; m < tokens; ++m)
            for (long long k = 0; k < z_cols; ++k) sum += z.at(m, row, k, false) * other(m, col, k);
          return sum;
        }) < 5e-3);
  CHECK(distance(of_f[0], 1, z_cols, r_cols, [&](long long, long long row, long long col) {
          double sum = 0;
          for (long long m = 0; m < tokens; ++m)
            for (long long k = 0; k < l_rows; ++k) sum += between(m, k, row) * x.at(m, k, col, false);
          return sum;
        }) < 5e-3);
}

}  // namespace

TEST_CASE("gpu: a matrix of every token between two shared matrices, and the gradients of these") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  for (const bool sums : {false, true})
    for (const bool transposed : {false, true}) {
      check_chain(3, 64, 64, 64, 64, transposed, !transposed, sums);
      check_chain(17, 16, 24, 32, 8, transposed, transposed, sums);
      check_chain(403, 5, 7, 16, 24, transposed, !transposed, sums);
      check_chain(1, 64, 1, 8, 64, transposed, transposed, sums);
    }
}
TEST_CASE("gpu: stacks of small products on the tensor cores") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  for (const sizes& s : {sizes{5, 64, 64, 64}, {600, 16, 24, 32}, {3, 40, 136, 72}, {2, 72, 16, 200}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        check(s, {ta, tb}, s.count, dtype::bf16, s.count, dtype::bf16);
        check(s, {ta, tb}, 1, dtype::f32, s.count, dtype::bf16);
        check(s, {ta, tb}, s.count, dtype::bf16, 1, dtype::f32);
        check(s, {ta, tb}, 1, dtype::f32, s.count, dtype::bf16, dtype::bf16);
        check(s, {ta, tb}, s.count, dtype::bf16, 1, dtype::f32, dtype::bf16);
        check(s, {ta, tb, true}, s.count, dtype::bf16, s.count, dtype::bf16);
      }
  for (const bool tb : {false, true}) {  // a wide matrix times a narrow one, with split-K if there are many terms
    check({1, 1024, 16, 4096}, {false, tb}, 1, dtype::bf16, 1, dtype::f32);
    check({1, 200, 24, 512}, {false, tb}, 1, dtype::bf16, 1, dtype::f32);
    check({1, 16, 1032, 1024}, {false, tb}, 1, dtype::f32, 1, dtype::bf16);
  }
  for (const bool ta : {false, true})  // large matrices
    check({1, 520, 584, 264}, {ta, false}, 1, dtype::bf16, 1, dtype::f32);
  check({700, 64, 64, 64}, {true, false, true}, 700, dtype::bf16, 700, dtype::bf16);  // split-K
  check({700, 32, 16, 64}, {false, true, true}, 700, dtype::bf16, 700, dtype::f32);
}
