// SPDX-License-Identifier: Apache-2.0
// A linear layer with a quantized weight and LoRA on the GPU: up to 32 tokens against the bytes that must move and
// against the bare GEMM of a bf16 weight through cuBLASLt; many tokens, and their gradient, against the bare GEMM and
// against a GEMM after dequantizing. Measured like bench_gpu_linear; `bytes` are those of the stored weight.
//     GRAFT_CASES=1,8,16 bench_gpu_quantized --benchmark_out=quantized.json
#include <graft/core/quant_formats.h>

#include "adapted_layer.cuh"

namespace {

using namespace bench;

struct named_quant_format {
  std::string name;
  quant_format format;
};
quant_format four_bits(dtype type, bool doubled, int block = 64) {
  quant_format e{type, scale_granularity::flat_block, block};
  if (doubled) e.scales = dtype::u8, e.second_block = quant_formats::double_quant_block;
  return e;
}

__global__ void fill_bytes(unsigned char* p, long long n, unsigned char keep) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL)
    p[i] = static_cast<unsigned char>((static_cast<unsigned long long>(i) * 0x9E3779B97F4A7C15ULL) >> 33) & keep;
}
__global__ void fill_with(float* p, long long n, float v) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL) p[i] = v;
}
// Columns in groups in the order in which an activation order leaves them: neighbours are in any group.
__global__ void fill_groups(std::int32_t* p, int n, int groups) {
  for (int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x); i < n; i += static_cast<int>(gridDim.x) * 256)
    p[i] = static_cast<std::int32_t>(static_cast<unsigned>(i) * 2654435761U >> 8) % groups;
}
template <class T> T* device_memory(long long n) {
  T* p = nullptr;
  require(cudaMalloc(&p, static_cast<std::size_t>(n) * sizeof(T)) == cudaSuccess, "cudaMalloc");
  return p;
}
float* filled(long long n, float v) {
  float* const p = device_memory<float>(n);
  fill_with<<<256, 256>>>(p, n, v);
  return p;
}
// Random quantized values without NaN, because their values do not change the time.
view random_weight(const quant_format& format, int n) {
  auto* const quant = new quant_state;  // never freed, like all memory here
  quant->format = format;
  const scale_counts sizes = scale_counts_of(format, n, k);
  const long long bytes = quantized_bytes(format, n, k);
  auto* const codes = device_memory<unsigned char>(bytes);
  fill_bytes<<<1024, 256>>>(codes, bytes, format.block_bytes > 0 ? 0x3F : format.type == dtype::f8_e4m3 ? 0xB7 : 0xFF);
  if (format.scales == dtype::u8) {
    auto* const scales = device_memory<unsigned char>(sizes.scales);
    fill_bytes<<<256, 256>>>(scales, sizes.scales, 0x7F);
    quant->scales = scales, quant->second_scales = filled(sizes.second_scales, 0.01F);
    quant->second_codebook = filled(256, 0.5F), quant->offset = 0.02F;
  } else if (sizes.scales > 0 && format.scales != dtype::f32) {  // bytes or halves without NaN, infinity and sign
    const long long stored = sizes.scales * bits_of(format.scales) / 8;
    auto* const scales = device_memory<unsigned char>(stored);
    fill_bytes<<<256, 256>>>(scales, stored, 0x3F);
    quant->scales = scales;
  } else if (sizes.scales > 0) {
    quant->scales = filled(sizes.scales, format.type == dtype::int8 ? 3.0F : 0.03F);
  }
  if (has_zero_points(format)) {
    auto* const zeros = device_memory<unsigned char>(sizes.scales);
    fill_bytes<<<256, 256>>>(zeros, sizes.scales, static_cast<unsigned char>((1 << bits_of(format.type)) - 1));
    quant->zeros = zeros;
  }
  if (format.scaled == scale_granularity::column_group) {
    auto* const groups = device_memory<std::int32_t>(k);
    fill_groups<<<256, 256>>>(groups, k, k / format.block);
    quant->column_group = groups;
  }
  view v{codes, format.type, {n, k, 1, 1}, 2};
  v.quant = quant;
  return v;
}

struct one_case {
  std::shared_ptr<setting> at;
  std::string shape;
  double flops, plain_bytes;
  one_case(int m, int n)
      : at(std::make_shared<setting>(m, n)),
        shape("/" + std::to_string(m) + "/" + std::to_string(n)),
        flops(2.0 * m * n * k),
        plain_bytes(2.0 * n * k) {}
};
using layers_of = std::shared_ptr<std::vector<std::unique_ptr<layer>>>;

void add_forward(const one_case& c, const std::string& name, const layers_of& layers, double bytes) {
  const auto at = c.at;
  std::fprintf(stderr, "%s%s: %s\n", name.c_str(), c.shape.c_str(), (*layers)[0]->describe(at->m).c_str());
  add(name + c.shape, at->calls, c.flops, bytes, [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i)
      must((*layers)[static_cast<std::size_t>(i % at->rotation)]->on(s, true).forward(
               matrix_of(at->x, at->m, k), {at->y, dtype::bf16, {at->m, at->n, 1, 1}, 2}),
           "forward");
  });
}
// The GEMM with a stored shrink result: with more than eight tokens another launch computes it. Only Hopper has this
// kernel.
bool has_separate_shrink() {
  const auto major = gpu::device_attribute(cudaDevAttrComputeCapabilityMajor);
  return major && *major == 9;
}
void add_after_shrink(const one_case& c, const std::string& name, const std::vector<view>& weights, double bytes,
                      int rank) {
  const auto at = c.at;
  static const gpu::quantized_kernels kernels = gpu::all_quantized_kernels<bf, 16>();
  const auto calls = std::make_shared<std::vector<gpu::quantized_gemm>>();
  for (const view& w : weights) {
    gpu::quantized_operands o;
    o.weight = w, o.n = at->n, o.k = k;
    o.adapter.rank = rank, o.adapter.b = random_matrix(static_cast<long long>(at->n) * rank, 0.3F);
    calls->emplace_back(kernels, sm_90, &o, 1);
  }
  const gpu::quantized_choice choice =
      gpu::choose_quantized(weights[0].quant->format, dtype::bf16, at->m, k, rank, sm_90);
  gpu::quantized_tensors with;
  with.x = at->x, with.y[0] = at->y, with.shrink_out = filled(rank * gpu::max_quantized_tokens, 0.5F),
  with.has_shrink = true;
  add(name + c.shape, at->calls, c.flops, bytes, [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i)
      must((*calls)[static_cast<std::size_t>(i % at->rotation)].run(s, choice, at->m, with, true, true), "product");
  });
}
// dx and the gradients of A and B.
void add_backward(const one_case& c, const std::string& name, const layers_of& layers, double bytes, int rank) {
  const auto at = c.at;
  const int m = at->m, n = at->n;
  const view dy = matrix_of(random_matrix(static_cast<long long>(m) * n, 1), m, n);
  const mutable_view dx{random_matrix(static_cast<long long>(m) * k, 1), dtype::bf16, {m, k, 1, 1}, 2};
  const std::vector<gradient> wanted{
      {"lora_A.weight", {device_memory<float>(rank * k), dtype::f32, {rank, k, 1, 1}, 2}},
      {"lora_B.weight", {device_memory<float>(static_cast<long long>(rank) * n), dtype::f32, {n, rank, 1, 1}, 2}}};
  for (auto& l : *layers) {
    l->train(true);
    must(l->forward(matrix_of(at->x, m, k), {at->y, dtype::bf16, {m, n, 1, 1}, 2}), "forward");
    must(l->backward(matrix_of(at->x, m, k), dy, dx, wanted), "backward");
  }
  add(name + " backward" + c.shape, at->calls, c.flops, bytes, [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i)
      must((*layers)[static_cast<std::size_t>(i % at->rotation)]->on(s, true).backward(matrix_of(at->x, m, k), dy, dx,
                                                                                       wanted),
           "backward");
  });
}
void add_bare(const one_case& c, bool nn) {
  const auto at = c.at;
  const auto base =
      nn ? std::make_shared<reference_gemm>(at->m, k, at->n, true) : std::make_shared<reference_gemm>(at->m, at->n, k);
  const auto run = [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i) {
      const bf* const w = at->w[static_cast<std::size_t>(i % at->rotation)];
      nn ? base->run(s, at->y, w, at->x, 0) : base->run(s, at->x, w, at->y, 0);
    }
  };
  base->choose(at->calls, run);
  add((nn ? "cublaslt dx" : "cublaslt bare") + c.shape, at->calls, c.flops, c.plain_bytes, run);
}
const gpu::dequantize_functions dequantizers = gpu::all_launchers<__nv_bfloat16>().quantized;
// Dequantizes the whole weight, then runs cuBLASLt.
void add_dequantized_first(const one_case& c, const std::string& name, const std::vector<view>& weights, double bytes,
                           bool nn) {
  const auto at = c.at;
  const auto base =
      nn ? std::make_shared<reference_gemm>(at->m, k, at->n, true) : std::make_shared<reference_gemm>(at->m, at->n, k);
  const auto dequantized_weight = std::make_shared<gpu::dequantized_buffer>(dequantizers);
  must(dequantized_weight->reserve(2LL * at->n * k), "a buffer for the dequantized weight");
  base->choose(1, [&](cudaStream_t s) {
    nn ? base->run(s, at->y, dequantized_weight->data(), at->x, 0)
       : base->run(s, at->x, dequantized_weight->data(), at->y, 0);
  });
  add(name + " decoded, cublaslt" + (nn ? " dx" : "") + c.shape, at->calls, c.flops, bytes, [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i) {
      const auto decoded =
          dequantized_weight->dequantize(s, weights[static_cast<std::size_t>(i % at->rotation)], dtype::bf16);
      if (!decoded) must(decoded.failure(), "dequantizing");
      nn ? base->run(s, at->y, dequantized_weight->data(), at->x, 0)
         : base->run(s, at->x, dequantized_weight->data(), at->y, 0);
    }
  });
}
void add_dequantizing(const one_case& c, const std::string& name, const std::vector<view>& weights, double bytes) {
  const auto at = c.at;
  const auto dequantized_weight = std::make_shared<gpu::dequantized_buffer>(dequantizers);
  must(dequantized_weight->reserve(2LL * at->n * k), "a buffer for the dequantized weight");
  add(name + " decoding alone" + c.shape, at->calls, 0, bytes + c.plain_bytes, [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i)
      if (const auto d =
              dequantized_weight->dequantize(s, weights[static_cast<std::size_t>(i % at->rotation)], dtype::bf16);
          !d)
        must(d.failure(), "dequantizing");
  });
}

void add_case(int m, int n, const std::vector<named_quant_format>& all) {
  const one_case c(m, n);
  const adapter none{"plain", "none", 0, true}, lora{"lora r16", "lora", 16, true};
  const bool many = m > 64;
  add_bare(c, false);
  if (many) add_bare(c, true);
  const auto every = [&](const std::function<view(int)>& weight, const adapter& a) {
    auto layers = std::make_shared<std::vector<std::unique_ptr<layer>>>();
    for (int i = 0; i < c.at->rotation; ++i) layers->push_back(adapted(*c.at, weight(i), a));
    return layers;
  };
  const layers_of plain = every([&](int i) { return matrix_of(c.at->w[static_cast<std::size_t>(i)], n, k); }, lora);
  add_forward(c, "bf16 lora r16", plain, c.plain_bytes);
  if (many) add_backward(c, "bf16 lora r16", plain, c.plain_bytes, lora.rank);
  for (const named_quant_format& e : all) {
    const auto bytes = static_cast<double>(bytes_of(e.format, n, k));
    std::vector<view> weights;
    for (int i = 0; i < c.at->rotation; ++i) weights.push_back(random_weight(e.format, n));
    const auto weight = [&](int i) { return weights[static_cast<std::size_t>(i)]; };
    const layers_of adapted_layers = every(weight, lora);
    add_forward(c, e.name + " lora r16", adapted_layers, bytes);
    if (!many) {
      add_forward(c, e.name + " plain", every(weight, none), bytes);
      if (m == gpu::max_quantized_tokens && has_separate_shrink() &&
          gpu::quant_layout_of(e.format, k) != gpu::quant_layout::none)
        add_after_shrink(c, e.name + " lora r16, S given", weights, bytes, lora.rank);
      continue;
    }
    add_backward(c, e.name + " lora r16", adapted_layers, bytes, lora.rank);
    add_dequantized_first(c, e.name, weights, bytes, false), add_dequantized_first(c, e.name, weights, bytes, true);
    add_dequantizing(c, e.name, weights, bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (no_gpu()) return std::puts("no GPU: nothing to measure"), 0;
  const named_quant_format nf4{"nf4", four_bits(dtype::nf4, false)}, doubled{"nf4 double", four_bits(dtype::nf4, true)};
  const std::vector<named_quant_format> all{nf4,
                                            doubled,
                                            {"fp4", four_bits(dtype::fp4, false)},
                                            {"int8", {dtype::int8, scale_granularity::row}},
                                            {"fp8", {dtype::f8_e4m3, scale_granularity::row}},
                                            {"nf4 32", four_bits(dtype::nf4, false, 32)},
                                            {"q8_0", quant_formats::q8_0_format::format()},
                                            {"q4_0", quant_formats::q4_0_format::format()},
                                            {"q4_k", quant_formats::q4_k_format::format()}};
  // Formats of files, which are dequantized first.
  std::vector<named_quant_format> of_files{{"mxfp4", quant_formats::mxfp4_format::format()},
                                           {"nvfp4", quant_formats::nvfp4_format::format()}};
  for (const dtype type : {dtype::u2, dtype::u3, dtype::u4, dtype::u8})
    of_files.push_back({std::string("gptq ") + std::to_string(bits_of(type)),
                        {.type = type, .scaled = scale_granularity::block, .block = 128, .scales = dtype::f16}});
  of_files.push_back(
      {"gptq 4 act-order",
       {.type = dtype::u4, .scaled = scale_granularity::column_group, .block = 128, .scales = dtype::f16}});
  quant_formats::ggml_formats::for_each([&](auto f) {
    if (gpu::quant_layout_of(f.format(), k) == gpu::quant_layout::none)
      of_files.push_back({std::string("ggml ") + f.name, f.format()});
  });
  for (const int m : {1, 8, 16, 32})
    if (chosen(m)) add_case(m, 4096, all), add_case(m, 14336, all);
  if (chosen(4096)) add_case(4096, 4096, all), add_case(4096, 14336, {nf4, doubled}), add_case(4096, 4096, of_files);

  return run_all(argc, argv, 11);
}
