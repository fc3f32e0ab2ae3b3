// SPDX-License-Identifier: Apache-2.0
// Backward of an adapted linear layer on the GPU, dx and the gradient of every parameter, and forward and backward,
// against cuBLASLt's bare dx = dy W and its bare pair. As in training, forward saves what backward reads. `step` is
// both passes after a parameter change, with the precomputed values. Measured like bench_gpu_linear, or launch by
// launch:
//     GRAFT_CASES=4096 bench_gpu_backward --benchmark_out=backward.json
//     GRAFT_CASES=512 GRAFT_LAUNCHES=1 ncu --profile-from-start off --metrics gpu__time_duration.sum bench_gpu_backward
#include <cuda_profiler_api.h>

#include <cstring>

#include "adapted_layer.cuh"

namespace {

using namespace bench;

// Memory for the gradient of every parameter of a layer.
struct gradients_of {
  std::vector<gradient> wanted;
  explicit gradients_of(const setting& at, const adapter& a) {
    const layer_graphs graphs = *built_in_methods().graphs("linear", a.what, false);
    const graph& g = graphs.backward;
    std::map<std::string, long long> sizes{{"out", at.n}, {"in", k},     {"r", a.rank}, {"a", 64},
                                           {"c", 64},     {"b", a.rank}, {"m", 2},      {"tokens", at.m}};
    size_values s;
    for (const auto& [name, value] : sizes)
      if (const int e = g.sizes.find(name.c_str()); e >= 0) s.v[e] = value;
    for (int o = 0; o < g.outs; ++o) {
      if (g.out[o].of_input) continue;
      const long long n = element_count(g, g.out[o].at, s);
      float* to = nullptr;
      require(cudaMalloc(&to, static_cast<std::size_t>(n) * sizeof(float)) == cudaSuccess, "cudaMalloc");
      wanted.push_back({g.output_name(o).c_str(), {to, dtype::f32, {n, 1, 1, 1}, 1}});
    }
  }
};

// Runs one call between the start and stop marks of a profiler.
template <class Call> void show_launches(const char* name, Call call) {
  require(cudaStreamSynchronize(stream()) == cudaSuccess, name);
  std::printf("%s\n", name), std::fflush(stdout);
  cudaProfilerStart();
  call(stream());
  require(cudaStreamSynchronize(stream()) == cudaSuccess, name);
  cudaProfilerStop();
}

void add_case(int m, int n, const std::vector<adapter>& adapters) {
  const auto at = std::make_shared<setting>(m, n);
  const auto dx = std::make_shared<std::vector<bf*>>();
  for (int i = 0; i < 2; ++i) dx->push_back(random_matrix(static_cast<long long>(m) * k, 1));
  const std::string shape = "/" + std::to_string(m) + "/" + std::to_string(n);
  const double flops = 2.0 * m * n * k, bytes = 2.0 * (static_cast<double>(n) * k + static_cast<double>(m) * (n + k));
  const auto forward_gemm = std::make_shared<reference_gemm>(m, n, k),
             backward_gemm = std::make_shared<reference_gemm>(m, k, n, true);
  const auto forward = [=](cudaStream_t s) {
    for (int c = 0; c < at->calls; ++c)
      forward_gemm->run(s, at->x, at->w[static_cast<std::size_t>(c % at->rotation)], at->y, 0);
  };
  const auto bare = [=](cudaStream_t s) {
    for (int c = 0; c < at->calls; ++c)
      backward_gemm->run(s, at->y, at->w[static_cast<std::size_t>(c % at->rotation)], (*dx)[c % 2], 0);
  };
  forward_gemm->choose(at->calls, forward);
  backward_gemm->choose(at->calls, bare);
  bf* const dy = random_matrix(static_cast<long long>(m) * n, 1);
  add("cublaslt forward" + shape, at->calls, flops, bytes, forward);
  add("cublaslt dx" + shape, at->calls, flops, bytes, bare);
  add("cublaslt pair" + shape, at->calls, 2 * flops, 2 * bytes, [=](cudaStream_t s) {
    for (int c = 0; c < at->calls; ++c) {
      const bf* w = at->w[static_cast<std::size_t>(c % at->rotation)];
      forward_gemm->run(s, at->x, w, at->y, 0), backward_gemm->run(s, dy, w, (*dx)[c % 2], 0);
    }
  });
  const char* only = std::getenv("GRAFT_ONLY");  // a substring of an adapter's name
  for (const adapter& what : adapters) {
    if (only != nullptr && std::strstr(what.name, only) == nullptr) continue;
    auto layers = std::make_shared<std::vector<std::unique_ptr<layer>>>();
    const int copies = at->rotation;  // as many weights as cuBLASLt rotates through
    for (int i = 0; i < copies; ++i) {
      layers->push_back(adapted(*at, i, what)), layers->back()->train(true);
      must(layers->back()->bind({.tokens = m}), "bind");  // binds for training only
      must(layers->back()->parameters_changed(),
           "parameters_changed");  // from now on the program says when they change
    }
    const auto into = std::make_shared<gradients_of>(*at, what);
    enum class pass { forward, backward, both, step };
    auto run = [=](cudaStream_t s, int c, pass which) {
      layer& l = (*layers)[static_cast<std::size_t>(c % copies)]->on(s, what.exclusive);
      const view x = matrix_of(at->x, m, k), up = matrix_of(dy, m, n);
      if (which == pass::step) must(l.parameters_changed(), "parameters_changed");
      if (which != pass::backward) must(l.forward(x, {at->y, dtype::bf16, {m, n, 1, 1}, 2}), "forward");
      const mutable_view down{(*dx)[c % 2], dtype::bf16, {m, k, 1, 1}, 2};
      if (which != pass::forward) must(l.backward(x, up, down, into->wanted), "backward");
    };
    for (int c = 0; c < copies; ++c) run(stream(), c, pass::both);  // binds the passes
    if (std::getenv("GRAFT_LAUNCHES") != nullptr) {
      show_launches(what.name, [&](cudaStream_t s) { run(s, 0, pass::step); });
      continue;
    }
    for (const auto& [which, name] : {std::pair{pass::forward, " forward"}, std::pair{pass::backward, " backward"},
                                      std::pair{pass::both, " both"}, std::pair{pass::step, " step"}}) {
      const double passes = which == pass::both || which == pass::step ? 2 : 1;
      add(what.name + std::string(name) + shape, at->calls, passes * flops, passes * bytes,
          [=, which = which](cudaStream_t s) {
            for (int c = 0; c < at->calls; ++c) run(s, c, which);
          });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (no_gpu()) return std::puts("no GPU: nothing to measure"), 0;
  const adapter none{"plain", "none", 0}, lora{"lora r16", "lora", 16}, lora64{"lora r64", "lora", 64},
      oft{"oft b32", "oft", 32};
  const std::vector<adapter> all{none,
                                 lora,
                                 lora64,
                                 {"dora r16", "dora", 16},
                                 {"ia3", "ia3", 0},
                                 {"ia3 feed-forward", "ia3_feedforward", 0},
                                 {"adalora r16", "adalora", 16},
                                 {"hra r8", "hra", 8},
                                 {"vera r256", "vera", 256},
                                 {"loha r16", "loha", 16},
                                 {"lokr r16", "lokr", 16},
                                 {"miss r64", "miss", 64},
                                 oft,
                                 {"boft b8 m2", "boft", 8}};
  if (chosen("4096")) add_case(4096, 4096, all);
  if (chosen("14336")) add_case(4096, 14336, {none, lora, lora64, oft});
  if (chosen("16384")) add_case(16384, 4096, {none, lora, lora64});
  if (chosen("512")) add_case(512, 4096, {none, lora});
  for (const int few : {1, 16, 64})
    if (chosen(few)) add_case(few, 4096, {none, lora});

  return std::getenv("GRAFT_LAUNCHES") != nullptr ? 0 : run_all(argc, argv, 9);
}
