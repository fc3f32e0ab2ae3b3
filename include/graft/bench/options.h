// SPDX-License-Identifier: Apache-2.0
// What one line of a benchmark says beside the layer and the tokens, and how a program of them runs.
#pragma once
#include <benchmark/benchmark.h>
#include <graft/graph/sizes.h>

#include <string>
#include <vector>

namespace graft {

struct bench_options {
  std::string name{};  // instead of the layer type's own
  bool bare = true, eager = true, fused = true;
  // Of a GPU: nothing else runs on it (see cuda::executor::on), and the pause before each sample in milliseconds.
  bool gpu_alone = false;
  int pause_ms = 30;
  // Numbers for sizes that the type leaves open: VB-LoRA's bank.
  std::vector<std::pair<const char*, long long>> sizes{};
};

// As the compiler spells a type, without the namespace of its formulas.
template <class Layer> std::string type_name() {
  const std::string all = __PRETTY_FUNCTION__;
  const std::size_t from = all.find("Layer = ") + 8;
  std::string name = all.substr(from, all.find_first_of(";]", from) - from);
  for (std::size_t at = name.find("graft::"); at != name.npos; at = name.find("graft::")) name.erase(at, 7);
  return name;
}

// Google Benchmark's own main, with repetitions in random order and their medians unless its flags say otherwise.
inline int run_benchmarks(int argc, char** argv, benchmark::BenchmarkReporter* reporter = nullptr) {
  char interleave[] = "--benchmark_enable_random_interleaving=true", repeat[] = "--benchmark_repetitions=5",
       medians[] = "--benchmark_report_aggregates_only=true";
  std::vector<char*> words(argv, argv + argc);
  words.insert(words.begin() + (argc > 0 ? 1 : 0), {interleave, repeat, medians});
  int count = static_cast<int>(words.size());
  benchmark::Initialize(&count, words.data());
  if (benchmark::ReportUnrecognizedArguments(count, words.data())) return 1;
  if (reporter != nullptr)
    benchmark::RunSpecifiedBenchmarks(reporter);
  else
    benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace graft
