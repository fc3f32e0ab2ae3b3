// SPDX-License-Identifier: Apache-2.0
// A linear layer whose weight is codes, with LoRA, on the GPU: few tokens against the bytes that must move and against the
// bare product of a bf16 weight through cuBLASLt; many tokens, and their gradient, against the bare product and against
// decoding first and multiplying then. Measured as bench_cuda_linear does; `bytes` are those of the weight as it is stored.
//     GRAFT_CASES=1,8,16 bench_cuda_codes --benchmark_out=codes.json
#include <graft/core/encodings.h>

#include "adapted.cuh"

namespace {

using namespace bench;

struct named_encoding {
  std::string name;
  encoding how;
};
encoding four_bits(dtype type, bool doubled, int block = 64) {
  encoding e{type, scaled_by::run, block};
  if (doubled) e.scales = dtype::u8, e.second_block = encodings::nested_block;
  return e;
}

__global__ void fill_bytes(unsigned char* p, long long n, unsigned char keep) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL)
    p[i] = static_cast<unsigned char>((static_cast<unsigned long long>(i) * 0x9E3779B97F4A7C15ULL) >> 33) & keep;
}
__global__ void fill_with(float* p, long long n, float v) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL) p[i] = v;
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
// Codes of any value but those that are no numbers: what they mean does not change what they cost.
view random_codes(const encoding& how, int n) {
  auto* const beside = new planes;  // as long as the process, like all memory here
  beside->how = how;
  const plane_sizes sizes = planes_of(how, n, k);
  const long long bytes = bytes_of_codes(how, n, k);
  auto* const codes = device_memory<unsigned char>(bytes);
  fill_bytes<<<1024, 256>>>(codes, bytes, how.block_bytes > 0 ? 0x3F : how.codes == dtype::f8_e4m3 ? 0xB7 : 0xFF);
  if (how.scales == dtype::u8) {
    auto* const scales = device_memory<unsigned char>(sizes.scales);
    fill_bytes<<<256, 256>>>(scales, sizes.scales, 0x7F);
    beside->scales = scales, beside->second_scales = filled(sizes.second_scales, 0.01F);
    beside->second_table = filled(256, 0.5F), beside->offset = 0.02F;
  } else if (sizes.scales > 0) {
    beside->scales = filled(sizes.scales, how.codes == dtype::int8 ? 3.0F : 0.03F);
  }
  view v{codes, how.codes, {n, k, 1, 1}, 2};
  v.beside = beside;
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
// The product alone where S is there already: with more than eight tokens it is made by a launch ahead. Hopper has it.
bool has_given() {
  const auto major = cuda::attribute_of_device(cudaDevAttrComputeCapabilityMajor);
  return major && *major == 9;
}
void add_given(const one_case& c, const std::string& name, const std::vector<view>& weights, double bytes, int rank) {
  const auto at = c.at;
  static const cuda::code_kernels kernels = cuda::all_code_kernels<bf, 16>();
  const auto calls = std::make_shared<std::vector<cuda::code_calls>>();
  for (const view& w : weights) {
    cuda::code_operands o;
    o.weight = w, o.n = at->n, o.k = k;
    o.slot.rank = rank, o.slot.b = random_matrix(static_cast<long long>(at->n) * rank, 0.3F);
    calls->emplace_back(kernels, sm_90, &o, 1);
  }
  const cuda::code_choice choice = cuda::choose_codes(weights[0].beside->how, dtype::bf16, at->m, k, rank, sm_90);
  cuda::code_tensors with;
  with.x = at->x, with.y[0] = at->y, with.side = filled(rank * cuda::most_code_tokens, 0.5F), with.has_side = true;
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
void add_bare(const one_case& c, bool across) {
  const auto at = c.at;
  const auto base =
      across ? std::make_shared<opponent>(at->m, k, at->n, true) : std::make_shared<opponent>(at->m, at->n, k);
  const auto run = [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i) {
      const bf* const w = at->w[static_cast<std::size_t>(i % at->rotation)];
      across ? base->run(s, at->y, w, at->x, 0) : base->run(s, at->x, w, at->y, 0);
    }
  };
  base->choose(at->calls, run);
  add((across ? "cublaslt dx" : "cublaslt bare") + c.shape, at->calls, c.flops, c.plain_bytes, run);
}
const cuda::code_functions decoders{&cuda::decode_codes<__nv_bfloat16>, nullptr};
// The numbers of the weight first, all of them, then cuBLASLt.
void add_decoded_first(const one_case& c, const std::string& name, const std::vector<view>& weights, double bytes,
                       bool across) {
  const auto at = c.at;
  const auto base =
      across ? std::make_shared<opponent>(at->m, k, at->n, true) : std::make_shared<opponent>(at->m, at->n, k);
  const auto panel = std::make_shared<cuda::code_panel>(decoders);
  must(panel->reserve(2LL * at->n * k), "a panel");
  base->choose(1, [&](cudaStream_t s) {
    across ? base->run(s, at->y, panel->data(), at->x, 0) : base->run(s, at->x, panel->data(), at->y, 0);
  });
  add(name + " decoded, cublaslt" + (across ? " dx" : "") + c.shape, at->calls, c.flops, bytes, [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i) {
      const auto decoded = panel->decode(s, weights[static_cast<std::size_t>(i % at->rotation)], dtype::bf16);
      if (!decoded) must(decoded.failure(), "decoding");
      across ? base->run(s, at->y, panel->data(), at->x, 0) : base->run(s, at->x, panel->data(), at->y, 0);
    }
  });
}
void add_decoding(const one_case& c, const std::string& name, const std::vector<view>& weights, double bytes) {
  const auto at = c.at;
  const auto panel = std::make_shared<cuda::code_panel>(decoders);
  must(panel->reserve(2LL * at->n * k), "a panel");
  add(name + " decoding alone" + c.shape, at->calls, 0, bytes + c.plain_bytes, [=](cudaStream_t s) {
    for (int i = 0; i < at->calls; ++i)
      if (const auto d = panel->decode(s, weights[static_cast<std::size_t>(i % at->rotation)], dtype::bf16); !d)
        must(d.failure(), "decoding");
  });
}

void add_case(int m, int n, const std::vector<named_encoding>& all) {
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
  for (const named_encoding& e : all) {
    const auto bytes = static_cast<double>(bytes_of(e.how, n, k));
    std::vector<view> weights;
    for (int i = 0; i < c.at->rotation; ++i) weights.push_back(random_codes(e.how, n));
    const auto weight = [&](int i) { return weights[static_cast<std::size_t>(i)]; };
    const layers_of adapted_layers = every(weight, lora);
    add_forward(c, e.name + " lora r16", adapted_layers, bytes);
    if (!many) {
      add_forward(c, e.name + " plain", every(weight, none), bytes);
      if (m == cuda::most_code_tokens && has_given())
        add_given(c, e.name + " lora r16, S given", weights, bytes, lora.rank);
      continue;
    }
    add_backward(c, e.name + " lora r16", adapted_layers, bytes, lora.rank);
    add_decoded_first(c, e.name, weights, bytes, false), add_decoded_first(c, e.name, weights, bytes, true);
    add_decoding(c, e.name, weights, bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (no_gpu()) return std::puts("no GPU: nothing to measure"), 0;
  const named_encoding nf4{"nf4", four_bits(dtype::nf4, false)}, doubled{"nf4 double", four_bits(dtype::nf4, true)};
  const std::vector<named_encoding> all{nf4,
                                        doubled,
                                        {"fp4", four_bits(dtype::fp4, false)},
                                        {"int8", {dtype::int8, scaled_by::row}},
                                        {"fp8", {dtype::f8_e4m3, scaled_by::row}},
                                        {"nf4 32", four_bits(dtype::nf4, false, 32)},
                                        {"q8_0", encodings::q8_0_codes::how()},
                                        {"q4_0", encodings::q4_0_codes::how()}};
  for (const int m : {1, 8, 16, 32})
    if (chosen(m)) add_case(m, 4096, all), add_case(m, 14336, all);
  if (chosen(4096)) add_case(4096, 4096, all), add_case(4096, 14336, {nf4, doubled});

  return run_all(argc, argv, 11);
}
