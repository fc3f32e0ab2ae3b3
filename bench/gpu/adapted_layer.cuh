// SPDX-License-Identifier: Apache-2.0
// Shared by the GPU benchmarks: random tensors, a layer shape with rotating weights, an adapted layer with random
// parameters, and a candidate as the replay of a captured graph.
#pragma once
#include <benchmark/benchmark.h>
#include <graft/bench/cublaslt.cuh>
#include <graft/gpu.h>
#include <graft/model/method_table.h>

#include <chrono>
#include <map>
#include <thread>

namespace bench {

using namespace graft;
using bf = __nv_bfloat16;
using layer = gpu::executor<bf>;

inline constexpr int k = 4096;

inline void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "bench: %s failed (%s)\n", what, cudaGetErrorString(cudaGetLastError()));
  std::exit(1);
}

__global__ void fill_random(bf* p, long long n, unsigned long long seed, float scale) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL) {
    unsigned long long z = (static_cast<unsigned long long>(i) + seed * 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 31)) * 0x94D049BB133111EBULL;
    p[i] = __float2bfloat16((static_cast<float>((z ^ (z >> 29)) >> 40) / 8388608.0F - 1) * scale);
  }
}
inline bf* random_matrix(long long n, float scale) {
  static unsigned long long seed = 0;
  bf* p = nullptr;
  require(cudaMalloc(&p, static_cast<std::size_t>(n) * sizeof(bf)) == cudaSuccess, "cudaMalloc");
  fill_random<<<1024, 256>>>(p, n, ++seed, scale);
  return p;
}
inline view matrix_of(const bf* p, long long rows, long long cols) { return {p, dtype::bf16, {rows, cols, 1, 1}, 2}; }
inline void must(const status& s, const char* what) {
  if (!s) std::fprintf(stderr, "bench: %s: %s\n", what, s.message()), std::exit(1);
}

inline cudaStream_t stream() {
  static cudaStream_t s = [] {
    cudaStream_t made;
    cudaStreamCreate(&made);
    return made;
  }();
  return s;
}

// One layer shape with rotating weights. Memory is never freed, because a benchmark uses it until the process ends.
struct setting {
  int m, n, rotation, calls;
  bf *x, *y, *s;
  std::vector<bf*> w;

  setting(int tokens, int out) : m(tokens), n(out) {
    rotation = m > 64 ? (n > 8192 ? 3 : 6) : (n > 8192 ? 6 : 16);
    calls = m > 8192 ? 3 : m > 1024 ? 6 : m > 64 ? 12 : 16 * rotation;  // starting a graph takes 5 µs
    x = random_matrix(static_cast<long long>(m) * k, 1), y = random_matrix(static_cast<long long>(m) * n, 1);
    s = random_matrix(static_cast<long long>(m) * 256, 1);
    for (int i = 0; i < rotation; ++i) w.push_back(weight(n, i));
  }
  static bf* weight(int n, int i) {  // shared by all settings of one width
    static std::map<std::pair<int, int>, bf*> made;
    bf*& p = made[{n, i}];
    return p != nullptr ? p : p = random_matrix(static_cast<long long>(n) * k, 0.027F);
  }
};

struct adapter {
  const char* name;
  const char* what;  // the method
  int rank;
  bool exclusive = false;  // no other kernel runs at the same time (engine.cuh)
};
// Random tensors for every leaf of a method; their sizes follow from the graph.
inline std::unique_ptr<layer> adapted(const setting& at, const view& weight, const adapter& a) {
  const result<layer_graphs> found = built_in_methods().graphs("linear", a.what, false);
  if (!found) must(found.failure(), a.what);
  const layer_graphs& graphs = *found;
  auto l = std::make_unique<layer>(graphs);
  std::map<std::string, long long> sizes{{"out", at.n}, {"in", k},     {"r", a.rank}, {"a", 64},
                                         {"c", 64},     {"b", a.rank}, {"m", 2}};
  const graph& g = graphs.literal;
  size_values s;
  for (const auto& [name, value] : sizes)
    if (const int e = g.sizes.find(name.c_str()); e >= 0) s.v[e] = value, must(l->size(name.c_str(), value), "size");
  must(l->set("weight", weight), "weight");
  for (int e = 0; e < g.size; ++e) {
    const node& v = g.n[e];
    if (v.what == op::scalar) must(l->set(v.name, 1.0), v.name);
    if (v.what != op::param && v.what != op::frozen) continue;
    const axis_range listed = listed_axes(v);
    view t{nullptr, dtype::bf16, {1, 1, 1, 1}, listed.last - listed.first};
    for (int d = listed.first; d < listed.last; ++d) t.size[d - listed.first] = g.sizes.value(v.d[d], s);
    t.data = random_matrix(t.count(), t.size[t.rank - 1] > 1000 ? 0.027F : 0.3F);
    must(l->set(v.name, t), v.name);
  }
  l->on(stream(), a.exclusive);
  must(l->bind({.tokens = at.m}), "bind");
  return l;
}
inline std::unique_ptr<layer> adapted(const setting& at, int i, const adapter& a) {
  return adapted(at, matrix_of(at.w[static_cast<std::size_t>(i)], at.n, k), a);
}

// cuBLASLt's GEMM with its fastest algorithm for the calls that `enqueue` makes.
struct reference_gemm {
  gpu::bench_detail::cublaslt_gemm<bf> product;
  reference_gemm(int m, int n, int inner, bool nn = false) { must(product.open(m, n, inner, nn), "cuBLASLt"); }
  void run(cudaStream_t s, const void* x, const void* w, void* y, float beta) const {
    must(product.run(s, x, w, y, beta), "cuBLASLt");
  }
  void choose(int calls, const std::function<void(cudaStream_t)>& enqueue) {
    must(product.choose(stream(), calls, [&](cudaStream_t s) { return enqueue(s), status(ok); }), "cuBLASLt");
  }
};

inline void measure(benchmark::State& state, const gpu::bench_detail::replay& r, double flops, double bytes) {
  static const bool hot = std::getenv("GRAFT_HOT") != nullptr;
  for (auto _ : state) {
    if (!hot) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    r.untimed();
    state.SetIterationTime(r.seconds());
  }
  state.counters["flops"] = flops;
  state.counters["bytes"] = bytes;
}
inline void add(const std::string& name, int calls, double flops, double bytes,
                const std::function<void(cudaStream_t)>& enqueue) {
  enqueue(stream());
  require(cudaStreamSynchronize(stream()) == cudaSuccess, name.c_str());
  auto r = std::make_shared<gpu::bench_detail::replay>();
  const auto captured = r->capture(stream(), calls, [&](cudaStream_t s) { return enqueue(s), status(ok); });
  must(captured, name.c_str());  // enqueue owns the tensors of the graph
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& s) { measure(s, *r, flops, bytes), static_cast<void>(enqueue); })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

inline bool no_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
}
// GRAFT_CASES selects cases by name, so that a subset can be measured: "16,4096".
inline bool chosen(const std::string& name) {
  const char* const wanted = std::getenv("GRAFT_CASES");
  return wanted == nullptr || ("," + std::string(wanted) + ",").find("," + name + ",") != std::string::npos;
}
inline bool chosen(int tokens) { return chosen(std::to_string(tokens)); }
// Runs all benchmarks in random order with repetitions; Google Benchmark's own options come later and take precedence.
inline int run_all(int argc, char** argv, int repetitions) {
  std::string interleave = "--benchmark_enable_random_interleaving=true",
              median = "--benchmark_repetitions=" + std::to_string(repetitions),
              short_report = "--benchmark_report_aggregates_only=true";
  std::vector<char*> arguments(argv, argv + argc);
  arguments.insert(arguments.begin() + 1, {interleave.data(), median.data(), short_report.data()});
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace bench
