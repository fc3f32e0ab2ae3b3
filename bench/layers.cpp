// SPDX-License-Identifier: Apache-2.0
// The cost of an adapter on the CPU: every adapter on a 1024 x 1024 layer, fused and eager, compared with the GEMM of
// the bare layer. The table at the end has the ratios, which also hold on other machines: each candidate is timed in
// turns with the bare GEMM, in repetitions of one process in random order (medians). GRAFT_RATIOS names a file for
// them. With GRAFT_BUSY and OMP_NUM_THREADS=1 CPU time counts instead of wall time.
#include <graft/bench.h>

#include <cstdlib>
#include <map>

namespace {

using namespace graft;

constexpr int size = 1024, usual_tokens = 512;

template <class Adapter> struct on_layer : linear<size, size, float, Adapter> {};

// Collects the medians of the repetitions, or a single repetition.
class medians : public benchmark::ConsoleReporter {
 public:
  struct entry {
    double microseconds = 0, to_bare = 0;
  };
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& r : runs)
      if ((r.run_type == Run::RT_Iteration || r.aggregate_name == "median") && r.counters.count("to_bare") > 0)
        found_[r.run_name.function_name] = {r.GetAdjustedRealTime(), r.counters.at("to_bare")};
    ConsoleReporter::ReportRuns(runs);
  }
  entry operator()(const std::string& name) const {
    const auto at = found_.find(name);
    return at == found_.end() ? entry{} : at->second;
  }

 private:
  std::map<std::string, entry> found_;
};

struct measurement {
  std::string adapter;
  long long tokens;
};

// Prints the ratios as a table, and as JSON for bench/results.
void report(const medians& found, const std::vector<measurement>& all, const char* file) {
  std::FILE* json = file != nullptr ? std::fopen(file, "w") : nullptr;
  if (json != nullptr) std::fprintf(json, "{\n  \"layer\": \"%d x %d, float\",\n  \"ratios\": [", size, size);
  std::printf("\n%-20s %8s %14s %14s %12s\n", "adapter", "tokens", "fused / bare", "eager / fused", "us, fused");
  bool first = true;
  for (const measurement& c : all) {
    const std::string tokens = "/" + std::to_string(c.tokens);
    const medians::entry fused = found(c.adapter + "/fused" + tokens), eager = found(c.adapter + "/eager" + tokens);
    if (fused.microseconds <= 0 || eager.microseconds <= 0) continue;
    const double ratio = eager.microseconds / fused.microseconds;
    std::printf("%-20s %8lld %14.3f %14.2f %12.1f\n", c.adapter.c_str(), c.tokens, fused.to_bare, ratio,
                fused.microseconds);
    if (json != nullptr)
      std::fprintf(
          json,
          "%s\n    {\"adapter\": \"%s\", \"tokens\": %lld, \"fused_over_bare\": %.3f, \"eager_over_fused\": %.3f}",
          first ? "" : ",", c.adapter.c_str(), c.tokens, fused.to_bare, ratio);
    first = false;
  }
  if (json != nullptr) std::fprintf(json, "\n  ]\n}\n"), std::fclose(json);
}

template <class Adapter>
void add(std::vector<measurement>& all, const char* name, std::initializer_list<long long> tokens = {usual_tokens},
         bool bare = false) {
  for (const long long n : tokens) all.push_back({name, n});
  bench<on_layer<Adapter>>(
      tokens, {.name = name, .bare = bare, .sizes = {{"num_vectors", 256}, {"vector_length", 256}, {"mini_r", 64}}});
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<measurement> all;
  add<none>(all, "none", {usual_tokens, 1, 16, 64, 2048}, true);
  for_each_adapter([&]<class Adapter>(adapter_type<Adapter>) {
    if constexpr (is_main_form<Adapter>() && lists(Adapter::kinds, "linear") && !same_text(Adapter::method, "none"))
      add<typename Adapter::sample>(all, Adapter::method);
  });
  add<lora<16>>(all, "lora", {1, 16, 64, 2048});
  add<dora<16>>(all, "dora", {1, 16, 64, 2048});
  medians found;
  const int answer = run_benchmarks(argc, argv, &found);
  report(found, all, std::getenv("GRAFT_RATIOS"));
  return answer;
}
