// SPDX-License-Identifier: Apache-2.0
// GEMM with a bf16 weight by a BLAS that uses the matrix instructions of the processor (AMX, blas.h), several times as
// fast as in float. The weight is read in place. Each activation x is split into two bf16 numbers,
//   x = h + l + e   h = bf16(x), l = bf16(x - h), |e| <= 2^-17 |x|
//   x Wᵀ = h Wᵀ + l Wᵀ
// With both terms a product of many rows equals, up to the order of sums, the float products of single rows: a prompt
// in a batch and alone, a build with a BLAS and one without. The dgrad dx = dy W uses h alone, like PyTorch, which
// rounds the gradients of a bf16 model.
#pragma once
#include <graft/backend/cpu/gemm/gemm.h>
#include <graft/core/bf16.h>

#include <bit>
#include <cstdint>

namespace graft::cpu {

// Splits n numbers into high and low terms. The low term is zero if the high one is infinite or NaN. The rounding is
// that of narrow(), written without branches so that compilers vectorize it.
[[gnu::noinline, gnu::hot]] inline void split_bf16(const float* from, long long n, bf16* high, bf16* low) {
  constexpr std::uint32_t sign = 0x80000000, infinite = 0x7f800000, quiet = 0x00400000, upper = 0xffff0000;
  auto rounded = [](std::uint32_t u) { return (u + 0x7fffU + ((u >> 16U) & 1U)) & upper; };
  for (long long i = 0; i < n; ++i) {
    const auto u = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t h = (u & ~sign) > infinite ? (u | quiet) & upper : rounded(u);
    const std::uint32_t l = rounded(std::bit_cast<std::uint32_t>(from[i] - std::bit_cast<float>(h)));
    high[i].bits = static_cast<std::uint16_t>(h >> 16U);
    low[i].bits = static_cast<std::uint16_t>((h & infinite) == infinite ? 0U : l >> 16U);
  }
}

#if defined(GRAFT_BLAS)
// Computes out = or += sign · left · right with `terms` (1 or 2) bf16 terms of right. Returns false, with nothing done,
// if the BLAS has no bf16 GEMM, the product is small, or the caller is in a parallel region.
inline bool split_bf16_gemm(const gemm_problem<float, bf16>& c, int terms, bool overwrite) {
  const bool large = c.cols > detail::skinny_max && c.rows > detail::skinny_max && c.depth > 1;
  if (!large || in_parallel() || bf16_gemm_function() == nullptr || c.right.row != 1) return false;
  thread_local memory<bf16> split;
  const long long n = c.cols * c.depth;
  split.reserve(2 * n);
  bf16* const high = split.data();  // a pointer of this thread, since `split` is another object in every thread
  gemm_problem<float, bf16, bf16> term{c.rows, c.cols, c.depth, c.left, {high, 1, c.depth}, c.out, c.stride, c.sign};
  if (!fits_blas(term)) return false;
  const int threads = threads_for(c.cols, 8 * n);
  run_on_threads(threads, [&](int t) {
    for (long long j = c.cols * t / threads; j < c.cols * (t + 1) / threads; ++j)
      split_bf16(c.right.p + j * c.right.col, c.depth, high + j * c.depth, high + n + j * c.depth);
  });
  const single_blas_thread alone;
  for (int k = 0; k < terms; ++k, term.right.p += n, overwrite = false) {
    if (alone.has_pool())
      detail::for_each_share(
          term, [](const gemm_problem<float, bf16, bf16>&) {},
          [=](const gemm_problem<float, bf16, bf16>& share) { blas_gemm(share, overwrite); });
    else
      blas_gemm(term, overwrite);
  }
  return true;
}
#else
inline bool split_bf16_gemm(const gemm_problem<float, bf16>&, int, bool) { return false; }
#endif

}  // namespace graft::cpu
