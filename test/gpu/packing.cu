// SPDX-License-Identifier: Apache-2.0
// Packing several low-rank branches in one launch gives the memory of packing each matrix and its tiles by its own
// launch.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/gemm/packed_adapter.cuh>

#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

using bf = __nv_bfloat16;

struct branch {
  int rank, first, all, in, out;
  bool a_transposed, b_transposed, minus;
};
struct branches {
  gpu::buffer numbers;  // A, B and the factor, in float
  gpu::packed_adapter<bf> one_by_one, at_once;
  branch of;
  explicit branches(const branch& b) : of(b) {
    std::mt19937 engine(static_cast<unsigned>(b.in));
    std::uniform_real_distribution<float> any(-1, 1);
    std::vector<float> all(static_cast<std::size_t>(b.rank * (b.in + b.out) + 1));
    for (float& v : all) v = any(engine);
    REQUIRE(bool(numbers.reserve(static_cast<long long>(4 * all.size()))));
    REQUIRE(cudaMemcpy(numbers.data(), all.data(), 4 * all.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    for (auto* to : {&one_by_one, &at_once}) REQUIRE(bool(to->reserve(nullptr, b.out, b.in, b.all, false)));
  }
  float* a() const { return numbers.as<float>(); }
  float* b() const { return a() + of.rank * of.in; }
  gpu::element_ptr<float> factor() const { return b() + of.rank * of.out; }
  void pack_one_by_one() {
    const gpu::pack_matrix<bf> left{a(), {},    one_by_one.a.as<bf>(), of.rank, of.in, of.first,
                                    0,   of.in, of.a_transposed,       false},
        right{b(), factor(), one_by_one.b.as<bf>(), of.out, of.rank, 0, of.first, of.all, of.b_transposed, of.minus};
    REQUIRE(bool(gpu::each(nullptr, left.rows * left.cols, left, "A")));
    REQUIRE(bool(gpu::each(nullptr, right.rows * right.cols, right, "B")));
    REQUIRE(bool(gpu::tile_branch<bf>(nullptr, one_by_one.tiles(of.out, of.in))));
  }
  gpu::pack_branch<bf> pack_args() {
    return {a(),
            b(),
            factor(),
            at_once.a.as<bf>(),
            at_once.b.as<bf>(),
            at_once.a_tiles.as<bf>(),
            at_once.b_tiles.as<bf>(),
            of.rank,
            of.first,
            of.all,
            of.in,
            of.out,
            gpu::padded_rows(of.out),
            of.a_transposed,
            of.b_transposed,
            of.minus};
  }
  static bool same(const gpu::buffer& x, const gpu::buffer& y) {
    std::vector<char> left(static_cast<std::size_t>(x.bytes())), right(left.size());
    REQUIRE(x.bytes() == y.bytes());
    REQUIRE(cudaMemcpy(left.data(), x.data(), left.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    REQUIRE(cudaMemcpy(right.data(), y.data(), right.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return std::memcmp(left.data(), right.data(), left.size()) == 0;
  }
};

}  // namespace

TEST_CASE("gpu: low-rank branches packed in one launch") {
  if (const std::string why = test::why_no_gpu(); !why.empty()) return void(std::printf("no GPU: %s\n", why.c_str()));
  std::deque<branches> all;
  for (const branch& b : {branch{16, 0, 16, 256, 512, false, false, false},
                          {5, 0, 16, 72, 40, true, false, true},
                          {64, 0, 64, 200, 136, false, true, false},
                          {20, 16, 128, 264, 100, true, true, false}})
    all.emplace_back(b);
  gpu::pack_branches<bf> many;
  for (branches& b : all) b.pack_one_by_one(), many.branch[many.branch_count++] = b.pack_args();
  REQUIRE(bool(gpu::each(nullptr, many.count(), many, "sides")));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  for (const branches& b : all) {
    INFO(b.of.in, " inputs, rank ", b.of.rank, " of ", b.of.all);
    CHECK(branches::same(b.one_by_one.a, b.at_once.a));
    CHECK(branches::same(b.one_by_one.b, b.at_once.b));
    CHECK(branches::same(b.one_by_one.a_tiles, b.at_once.a_tiles));
    CHECK(branches::same(b.one_by_one.b_tiles, b.at_once.b_tiles));
  }
}
