// SPDX-License-Identifier: Apache-2.0
// One product whose rows have adapters of their own, from tensors to launches: one launch where a stream kernel or, with
// more rows, gemm takes it, else the bare product and a launch behind it, by tiles of rows where tensor cores take their
// sizes; and one ahead of it where a record has a factor of the input.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/gemm_mixed.cuh>
#include <graft/backend/cuda/linear_calls.cuh>
#include <graft/backend/cuda/mixed_choice.h>
#include <graft/backend/cuda/mixed_stream.cuh>
#include <graft/backend/cuda/mixed_tiles.cuh>

namespace graft::cuda {

struct mixed_kernels {
  kernel_entry stream[4 * mixed_shapes], gemm[2 * ranks];
  kernel_entry tiles, finish;
  status (*scale)(cudaStream_t, const mixed_batch&, const void* x, void* to, long long rows, int k) = nullptr;
};

namespace detail {
template <class T, int Tokens, int Shape, int Segments> void add_mixed_stream(mixed_kernels& to) {
  constexpr int rows = stream_kernels[Shape].rows, splits = stream_kernels[Shape].splits;
  using block = mixed_block<T, Tokens, rows, splits, Segments>;
  to.stream[mixed_index(Tokens, rows, Segments)] = {address_of(&mixed_stream_kernel<T, Tokens, rows, splits, Segments>),
                                                    static_cast<unsigned>(block::threads), block::shape::bytes};
}
template <class T, int Segments> void add_mixed_streams(mixed_kernels& to) {
  add_mixed_stream<T, 16, 0, Segments>(to), add_mixed_stream<T, max_mixed_rows, 0, Segments>(to);
  add_mixed_stream<T, 16, 1, Segments>(to), add_mixed_stream<T, max_mixed_rows, 1, Segments>(to);
  add_mixed_stream<T, 16, 2, Segments>(to), add_mixed_stream<T, max_mixed_rows, 2, Segments>(to);
}
template <class T, int Rank> kernel_entry mixed_gemm_entry(int tile) {
  return tile == 128 ? kernel_entry{address_of(&gemm_mixed_kernel<T, 128, Rank>), 384, gemm_shape<128, Rank>::bytes}
                     : kernel_entry{address_of(&gemm_mixed_kernel<T, 256, Rank>), 384, gemm_shape<256, Rank>::bytes};
}
constexpr int mixed_gemm_index(int tile, int rank) { return (tile == 128 ? 0 : ranks) + rank_index(rank); }
}  // namespace detail

// In two parts, which a program may compile in files of their own.
template <class T> mixed_kernels all_mixed_gemms() {
  mixed_kernels k;
  if constexpr (sizeof(T) == 2)
    for (const int tile : {128, 256}) {
      k.gemm[detail::mixed_gemm_index(tile, 16)] = detail::mixed_gemm_entry<T, 16>(tile);
      k.gemm[detail::mixed_gemm_index(tile, 32)] = detail::mixed_gemm_entry<T, 32>(tile);
      k.gemm[detail::mixed_gemm_index(tile, 64)] = detail::mixed_gemm_entry<T, 64>(tile);
    }
  return k;
}
template <class T>
status scale_rows(cudaStream_t stream, const mixed_batch& of, const void* x, void* to, long long rows, int k) {
  return each(stream, rows * k, scale_mixed_rows<T>{of, static_cast<const T*>(x), static_cast<T*>(to), k},
              "factors of the rows");
}
template <class T> mixed_kernels all_mixed_streams() {
  mixed_kernels k;
  if constexpr (sizeof(T) == 2) {
    detail::add_mixed_streams<T, 1>(k), detail::add_mixed_streams<T, max_segments>(k);
    k.tiles = {detail::address_of(&mixed_tile_kernel<T>), mixed_tile<T>::threads, 0};
  }
  k.finish = {detail::address_of(&mixed_finish_kernel<T>), mixed_finish_threads, 0};
  k.scale = &scale_rows<T>;
  return k;
}
template <class T> mixed_kernels all_mixed_kernels() {
  mixed_kernels k = all_mixed_streams<T>();
  const mixed_kernels many = all_mixed_gemms<T>();
  for (int i = 0; i < 2 * ranks; ++i) k.gemm[i] = many.gemm[i];
  return k;
}

// The tensors of one call.
struct mixed_operands {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  activation act = activation::none;
  mixed_batch batch{};
  mixed_sums sums{};
  mixed_blocks blocks{};
  void* scaled = nullptr;  // memory for x ⊙ pre; null: no record has a factor of the input
  bool alone = false;      // see engine.cuh
  bool chained = false;    // weights and records may be read before the kernel ahead in the stream has finished
};

// Products with one input as segments of one launch; x, rows, sums and how it is launched are those of the first.
inline status stream_mixed(cudaStream_t stream, const mixed_kernels& kernels, const stream_choice& c,
                           const product_shape* p, const mixed_operands* all, int count) {
  const kernel_entry& kernel = kernels.stream[mixed_index(c.tokens, c.rows, count)];
  const mixed_operands& o = all[0];
  stream_maps maps{};
  const int tokens = static_cast<int>((p->m + 7) / 8 * 8);
  if (status s = make_map(maps.x[0], p->type, {o.x, p->m, p->k}, tokens, 64); !s) return s;
  stream_args g{};
  g.m = static_cast<int>(p->m), g.k_steps = (p->k + 63) / 64, g.ring = mixed_stages(c, p->k, count);
  g.x_bytes = static_cast<std::uint32_t>(tokens) * 128;
  mixed_args mixed{{{}, o.batch.of_row, count}, o.sums, o.x, p->k};
  for (int i = 0, tile = 0; i < max_segments; ++i) {
    g.first_tile[i] = i < count ? tile : c.tiles;
    if (i >= count) continue;
    g.segment[i] = {all[i].y, {}, all[i].residual, p[i].n, all[i].act};
    mixed.tables.records[i] = all[i].batch.records, maps.x[i] = maps.x[0];
    if (status s = make_map(maps.w[i], p->type, {all[i].w, p[i].n, p->k}, c.rows, 64); !s) return s;
    tile += (p[i].n + c.rows - 1) / c.rows;
  }
  const dim3 grid(static_cast<unsigned>(c.splits), static_cast<unsigned>(c.tiles));
  bound_launch to;
  if (status s = detail::finish(to, kernel, grid, "stream of mixed rows", c.splits, true, !o.alone); !s) return s;
  void* arguments[] = {&maps, &g, &mixed};
  const cudaLaunchConfig_t how{grid,   dim3(kernel.threads), kernel.shared,
                               stream, to.attributes,        to.fixed + (o.chained ? 1U : 0U)};
  return launch(how, kernel.kernel, arguments, to.name);
}

// Many rows by tiles.
inline status gemm_mixed(cudaStream_t stream, const mixed_kernels& kernels, const linear_choice& c,
                         const product_shape& p, const mixed_operands& o) {
  const int rank = o.blocks.rank;
  const kernel_entry& kernel = kernels.gemm[detail::mixed_gemm_index(c.tile_n, rank)];
  gemm_maps maps{};
  gemm_args g{};
  g.m = static_cast<int>(p.m), g.n = p.n, g.k = p.k, g.tile_n = c.tile_n, g.group = c.group, g.owners = c.owners;
  g.rank = rank, g.act = o.act, g.residual = o.residual;
  g.partial = static_cast<float*>(o.blocks.workspace);
  g.s = static_cast<char*>(o.blocks.workspace) + c.partial_bytes, g.counters = o.blocks.counters;
  mixed_gemm_args rows{o.batch.records, o.batch.of_row, o.blocks.of_block, g.m, o.blocks.posts};
  if (status s = make_map(maps.x, p.type, {o.x, p.m, p.k}, 128, 64); !s) return s;
  if (status s = make_map(maps.w, p.type, {o.w, p.n, p.k}, c.tile_n / 2, 64); !s) return s;
  if (status s = make_map(maps.y, p.type, {o.y, p.m, p.n}, 64, 64); !s) return s;
  maps.s = maps.x, maps.before = maps.residual = maps.y;
  if (o.residual != nullptr)
    if (status s = make_map(maps.residual, p.type, {o.residual, p.m, p.n}, 128, 64); !s) return s;
  bound_launch to;
  const dim3 grid(static_cast<unsigned>(2 * c.pairs));
  if (status s = detail::finish(to, kernel, grid, "gemm of mixed rows", 2, true, !o.alone); !s) return s;
  void* arguments[] = {&maps, &g, &rows};
  const cudaLaunchConfig_t how{grid,   dim3(kernel.threads), kernel.shared,
                               stream, to.attributes,        to.fixed + (o.chained ? 1U : 0U)};
  return launch(how, kernel.kernel, arguments, to.name);
}

template <class T> class mixed_linear {
 public:
  // `p`: everything but aligned; rank, pre and posts are those of the records.
  status run(cudaStream_t stream, const linear_kernels& kernels, const mixed_kernels& mixed, const target& device,
             product_shape p, mixed_operands o);

 private:
  status finish(cudaStream_t stream, const mixed_kernels& mixed, const target& device, const product_shape& p,
                const mixed_operands& o) {
    mixed_finish_args rest{o.batch, o.x, o.y, o.residual, o.act, p.m, p.n, p.k};
    const mixed_tiling by = tile_mixed(p, device);
    const kernel_entry& kernel = by.tiles > 0 ? mixed.tiles : mixed.finish;
    const dim3 grid = by.tiles > 0 ? dim3(static_cast<unsigned>(by.tiles), static_cast<unsigned>(by.parts))
                                   : dim3(static_cast<unsigned>(p.m));
    void* arguments[] = {&rest};
    const cudaLaunchConfig_t how{grid, dim3(kernel.threads), 0, stream, nullptr, 0};
    return launch(how, kernel.kernel, arguments, "the adapters of the rows");
  }

  linear_calls bare_;
  const void* bare_w_ = nullptr;
};

// Outside the class, so that a program may compile it once (extern template).
template <class T>
status mixed_linear<T>::run(cudaStream_t stream, const linear_kernels& kernels, const mixed_kernels& mixed,
                            const target& device, product_shape p, mixed_operands o) {
  if (mixed.finish.kernel == nullptr) return fail("this layer was compiled without the kernels that mix adapters");
  if (p.m == 0 || p.n == 0) return ok;
  if (o.scaled != nullptr) {
    if (status s = mixed.scale(stream, o.batch, o.x, o.scaled, p.m, p.k); !s) return s;
    o.x = o.scaled, o.chained = false;
  }
  p.rank = 0, p.pre = p.posts = false;
  for (const void* pointer : {o.x, static_cast<const void*>(o.y), o.residual})
    p.aligned = p.aligned && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  if (const stream_choice c = choose_mixed(&p, 1, device); c.rows > 0) return stream_mixed(stream, mixed, c, &p, &o, 1);
  if (const linear_choice c = choose_mixed_gemm(p, o.blocks.rank, device); c.pairs > 0)
    return gemm_mixed(stream, mixed, c, p, o);
  if (bare_.empty() || o.w != bare_w_) {
    linear_operands plain;
    plain.w = bare_w_ = o.w, plain.alone = o.alone, p.plain = true;
    bare_ = linear_calls(kernels, device, p, plain);
  }
  auto bound = bare_.at(p.m, o.x, o.y, nullptr);
  if (!bound) return bound.failure();
  if (status s = launch(stream, **bound, o.chained); !s) return s;
  return finish(stream, mixed, device, p, o);
}

}  // namespace graft::cuda
