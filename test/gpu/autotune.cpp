// SPDX-License-Identifier: Apache-2.0
// Autotuned launches: every candidate that a file can name computes the layer, a second program reads what the first
// one timed, and damaged files or those of another device change nothing.
#include <graft/backend/autotune_file.h>
#include <graft/backend/gpu/dispatch/autotune_candidates.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gpu.h"

using namespace test;

namespace {

struct temporary_folder {
  std::filesystem::path at;
  explicit temporary_folder(const char* name) : at(std::filesystem::temp_directory_path() / name) { clear(); }
  ~temporary_folder() { clear(); }
  void clear() const { std::filesystem::remove_all(at); }
  std::string file() const { return (at / "choices.txt").string(); }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(file(), std::ios::binary).rdbuf();
    return all.str();
  }
};
std::string device_in(const std::string& text) {
  const std::size_t from = text.find("device\t") + 7;
  return text.substr(from, text.find('\n', from) - from);
}

struct lora_layer {
  layer_graphs graphs = graphs_for("linear", "lora", true);
  random_layer<float> numbers;
  long long tokens;
  lora_layer(long long m, long long out, long long in)
      : numbers(representable(graphs, with(usual_sizes(), {{"tokens", m}, {"out", out}, {"in", in}, {"r", 16}}),
                              dtype::bf16)),
        tokens(m) {}
  // Runs twice and from a captured graph, which must give the same bits; returns the number of timed launches.
  int run(const std::string& file, std::vector<float>& y) const {
    gpu_layer g(graphs, dtype::bf16, execution_mode::fused);
    REQUIRE(bool(numbers.bind(g)));
    REQUIRE(bool(g.enable_autotuning(file)));
    REQUIRE(bool(g.bind({tokens, 0})));
    y = numbers.buffer_for("y", graphs.forward);
    std::vector<float> again = y, replayed = y;
    const status done = g.forward(numbers.x(), into(y));
    INFO(std::string(done.message()));
    REQUIRE(bool(done));
    const int timed = g.timed();
    REQUIRE(bool(g.forward(numbers.x(), into(again))));
    REQUIRE(bool(g.replay(numbers.x(), into(replayed), [] { return status(ok); })));
    CHECK(g.timed() == timed);
    CHECK(std::memcmp(y.data(), again.data(), y.size() * sizeof(float)) == 0);
    CHECK(std::memcmp(y.data(), replayed.data(), y.size() * sizeof(float)) == 0);
    return timed;
  }
};

}  // namespace

TEST_CASE("gpu autotune: the next program reads the timed results from the file and gives the same bits") {
  if (no_gpu()) return;
  const temporary_folder p("graft_gpu_choices");
  for (const long long m : {1LL, 16LL, 64LL, 300LL, 1500LL}) {
    const lora_layer l(m, 1024, 2048);
    std::vector<float> first, second;
    CHECK(l.run(p.file(), first) == 1);
    CHECK(l.run(p.file(), second) == 0);
    CHECK(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0);
    CHECK(distance(first, reference(l.numbers)) < 6e-3);
  }
  const std::string device = device_in(p.text());
  CHECK(autotune_results::read(p.text(), device)->size() == 5);
}
TEST_CASE("gpu autotune: every candidate that a file can name computes the layer") {
  if (no_gpu()) return;
  const temporary_folder p("graft_gpu_ways");
  for (const long long m : {3LL, 16LL, 50LL, 300LL, 2600LL}) {
    const lora_layer l(m, 1032, 1024);
    const std::vector<double> expected = reference(l.numbers);
    std::vector<float> y;
    p.clear();
    l.run(p.file(), y);
    const std::string device = device_in(p.text()), text = p.text();
    const auto known = autotune_results::read(text, device);
    REQUIRE(bool(known));
    const std::string line = text.substr(text.find("GEMM"));
    const std::string what = line.substr(0, line.find('\t'));
    gpu::each_tile_shape([&](const std::string& name, const gpu::gemm_kernel_mask&) {
      INFO(m, " tokens, ", name);
      autotune_results named;
      named.put(what, gpu::size_class(m), name);
      std::ofstream(p.file(), std::ios::binary) << named.written(device);
      CHECK(l.run(p.file(), y) <= 1);  // timed again if the candidate does not take these sizes
      CHECK(distance(y, expected) < 6e-3);
      CHECK(l.run(p.file(), y) == 0);
    });
    autotune_results stale;
    stale.put(what, gpu::size_class(m), "a candidate of another program");
    std::ofstream(p.file(), std::ios::binary) << stale.written(device);
    CHECK(l.run(p.file(), y) == 1);
    CHECK(l.run(p.file(), y) == 0);
    CHECK(distance(y, expected) < 6e-3);
  }
}
TEST_CASE("gpu autotune: with a damaged or foreign file launches are timed again, and no result changes") {
  if (no_gpu()) return;
  const temporary_folder p("graft_gpu_bad_choices");
  const lora_layer l(16, 1024, 1024);
  std::vector<float> y;
  CHECK(l.run(p.file(), y) == 1);
  const std::string whole = p.text(), device = device_in(whole);
  autotune_results nonsense;
  nonsense.put("GEMM bf16 1024x1024 r16 epilogue", 16, "no such candidate");
  autotune_results foreign;
  foreign.put("GEMM bf16 1024x1024 r16 epilogue", 16, "skinny shape 3");
  for (const std::string& text : {whole.substr(0, whole.size() / 2), std::string(3000, '\xff'),
                                  foreign.written("another device"), nonsense.written(device)}) {
    std::ofstream(p.file(), std::ios::binary) << text;
    l.run(p.file(), y);
    CHECK(distance(y, reference(l.numbers)) < 6e-3);
  }
}
