// SPDX-License-Identifier: Apache-2.0
// What one thread takes for a product with a weight of 1536 x 1536, by the kernels that every processor of the
// architecture runs and by each set that graft::cpu_compiled chooses from at run time. CPU time, the least of 15 runs.
#undef GRAFT_CPU_KERNELS  // the kernels of this file are those of its flags
#include <graft/backend/cpu/gemm/matmul.h>
#include <graft/backend/cpu/quantized/quantize.h>

#include <cstdio>
#include <functional>
#include <random>

#include "../cpu_time.h"

using namespace graft;

namespace {

constexpr long long rows = 1536, cols = 1536;

std::vector<float> numbers(long long n, float size) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = normal(engine);
  return v;
}
void print_time(const char* set, const std::function<void()>& run) {
  double least = 1e9;
  for (int i = 0; i < 15; ++i) {
    const double begin = cpu_seconds();
    run();
    least = std::min(least, cpu_seconds() - begin);
  }
  std::printf("  %s %.0f us", set, 1e6 * least);
  std::fflush(stdout);
}

}  // namespace

int main() {
  const std::vector<float> w = numbers(rows * cols, 0.02F), x = numbers(64 * cols, 1);
  std::vector<float> y(64 * rows);
  using namespace quant_formats;
  for (const quant_format& format :
       {q8_0_format::format(), q4_0_format::format(), q4_k_format::format(), q6_k_format::format(),
        quant_format{dtype::nf4, scale_granularity::flat_block, 64}}) {
    const auto quantized = cpu::quantize(w.data(), rows, cols, format);
    if (!quantized) return std::fprintf(stderr, "%s\n", quantized.message()), 1;
    const weight_view weight = weight_of(quantized->as_view(), rows, cols);
    const cpu::gemm_problem<float> c{rows, 1, cols, {nullptr, cols, 1}, {x.data(), 1, cols}, y.data(), rows, 1.0F};
    std::printf("%s, 1 token:", name_of(format));
    print_time("every processor", [&] { cpu::detail::quantized_share(c, weight, 0); });
    for (int k = 0; const auto* set = graft_kernels::supported(k); ++k)
      print_time(set->name,
                 [&] { set->multiply_quantized(cpu::as_kernel_product(c), cpu::as_kernel_weight(weight), 0); });
    std::printf("\n");
  }
  for (const long long tokens : {1LL, 64LL}) {
    const cpu::gemm_problem<float> c{rows,     tokens, cols, {w.data(), cols, 1}, {x.data(), 1, cols},
                                     y.data(), rows,   1.0F};
    const auto kernel = tokens == 1 ? cpu::gemm_kernel::skinny_nt : cpu::gemm_kernel::packed;
    std::printf("f32, %lld tokens:", tokens);
    print_time("every processor", [&] { cpu::detail::run(c, kernel, true); });
    for (int k = 0; const auto* set = graft_kernels::supported(k); ++k)
      print_time(set->name, [&] { set->multiply(cpu::as_kernel_product(c), static_cast<int>(kernel), true); });
    std::printf("\n");
  }
}
