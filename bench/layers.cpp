// SPDX-License-Identifier: Apache-2.0
// What an adapter costs on the CPU: every adapter on a 1024 x 1024 layer, fused and eager, beside the bare
// Eigen product of the base layer. The table at the end gives the ratios; they come from interleaved repetitions
// of one process (best of each), the only figures here that mean anything on another machine. GRAFT_RATIOS names a file
// for them. With GRAFT_BUSY and OMP_NUM_THREADS=1 the processor's time counts instead of the time on the wall.
#include <benchmark/benchmark.h>
#include <graft/cpu.h>
#include <graft/run/bind.h>

#include <Eigen/Core>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

using namespace graft;

constexpr int size = 1024, usual_tokens = 512;
constexpr int token_counts[] = {1, 16, 64, 2048};

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
  long long tokens;
  std::vector<float> x, y;

  filled(mode how, long long n)
      : layer(how), tokens(n), x(random_values(static_cast<std::size_t>(n * size), 1)), y(x.size()) {
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
  const auto tokens = state.range(0);
  const auto xs = random_values(static_cast<std::size_t>(tokens * size), 1),
             ws = random_values(std::size_t{size} * size, 2);
  const Eigen::Map<const matrix> x(xs.data(), tokens, size), w(ws.data(), size, size);
  matrix y(tokens, size);
  for (auto _ : state) {
    y.noalias() = x * w.transpose();
    benchmark::DoNotOptimize(y.data());
  }
}
template <class Adapter, mode How> void adapted(benchmark::State& state) {
  filled<on_layer<Adapter>> l(How, state.range(0));
  for (auto _ : state) {
    l.run();
    benchmark::DoNotOptimize(l.y.data());
  }
  state.counters["flops"] = static_cast<double>(forward_cost<on_layer<Adapter>>(state.range(0)).flops);
}

// Keeps the best time of every name over all rounds.
class best_times : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& r : runs) {
      if (r.run_type != Run::RT_Iteration) continue;
      const double time = busy_ ? r.GetAdjustedCPUTime() : r.GetAdjustedRealTime();
      auto [at, fresh] = best_.try_emplace(r.run_name.function_name + " " + r.run_name.args, time);
      if (!fresh) at->second = std::min(at->second, time);
    }
    ConsoleReporter::ReportRuns(runs);
  }
  double operator()(const std::string& name) const {
    const auto at = best_.find(name);
    return at == best_.end() ? 0 : at->second;
  }

 private:
  std::map<std::string, double> best_;
  bool busy_ = std::getenv("GRAFT_BUSY") != nullptr;
};

struct contender {
  std::string adapter;
  int tokens;
};

// The ratios as a table, and as JSON for bench/results.
void report(const best_times& best, const std::vector<contender>& all, const char* file) {
  std::FILE* json = file != nullptr ? std::fopen(file, "w") : nullptr;
  if (json != nullptr) std::fprintf(json, "{\n  \"layer\": \"%d x %d, float\",\n  \"ratios\": [", size, size);
  std::printf("\n%-20s %8s %14s %14s %12s\n", "adapter", "tokens", "fused / bare", "eager / fused", "us, fused");
  bool first = true;
  for (const contender& c : all) {
    const std::string at = " " + std::to_string(c.tokens);
    const double base = best("bare" + at), fused = best(c.adapter + "/fused" + at),
                 eager = best(c.adapter + "/eager" + at);
    if (base <= 0 || fused <= 0 || eager <= 0) continue;
    std::printf("%-20s %8d %14.3f %14.2f %12.1f\n", c.adapter.c_str(), c.tokens, fused / base, eager / fused,
                fused / 1e3);
    if (json != nullptr)
      std::fprintf(
          json, "%s\n    {\"adapter\": \"%s\", \"tokens\": %d, \"fused_over_bare\": %.3f, \"eager_over_fused\": %.3f}",
          first ? "" : ",", c.adapter.c_str(), c.tokens, fused / base, eager / fused);
    first = false;
  }
  if (json != nullptr) std::fprintf(json, "\n  ]\n}\n"), std::fclose(json);
}

template <class Adapter> void add(std::vector<contender>& all, const char* name, int tokens = usual_tokens) {
  all.push_back({name, tokens});
  benchmark::RegisterBenchmark((std::string(name) + "/fused").c_str(), adapted<Adapter, mode::fused>)
      ->Arg(tokens)
      ->UseRealTime();
  benchmark::RegisterBenchmark((std::string(name) + "/eager").c_str(), adapted<Adapter, mode::eager>)
      ->Arg(tokens)
      ->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::vector<contender> all;
  benchmark::RegisterBenchmark("bare", bare)->Arg(usual_tokens)->UseRealTime();
  add<none>(all, "none");
  add<lora<16>>(all, "lora r16");
  add<dora<16>>(all, "dora r16");
  add<adalora<16>>(all, "adalora r16");
  add<oft<32>>(all, "oft b32");
  add<oft_neumann<32>>(all, "oft neumann b32");
  add<boft<8, 2>>(all, "boft b8 m2");
  add<hra<8>>(all, "hra r8");
  add<ia3>(all, "ia3");
  add<ia3_feedforward>(all, "ia3 feed-forward");
  add<loha<8>>(all, "loha r8");
  add<lokr<8>>(all, "lokr r8");
  add<vera<256>>(all, "vera r256");
  add<miss<64>>(all, "miss r64");
  add<vblora<4>>(all, "vblora r4");
  for (const int n : token_counts) {
    benchmark::RegisterBenchmark("bare", bare)->Arg(n)->UseRealTime();
    add<lora<16>>(all, "lora r16", n);
    add<dora<16>>(all, "dora r16", n);
  }
  // Round after round through all of them, so that a change of the machine's speed meets every contender.
  best_times best;
  for (int round = 0; round < 5; ++round) benchmark::RunSpecifiedBenchmarks(&best);
  report(best, all, std::getenv("GRAFT_RATIOS"));
}
