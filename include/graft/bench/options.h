// SPDX-License-Identifier: Apache-2.0
// The options of a benchmark, and the main function of a benchmark program.
#pragma once
#include <benchmark/benchmark.h>
#include <graft/bench/results.h>
#include <graft/graph/sizes.h>

#include <cstring>
#include <string>
#include <vector>

namespace graft {

struct bench_options {
  std::string name{};                            // instead of the name of the layer type
  bool bare = true, eager = true, fused = true;  // contenders
  // On a GPU: whether nothing else runs on it (see gpu::executor::on), and the milliseconds before each sample.
  bool gpu_exclusive = false;
  int pause_ms = 30;
  // Values of sizes that the type leaves open, such as VB-LoRA's bank.
  std::vector<std::pair<const char*, long long>> sizes{};
};

// Returns the name of a type as the compiler spells it, without the namespace graft.
template <class Layer> std::string type_name() {
  const std::string all = __PRETTY_FUNCTION__;
  const std::size_t from = all.find("Layer = ") + 8;
  std::string name = all.substr(from, all.find_first_of(";]", from) - from);
  for (std::size_t at = name.find("graft::"); at != name.npos; at = name.find("graft::")) name.erase(at, 7);
  return name;
}

// Does what Google Benchmark's main does, with repetitions in random order and their medians unless its flags say
// otherwise. A table of the medians follows, on stderr if a flag asks for another format than the console's, so that
// stdout stays JSON.
inline int run_benchmarks(int argc, char** argv, benchmark::BenchmarkReporter* reporter = nullptr) {
  char interleave[] = "--benchmark_enable_random_interleaving=true", repeat[] = "--benchmark_repetitions=5",
       medians[] = "--benchmark_report_aggregates_only=true";
  std::vector<char*> words(argv, argv + argc);
  bool for_people = true;
  for (const char* word : words) {
    const char* const format = std::strstr(word, "--benchmark_format=");
    if (format == word) for_people = std::strcmp(word, "--benchmark_format=console") == 0;
  }
  words.insert(words.begin() + (argc > 0 ? 1 : 0), {interleave, repeat, medians});
  int count = static_cast<int>(words.size());
  benchmark::Initialize(&count, words.data());
  if (benchmark::ReportUnrecognizedArguments(count, words.data())) return 1;
  if (reporter != nullptr)
    benchmark::RunSpecifiedBenchmarks(reporter);
  else
    benchmark::RunSpecifiedBenchmarks();
  if (const bench_detail::results& all = bench_detail::all_results(); !all.empty())
    std::fprintf(for_people ? stdout : stderr, "\n%s", all.table().c_str());
  benchmark::Shutdown();
  return 0;
}

}  // namespace graft
