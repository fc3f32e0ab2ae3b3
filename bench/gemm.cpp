// SPDX-License-Identifier: Apache-2.0
// Measurements for the constants of backend/cpu: one GEMM y = x Wᵀ (and y = x W) on one thread, by every kernel that
// gemm.h chooses from, for several numbers of tokens; and packed GEMMs by block sizes. bench/results/cpu-products.json
// has the results of a run.
#include <benchmark/benchmark.h>
#include <graft/backend/cpu/gemm/gemm.h>

#include <Eigen/Core>
#include <random>

namespace {

using namespace graft::cpu;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct operands_of_one {
  matrix x, w, y;
  operands_of_one(long long tokens, long long size)
      : x(random(tokens, size)), w(random(size, size)), y(matrix::Zero(tokens, size)) {}
  static matrix random(long long rows, long long cols) {
    std::mt19937 engine(1);
    std::uniform_real_distribution<float> uniform(-0.5F, 0.5F);
    return matrix::NullaryExpr(rows, cols, [&] { return uniform(engine); });
  }
  // y += x op(W), with W row-major or column-major.
  gemm_problem<float> product(bool transposed) {
    const strided<float> by_rows{w.data(), w.cols(), 1};
    return {w.rows(), x.rows(), x.cols(), transposed ? by_rows : by_rows.transposed(), {x.data(), 1, x.cols()},
            y.data(), y.cols(), 1.0F};
  }
};
template <class F> void timed(benchmark::State& state, long long tokens, long long size, F f) {
  operands_of_one o(tokens, size);
  for (auto _ : state) {
    f(o);
    benchmark::DoNotOptimize(o.y.data());
  }
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(tokens * size * size),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}
template <class F> void add(const std::string& name, long long tokens, long long size, F f) {
  benchmark::RegisterBenchmark((name + "/tokens:" + std::to_string(tokens) + "/size:" + std::to_string(size)).c_str(),
                               [=](benchmark::State& state) { timed(state, tokens, size, f); })
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  Eigen::setNbThreads(1);
  for (const long long size : {1024, 4096})
    for (const long long tokens : {1, 4, 16, 32, 64, 128, 512, 2048}) {
      if (size == 4096 && (tokens < 16 || tokens > 64)) continue;
      add("x W' eigen", tokens, size, [](operands_of_one& o) { o.y.noalias() += o.x * o.w.transpose(); });
      add("x W' dots", tokens, size, [](operands_of_one& o) { skinny_nt_gemm(o.product(true)); });
      add("x W' packed", tokens, size, [](operands_of_one& o) { packed_gemm(o.product(true)); });
      add("x W eigen", tokens, size, [](operands_of_one& o) { o.y.noalias() += o.x * o.w; });
      if (tokens <= column_major_cols)
        add("x W rows", tokens, size, [](operands_of_one& o) { skinny_nn_gemm(o.product(false)); });
      add("x W packed", tokens, size, [](operands_of_one& o) { packed_gemm(o.product(false)); });
#if defined(GRAFT_BLAS)
      add("x W' blas", tokens, size, [](operands_of_one& o) { blas_gemm(o.product(true)); });
      add("x W blas", tokens, size, [](operands_of_one& o) { blas_gemm(o.product(false)); });
#endif
    }
  for (const long long depth : {128, 192, 256, 384})
    for (const long long cols : {32, 64, 128, 512})
      for (const long long rows : {384, 1024})
        add("blocks " + std::to_string(rows) + " x " + std::to_string(depth) + " x " + std::to_string(cols), 512, 1024,
            [=](operands_of_one& o) {
              packed_gemm(o.product(true), blocking{rows, depth, cols});
            });
  benchmark::RunSpecifiedBenchmarks();
}
