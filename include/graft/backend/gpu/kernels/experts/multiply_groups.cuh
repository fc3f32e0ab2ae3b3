// SPDX-License-Identifier: Apache-2.0
// Which kernel computes a grouped GEMM of experts: wgmma for many rows on sm_90 (grouped_gemm_sm90.cuh), mma.sync for
// the few rows of decode, for narrow results and for gradients (grouped_gemm_mma.cuh), and a kernel without tensor cores
// for float (grouped_gemm.cuh).
#pragma once
#include <graft/backend/gpu/kernels/experts/grouped_gemm_sm90.cuh>
#include <graft/backend/gpu/runtime/device.h>

namespace graft::gpu {

// Decode: an expert that has rows has at most 16 of them on average.
template <class Real> bool is_decode(const grouped_products<Real>& g) {
  return g.routing.rows <= 16 * min_of(g.experts, g.routing.rows / 2 + 1);
}
template <class T> status run_on_tensor_cores(cudaStream_t stream, const grouped_products<float>& g) {
  if (g.is_wgrad) return launch_grouped_mma<T, grouped_square>(stream, g);
  if (is_decode(g)) return launch_grouped_mma<T, grouped_decode>(stream, g);
  if (const auto major = device_attribute(cudaDevAttrComputeCapabilityMajor); major && *major == 9)
    if (fits_grouped_sm90<T>(g))
      return g.tb ? launch_grouped_sm90<T, false>(stream, g) : launch_grouped_sm90<T, true>(stream, g);
  // An MN-major box is 64 columns wide, so the kernel for few columns needs K-major matrices.
  if (g.cols() <= grouped_shrink::cols)
    return g.tb && !g.has_branch() ? launch_grouped_mma<T, grouped_shrink>(stream, g)
                                   : launch_grouped_mma<T, grouped_square>(stream, g);
  return launch_grouped_mma<T, grouped_prefill>(stream, g);
}

// Without exactly one 16-bit type among the operands the float kernel runs; otherwise the tensor cores compute in that
// type.
template <sixteen_bit_types Narrow = sixteen_bit_types::both, class Real>
status multiply_groups(const on_stream& on, const grouped_products<Real>& g) {
  if (g.experts > max_experts)
    return fail("a layer has ", g.experts, " experts, at most ", max_experts, " are supported");
  if (g.routing.rows > 0x7fffffffLL / 2) return fail("a call has too many rows of experts: ", g.routing.rows);
  if (g.out.count() == 0) return ok;
  if (g.mine.end != 0 && !g.is_wgrad) {
    const auto bytes = static_cast<std::size_t>(g.out.count() * bits_of(g.out.p.type) / 8);
    if (status s = check(cudaMemsetAsync(g.out.p.at, 0, bytes, on.stream), "clearing rows of other experts"); !s)
      return s;
  }
  if constexpr (dtype_of<Real> == dtype::f32) {
    if (is_decode(g) && narrow_grouped_products::fits(g))
      return on.matrices(narrow_grouped_products::teams(g), g.a.d[3] / 8, narrow_grouped_products{g}, "grouped GEMM");
    const dtype a = g.a.p.type, b = g.b.p.type;
    const dtype type = a == b || b == dtype::f32 ? a : a == dtype::f32 ? b : dtype::f32;
    if constexpr (has_type(Narrow, dtype::bf16))
      if (type == dtype::bf16) return run_on_tensor_cores<__nv_bfloat16>(on.stream, g);
    if constexpr (has_type(Narrow, dtype::f16))
      if (type == dtype::f16) return run_on_tensor_cores<__half>(on.stream, g);
  }
  const long long blocks = blocks_of(g, product_tile_size, product_tile_size);
  if (blocks > 0x7fffffffLL) return fail("a grouped GEMM has more tiles than a grid; call with fewer tokens");
  return launch_pdl(on.stream, &grouped_tiled_products<Real>, static_cast<unsigned>(blocks), product_threads,
                    "grouped GEMM", g);
}

}  // namespace graft::gpu
