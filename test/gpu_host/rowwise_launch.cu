// SPDX-License-Identifier: Apache-2.0
// Row-wise launches, called by a loop on the host: a norm with its factors, and concatenated heads with RoPE.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/elementwise/concat_heads.cuh>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/rowwise/rowwise.cuh>

#include <random>
#include <vector>

using namespace graft;

namespace {

std::vector<float> drawn(long long n, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> any(-1, 1);
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = any(engine);
  return v;
}
gpu::tensor<float> matrix(std::vector<float>& v, long long rows) {
  return {gpu::element_ptr<float>(v.data()), {1, 1, rows, static_cast<long long>(v.size()) / rows}};
}

}  // namespace

TEST_CASE("rowwise launch: a norm with factors equals the norm times the factors") {
  constexpr long long rows = 3, columns = 37;
  std::vector<float> x = drawn(rows * columns, 1), w = drawn(columns, 2), eps{1e-5F}, plain(x.size()), scaled(x.size());
  for (const bool rms : {false, true}) {
    const gpu::normalize_functor<float> norm{matrix(plain, rows), matrix(x, rows), gpu::element_ptr<float>(eps.data()),
                                             rms},
        both{matrix(scaled, rows), matrix(x, rows), gpu::element_ptr<float>(eps.data()), rms,
             gpu::element_ptr<float>(w.data())};
    for (long long r = 0; r < rows; ++r) norm(r, gpu::single_thread{}), both(r, gpu::single_thread{});
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(scaled[i] == doctest::Approx(plain[i] * w[i % columns]));
  }
}
TEST_CASE("rowwise launch: the version with eight pairs per thread gives the same heads") {
  constexpr long long rows = 3, head = 32, q = 2 * head, k = head, v = head;
  std::vector<float> a = drawn(rows * q, 1), b = drawn(rows * k, 2), c = drawn(rows * v, 3), table = drawn(7 * head, 4),
                     one(rows * (q + k + v), NAN), eights(one);
  const std::vector<std::int64_t> positions{6, 0, 3};
  gpu::concat_inputs<float> of;
  of.parts = 3;
  of.part[0] = a.data(), of.part[1] = b.data(), of.part[2] = c.data();
  of.width[0] = q, of.width[1] = k, of.width[2] = v;
  of.has_rope[0] = of.has_rope[1] = true;
  of.table = matrix(table, 7), of.positions = positions.data();
  const gpu::concat_heads<float> heads{matrix(one, rows), of};
  const gpu::concat_heads_vec8 by{{matrix(eights, rows), of}, q + k + v, head / 2};
  REQUIRE(gpu::concat_heads_vec8::fits(heads));
  for (long long i = 0; i < heads.pair_count(); ++i) heads(i);
  for (long long i = 0; i < rows * (q + k + v) / 16; ++i) by(i);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(eights[i] == doctest::Approx(one[i]));
}
TEST_CASE("rowwise launch: concatenated heads, with RoPE by the positions of the rows") {
  constexpr long long rows = 4, head = 6, middle = head / 2, q = 3 * head, k = 2 * head, v = 2 * head;
  std::vector<float> a = drawn(rows * q, 1), b = drawn(rows * k, 2), c = drawn(rows * v, 3), table = drawn(9 * head, 4),
                     out(rows * (q + k + v), NAN);
  const std::vector<std::int64_t> positions{8, 0, 3, 3};
  gpu::concat_inputs<float> of;
  of.parts = 3;
  of.part[0] = a.data(), of.part[1] = b.data(), of.part[2] = c.data();
  of.width[0] = q, of.width[1] = k, of.width[2] = v;
  of.has_rope[0] = of.has_rope[1] = true;
  of.table = matrix(table, 9), of.positions = positions.data();
  const gpu::concat_heads<float> heads{matrix(out, rows), of};
  for (long long i = 0; i < heads.pair_count(); ++i) heads(i);
  auto rope = [&](const std::vector<float>& x, long long width, long long r, long long at) {
    const long long d = at % head, base = r * width + at - d, turn = positions[static_cast<std::size_t>(r)] * head;
    auto get = [](const std::vector<float>& from, long long i) { return from[static_cast<std::size_t>(i)]; };
    const float cosine = get(table, turn + d % middle), sine = get(table, turn + middle + d % middle);
    const float low = get(x, base + d % middle), high = get(x, base + middle + d % middle);
    return d < middle ? low * cosine - high * sine : high * cosine + low * sine;
  };
  for (long long r = 0; r < rows; ++r)
    for (long long i = 0; i < q + k + v; ++i) {
      const float got = out[static_cast<std::size_t>(r * (q + k + v) + i)];
      const float want = i < q       ? rope(a, q, r, i)
                         : i < q + k ? rope(b, k, r, i - q)
                                     : c[static_cast<std::size_t>(r * v + i - q - k)];
      CHECK(got == doctest::Approx(want));
    }
  // Without RoPE, elements are copied.
  of.has_rope[0] = of.has_rope[1] = false, of.positions = nullptr;
  const gpu::concat_heads<float> plain{matrix(out, rows), of};
  for (long long i = 0; i < plain.pair_count(); ++i) plain(i);
  CHECK(out[static_cast<std::size_t>(q + k + v + q)] == b[static_cast<std::size_t>(k)]);
  CHECK(out[static_cast<std::size_t>(rows * (q + k + v) - 1)] == c.back());
}
