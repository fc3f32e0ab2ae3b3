// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/backend/cpu/gemm/gemm.h>

#include "../../../support/tensors.h"

using namespace test;

namespace {

struct sizes {
  long long m, n, k;
};
constexpr sizes all_sizes[] = {{1, 1, 1},      {1, 40, 9},     {40, 1, 9},   {1, 1, 50},    {2, 3, 4},
                               {6, 7, 7},      {13, 17, 1},    {5, 64, 33},  {64, 5, 130},  {50, 100, 70},
                               {300, 17, 400}, {17, 300, 600}, {70, 40, 16}, {40, 131, 48}, {3, 200, 47}};
// One operand, row-major or column-major, with or without gaps between its rows.
struct strided_matrix {
  owned<double> numbers;
  cpu::strided<double> view;
  strided_matrix(long long rows, long long cols, bool flipped, long long padding, unsigned seed)
      : numbers(random_tensor<double>({1, 1, flipped ? cols : rows, (flipped ? rows : cols) + padding}, seed)),
        view{numbers.v.data(), numbers.shape.d[3], 1} {
    if (flipped) view = view.transposed();
  }
  double at(long long i, long long j) const { return view.p[i * view.row + j * view.col]; }
};

}  // namespace

TEST_CASE("gemm: every layout, with and without gaps between rows, and every mode of accumulation") {
  for (const sizes& s : all_sizes)
    for (int flags = 0; flags < 16; ++flags)
      for (const int accumulate : {0, 1, -1}) {
        const long long capacity_a = (flags & 4) != 0 ? 3 : 0, capacity_c = (flags & 8) != 0 ? 5 : 0;
        const strided_matrix a(s.m, s.k, (flags & 1) != 0, capacity_a, 1),
            b(s.k, s.n, (flags & 2) != 0, 2 * capacity_a, 2);
        owned<double> c = random_tensor<double>({1, 1, s.m, s.n + capacity_c}, 3), expected = c;
        cpu::gemm(s.m, s.n, s.k, a.view, b.view, c.v.data(), s.n + capacity_c, accumulate);
        for (long long i = 0; i < s.m; ++i)
          for (long long j = 0; j < s.n; ++j) {
            double sum = 0;
            for (long long p = 0; p < s.k; ++p) sum += a.at(i, p) * b.at(p, j);
            double& to = expected.at(0, 0, i, j);
            to = accumulate == 0 ? sum : to + accumulate * sum;
          }
        INFO("m ", s.m, ", n ", s.n, ", k ", s.k, ", flags ", flags, ", accumulate ", accumulate);
        CHECK(furthest(c.v, expected.v) < 1e-12);  // the gaps between the rows of c must not be written
      }
}

TEST_CASE("gemm: a row has the same bits alone and in a larger GEMM") {
  for (const long long k : {1, 8, 37, 200})
    for (const long long n : {1, 7, 50}) {
      const strided_matrix b(k, n, true, 0, 2), rows(9, k, false, 0, 1);
      owned<double> all({1, 1, 9, n}), alone({1, 1, 1, n});
      cpu::gemm(9, n, k, rows.view, b.view, all.v.data(), n, 0);
      for (long long i = 0; i < 9; ++i) {
        cpu::gemm(1, n, k, {rows.view.p + i * rows.view.row, rows.view.row, 1}, b.view, alone.v.data(), n, 0);
        INFO("k ", k, ", n ", n, ", row ", i);
        for (long long j = 0; j < n; ++j) CHECK(alone.at(0, 0, 0, j) == all.at(0, 0, i, j));
      }
    }
}

TEST_CASE("gemm: for a small inner size the bits do not depend on the layout of the operands") {
  for (const long long k : {1, 4, 8, 13, 16, 32, 47, 48})
    for (const long long n : {1, 7, 48, 100}) {
      owned<float> a = random_tensor<float>({1, 1, 9, k}, 1), b = random_tensor<float>({1, 1, k, n}, 2);
      owned<float> transposed_a({1, 1, k, 9}), transposed_b({1, 1, n, k}), first({1, 1, 9, n}), other({1, 1, 9, n});
      for (long long p = 0; p < k; ++p) {
        for (long long i = 0; i < 9; ++i) transposed_a.at(0, 0, p, i) = a.at(0, 0, i, p);
        for (long long j = 0; j < n; ++j) transposed_b.at(0, 0, j, p) = b.at(0, 0, p, j);
      }
      const cpu::strided<float> left[2] = {{a.v.data(), k, 1}, {transposed_a.v.data(), 1, 9}};
      const cpu::strided<float> right[2] = {{b.v.data(), n, 1}, {transposed_b.v.data(), 1, k}};
      cpu::gemm(9, n, k, left[0], right[0], first.v.data(), n, 0);
      for (int layouts = 1; layouts < 4; ++layouts) {
        cpu::gemm(9, n, k, left[layouts & 1], right[layouts >> 1], other.v.data(), n, 0);
        INFO("k ", k, ", n ", n, ", layouts ", layouts);
        CHECK(other.v == first.v);
      }
    }
}

TEST_CASE("gemm: a float result has the same bits alone, in a row and in a larger GEMM") {
  for (const long long k : {1, 8, 16, 37, 64, 65, 200})
    for (const long long n : {1, 7, 16, 50}) {
      owned<float> b = random_tensor<float>({1, 1, n, k}, 2), rows = random_tensor<float>({1, 1, 9, k}, 1);
      owned<float> all({1, 1, 9, n}), alone({1, 1, 1, n}), one({1, 1, 1, 1});
      cpu::gemm<float>(9, n, k, {rows.v.data(), k, 1}, {b.v.data(), 1, k}, all.v.data(), n, 0);
      for (long long i = 0; i < 9; ++i) {
        const cpu::strided<float> row{rows.v.data() + i * k, k, 1};
        cpu::gemm<float>(1, n, k, row, {b.v.data(), 1, k}, alone.v.data(), n, 0);
        INFO("k ", k, ", n ", n, ", row ", i);
        for (long long j = 0; j < n; ++j) {
          CHECK(alone.at(0, 0, 0, j) == all.at(0, 0, i, j));
          cpu::gemm<float>(1, 1, k, row, {b.v.data() + j * k, 1, k}, one.v.data(), 1, 0);
          CHECK(one.v[0] == all.at(0, 0, i, j));
        }
      }
    }
}

TEST_CASE("gemm: rows of a batch-invariant product have the same bits in a GEMM of any size") {
  const cpu::batch_invariant_scope on(true);
  const long long most = 150;
  for (const long long k : {1, 8, 16, 37, 48, 49, 64, 65, 200, 700})
    for (const long long n : {1, 7, 16, 50, 64, 150})
      for (const bool column_major : {false, true})
        for (const int accumulate : {0, 1, -1}) {
          owned<float> b = random_tensor<float>({1, 1, n, k}, 2), rows = random_tensor<float>({1, 1, most, k}, 1);
          const cpu::strided<float> right =
              column_major ? cpu::strided<float>{b.v.data(), n, 1} : cpu::strided<float>{b.v.data(), 1, k};
          const owned<float> before = random_tensor<float>({1, 1, most, n}, 3);
          owned<float> all = before, some = before;
          cpu::gemm<float>(most, n, k, {rows.v.data(), k, 1}, right, all.v.data(), n, accumulate);
          for (long long first = 0, m = 1; first < most; first += m, m = first % 7 == 0 ? 1 : m + 3) {
            m = std::min(m, most - first);
            cpu::gemm<float>(m, n, k, {rows.v.data() + first * k, k, 1}, right, some.v.data() + first * n, n,
                             accumulate);
          }
          INFO("k ", k, ", n ", n, ", column-major ", column_major, ", accumulate ", accumulate);
          CHECK(some.v == all.v);
          double furthest_of_one = 0;
          for (long long j = 0; j < n; ++j) {
            double sum = 0;
            for (long long p = 0; p < k; ++p)
              sum += static_cast<double>(rows.at(0, 0, most - 1, p)) *
                     static_cast<double>(right.p[p * right.row + j * right.col]);
            const std::size_t at = static_cast<std::size_t>((most - 1) * n + j);
            const double expected = accumulate == 0 ? sum : static_cast<double>(before.v[at]) + accumulate * sum;
            furthest_of_one = std::max(furthest_of_one, std::abs(static_cast<double>(all.v[at]) - expected));
          }
          CHECK(furthest_of_one < 1e-4);
        }
}

#if defined(_OPENMP)
TEST_CASE("gemm: the same bits on any number of threads") {
  const int usual = omp_get_max_threads();
  for (const sizes& s : {sizes{1, 3000, 2000}, sizes{4, 2000, 1000}, sizes{16, 1000, 1000}, sizes{2000, 16, 500},
                         sizes{200, 300, 300}, sizes{3000, 1, 2000}})
    for (int flags = 0; flags < 4; ++flags) {
      const strided_matrix a(s.m, s.k, (flags & 1) != 0, 0, 1), b(s.k, s.n, (flags & 2) != 0, 0, 2);
      std::vector<double> first;
      for (const int threads : {1, 2, 3, 7}) {
        omp_set_num_threads(threads);
        std::vector<double> c(static_cast<std::size_t>(s.m * s.n));
        cpu::gemm(s.m, s.n, s.k, a.view, b.view, c.data(), s.n, 0);
        if (threads == 1) first = c;
        INFO("m ", s.m, ", n ", s.n, ", k ", s.k, ", flags ", flags, ", threads ", threads);
        const bool by_blas =
            cpu::has_blas && cpu::choose_kernel(s.m, s.n, s.k, a.view, b.view, s.n) == cpu::gemm_kernel::packed;
        CHECK(furthest(c, first) <= (by_blas ? 1e-11 : 0.0));  // a BLAS may sum by its number of threads
      }
    }
  omp_set_num_threads(usual);
}
#endif
