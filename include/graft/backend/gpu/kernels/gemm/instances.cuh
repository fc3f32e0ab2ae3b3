// SPDX-License-Identifier: Apache-2.0
// GEMM kernels as function pointers (gemm_kernel_set): the bit mask of a program says which kernels are instantiated,
// and nothing else names one. A program may compile a set in a file of its own (extern template).
#pragma once
#include <graft/backend/gpu/dispatch/gemm.h>
#include <graft/backend/gpu/kernels/gemm/simt.cuh>
#include <graft/backend/gpu/kernels/gemm/sm80_mma.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90_fused_column_wgrad.cuh>
#include <graft/backend/gpu/kernels/gemm/sm90_fused_rotation.cuh>
#include <graft/backend/gpu/kernels/quantized/launch.cuh>
#include <graft/backend/gpu/kernels/skinny/sm90.cuh>
#include <graft/backend/gpu/kernels/wgrad/sm90.cuh>

#include <bit>
#include <cstdint>

namespace graft::gpu {

class autotuner;
struct gemm_kernel_set;
struct gemm_operands;
struct matrix;
struct skinny_layer;
// Autotuning as function pointers (autotune.cuh), so that programs that choose by heuristic do not compile it.
struct autotune_hooks {
  autotuner* by = nullptr;  // null: the heuristic chooses
  result<gemm_choice> (*product)(const gemm_kernel_set&, const target&, const gemm_problem&,
                                 const gemm_operands&) = nullptr;
  result<skinny_choice> (*grouped)(const gemm_kernel_set&, const target&, const matrix& x, const gemm_problem*,
                                   const skinny_layer*, int count) = nullptr;
};

struct gemm_kernel_set {
  gemm_kernel_mask have{};
  kernel_entry gemm[2 * gemm_variant_count], skinny[3 * skinny_shape_count * ranks],
      skinny_nn[skinny_nn_shape_count * ranks], mma, simt;    // GEMMs: indexed by the bit of gemm_kernel_mask
  kernel_entry sum[ranks + 1], fused_wgrads[ranks], split_k;  // wgrads: indexed by wgrad_index and rank_index
  // GEMM with fused output rotation, without and with prologue; with rotation, prologue and fused column-wise wgrad.
  kernel_entry fused_rotation[2], column_wgrad_rotated;
  quantized_kernels quantized{};
  autotune_hooks timed{};

  void add(const gemm_kernel_set& more) {
    have = have | more.have;
    take(gemm, more.gemm), take(skinny, more.skinny), take(skinny_nn, more.skinny_nn), take(sum, more.sum),
        take(fused_wgrads, more.fused_wgrads);
    take(fused_rotation, more.fused_rotation);
    if (more.column_wgrad_rotated.kernel != nullptr) column_wgrad_rotated = more.column_wgrad_rotated;
    if (more.split_k.kernel != nullptr) split_k = more.split_k;
    if (more.simt.kernel != nullptr) simt = more.simt;
    if (more.mma.kernel != nullptr && (mma.kernel == nullptr || more.have.has_mma())) mma = more.mma;
    quantized.add(more.quantized);
  }

 private:
  template <int N> static void take(kernel_entry (&mine)[N], const kernel_entry (&more)[N]) {
    for (int i = 0; i < N; ++i)
      if (more[i].kernel != nullptr) mine[i] = more[i];
  }
};

namespace detail {
template <class... Parameters> const void* address_of(void (*kernel)(Parameters...)) {
  return reinterpret_cast<const void*>(kernel);
}
template <class T, int Bit> kernel_entry gemm_entry() {
  constexpr int tile = Bit < gemm_variant_count ? 128 : 256, variant = Bit % first_nn;
  constexpr int rank = variant == with_prologue || variant == 0 ? 0 : 8 << variant;
  constexpr bool weight_is_nn = Bit % gemm_variant_count >= first_nn;
  return {address_of(&gemm_kernel<T, tile, rank, variant == with_prologue, weight_is_nn>), 384,
          gemm_shape<tile, rank>::bytes};
}
template <class T, int Rank, wgrad_form What = wgrad_form::columns> kernel_entry wgrad_entry() {
  using shape = wgrad_shape<Rank, What>;
  return {address_of(&wgrad_kernel<T, Rank, What>), shape::threads,
          Rank == wide_tile_rank ? shape::bytes_one_block : shape::bytes};
}
template <class T, int Rank> kernel_entry fused_wgrad_entry() {
  constexpr std::uint32_t tiles = gemm_shape<256, Rank>::bytes, sums = fused_wgrad_ring<Rank>::bytes;
  return {address_of(&gemm_fused_wgrad_kernel<T, Rank>), 384, tiles > sums ? tiles : sums};
}
template <class T, bool Rotates> kernel_entry column_wgrad_entry() {
  constexpr std::uint32_t tiles = gemm_shape<256, 0>::bytes, columnwise = column_wgrad_ring::bytes;
  return {address_of(&gemm_fused_column_wgrad_kernel<T, Rotates>), 384, tiles > columnwise ? tiles : columnwise};
}
template <class T, int Bit> kernel_entry skinny_entry() {
  constexpr int tokens = Bit / (skinny_shape_count * ranks) == 2 ? 64 : 8 << Bit / (skinny_shape_count * ranks);
  constexpr int shape = Bit / ranks % skinny_shape_count, rank = Bit % ranks == 0 ? 0 : 8 << Bit % ranks;
  constexpr int rows = skinny_shapes[shape].rows, splits = skinny_shapes[shape].splits;
  constexpr bool any = shape == fallback_shape;
  return {address_of(&skinny_kernel<T, tokens, rows, splits, rank, any>),
          static_cast<unsigned>(skinny_cta<T, tokens, rows, splits, rank, any>::threads),
          skinny_shape<tokens, rows, splits, rank>::bytes};
}
template <class T, int Bit> kernel_entry skinny_nn_entry() {
  constexpr int shape = Bit / ranks, rank = Bit % ranks == 0 ? 0 : 8 << Bit % ranks;
  constexpr int rows = skinny_nn_shapes[shape].rows, splits = skinny_nn_shapes[shape].splits;
  return {address_of(&skinny_kernel<T, max_skinny_tokens, rows, splits, rank, false, true>),
          static_cast<unsigned>(skinny_cta<T, max_skinny_tokens, rows, splits, rank, false, true>::threads),
          skinny_shape<max_skinny_tokens, rows, splits, rank>::bytes};
}
// Registers the kernel of each set bit.
template <class T, std::uint32_t Gemms> void add_gemms(gemm_kernel_set& k) {
  if constexpr (Gemms != 0) {
    constexpr int bit = std::countr_zero(Gemms);
    k.gemm[bit] = gemm_entry<T, bit>();
    add_gemms<T, Gemms&(Gemms - 1)>(k);
  }
}
template <class T, std::uint64_t Skinny> void add_skinny_kernels(gemm_kernel_set& k) {
  if constexpr (Skinny != 0) {
    constexpr int bit = std::countr_zero(Skinny);
    k.skinny[bit] = skinny_entry<T, bit>();
    add_skinny_kernels<T, Skinny&(Skinny - 1)>(k);
  }
}
template <class T, std::uint32_t SkinnyNN> void add_skinny_nn_kernels(gemm_kernel_set& k) {
  if constexpr (SkinnyNN != 0) {
    constexpr int bit = std::countr_zero(SkinnyNN);
    k.skinny_nn[bit] = skinny_nn_entry<T, bit>();
    add_skinny_nn_kernels<T, SkinnyNN&(SkinnyNN - 1)>(k);
  }
}
template <class T, gemm_kernel_mask Which> gemm_kernel_set compiled() {
  constexpr std::uint64_t Skinny = Which.skinny;
  constexpr std::uint32_t Gemms = Which.gemms;
  gemm_kernel_set k;
  k.have = Which;
  auto sum = [&]<int Rank>() {
    if constexpr ((Gemms >> gemm_kernel_mask::wgrad_bit(Rank) & 1) != 0)
      k.sum[wgrad_index(Rank)] = wgrad_entry<T, Rank>();
    if constexpr (Rank <= 64 && (Gemms >> gemm_kernel_mask::fused_wgrad_bit(Rank) & 1) != 0)
      k.fused_wgrads[rank_index(Rank)] = fused_wgrad_entry<T, Rank>();
  };
  sum.template operator()<16>(), sum.template operator()<32>(), sum.template operator()<64>();
  sum.template operator()<wide_tile_rank>();
  if constexpr ((Gemms >> gemm_kernel_mask::rotation_bit(false) & 1) != 0)
    k.fused_rotation[0] = {address_of(&gemm_rotation_kernel<T, false>), 384, gemm_shape<256, 0>::bytes};
  if constexpr ((Gemms >> gemm_kernel_mask::rotation_bit(true) & 1) != 0)
    k.fused_rotation[1] = {address_of(&gemm_rotation_kernel<T, true>), 384, gemm_shape<256, 0>::bytes},
    k.column_wgrad_rotated = column_wgrad_entry<T, true>();
  if constexpr ((Gemms >> gemm_kernel_mask::fused_wgrad_bit(0) & 1) != 0)
    k.fused_wgrads[0] = column_wgrad_entry<T, false>();
  if constexpr ((Gemms >> gemm_kernel_mask::split_k_bit & 1) != 0)
    k.split_k = wgrad_entry<T, wide_tile_rank, wgrad_form::rows>();
  add_gemms<T, Gemms&((1U << 2 * gemm_variant_count) - 1)>(k);
  add_skinny_kernels<T, Skinny&((std::uint64_t{1} << gemm_kernel_mask::mma_bit) - 1)>(k);
  add_skinny_nn_kernels<T, Which.skinny_nn>(k);
  return k;
}
}  // namespace detail

template <class T, gemm_kernel_mask Which> gemm_kernel_set compiled_kernels() {
  gemm_kernel_set k;
  if constexpr (sizeof(T) == 2) {
    k = detail::compiled<T, Which>();
    k.mma = {detail::address_of(&gemm_mma_kernel<T, Which.has_mma()>), mma::threads, 0};
  }
  k.simt = {detail::address_of(&gemm_simt_kernel<T>), simt::threads, 0};
  return k;
}
// All kernels, for sizes and ranks that are unknown at compile time, as functions that a program may compile in
// separate files.
template <class T, int Tile> gemm_kernel_set all_gemms() {
  constexpr int first = gemm_kernel_mask::gemm_bit(Tile, 0);
  constexpr std::uint32_t own = ((1U << gemm_variant_count) - 1) << first;
  if constexpr (sizeof(T) == 2)
    return detail::compiled<T, gemm_kernel_mask{0, every_gemm_kernel().gemms & own}>();
  else
    return {};
}
// All wgrad kernels, separate and fused, and the GEMM kernels that run on any device.
template <class T> gemm_kernel_set all_wgrads() {
  constexpr gemm_kernel_mask all = [] {
    gemm_kernel_mask l{0, every_gemm_kernel().gemms & ~((1U << 2 * gemm_variant_count) - 1)};
    return l.add_mma(), l;
  }();
  return compiled_kernels<T, all>();
}
// The NN kernels take any number of tokens, and are compiled with those of the largest number.
template <class T, int Tokens> gemm_kernel_set all_skinny() {
  constexpr int first = gemm_kernel_mask::skinny_bit(Tokens, 0, 0), count = skinny_shape_count * ranks;
  constexpr std::uint64_t own = ((std::uint64_t{1} << count) - 1) << first;
  constexpr std::uint32_t nn = Tokens == max_skinny_tokens ? every_gemm_kernel().skinny_nn : 0;
  if constexpr (sizeof(T) == 2)
    return detail::compiled<T, gemm_kernel_mask{every_gemm_kernel().skinny & own, 0, nn}>();
  else
    return {};
}
template <class T> gemm_kernel_set all_kernels() {
  gemm_kernel_set k = all_wgrads<T>();
  k.add(all_gemms<T, 128>()), k.add(all_gemms<T, 256>());
  k.add(all_skinny<T, 8>()), k.add(all_skinny<T, 16>()), k.add(all_skinny<T, 64>());
  k.quantized = all_quantized_kernels<T, 8>(), k.quantized.add(all_quantized_kernels<T, 16>());
  return k;
}

}  // namespace graft::gpu
