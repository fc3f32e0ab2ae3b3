// SPDX-License-Identifier: Apache-2.0
// Large products with a weight in bf16 where a BLAS multiplies bf16 by the matrix instructions of the processor (blas.h),
// several times as fast as floats. The weight is used as it lies. Activations are floats; each is the sum of two numbers
// of bf16, and the product is that of both parts:
//   x = h + l + e   h = bf16(x), l = bf16(x - h), |e| <= 2^-17 |x|
//   x Wᵀ = h Wᵀ + l Wᵀ
// With both a product of many rows gives what the same rows give one by one, in floats, up to the order of sums: a prompt
// in a batch and by itself, a build with a BLAS and one without. Gradients, dx = dy W, keep h alone, as those of a model
// in bf16 do in PyTorch, which rounds activations too.
#pragma once
#include <graft/backend/cpu/gemm.h>
#include <graft/core/bf16.h>

#include <bit>
#include <cstdint>

namespace graft::cpu {

// n numbers, in two parts. What is not finite, and what bf16 cannot hold, is its first part alone. The rounding is that of
// narrow(), written without branches: compilers make vector instructions of it.
[[gnu::noinline, gnu::hot]] inline void in_two_parts(const float* from, long long n, bf16* high, bf16* low) {
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
// out = or += sign left right: by the BLAS where it has such a product and the product is large; else nothing is done.
// `parts`: of the right side, 1 or 2.
inline bool product_in_parts(const by_columns<float, bf16>& c, int parts, bool overwrite) {
  const bool large = c.cols > detail::few_dots && c.rows > detail::few_dots && c.depth > 1;
  if (!large || in_parallel() || product_of_bf16() == nullptr || c.right.row != 1) return false;
  thread_local memory<bf16> room;
  const long long n = c.cols * c.depth;
  room.reserve(2 * n);
  bf16* const high = room.data();  // by name: another thread has other memory
  by_columns<float, bf16, bf16> part{c.rows, c.cols, c.depth, c.left, {high, 1, c.depth}, c.out, c.stride, c.sign};
  if (!fits_blas(part)) return false;
  const int threads = threads_for(c.cols, 8 * n);
  on_threads(threads, [&](int t) {
    for (long long j = c.cols * t / threads; j < c.cols * (t + 1) / threads; ++j)
      in_two_parts(c.right.p + j * c.right.col, c.depth, high + j * c.depth, high + n + j * c.depth);
  });
  const one_blas_thread alone;
  for (int k = 0; k < parts; ++k, part.right.p += n, overwrite = false) {
    if (alone.has_pool())
      detail::in_shares(part, [=](const by_columns<float, bf16, bf16>& share) { blas_product(share, overwrite); });
    else
      blas_product(part, overwrite);
  }
  return true;
}
#else
inline bool product_in_parts(const by_columns<float, bf16>&, int, bool) { return false; }
#endif

}  // namespace graft::cpu
