// SPDX-License-Identifier: Apache-2.0
// Backward in 16 bits: dgrad with the stored weight, and wgrads, on ragged sizes and every rank, against double; and
// bitwise repeatable results.
#include <graft/targets.h>

#include <cstring>

#include "gpu.h"

using namespace test;

namespace {

struct shape {
  long long tokens, out, in, r, b = 8, m = 2, a = 4, c = 8;
};

random_layer<float> with_dy(const std::string& method, const shape& s, dtype type) {
  const layer_graphs graphs = graphs_for("linear", method.c_str(), false);
  random_layer<float> l = representable(graphs,
                                        with(usual_sizes(), {{"tokens", s.tokens},
                                                             {"out", s.out},
                                                             {"in", s.in},
                                                             {"r", s.r},
                                                             {"b", s.b},
                                                             {"m", s.m},
                                                             {"a", s.a},
                                                             {"c", s.c}}),
                                        type);
  for (float& v : l.data.at("dy")) v = rounded(v / std::sqrt(static_cast<float>(s.out)), type);
  return l;
}
std::vector<std::vector<double>> reference_gradients(const random_layer<float>& l) {
  random_layer<double> d(l.graphs, l.shape);
  for (auto& [name, values] : d.data) std::copy(l.data.at(name).begin(), l.data.at(name).end(), values.begin());
  cpu::executor<double> e(l.graphs, execution_mode::fused);
  REQUIRE(bool(d.bind(e)));
  std::vector<std::vector<double>> all{d.buffer_for("dx", l.graphs.backward)};
  for (const std::string& name : d.parameters()) all.push_back(d.buffer_for(name.c_str(), l.graphs.backward));
  std::vector<gradient> wanted;
  for (std::size_t i = 1; i < all.size(); ++i) wanted.push_back({d.parameters()[i - 1], into(all[i])});
  REQUIRE(bool(e.backward(d.x(), d.dy(), into(all[0]), wanted)));
  return all;
}
// The largest distance of dx and of the parameters' gradients.
struct errors {
  double dx = 0, parameters = 0;
};
errors errors_of(const std::string& method, const shape& s, dtype type, bool training = false) {
  const random_layer<float> l = with_dy(method, s, type);
  gpu_layer g(l.graphs, type, execution_mode::fused);
  REQUIRE(bool(l.bind(g)));
  REQUIRE(bool(g.bind({s.tokens})));
  g.train(training);
  if (training) REQUIRE(bool(g.parameters_changed()));  // the test says when they change: launches are counted
  bool bound = false;                                   // the first forward call of a training layer binds it
  const std::vector<double> exact_y = training ? reference(l) : std::vector<double>{};
  auto run = [&] {
    if (training) {
      std::vector<float> y = l.buffer_for("y", l.graphs.forward);
      const status forth = g.forward(l.x(), into(y));
      INFO(std::string(forth.message()));
      REQUIRE(bool(forth));
      if (bound) CHECK(g.launched() == g.planned(false, s.tokens));
      bound = true;
      CHECK(distance(y, exact_y) < 1e-2);
    }
    std::vector<std::vector<float>> all{l.buffer_for("dx", l.graphs.backward)};
    for (const std::string& name : l.parameters()) all.push_back(l.buffer_for(name.c_str(), l.graphs.backward));
    std::vector<gradient> wanted;
    for (std::size_t i = 1; i < all.size(); ++i) wanted.push_back({l.parameters()[i - 1], into(all[i])});
    const status done = g.backward(l.x(), l.dy(), into(all[0]), wanted);
    INFO(std::string(done.message()));
    REQUIRE(bool(done));
    return all;
  };
  const auto first = run(), again = run();
  CHECK(g.launched() == g.planned(true, s.tokens));
  const auto exact = reference_gradients(l);
  errors e;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CHECK(std::memcmp(first[i].data(), again[i].data(), first[i].size() * sizeof(float)) == 0);
    double& worst = i == 0 ? e.dx : e.parameters;
    worst = std::max(worst, distance(first[i], exact[i]));
  }
  return e;
}

}  // namespace

TEST_CASE("gpu: the gradients of LoRA in 16 bit, ragged sizes, all ranks") {
  if (no_gpu()) return;
  for (const dtype type : {dtype::bf16, dtype::f16})
    for (const shape s : {shape{1, 64, 64, 16},
                          {3, 40, 72, 1},
                          {16, 776, 1032, 5},
                          {17, 100, 136, 20},
                          {64, 1024, 1024, 64},
                          {7, 288, 512, 16},
                          {33, 512, 96, 32},
                          {48, 4096, 64, 8},
                          {65, 1024, 512, 16},
                          {128, 264, 200, 33},
                          {257, 1032, 648, 16},
                          {300, 1024, 2048, 64},
                          {512, 584, 2056, 17},
                          {700, 776, 1160, 32},
                          {300, 512, 1024, 100},
                          {90, 35, 45, 5},
                          {5, 33, 7, 2}}) {
      INFO(std::string(name_of(type)), " ", s.tokens, " x ", s.out, " x ", s.in, ", rank ", s.r);
      const errors e = errors_of("lora", s, type);
      CHECK(e.dx < 5e-3);
      CHECK(e.parameters < 8e-3);
    }
}
TEST_CASE("gpu: LoRA trained with few tokens by skinny GEMMs in both layouts, ragged sizes, all ranks") {
  if (no_gpu()) return;
  for (const dtype type : {dtype::bf16, dtype::f16})
    for (const shape s : {shape{1, 64, 64, 16},
                          {8, 4096, 4096, 16},
                          {16, 776, 1032, 5},
                          {17, 104, 136, 20},
                          {64, 1024, 1024, 64},
                          {33, 512, 96, 32},
                          {40, 1048, 15368, 16},
                          {64, 15368, 520, 64},
                          {24, 72, 4096, 33},
                          {5, 33, 7, 2}}) {
      INFO(std::string(name_of(type)), " ", s.tokens, " x ", s.out, " x ", s.in, ", rank ", s.r);
      const errors e = errors_of("lora", s, type, true);
      CHECK(e.dx < 5e-3);
      CHECK(e.parameters < 8e-3);
    }
}
TEST_CASE("gpu: LoRA's wgrads fused into the dgrad, ragged sizes, the same bits") {
  if (no_gpu()) return;
  struct with {
    shape s;
    dtype type = dtype::bf16;
    bool training = true;
  };
  for (const with& c : {with{{1100, 1024, 1792, 16}, dtype::bf16, false},
                        {{1029, 1000, 1800, 64}},
                        {{1100, 1032, 1784, 32}},
                        {{1100, 1024, 1792, 8}},
                        {{1100, 1024, 1792, 4}},  // forward stores U = x Aᵀ without padding
                        {{1100, 1000, 1800, 12}},
                        {{300, 264, 200, 2}},
                        {{1100, 1024, 1792, 16}, dtype::f16}}) {
    INFO(std::string(name_of(c.type)), " ", c.s.tokens, " x ", c.s.out, " x ", c.s.in, ", rank ", c.s.r);
    const errors e = errors_of("lora", c.s, c.type, c.training);
    CHECK(e.dx < 5e-3);
    CHECK(e.parameters < 8e-3);
  }
}
TEST_CASE("gpu: in training backward reads the saved tensors, every method") {
  if (no_gpu()) return;
  for (const method& m : built_in_methods()) {
    if (!graphs_for("linear", m.name, false).exists()) continue;
    INFO(std::string(m.name));
    const errors e = errors_of(m.name, {130, 128, 256, 8}, dtype::bf16, true);
    CHECK(e.dx < 1e-2);
    CHECK(e.parameters < 2e-2);
  }
  for (const char* name : {"lora", "ia3", "dora"})  // the kernels without TMA, and rows with padding
    for (const dtype type : {dtype::f32, dtype::f16})
      for (const shape s : {shape{7, 33, 45, 3}, {300, 1032, 648, 16}, {130, 264, 200, 5}}) {
        INFO(std::string(name), ", ", std::string(name_of(type)), ", ", s.tokens, " x ", s.out, " x ", s.in);
        const errors e = errors_of(name, s, type, true);
        CHECK(e.dx < 8e-3);
        CHECK(e.parameters < 8e-3);
      }
}
TEST_CASE("gpu: branches of large ranks train folded into a copy of the weight, if there are as many rows as inputs") {
  if (no_gpu()) return;
  for (const char* name : {"lora", "vera", "loha"})
    for (const dtype type : {dtype::bf16, dtype::f16, dtype::f32})
      for (const shape s : {shape{300, 264, 256, 136},
                            {700, 520, 648, 200},
                            {1100, 1032, 1000, 256},
                            {90, 35, 45, 81},
                            {300, 2304, 264, 256},
                            {2304, 264, 264, 256}}) {  // wgrads with one block per SM
        shape with = s;
        if (name == std::string("loha")) with.r = static_cast<long long>(std::sqrt(static_cast<double>(s.r)));
        INFO(std::string(name), ", ", std::string(name_of(type)), ", ", s.tokens, " x ", s.out, " x ", s.in);
        const errors e = errors_of(name, with, type, true);
        CHECK(e.dx < (type == dtype::f32 ? 1e-4 : 1e-2));
        CHECK(e.parameters < (type == dtype::f32 ? 1e-4 : 2e-2));
      }
}
TEST_CASE("gpu: weights that are a product of large matrices, and wgrads of that size") {
  if (no_gpu()) return;
  for (const char* name : {"randlora", "hira"})
    for (const dtype type : {dtype::bf16, dtype::f16, dtype::f32})
      for (const shape s : {shape{1100, 1032, 520, 16}, {300, 520, 1032, 128}, {90, 35, 45, 5}, {12, 512, 512, 96}}) {
        INFO(std::string(name), ", ", std::string(name_of(type)), ", ", s.tokens, " x ", s.out, " x ", s.in);
        const errors e = errors_of(name, s, type, true);
        CHECK(e.dx < (type == dtype::f32 ? 1e-4 : 1e-2));
        CHECK(e.parameters < (type == dtype::f32 ? 1e-4 : 2e-2));
      }
}
TEST_CASE("gpu: the bytes of saved tensors are known before a call") {
  if (no_gpu()) return;
  const random_layer<float> l = with_dy("lora", {300, 512, 1024, 16}, dtype::bf16);
  gpu_layer g(l.graphs, dtype::bf16, execution_mode::fused);
  REQUIRE(bool(l.bind(g)));
  REQUIRE(bool(g.bind({300})));
  CHECK(g.saved_bytes(300) == 0);
  g.train(true);
  CHECK(g.saved_bytes(300) == (300 * 16 * 2 + 255) / 256 * 256);
  std::vector<float> dx = l.buffer_for("dx", l.graphs.backward);
  CHECK(!g.backward(l.x(), l.dy(), into(dx), {}));  // without a forward call before
  const random_layer<float> folded = with_dy("lora", {300, 512, 256, 128}, dtype::bf16);
  gpu_layer copy(folded.graphs, dtype::bf16, execution_mode::fused);
  REQUIRE(bool(folded.bind(copy)));
  copy.train(true);
  REQUIRE(bool(copy.bind({255})));
  CHECK(copy.saved_bytes(255) > 0);
  REQUIRE(bool(copy.bind({256})));  // the adapter is folded, so forward has no shrink result
  CHECK(copy.saved_bytes(256) == 0);
}
TEST_CASE("gpu: the gradients of every method on a linear layer, few and many tokens, in bf16") {
  if (no_gpu()) return;
  for (const method& m : built_in_methods())
    for (const long long tokens : {5, 300}) {
      if (!graphs_for("linear", m.name, false).exists()) continue;
      INFO(std::string(m.name), ", ", tokens, " tokens");
      const errors e = errors_of(m.name, {tokens, 128, 256, 8}, dtype::bf16);
      CHECK(e.dx < 1e-2);
      CHECK(e.parameters < 2e-2);
    }
}
TEST_CASE("gpu: the gradients of Kronecker factors, with matrices for tensor cores") {
  if (no_gpu()) return;
  for (const bool training : {false, true})
    for (const dtype type : {dtype::bf16, dtype::f16})
      for (const shape s : {shape{130, 1024, 1536, 8, 8, 2, 32, 48},
                            {700, 512, 384, 8, 8, 2, 16, 24},
                            {1, 4096, 4096, 8, 8, 2, 64, 64},
                            {401, 1920, 1024, 8, 8, 2, 60, 64},
                            {37, 4608, 4096, 8, 8, 2, 64, 64}}) {  // the last one is too large for a chain
        INFO(s.tokens, " x ", s.out, " x ", s.in);
        const errors e = errors_of("lokr", s, type, training);
        CHECK(e.dx < 1e-2);
        CHECK(e.parameters < 2e-2);
      }
}
TEST_CASE("gpu: rotations and the gradients of their blocks, blocks of many sizes, ragged numbers of tokens") {
  if (no_gpu()) return;
  for (const dtype type : {dtype::bf16, dtype::f16})
    for (const long long tokens : {3, 65, 300})
      for (const long long b : {2, 4, 8, 16, 32, 64, 128, 12}) {
        INFO(std::string(name_of(type)), ", ", tokens, " tokens, blocks of ", b);
        const errors e = errors_of("oft", {tokens, 200, 384, 1, b}, type);
        CHECK(e.dx < 8e-3);
        CHECK(e.parameters < 8e-3);
      }
  for (const dtype type : {dtype::bf16, dtype::f16})  // wide tiles, which rotate dx in the epilogue
    for (const long long b : {2, 8, 16, 32}) {
      INFO(std::string(name_of(type)), ", 2000 tokens, blocks of ", b);
      const errors e = errors_of("oft", {2000, 200, 1184, 1, b}, type);
      CHECK(e.dx < 8e-3);
      CHECK(e.parameters < 8e-3);
    }
  for (const dtype type : {dtype::bf16, dtype::f16}) {  // BOFT's scale gradient is fused into the dgrad
    gemm_problem p{type, 2000, 1184, 1024, 0};
    p.nn = p.prologue = true, p.output_rotation = 16, p.fused_wgrads[0] = {1024, 0, false};
    CHECK(gpu::choose(p, sm_90).fused_wgrads == 1U);
    const errors e = errors_of("boft", {2000, 1024, 1184, 1, 8, 2}, type, true);
    CHECK(e.dx < 8e-3);
    CHECK(e.parameters < 8e-3);
  }
  for (const long long tokens : {3, 130, 2000})
    for (const long long b : {8, 12})
      for (const long long m : {1, 2, 3}) {
        INFO(m, " factors, ", tokens, " tokens, blocks of ", b);
        const errors e =
            errors_of("boft", {tokens, 200, b == 8 && tokens > 1000 ? 1184 : 384, 1, b, m}, dtype::bf16, true);
        CHECK(e.dx < 8e-3);
        CHECK(e.parameters < 8e-3);
      }
}
