// SPDX-License-Identifier: Apache-2.0
// A multi-LoRA batch of 64 tokens on a 4096 x 4096 layer, against the bare layer through cuBLASLt: LoRA r16, none, and
// four methods in one batch; and 4096 and 512 tokens in segments. Samples as in linear.cu. Also the cost of other
// adapters for rows of a model of 8 billion parameters: the copy of their indices, and the copy of the table of
// records; adapter_switching.cu measures whole steps.
//     bench_gpu_multi_lora --benchmark_out=multi_lora.json
#include "adapted_layer.cuh"

namespace {

using namespace bench;

constexpr int outputs = 4096, most = 32;

float* random_floats(int n) {
  std::vector<float> host(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = 0.5F + static_cast<float>(i * 7919 % 997) / 997;
  float* p = nullptr;
  require(cudaMalloc(&p, host.size() * 4) == cudaSuccess, "cudaMalloc");
  require(cudaMemcpy(p, host.data(), host.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess, "copy");
  return p;
}
template <class T> T* on_device(const std::vector<T>& host) {
  T* p = nullptr;
  require(cudaMalloc(&p, host.size() * sizeof(T)) == cudaSuccess, "cudaMalloc");
  require(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess, "copy");
  return p;
}
// A LoRA of rank 16, also packed in tiles.
struct factor_pair {
  bf *a, *b, *a_tiles, *b_tiles;

  explicit factor_pair(int k)
      : a(random_matrix(16LL * k, 0.027F)),
        b(random_matrix(16LL * outputs, 0.3F)),
        a_tiles(scratch_memory(16LL * k)),
        b_tiles(scratch_memory(16LL * (outputs + gpu::row_padding))) {
    must(gpu::each(nullptr, 16LL * k, gpu::tile_a<bf>{a, a_tiles, 16, k}, "tiles"), "tiles");
    must(gpu::each(nullptr, 16LL * outputs, gpu::tile_b<bf>{b, b_tiles, 16, gpu::padded_rows(outputs)}, "tiles"),
         "tiles");
  }
  static bf* scratch_memory(long long n) {
    bf* p = nullptr;
    require(cudaMalloc(&p, static_cast<std::size_t>(n) * 2) == cudaSuccess, "cudaMalloc");
    require(cudaMemset(p, 0, static_cast<std::size_t>(n) * 2) == cudaSuccess, "memset");
    return p;
  }
};
// `four`: a LoRA, a DoRA, an IA3 and a LoRA with a bias, in turns; otherwise LoRAs.
gpu::adapter_record* table_for(const std::vector<factor_pair>& factors, bool four) {
  static float *const scale = random_floats(outputs + 512), *const shift = random_floats(outputs + 512);
  std::vector<gpu::adapter_record> all(1);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::size_t what = four ? i % 4 : 0;
    const factor_pair& f = factors[i];
    gpu::adapter_record r{f.a, f.b, nullptr, nullptr, nullptr, 16, f.a_tiles, f.b_tiles};
    if (what == 1 || what == 2) r.scale = scale;
    if (what == 2) r.a = r.b = nullptr, r.rank = 0;
    if (what == 3) r.shift = shift;
    all.push_back(r);
  }
  return on_device(all) + 1;
}

// `segment`: the number of adjacent rows with one adapter; 0: any row may have any adapter.
void add_multi_lora(const setting& at, const std::string& name, int adapters, int without, bool four, int segment = 0) {
  static const gpu::kernel_set kernels = gpu::every_kernel_of<bf>();
  static std::vector<std::vector<factor_pair>> factors(16);
  std::vector<gpu::adapter_record*> tables;
  const int tokens = at.m;
  for (int i = 0; i < at.rotation; ++i) {
    auto& of_layer = factors[static_cast<std::size_t>(i)];
    while (of_layer.size() < most) of_layer.emplace_back(k);
    const auto here = of_layer.begin();
    tables.push_back(table_for({here, here + adapters}, four));
  }
  std::vector<std::int64_t> rows(static_cast<std::size_t>(tokens), -1);
  unsigned draw = 12345;
  for (int i = 0; i < tokens; ++i) {
    draw = draw * 1664525U + 1013904223U;
    if (segment > 0)
      rows[static_cast<std::size_t>(i)] = i / segment % adapters;
    else if (adapters > 0 && (without == 0 || i % without != 0))
      rows[static_cast<std::size_t>(i)] =
          i < adapters + without ? i % adapters : static_cast<int>(draw >> 16) % adapters;
  }
  const std::int64_t* const of_row = on_device(rows);
  const auto tiles = gpu::tile_adapters::find(rows);
  gpu::multi_lora_tiles blocks{on_device(tiles.adapters_of_tile), tokens > 64 ? tiles.rank([](int) { return 16; }) : 0,
                               four};
  require(cudaMalloc(&blocks.workspace, static_cast<std::size_t>(gpu::workspace_bound(tokens, 64))) == cudaSuccess,
          "cudaMalloc");
  require(cudaMalloc(&blocks.counters, static_cast<std::size_t>(gpu::counter_bytes(tokens))) == cudaSuccess,
          "cudaMalloc");
  require(cudaMemset(blocks.counters, 0, static_cast<std::size_t>(gpu::counter_bytes(tokens))) == cudaSuccess,
          "memset");
  void* sums = nullptr;
  require(cudaMalloc(&sums, gpu::multi_lora_partials::bytes) == cudaSuccess, "cudaMalloc");
  require(cudaMemset(sums, 0, gpu::multi_lora_partials::bytes) == cudaSuccess, "memset");
  typename gpu::engine<bf>::queue q;
  q.kernels = kernels;
  must(gpu::engine<bf>::open(q), "the device");
  auto products = std::make_shared<std::vector<gpu::multi_lora_gemm<bf>>>(static_cast<std::size_t>(at.rotation));
  const double bytes = 2.0 * (static_cast<double>(outputs) * k + 16.0 * adapters * (outputs + k) +
                              static_cast<double>(tokens) * (outputs + k));
  add(name + "/" + std::to_string(tokens) + "/4096", at.calls, 0, bytes, [=](cudaStream_t s) {
    for (int c = 0; c < at.calls; ++c) {
      const auto i = static_cast<std::size_t>(c % at.rotation);
      const gpu::multi_lora_operands o{.x = at.x,
                                       .w = at.w[i],
                                       .y = at.y,
                                       .batch = {tables[i], of_row},
                                       .sums = gpu::multi_lora_partials::at(sums),
                                       .blocks = blocks,
                                       .exclusive = true,
                                       .pdl = true};
      gemm_problem p{dtype::bf16, tokens, outputs, k};
      must((*products)[i].run(s, kernels.gemm, kernels.multi_lora, q.where, p, o), "multi-LoRA GEMM");
    }
  });
}

// A setting, with a benchmark of its bare layer.
std::shared_ptr<setting> with_bare(int tokens) {
  const auto at = std::make_shared<setting>(tokens, outputs);
  const auto base = std::make_shared<reference_gemm>(tokens, outputs, k);
  const auto bare = [=](cudaStream_t s) {
    for (int c = 0; c < at->calls; ++c)
      base->run(s, at->x, at->w[static_cast<std::size_t>(c % at->rotation)], at->y, 0);
  };
  base->choose(at->calls, bare);
  const double bytes = 2.0 * (static_cast<double>(outputs) * k + 2.0 * tokens * k);
  add("cublaslt bare/" + std::to_string(tokens) + "/4096", at->calls, 0, bytes, bare);
  return at;
}

// Seven projections of 32 blocks, with a table of `resident` adapters and the base.
void add_switching(int resident) {
  const std::size_t bytes = 7 * 32 * (static_cast<std::size_t>(resident) + 1) * sizeof(gpu::adapter_record);
  void *host = nullptr, *device = nullptr;
  require(cudaMallocHost(&host, bytes) == cudaSuccess && cudaMalloc(&device, bytes) == cudaSuccess, "memory");
  std::memset(host, 0, bytes);
  const std::string adapters = "/" + std::to_string(resident) + " resident";
  add("rows take other adapters" + adapters, 8, 0, 64 * 8.0, [=](cudaStream_t s) {
    for (int c = 0; c < 8; ++c)
      require(cudaMemcpyAsync(device, host, 64 * 8, cudaMemcpyHostToDevice, s) == cudaSuccess, "copy");
  });
  add("a table with another adapter" + adapters, 8, 0, static_cast<double>(bytes), [=](cudaStream_t s) {
    for (int c = 0; c < 8; ++c)
      require(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, s) == cudaSuccess, "copy");
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (no_gpu()) return std::puts("no GPU: nothing to measure"), 0;
  const auto at = with_bare(64), full = with_bare(4096), some = with_bare(512);
  add_multi_lora(*at, "64 rows without", 0, 0, false);
  add_multi_lora(*at, "1 lora r16", 1, 0, false);
  add_multi_lora(*at, "8 lora r16", 8, 0, false);
  add_multi_lora(*at, "8 lora r16, every fifth row without", 8, 5, false);
  add_multi_lora(*at, "32 lora r16", 32, 0, false);
  add_multi_lora(*at, "8 of four methods", 8, 0, true);
  add_multi_lora(*full, "8 segments", 8, 0, false, 512);
  add_multi_lora(*full, "8 segments that end anywhere", 8, 0, false, 500);
  add_multi_lora(*full, "8 segments of four methods", 8, 0, true, 500);
  add_multi_lora(*full, "one adapter", 1, 0, false, 4096);
  add_multi_lora(*full, "32 adapters, segments of 64", 32, 0, false, 64);
  add_multi_lora(*some, "2 adapters, segments of 256", 2, 0, false, 256);
  add_multi_lora(*some, "32 adapters, segments of 16", 32, 0, false, 16);
  for (const int resident : {1, 8, 64}) add_switching(resident);

  return run_all(argc, argv, 15);
}
