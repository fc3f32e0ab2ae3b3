// SPDX-License-Identifier: Apache-2.0
// One product with its slots on a stream: tensor maps, launch attributes, and the kernel that choose() named. Nothing
// here allocates, waits, or touches memory of the device; a captured call can be replayed.
#pragma once
#include <graft/backend/cuda/choose.h>
#include <graft/backend/cuda/gemm.cuh>
#include <graft/backend/cuda/gemm_mma.cuh>
#include <graft/backend/cuda/gemm_simt.cuh>
#include <graft/backend/cuda/stream.cuh>
#include <graft/backend/cuda/tensor_map.h>

namespace graft::cuda {

template <class T> constexpr dtype dtype_of = dtype::f32;
template <> inline constexpr dtype dtype_of<__nv_bfloat16> = dtype::bf16;
template <> inline constexpr dtype dtype_of<__half> = dtype::f16;

// Pointers of one call.
struct linear_operands {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  activation act = activation::none;
  adapter_slot slot{};
  const void* a = nullptr;            // the packed A of the slot, for a shrink of its own
  void* workspace = nullptr;          // choice.workspace_bytes()
  std::uint32_t* counters = nullptr;  // four for every 128 tokens; zero, and zero again after the call
  bool chained = true;                // the weights may be read before the kernel ahead in the stream has finished
  bool alone = false;                 // no kernel that waits for its own thread blocks runs beside this one
};

namespace detail {
inline void* place_of_s(void* workspace, const linear_choice& c) {
  return static_cast<char*>(workspace) + c.partial_bytes;
}

inline status launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream, int cluster,
                     bool chained, bool cooperative, void** arguments, const char* name) {
  if (status s = check(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)), name);
      !s)
    return s;
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config{grid, block, shared, stream, attributes, 0};
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (chained) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  return check(cudaLaunchKernelExC(&config, kernel, arguments), name);
}

template <class T, int TileN> const void* gemm_of(int rank, bool pre = false) {
  if (pre) return reinterpret_cast<const void*>(&gemm_kernel<T, TileN, 0, true>);
  switch (rank) {
    case 16: return reinterpret_cast<const void*>(&gemm_kernel<T, TileN, 16, false>);
    case 32: return reinterpret_cast<const void*>(&gemm_kernel<T, TileN, 32, false>);
    case 64: return reinterpret_cast<const void*>(&gemm_kernel<T, TileN, 64, false>);
    default: return reinterpret_cast<const void*>(&gemm_kernel<T, TileN, 0, false>);
  }
}
template <int TileN> constexpr std::size_t gemm_shared(int rank) {
  return rank == 16   ? gemm_shape<TileN, 16>::bytes
         : rank == 32 ? gemm_shape<TileN, 32>::bytes
         : rank == 64 ? gemm_shape<TileN, 64>::bytes
                      : gemm_shape<TileN, 0>::bytes;
}
struct stream_program {
  const void* kernel;
  std::size_t shared;
  unsigned threads;
};
template <class T, int Tokens, int Rows, int Splits, int Rank, bool Any> stream_program the_stream() {
  return {reinterpret_cast<const void*>(&stream_kernel<T, Tokens, Rows, Splits, Rank, Any>),
          stream_shape<Tokens, Rows, Splits, Rank>::bytes,
          static_cast<unsigned>(stream_block<T, Tokens, Rows, Splits, Rank, Any>::threads)};
}
template <class T, int Tokens, int Rows, int Splits, bool Any> stream_program stream_of(int rank) {
  if (rank == 16) return the_stream<T, Tokens, Rows, Splits, 16, Any>();
  if (rank == 32) return the_stream<T, Tokens, Rows, Splits, 32, Any>();
  if constexpr (Rows + 64 <= 256)
    if (rank == 64) return the_stream<T, Tokens, Rows, Splits, 64, Any>();
  return the_stream<T, Tokens, Rows, Splits, 0, Any>();
}
template <class T, int Tokens> stream_program stream_of(const stream_choice& c, int rank) {
  if (c.any) return stream_of<T, Tokens, any_rows, 2, true>(rank);
  switch (c.rows) {
    case 64: return stream_of<T, Tokens, 64, 2, false>(rank);
    case 96: return stream_of<T, Tokens, 96, 2, false>(rank);
    case 112: return stream_of<T, Tokens, 112, 1, false>(rank);
    default: return stream_of<T, Tokens, 224, 1, false>(rank);
  }
}
template <class T> stream_program stream_of(const stream_choice& c, int rank) {
  if (c.tokens == 8) return stream_of<T, 8>(c, rank);
  return c.tokens == 16 ? stream_of<T, 16>(c, rank) : stream_of<T, 64>(c, rank);
}
}  // namespace detail

// The stream family: layers that share x, each with its weight, its adapter of the same rank, and its output.
struct stream_layer {
  const void* w;
  stream_segment to;
};
template <class T>
status run_stream(cudaStream_t stream, const stream_choice& c, stream_args g, const matrix& x, int rank,
                  const stream_layer* layers, int count, bool chained) {
  stream_maps maps;
  g.m = static_cast<int>(x.rows);
  g.k_steps = static_cast<int>((x.cols + 63) / 64);
  if (status s = make_map(maps.x, dtype_of<T>, x, c.tokens, 64); !s) return s;
  for (int i = 0, tile = 0; i < max_segments; ++i) {
    g.first_tile[i] = i < count ? tile : c.tiles;
    g.segment[i] = layers[i < count ? i : 0].to;
    if (i >= count) continue;
    tile += (g.segment[i].n + c.rows - 1) / c.rows;
    if (status s = make_map(maps.w[i], dtype_of<T>, {layers[i].w, g.segment[i].n, x.cols}, c.rows, 64); !s) return s;
  }
  void* arguments[] = {&maps, &g};
  const detail::stream_program p = detail::stream_of<T>(c, rank);
  return detail::launch(p.kernel, dim3(static_cast<unsigned>(c.splits), static_cast<unsigned>(c.tiles)),
                        dim3(p.threads), p.shared, stream, c.splits, chained, false, arguments, "stream");
}

namespace detail {
template <class T>
status run_gemm(cudaStream_t stream, const linear_problem& p, const linear_choice& c, const linear_operands& o) {
  void* s_at = place_of_s(o.workspace, c);
  const int kernel_rank = c.how == way::gemm ? p.rank : 0, extra = c.how == way::gemm_two ? (p.rank + 63) / 64 : 0;
  gemm_maps maps;
  gemm_args g{static_cast<int>(p.m),
              p.n,
              p.k,
              c.tile_n,
              c.group,
              kernel_rank > 0 ? c.owners : 0,
              p.rank,
              extra,
              o.act,
              o.slot,
              o.residual,
              static_cast<float*>(o.workspace),
              s_at,
              o.counters};
  if (status s = make_map(maps.x, dtype_of<T>, {o.x, p.m, p.k}, 128, 64); !s) return s;
  if (status s = make_map(maps.w, dtype_of<T>, {o.w, p.n, p.k}, c.tile_n / 2, 64); !s) return s;
  if (status s = make_map(maps.y, dtype_of<T>, {o.y, p.m, p.n}, 64, 64); !s) return s;
  maps.s = maps.x;
  if (extra > 0)
    if (status s = make_map(maps.s, dtype_of<T>, {s_at, p.m, p.rank}, 128, g.side_pitch() / 2); !s) return s;
  void* arguments[] = {&maps, &g};
  const bool wide = c.tile_n == 256;
  const bool pre = o.slot.pre != nullptr;
  return launch(wide ? gemm_of<T, 256>(kernel_rank, pre) : gemm_of<T, 128>(kernel_rank, pre), dim3(2 * c.pairs),
                dim3(384), wide ? gemm_shared<256>(kernel_rank) : gemm_shared<128>(kernel_rank), stream, 2, o.chained,
                kernel_rank > 0 && !o.alone, arguments, "gemm");
}
// S = x Aᵀ in a launch of its own.
template <class T>
status run_shrink(cudaStream_t stream, const linear_problem& p, const linear_choice& c, const linear_operands& o) {
  void* s = place_of_s(o.workspace, c);
  if (p.rank <= max_stream_tokens) {  // x takes the place of the weight, A that of the tokens
    stream_args g{};
    g.by_row = true;
    const stream_layer rows{o.x, {s, {}, nullptr, static_cast<int>(p.m)}};
    return run_stream<T>(stream, c.stream, g, {o.a, p.rank, p.k}, 0, &rows, 1, false);
  }
  linear_problem shrink = p;
  shrink.n = p.rank, shrink.rank = 0;
  linear_choice plain = c;
  plain.how = way::gemm, plain.tile_n = 128;
  plain.pairs = static_cast<int>((p.m + 255) / 256) * ((p.rank + 127) / 128);
  plain.pairs = launched_pairs(plain.pairs, c.pairs > 0 ? c.pairs : 1);
  linear_operands to = o;
  to.w = o.a, to.y = s, to.slot = {}, to.residual = nullptr, to.act = activation::none;
  return run_gemm<T>(stream, shrink, plain, to);
}
// The kernels without tensor maps: the shrink is the same kernel with A as its weight.
template <class T>
status run_tiles(cudaStream_t stream, const linear_problem& p, const linear_choice& c, const linear_operands& o) {
  auto run = [&](tile_args g) {
    void* arguments[] = {&g};
    if constexpr (sizeof(T) == 2)
      if (c.how == way::mma)
        return check(cudaLaunchKernel(reinterpret_cast<const void*>(&gemm_mma_kernel<T>),
                                      dim3((g.n + mma::tile - 1) / mma::tile,
                                           static_cast<unsigned>((g.m + mma::tile - 1) / mma::tile)),
                                      dim3(mma::threads), arguments, 0, stream),
                     "gemm (mma.sync)");
    return check(cudaLaunchKernel(reinterpret_cast<const void*>(&gemm_simt_kernel<T>),
                                  dim3((g.n + simt::tile - 1) / simt::tile,
                                       static_cast<unsigned>((g.m + simt::tile - 1) / simt::tile)),
                                  dim3(simt::threads), arguments, 0, stream),
                 "gemm (no tensor cores)");
  };
  void* s = place_of_s(o.workspace, c);
  if (p.rank > 0)
    if (status done = run({.m = p.m, .n = p.rank, .k = p.k, .x = o.x, .w = o.a, .y = s}); !done) return done;
  return run({.m = p.m,
              .n = p.n,
              .k = p.k,
              .x = o.x,
              .w = o.w,
              .y = o.y,
              .s = p.rank > 0 ? s : nullptr,
              .residual = o.residual,
              .act = o.act,
              .slot = o.slot});
}
}  // namespace detail

template <class T>
status run_linear(cudaStream_t stream, const linear_problem& p, const linear_choice& c, const linear_operands& o) {
  if (p.m == 0 || p.n == 0) return ok;
  if constexpr (sizeof(T) == 2) {
    if (c.how == way::stream) {
      stream_args g{};
      g.act = o.act;
      const stream_layer layer{o.w, {o.y, o.slot, o.residual, p.n}};
      return run_stream<T>(stream, c.stream, g, {o.x, p.m, p.k}, p.rank, &layer, 1, o.chained);
    }
    if (c.how == way::gemm_two)
      if (status s = detail::run_shrink<T>(stream, p, c, o); !s) return s;
    if (c.how == way::gemm || c.how == way::gemm_two) return detail::run_gemm<T>(stream, p, c, o);
  }
  return detail::run_tiles<T>(stream, p, c, o);
}

}  // namespace graft::cuda
