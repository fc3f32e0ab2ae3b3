// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM of experts against sums in double: every storage type, ragged sizes, experts with all, some or no rows;
// and routing of many tokens. test/gpu_host/evaluate_node.cu has the operations by their definitions.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/experts/multiply_groups.cuh>
#include <graft/backend/gpu/runtime/device_memory.h>

#include <cmath>
#include <random>

#include "gpu.h"

using namespace graft;

namespace {

// Numbers in device memory of a type, exactly representable in it, and in double on the host.
struct device_numbers {
  std::vector<double> host;
  gpu::buffer memory;
  dtype type;

  device_numbers(long long n, dtype as, double scale, unsigned seed) : type(as) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0, static_cast<float>(scale));
    for (long long i = 0; i < n; ++i) host.push_back(test::rounded(normal(engine), as));
    upload();
  }
  device_numbers(std::vector<double> numbers, dtype as) : host(std::move(numbers)), type(as) { upload(); }
  gpu::element_ptr<float> at() const { return {memory.data(), type}; }
  std::vector<float> read() const {
    std::vector<char> bytes(host.size() * static_cast<std::size_t>(bits_of(type)) / 8);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(bytes.data(), memory.data(), bytes.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    const gpu::element_ptr<float> from(bytes.data(), type);
    std::vector<float> v;
    for (std::size_t i = 0; i < host.size(); ++i) v.push_back(from[static_cast<long long>(i)]);
    return v;
  }

 private:
  void upload() {
    std::vector<char> bytes(host.size() * static_cast<std::size_t>(bits_of(type)) / 8);
    const gpu::element_ptr<float> to(bytes.data(), type);
    for (std::size_t i = 0; i < host.size(); ++i) to.put(static_cast<long long>(i), static_cast<float>(host[i]));
    REQUIRE(bool(memory.reserve(static_cast<long long>(bytes.size()) + 16)));
    REQUIRE(cudaMemcpy(memory.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
};

enum class routes { even, skewed, one };
// A routing table of rows that are already sorted, and the first row of each expert.
struct routing {
  std::vector<long long> begin;
  device_numbers table;
  routing(long long rows, int experts, routes how)
      : begin(begins(rows, experts, how)), table(lines(begin), dtype::f32) {}

 private:
  static std::vector<long long> begins(long long rows, int experts, routes how) {
    std::vector<long long> b{0};
    for (int e = 0; e < experts; ++e) {
      const long long left = rows - b.back();
      const long long some = how == routes::one    ? (e == experts / 2 ? left : 0)
                             : e == experts - 1    ? left
                             : how == routes::even ? (rows + experts - 1) / experts
                             : e % 3 == 1          ? 0
                                                   : (left + 1) / 2;
      b.push_back(b.back() + std::min(some, left));
    }
    return b;
  }
  static std::vector<double> lines(const std::vector<long long>& b) {
    std::vector<double> t;
    for (std::size_t e = 0; e + 1 < b.size(); ++e)
      for (long long p = b[e]; p < b[e + 1]; ++p)
        for (const double v : {0.0, static_cast<double>(e), 0.0}) t.push_back(v);
    return t;
  }
};
gpu::tensor<float> tensor_of(const device_numbers& n, long long a, long long b, long long c, long long d) {
  gpu::tensor<float> t;
  t.p = n.at();
  const long long size[4] = {a, b, c, d};
  std::copy(size, size + 4, t.d);
  return t;
}

// rows x in times the matrices [experts, out, in] (or [experts, in, out]), or their gradients. With a rank, a branch of
// so many columns is added to the product, whose B is stored in the layout of the matrices and in float.
void check_products(dtype type, dtype of_weight, long long rows, int experts, long long in, long long out, routes how,
                    bool tb, long long rank = 0) {
  INFO("rank ", rank, ", ", std::string(name_of(type)), " and ", std::string(name_of(of_weight)), ", rows ", rows,
       ", in ", in, ", out ", out, ", routes ", static_cast<int>(how), ", tb ", tb);
  const routing r(rows, experts, how);
  const device_numbers x(rows * in, type, 1, 3), w(experts * in * out, of_weight, 0.1, 5);
  const device_numbers dy(rows * out, type, 1, 7);
  const device_numbers u(rows * rank, type, 1, 15), branch(experts * out * rank, dtype::f32, 0.1, 19);
  device_numbers y(rows * out, type, 1, 9), dw(experts * in * out, dtype::f32, 1, 11);
  std::vector<double> want(y.host.size()), want_dw(dw.host.size());
  for (int e = 0; e < experts; ++e)
    for (long long p = r.begin[static_cast<std::size_t>(e)]; p < r.begin[static_cast<std::size_t>(e) + 1]; ++p)
      for (long long o = 0; o < out; ++o)
        for (long long i = 0; i < in; ++i) {
          const auto at = static_cast<std::size_t>(e * in * out + (tb ? o * in + i : i * out + o));
          const auto xi = static_cast<std::size_t>(p * in + i), yo = static_cast<std::size_t>(p * out + o);
          want[yo] += x.host[xi] * w.host[at];
          want_dw[static_cast<std::size_t>(e * in * out + o * in + i)] += dy.host[yo] * x.host[xi];
        }
  for (int e = 0; e < experts; ++e)
    for (long long p = r.begin[static_cast<std::size_t>(e)]; p < r.begin[static_cast<std::size_t>(e) + 1]; ++p)
      for (long long o = 0; o < out; ++o)
        for (long long i = 0; i < rank; ++i)
          want[static_cast<std::size_t>(p * out + o)] +=
              u.host[static_cast<std::size_t>(p * rank + i)] *
              branch.host[static_cast<std::size_t>(tb ? (e * out + o) * rank + i : (e * rank + i) * out + o)];
  const auto table = gpu::routing_table<float>(tensor_of(r.table, 1, 1, rows, 3));
  gpu::expert_branch<float> added;
  if (rank > 0)
    added = {tensor_of(u, 1, 1, rows, rank),
             tb ? tensor_of(branch, 1, experts, out, rank) : tensor_of(branch, 1, experts, rank, out), tb};
  const gpu::grouped_products<float> product{tensor_of(y, 1, 1, rows, out),
                                             tensor_of(x, 1, 1, rows, in),
                                             tb ? tensor_of(w, 1, experts, out, in) : tensor_of(w, 1, experts, in, out),
                                             table,
                                             experts,
                                             {},
                                             false,
                                             tb,
                                             added};
  const gpu::grouped_products<float> gradient{tensor_of(dw, 1, experts, out, in),
                                              tensor_of(dy, 1, 1, rows, out),
                                              tensor_of(x, 1, 1, rows, in),
                                              table,
                                              experts,
                                              {},
                                              true,
                                              false};
  std::vector<float> first[2];
  for (int run = 0; run < 2; ++run) {
    REQUIRE(bool(gpu::multiply_groups(gpu::on_stream{nullptr}, product)));
    REQUIRE(bool(gpu::multiply_groups(gpu::on_stream{nullptr}, gradient)));
    const std::vector<float> got[2] = {y.read(), dw.read()};
    if (run == 0)
      first[0] = got[0], first[1] = got[1];
    else
      CHECK((got[0] == first[0] && got[1] == first[1]));  // the same bits
  }
  // A float operand beside one of 16 bits is rounded to it.
  const double ulp = type == dtype::bf16 ? 1.0 / 256 : type == dtype::f16 ? 1.0 / 2048 : 1e-6;
  CHECK(test::distance(first[0], want) <= ulp);
  CHECK(test::distance(first[1], want_dw) <= 2e-6);
}

}  // namespace

TEST_CASE("gpu experts: grouped GEMM and its gradient for every type and routing") {
  if (test::no_gpu()) return;
  for (const dtype type : {dtype::f32, dtype::bf16, dtype::f16})
    for (const routes how : {routes::even, routes::skewed, routes::one})
      for (const bool tb : {true, false}) {
        check_products(type, type, 1, 5, 64, 40, how, tb);
        check_products(type, type, 37, 7, 136, 72, how, tb);
        check_products(type, dtype::f32, 50, 4, 24, 16, how, tb);  // A of a branch
        check_products(type, type, 61, 6, 4, 33, how, tb);         // rank 4, and rows without aligned vectors
        check_products(type, type, 611, 3, 200, 264, how, tb);     // tiles for many rows
        check_products(type, type, 700, 3, 96, 16, how, tb);
        check_products(type, type, 37, 7, 136, 72, how, tb, 16);
        check_products(type, type, 611, 3, 200, 264, how, tb, 5);
        check_products(type, type, 300, 2, 64, 16, how, tb, 70);
        check_products(type, type, 611, 3, 320, 264, how, tb);  // wgmma in both layouts
        check_products(type, type, 450, 3, 192, 520, how, tb, 16);
        check_products(type, type, 450, 4, 64, 136, how, tb, 64);
      }
}

TEST_CASE("gpu small: experts of every type") {
  if (test::no_gpu()) return;
  for (const dtype type : {dtype::f32, dtype::bf16})
    for (const long long rows : {5, 150}) check_products(type, type, rows, 3, 40, 24, routes::skewed, true, 8);
}

TEST_CASE("gpu experts: many tokens are sorted by expert, and each keeps its order") {
  if (test::no_gpu()) return;
  const long long tokens = 3001, experts = 129, k = 6;
  const device_numbers scores(tokens * experts, dtype::f32, 1, 13), table(tokens * k * 3, dtype::f32, 1, 17);
  gpu::buffer chosen;
  REQUIRE(bool(chosen.reserve(tokens * k * 4)));
  REQUIRE(bool(gpu::route(gpu::on_stream{nullptr}, tensor_of(table, 1, 1, tokens * k, 3),
                          tensor_of(scores, 1, 1, tokens, experts), k, chosen.as<int>())));
  const std::vector<float> got = table.read();
  std::vector<std::pair<long long, long long>> want;  // (expert, token)
  for (long long t = 0; t < tokens; ++t) {
    std::vector<std::pair<double, long long>> by_score;
    for (long long e = 0; e < experts; ++e)
      by_score.push_back({-scores.host[static_cast<std::size_t>(t * experts + e)], e});
    std::sort(by_score.begin(), by_score.end());
    for (long long j = 0; j < k; ++j) want.push_back({by_score[static_cast<std::size_t>(j)].second, t});
  }
  std::sort(want.begin(), want.end());
  bool same = true, refers_back = true;
  for (std::size_t p = 0; p < want.size(); ++p) {
    same =
        same && got[3 * p] == static_cast<float>(want[p].second) && got[3 * p + 1] == static_cast<float>(want[p].first);
    const auto row = static_cast<std::size_t>(got[3 * p + 2]);
    refers_back =
        refers_back && row < want.size() && got[3 * row] == static_cast<float>(p / static_cast<std::size_t>(k));
  }
  CHECK(same);
  CHECK(refers_back);
}
