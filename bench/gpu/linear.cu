// SPDX-License-Identifier: Apache-2.0
// An adapted linear layer on the GPU against the bare one through cuBLASLt, in one process. Every sample is the replay
// of a CUDA graph of several calls with rotating weights, which exceed the L2 cache, timed by events; Google Benchmark
// repeats all candidates in random order. GRAFT_HOT=1 leaves out the pause before each sample: then the power limit
// slows everything above about a thousand tokens.
//     bench_gpu_linear --benchmark_filter='/4096/' --benchmark_out=linear.json
#include "adapted_layer.cuh"

namespace {

using namespace bench;

void add_case(int m, int n, const std::vector<adapter>& adapters) {
  const auto at = std::make_shared<setting>(m, n);
  const std::string shape = "/" + std::to_string(m) + "/" + std::to_string(n);
  const double flops = 2.0 * m * n * k, bytes = 2.0 * (static_cast<double>(n) * k + static_cast<double>(m) * (n + k));
  const auto base = std::make_shared<reference_gemm>(m, n, k);
  const auto bare = [=](cudaStream_t s) {
    for (int c = 0; c < at->calls; ++c)
      base->run(s, at->x, at->w[static_cast<std::size_t>(c % at->rotation)], at->y, 0);
  };
  base->choose(at->calls, bare);
  add("cublaslt bare" + shape, at->calls, flops, bytes, bare);

  const auto shrink = std::make_shared<reference_gemm>(m, 16, k);
  const auto expand = std::make_shared<reference_gemm>(m, n, 16);
  bf *a = random_matrix(16 * k, 0.027F), *b = random_matrix(16LL * n, 0.3F);
  shrink->choose(1, [&](cudaStream_t s) { shrink->run(s, at->x, a, at->s, 0); });
  expand->choose(1, [&](cudaStream_t s) { expand->run(s, at->s, b, at->y, 1); });
  add("cublaslt lora r16 in three calls" + shape, at->calls, flops, bytes, [=](cudaStream_t s) {
    for (int c = 0; c < at->calls; ++c) {
      base->run(s, at->x, at->w[static_cast<std::size_t>(c % at->rotation)], at->y, 0);
      shrink->run(s, at->x, a, at->s, 0);
      expand->run(s, at->s, b, at->y, 1);
    }
  });
  for (const adapter& what : adapters) {
    auto layers = std::make_shared<std::vector<std::unique_ptr<layer>>>();
    const int copies = at->rotation;  // as many weights as cuBLASLt rotates through
    for (int i = 0; i < copies; ++i) layers->push_back(adapted(*at, i, what));
    std::fprintf(stderr, "%s%s: %s\n", what.name, shape.c_str(), (*layers)[0]->describe(m).c_str());
    add(what.name + shape, at->calls, flops, bytes, [=](cudaStream_t s) {
      for (int c = 0; c < at->calls; ++c)
        must((*layers)[static_cast<std::size_t>(c % copies)]
                 ->on(s, what.exclusive)
                 .forward(matrix_of(at->x, at->m, k), {at->y, dtype::bf16, {at->m, at->n, 1, 1}, 2}),
             "forward");
    });
  }
}
struct skinny_arguments {  // the size of the tensor maps and arguments of a skinny GEMM
  char bytes[sizeof(gpu::skinny_maps) + sizeof(gpu::skinny_args)];
};
__global__ void no_work(skinny_arguments) {}

// The host's time for a call, and for its launch alone. Few calls are measured at a time, so that the device's queue
// never fills.
template <class F> void add_host_time(const char* name, F call) {
  benchmark::RegisterBenchmark(name,
                               [=](benchmark::State& state) {
                                 for (auto _ : state) {
                                   constexpr int calls = 200;
                                   require(cudaStreamSynchronize(stream()) == cudaSuccess, "waiting");
                                   const auto begin = std::chrono::steady_clock::now();
                                   for (int c = 0; c < calls; ++c) call();
                                   const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
                                   state.SetIterationTime(took.count() / calls);
                                 }
                                 state.counters["flops"] = state.counters["bytes"] = 0;
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}
void add_host_times() {
  const auto at = std::make_shared<setting>(16, 4096);
  auto l = std::make_shared<std::unique_ptr<layer>>(adapted(*at, 0, {"lora", "lora", 16}));
  add_host_time("host time of a call/16/4096", [=] {
    must((*l)->forward(matrix_of(at->x, 16, k), {at->y, dtype::bf16, {16, 4096, 1, 1}, 2}), "forward");
  });
  add_host_time("host time of a launch without work/16/4096", [] {
    cudaLaunchAttribute chain;
    chain.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    chain.val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t how{dim3(128), dim3(224), 0, stream(), &chain, 1};
    skinny_arguments nothing;
    void* arguments[] = {&nothing};
    require(cudaLaunchKernelExC(&how, reinterpret_cast<const void*>(&no_work), arguments) == cudaSuccess, "launch");
  });
}
// GEMMs of one input in one launch: the widths of Q, K and V, or of gate and up.
void add_grouped(int m, const std::vector<int>& widths, const char* name) {
  struct group {
    std::vector<std::unique_ptr<layer>> layers;
  };
  constexpr int rotation = 6;
  auto groups = std::make_shared<std::vector<group>>(rotation);
  auto settings = std::make_shared<std::vector<std::unique_ptr<setting>>>();
  double bytes = 0;
  for (const int n : widths) {
    settings->push_back(std::make_unique<setting>(m, n));
    bytes += 2.0 * (static_cast<double>(n) * k + 16.0 * (n + k) + static_cast<double>(m) * n);
  }
  bytes += 2.0 * m * k;
  for (int i = 0; i < rotation; ++i)
    for (auto& s : *settings) {
      s->w[0] = random_matrix(static_cast<long long>(s->n) * k, 0.027F);
      (*groups)[static_cast<std::size_t>(i)].layers.push_back(adapted(*s, 0, {"lora", "lora", 16}));
    }
  add(std::string(name) + "/" + std::to_string(m) + "/together", rotation * 2, 0, bytes, [=](cudaStream_t s) {
    for (int c = 0; c < rotation * 2; ++c) {
      std::vector<gpu::projection<bf>> all;
      for (std::size_t i = 0; i < settings->size(); ++i)
        all.push_back({(*groups)[static_cast<std::size_t>(c % rotation)].layers[i].get(),
                       {(*settings)[i]->y, dtype::bf16, {m, (*settings)[i]->n, 1, 1}, 2}});
      must(gpu::forward_grouped<bf>(s, all, matrix_of((*settings)[0]->x, m, k)), "together");
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (no_gpu()) return std::puts("no GPU: nothing to measure"), 0;
  const adapter none{"plain", "none", 0}, lora{"lora r16", "lora", 16}, lora64{"lora r64", "lora", 64};
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
                                 {"oft b32", "oft", 32},
                                 {"boft b8 m2", "boft", 8}};
  for (const int m : {1, 8, 64})
    if (chosen(m)) add_case(m, 4096, {none, lora}), add_case(m, 14336, {none, lora});
  if (chosen(16)) add_case(16, 4096, all), add_case(16, 14336, {none, lora});
  for (const int m : {1, 16})
    if (chosen(m)) add_grouped(m, {4096, 1024, 1024}, "qkv"), add_grouped(m, {14336, 14336}, "gate and up");
  const adapter lora_alone{"lora r16 alone", "lora", 16, true};
  if (chosen(512)) add_case(512, 4096, {none, lora, lora_alone, lora64});
  if (chosen(4096)) add_case(4096, 4096, all), add_case(4096, 14336, {none, lora});
  if (chosen(16384)) add_case(16384, 4096, {none, lora});
  add_host_times();

  return run_all(argc, argv, 15);
}
