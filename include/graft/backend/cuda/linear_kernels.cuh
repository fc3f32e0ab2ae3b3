// SPDX-License-Identifier: Apache-2.0
// The kernels that run a product with its slots, as pointers: a list says which of them are compiled, and nothing else
// refers to one. A program may compile a list in a file of its own (extern template).
#pragma once
#include <graft/backend/cuda/across_few.cuh>
#include <graft/backend/cuda/code_calls.cuh>
#include <graft/backend/cuda/gemm_dots.cuh>
#include <graft/backend/cuda/gemm_mma.cuh>
#include <graft/backend/cuda/gemm_simt.cuh>
#include <graft/backend/cuda/gemm_turn.cuh>
#include <graft/backend/cuda/kernels_for.h>
#include <graft/backend/cuda/stream_kernel.cuh>
#include <graft/backend/cuda/sum_tokens.cuh>

#include <bit>
#include <cstdint>

namespace graft::cuda {

class choice_timer;
struct linear_kernels;
struct linear_operands;
struct matrix;
struct stream_layer;
// Launches that are chosen by timing them, as pointers: a program that leaves it to the rules does not compile how
// (linear_timing.cuh).
struct timed_choices {
  choice_timer* by = nullptr;  // null: rules choose
  result<linear_choice> (*product)(const linear_kernels&, const target&, const product_shape&,
                                   const linear_operands&) = nullptr;
  result<stream_choice> (*together)(const linear_kernels&, const target&, const matrix& x, const product_shape*,
                                    const stream_layer*, int count) = nullptr;
};

struct linear_kernels {
  kernel_list have{};
  kernel_entry gemm[2 * gemm_variants], stream[3 * stream_shapes * ranks], mma, simt;  // by the bits of the list
  kernel_entry sum[ranks + 1], beside[ranks], by_parts;                                // by the index of the rank
  // The gemm with a rotation behind it, without and with a factor of its input; with that, and a sum per column beside it.
  kernel_entry turn[2], dots_turn;
  status (*across)(cudaStream_t, const across_args&) = nullptr;
  code_kernels codes{};
  timed_choices timed{};

  void add(const linear_kernels& more) {
    have = have | more.have;
    take(gemm, more.gemm), take(stream, more.stream), take(sum, more.sum), take(beside, more.beside);
    take(turn, more.turn);
    if (more.dots_turn.kernel != nullptr) dots_turn = more.dots_turn;
    if (more.by_parts.kernel != nullptr) by_parts = more.by_parts;
    if (more.across != nullptr) across = more.across;
    if (more.simt.kernel != nullptr) simt = more.simt;
    if (more.mma.kernel != nullptr && (mma.kernel == nullptr || more.have.has_mma())) mma = more.mma;
    codes.add(more.codes);
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
  constexpr int tile = Bit < gemm_variants ? 128 : 256, variant = Bit % first_across;
  constexpr int rank = variant == with_pre || variant == 0 ? 0 : 8 << variant;
  constexpr bool lies_across = Bit % gemm_variants >= first_across;
  return {address_of(&gemm_kernel<T, tile, rank, variant == with_pre, lies_across>), 384,
          gemm_shape<tile, rank>::bytes};
}
template <class T, int Rank, sum_of What = sum_of::columns> kernel_entry sum_entry() {
  using shape = sum_shape<Rank, What>;
  return {address_of(&sum_tokens_kernel<T, Rank, What>), shape::threads,
          Rank == wide_rank ? shape::bytes_alone : shape::bytes};
}
template <class T, int Rank> kernel_entry beside_entry() {
  constexpr std::uint32_t tiles = gemm_shape<256, Rank>::bytes, sums = beside_ring<Rank>::bytes;
  return {address_of(&gemm_beside_kernel<T, Rank>), 384, tiles > sums ? tiles : sums};
}
template <class T, bool Turns> kernel_entry dots_entry() {
  constexpr std::uint32_t tiles = gemm_shape<256, 0>::bytes, dots = dots_ring::bytes;
  return {address_of(&gemm_dots_kernel<T, Turns>), 384, tiles > dots ? tiles : dots};
}
template <class T, int Bit> kernel_entry stream_entry() {
  constexpr int tokens = Bit / (stream_shapes * ranks) == 2 ? 64 : 8 << Bit / (stream_shapes * ranks);
  constexpr int shape = Bit / ranks % stream_shapes, rank = Bit % ranks == 0 ? 0 : 8 << Bit % ranks;
  constexpr int rows = stream_kernels[shape].rows, splits = stream_kernels[shape].splits;
  constexpr bool any = shape == any_shape;
  return {address_of(&stream_kernel<T, tokens, rows, splits, rank, any>),
          static_cast<unsigned>(stream_block<T, tokens, rows, splits, rank, any>::launched),
          stream_shape<tokens, rows, splits, rank>::bytes};
}
// The kernel of each bit.
template <class T, std::uint32_t Gemms> void add_gemms(linear_kernels& k) {
  if constexpr (Gemms != 0) {
    constexpr int bit = std::countr_zero(Gemms);
    k.gemm[bit] = gemm_entry<T, bit>();
    add_gemms<T, Gemms&(Gemms - 1)>(k);
  }
}
template <class T, std::uint64_t Streams> void add_streams(linear_kernels& k) {
  if constexpr (Streams != 0) {
    constexpr int bit = std::countr_zero(Streams);
    k.stream[bit] = stream_entry<T, bit>();
    add_streams<T, Streams&(Streams - 1)>(k);
  }
}
template <class T, std::uint64_t Streams, std::uint32_t Gemms> linear_kernels compiled() {
  linear_kernels k;
  k.have = {Streams, Gemms};
  auto sum = [&]<int Rank>() {
    if constexpr ((Gemms >> kernel_list::sum_bit(Rank) & 1) != 0) k.sum[sum_index(Rank)] = sum_entry<T, Rank>();
    if constexpr (Rank <= 64 && (Gemms >> kernel_list::beside_bit(Rank) & 1) != 0)
      k.beside[rank_index(Rank)] = beside_entry<T, Rank>();
  };
  sum.template operator()<16>(), sum.template operator()<32>(), sum.template operator()<64>();
  sum.template operator()<wide_rank>();
  if constexpr ((Gemms >> kernel_list::turn_bit(false) & 1) != 0)
    k.turn[0] = {address_of(&gemm_turn_kernel<T, false>), 384, gemm_shape<256, 0>::bytes};
  if constexpr ((Gemms >> kernel_list::turn_bit(true) & 1) != 0)
    k.turn[1] = {address_of(&gemm_turn_kernel<T, true>), 384, gemm_shape<256, 0>::bytes},
    k.dots_turn = dots_entry<T, true>();
  if constexpr ((Gemms >> kernel_list::beside_bit(0) & 1) != 0) k.beside[0] = dots_entry<T, false>();
  if constexpr ((Gemms >> kernel_list::by_parts_bit & 1) != 0) k.by_parts = sum_entry<T, wide_rank, sum_of::rows>();
  add_gemms<T, Gemms&((1U << 2 * gemm_variants) - 1)>(k);
  add_streams<T, Streams&((std::uint64_t{1} << kernel_list::across_bit) - 1)>(k);
  return k;
}
}  // namespace detail

template <class T, std::uint64_t Streams, std::uint32_t Gemms> linear_kernels compiled_kernels() {
  linear_kernels k;
  if constexpr (sizeof(T) == 2) {
    k = detail::compiled<T, Streams, Gemms>();
    constexpr bool on_hopper = (Streams >> kernel_list::mma_bit & 1) != 0;
    k.mma = {detail::address_of(&gemm_mma_kernel<T, on_hopper>), mma::threads, 0};
    if constexpr ((Streams >> kernel_list::across_bit & 1) != 0) k.across = &multiply_across<T>;
  }
  k.simt = {detail::address_of(&gemm_simt_kernel<T>), simt::threads, 0};
  return k;
}
// All of them, for sizes and ranks that are not known yet, in parts that a program may compile in files of their own.
template <class T, int Tile> linear_kernels all_gemms() {
  constexpr int first = kernel_list::gemm_bit(Tile, 0);
  constexpr std::uint32_t own = ((1U << gemm_variants) - 1) << first;
  if constexpr (sizeof(T) == 2)
    return detail::compiled<T, 0, every_kernel().gemms & own>();
  else
    return {};
}
// Sums over the tokens, alone and beside a product, and the products that any device runs.
template <class T> linear_kernels all_sums() {
  constexpr kernel_list of_any_size = [] {
    kernel_list l;
    return l.add_across(), l.add_mma(), l;
  }();
  return compiled_kernels<T, of_any_size.streams, every_kernel().gemms & ~((1U << 2 * gemm_variants) - 1)>();
}
template <class T, int Tokens> linear_kernels all_streams() {
  constexpr int first = kernel_list::stream_bit(Tokens, 0, 0), count = stream_shapes * ranks;
  constexpr std::uint64_t own = ((std::uint64_t{1} << count) - 1) << first;
  if constexpr (sizeof(T) == 2)
    return detail::compiled<T, every_kernel().streams & own, 0>();
  else
    return {};
}
template <class T> linear_kernels all_kernels() {
  linear_kernels k = all_sums<T>();
  k.add(all_gemms<T, 128>()), k.add(all_gemms<T, 256>());
  k.add(all_streams<T, 8>()), k.add(all_streams<T, 16>()), k.add(all_streams<T, 64>());
  k.codes = all_code_kernels<T, 8>(), k.codes.add(all_code_kernels<T, 16>());
  return k;
}

}  // namespace graft::cuda
