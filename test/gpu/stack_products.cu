// SPDX-License-Identifier: Apache-2.0
// Stacks of small products on the tensor cores against loops in double: operands of either order, of 16 bits or floats, one
// of them the same for all, edges that fill no tile; sums over the stack, in one and in parts; the same bits each time.
#include <doctest/doctest.h>
#include <graft/backend/cuda/memory.h>
#include <graft/backend/cuda/product.cuh>

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
  cuda::buffer memory;
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
  cuda::tensor<float> tensor() const { return {{memory.data(), type}, {1, count, rows, cols}}; }
  double at(long long m, long long r, long long c, bool across) const {
    const long long in = count == 1 ? 0 : m;
    return numbers[static_cast<std::size_t>((in * rows + (across ? c : r)) * cols + (across ? r : c))];
  }
};
struct sizes {
  long long count, rows, cols, depth;
};
void check(const sizes& s, const cuda::product_mode& how, long long left_count, dtype left, long long right_count,
           dtype right, dtype result = dtype::f32) {
  std::string which = how.sum ? ", summed" : "";
  which += std::string(how.ta ? ", left across" : "") + (how.tb ? ", right across" : "");
  which += std::string(left == dtype::f32 ? ", floats left" : "") + (right == dtype::f32 ? ", floats right" : "");
  INFO(s.count, " of ", s.rows, " x ", s.cols, " x ", s.depth, which);
  const stack a(left_count, how.ta ? s.depth : s.rows, how.ta ? s.rows : s.depth, left, 1),
      b(right_count, how.tb ? s.cols : s.depth, how.tb ? s.depth : s.cols, right, 2);
  const long long results = how.sum ? 1 : s.count, entries = results * s.rows * s.cols;
  cuda::buffer out, scratch;
  REQUIRE(bool(out.reserve(4 * entries)));
  REQUIRE(bool(scratch.reserve(4 * 128 * entries)));
  const cuda::tensor<float> to{{out.data(), result}, {1, results, s.rows, s.cols}};
  const cuda::products<float> p = cuda::products_of(to, a.tensor(), b.tensor(), how);
  REQUIRE(cuda::takes_tensor_cores(p));
  REQUIRE(cuda::stacked_type(p) == dtype::bf16);
  std::vector<float> y[2];
  for (std::vector<float>& now : y) {
    now.resize(static_cast<std::size_t>(entries));
    REQUIRE(cudaMemset(out.data(), 0xff, now.size() * 4) == cudaSuccess);
    REQUIRE(bool(cuda::multiply(cuda::on_stream{nullptr}, p, scratch.as<float>())));
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
  CHECK(std::sqrt(d / norm) < bound);  // false for a number that is none
}

}  // namespace

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
  for (const bool tb : {false, true}) {  // a wide matrix times a narrow one, in parts where there are many terms
    check({1, 1024, 16, 4096}, {false, tb}, 1, dtype::bf16, 1, dtype::f32);
    check({1, 200, 24, 512}, {false, tb}, 1, dtype::bf16, 1, dtype::f32);
    check({1, 16, 1032, 1024}, {false, tb}, 1, dtype::f32, 1, dtype::bf16);
  }
  check({700, 64, 64, 64}, {true, false, true}, 700, dtype::bf16, 700, dtype::bf16);  // in parts
  check({700, 32, 16, 64}, {false, true, true}, 700, dtype::bf16, 700, dtype::f32);
}
