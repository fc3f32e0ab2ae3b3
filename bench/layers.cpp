// SPDX-License-Identifier: Apache-2.0
// What an adapter costs on the CPU: every adapter on a 1024 x 1024 layer with 512 tokens, fused and eager, beside the
// bare Eigen product of the base layer. The table at the end gives the ratios; they come from interleaved repetitions
// of one process (best of each), the only figures here that mean anything on another machine. GRAFT_RATIOS names a file
// for them.
#include <benchmark/benchmark.h>
#include <graft/cpu.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

using namespace graft;

constexpr int size = 1024, tokens = 512;

template <class Adapter> struct on_layer : linear<size, size, float, Adapter> {};

std::vector<float> random_values(std::size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-0.5F, 0.5F);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(engine);
  return v;
}

// A layer with its tensors, filled by walking the leaves of its graph.
template <class Layer> struct filled {
  cpu::layer<Layer> layer;
  std::vector<std::vector<float>> data;
  std::vector<float> x = random_values(std::size_t{tokens} * size, 1),
                     y = std::vector<float>(std::size_t{tokens} * size);

  explicit filled(backend how) : layer(how) {
    const graph& g = derived_of<Layer>::literal;
    size_values s = sizes_at<Layer>(g, tokens);
    for (const auto& [name, value] :
         {named_size{"num_vectors", 256}, named_size{"vector_length", 256}, named_size{"mini_r", 64}})
      if (const int at = g.sizes.find(name); at >= 0) s.v[at] = value;
    for (int k = 0; k < g.size; ++k) {
      const node& v = g.n[k];
      if (v.what == op::scalar) require(layer.set(v.name, 0.5));
      if (v.what != op::base && v.what != op::frozen && v.what != op::param) continue;
      data.push_back(
          random_values(static_cast<std::size_t>(count(g, static_cast<id>(k), s)), 7U + static_cast<unsigned>(k)));
      const axes a = listed_axes(v);
      view w{data.back().data(), dtype::f32, {1, 1, 1, 1}, a.last - a.first};
      for (int d = a.first; d < a.last; ++d) w.size[d - a.first] = g.sizes.value(v.d[d], s);
      require(layer.set(v.name, w));
    }
    run();
  }
  static void require(const status& s) {
    if (!s) std::fprintf(stderr, "%s\n", s.message()), std::exit(1);
  }
  void run() { require(layer.forward(view_of(x.data(), tokens, size), view_into(y.data(), tokens, size))); }
};

void bare(benchmark::State& state) {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto xs = random_values(std::size_t{tokens} * size, 1), ws = random_values(std::size_t{size} * size, 2);
  const Eigen::Map<const matrix> x(xs.data(), tokens, size), w(ws.data(), size, size);
  matrix y(tokens, size);
  for (auto _ : state) {
    y.noalias() = x * w.transpose();
    benchmark::DoNotOptimize(y.data());
  }
}
template <class Adapter, backend How> void adapted(benchmark::State& state) {
  filled<on_layer<Adapter>> l(How);
  for (auto _ : state) {
    l.run();
    benchmark::DoNotOptimize(l.y.data());
  }
  state.counters["flops"] = static_cast<double>(forward_cost<on_layer<Adapter>>(tokens).flops);
}

// Keeps the best time of every name over all rounds.
class best_times : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& r : runs) {
      if (r.run_type != Run::RT_Iteration) continue;
      auto [at, fresh] = best_.try_emplace(r.run_name.function_name, r.GetAdjustedRealTime());
      if (!fresh) at->second = std::min(at->second, r.GetAdjustedRealTime());
    }
    ConsoleReporter::ReportRuns(runs);
  }
  double operator()(const std::string& name) const {
    const auto at = best_.find(name);
    return at == best_.end() ? 0 : at->second;
  }

 private:
  std::map<std::string, double> best_;
};

// The ratios as a table, and as JSON for bench/results.
void report(const best_times& best, const std::vector<std::string>& adapters, const char* file) {
  std::FILE* json = file != nullptr ? std::fopen(file, "w") : nullptr;
  if (json != nullptr)
    std::fprintf(json, "{\n  \"layer\": \"%d x %d, %d tokens, float\",\n  \"ratios\": [", size, size, tokens);
  std::printf("\n%-22s %14s %14s %10s\n", "adapter", "fused / bare", "eager / fused", "us fused");
  bool first = true;
  for (const std::string& a : adapters) {
    const double bare_time = best("bare"), fused = best(a + "/fused"), eager = best(a + "/eager");
    if (bare_time <= 0 || fused <= 0 || eager <= 0) continue;
    std::printf("%-22s %14.3f %14.2f %10.0f\n", a.c_str(), fused / bare_time, eager / fused, fused / 1e3);
    if (json != nullptr)
      std::fprintf(json, "%s\n    {\"adapter\": \"%s\", \"fused_over_bare\": %.3f, \"eager_over_fused\": %.3f}",
                   first ? "" : ",", a.c_str(), fused / bare_time, eager / fused);
    first = false;
  }
  if (json != nullptr) std::fprintf(json, "\n  ]\n}\n"), std::fclose(json);
}

template <class Adapter> void add(std::vector<std::string>& names, const char* name) {
  names.emplace_back(name);
  benchmark::RegisterBenchmark((names.back() + "/fused").c_str(), adapted<Adapter, backend::fused>)->UseRealTime();
  benchmark::RegisterBenchmark((names.back() + "/eager").c_str(), adapted<Adapter, backend::eager>)->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("layer", "1024 x 1024, 512 tokens, float");
  benchmark::RegisterBenchmark("bare", bare)->UseRealTime();
  std::vector<std::string> names;
  names.reserve(32);
  add<none>(names, "none");
  add<lora<16>>(names, "lora r16");
  add<dora<16>>(names, "dora r16");
  add<adalora<16>>(names, "adalora r16");
  add<oft<32>>(names, "oft b32");
  add<oft_neumann<32>>(names, "oft neumann b32");
  add<boft<8, 2>>(names, "boft b8 m2");
  add<hra<8>>(names, "hra r8");
  add<ia3>(names, "ia3");
  add<ia3_feedforward>(names, "ia3 feed-forward");
  add<loha<8>>(names, "loha r8");
  add<lokr<8>>(names, "lokr r8");
  add<vera<256>>(names, "vera r256");
  add<miss<64>>(names, "miss r64");
  add<vblora<4>>(names, "vblora r4");
  // Round after round through all of them, so that a change of the machine's speed meets every contender.
  best_times best;
  const char* ratios = std::getenv("GRAFT_RATIOS");
  for (int round = 0; round < 5; ++round) benchmark::RunSpecifiedBenchmarks(&best);
  report(best, names, ratios);
}
