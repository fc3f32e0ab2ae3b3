// SPDX-License-Identifier: Apache-2.0
// The GEMM kernels in 16 bits: every family, ragged sizes, every rank, against double; with an error no larger than
// that of separate GEMMs that round in between.
#include <cstring>

#include "gpu.h"

using namespace test;

namespace {

struct shape {
  long long tokens, out, in, r;
};

double error_of(const std::string& method, bool bias, const shape& s, dtype type, int rank = 0) {
  const layer_graphs graphs = graphs_for("linear", method.c_str(), bias);
  const random_layer<float> l = representable(
      graphs, with(usual_sizes(), {{"tokens", s.tokens}, {"out", s.out}, {"in", s.in}, {"r", s.r}}), type);
  gpu_layer g(graphs, type, execution_mode::fused);
  REQUIRE(bool(l.bind(g)));
  REQUIRE(bool(g.bind({s.tokens, rank})));
  std::vector<float> y = l.buffer_for("y", graphs.forward), again = y;
  const status done = g.forward(l.x(), into(y));
  INFO(g.describe(s.tokens), ": ", std::string(done.message()));
  REQUIRE(bool(done));
  if (method == "lora" || method == "ia3_feedforward")
    CHECK(g.describe(s.tokens).find("by itself") == std::string::npos);
  if (rank == 0) CHECK(g.launched() == g.planned(false, s.tokens));
  REQUIRE(bool(g.forward(l.x(), into(again))));
  CHECK(std::memcmp(y.data(), again.data(), y.size() * sizeof(float)) == 0);  // bitwise repeatable
  return distance(y, reference(l));
}
// The error if U = x Aᵀ, the update and y are each rounded to the type, as by separate GEMMs.
double unfused_error(const shape& s, dtype type) {
  const layer_graphs graphs = graphs_for("linear", "lora", false);
  const random_layer<float> l = representable(
      graphs, with(usual_sizes(), {{"tokens", s.tokens}, {"out", s.out}, {"in", s.in}, {"r", s.r}}), type);
  auto product = [&](const std::vector<float>& a, const std::vector<float>& b, long long m, long long n, long long k) {
    std::vector<float> y(static_cast<std::size_t>(m * n));
    for (long long i = 0; i < m; ++i)
      for (long long j = 0; j < n; ++j) {
        float sum = 0;
        for (long long e = 0; e < k; ++e)
          sum += rounded(a[static_cast<std::size_t>(i * k + e)], type) *
                 rounded(b[static_cast<std::size_t>(j * k + e)], type);
        y[static_cast<std::size_t>(i * n + j)] = rounded(sum, type);
      }
    return y;
  };
  const auto base = product(l.data.at("x"), l.data.at("weight"), s.tokens, s.out, s.in);
  const auto shrunk = product(l.data.at("x"), l.data.at("lora_A.weight"), s.tokens, s.r, s.in);
  auto y = product(shrunk, l.data.at("lora_B.weight"), s.tokens, s.out, s.r);
  for (std::size_t i = 0; i < y.size(); ++i)
    y[i] = rounded(base[i] + rounded(static_cast<float>(l.scalars.at("scaling")) * y[i], type), type);
  return distance(y, reference(l));
}

}  // namespace

TEST_CASE("gpu: LoRA in 16 bit, all families, ragged sizes, all ranks") {
  if (no_gpu()) return;
  for (const dtype type : {dtype::bf16, dtype::f16})
    for (const shape s : {shape{1, 64, 64, 16},
                          {3, 40, 72, 1},
                          {8, 1024, 512, 16},
                          {16, 776, 1032, 5},
                          {17, 100, 136, 20},
                          {33, 520, 264, 32},
                          {64, 1024, 1024, 64},
                          {64, 36, 520, 40},
                          {65, 1024, 512, 16},
                          {100, 776, 1032, 8},
                          {128, 264, 200, 33},
                          {257, 1032, 648, 16},
                          {300, 2048, 1024, 64},
                          {512, 2056, 584, 17},
                          {700, 1160, 776, 32},
                          {70, 36, 56, 4},
                          {90, 35, 45, 5},
                          {5, 33, 7, 2}}) {
      INFO(std::string(name_of(type)), " ", s.tokens, " x ", s.out, " x ", s.in, ", rank ", s.r);
      CHECK(error_of("lora", true, s, type) < 5e-3);
    }
}
TEST_CASE("gpu: a factor of the input in the prologue, all families, ragged sizes") {
  if (no_gpu()) return;
  for (const dtype type : {dtype::f32, dtype::bf16, dtype::f16})
    for (const shape s : {shape{1, 64, 64, 1},
                          {3, 40, 56, 1},
                          {16, 776, 1032, 1},
                          {50, 101, 520, 1},
                          {64, 1024, 1024, 1},
                          {128, 264, 200, 1},
                          {300, 2048, 1024, 1},
                          {700, 1160, 776, 1},
                          {90, 35, 45, 1},
                          {5, 33, 7, 1}}) {
      INFO(std::string(name_of(type)), " ", s.tokens, " x ", s.out, " x ", s.in);
      CHECK(error_of("ia3_feedforward", true, s, type) < (type == dtype::f32 ? 2e-5 : 6e-3));
    }
}
TEST_CASE("gpu: ranks above 64 are folded into a copy of the weight") {
  if (no_gpu()) return;
  for (const shape s : {shape{300, 1024, 512, 65}, {40, 256, 264, 100}, {513, 2048, 520, 256}}) {
    INFO(s.tokens, " x ", s.out, " x ", s.in, ", rank ", s.r);
    CHECK(error_of("lora", false, s, dtype::bf16) < 5e-3);
  }
}
TEST_CASE("gpu: a layer with capacity for a larger rank computes the same") {
  if (no_gpu()) return;
  for (const int rank : {16, 64, 128})
    for (const shape s : {shape{300, 1024, 512, 16}, {40, 256, 264, 9}}) {
      INFO(s.tokens, " x ", s.out, " x ", s.in, ", rank ", s.r, " of ", rank);
      CHECK(error_of("lora", false, s, dtype::bf16, rank) < 5e-3);
    }
}
TEST_CASE("gpu: every method on a linear layer, 5 and 300 tokens, in bf16") {
  if (no_gpu()) return;
  for (const method& m : built_in_methods())
    for (const bool bias : {false, true})
      for (const long long tokens : {5, 300}) {
        if (!graphs_for("linear", m.name, bias).exists()) continue;
        INFO(std::string(m.name), std::string(bias ? " with bias, " : ", "), tokens, " tokens");
        CHECK(error_of(m.name, bias, {tokens, 512, 256, 8}, dtype::bf16) < 1e-2);
      }
}
TEST_CASE("gpu: the fused GEMM rounds less than separate GEMMs") {
  if (no_gpu()) return;
  for (const shape s : {shape{4, 512, 512, 16}, {260, 512, 512, 16}}) {
    const double fused = error_of("lora", false, s, dtype::bf16), unfused = unfused_error(s, dtype::bf16);
    INFO("fused ", fused, ", unfused ", unfused);
    CHECK(fused < 1.02 * unfused);
  }
}
