// SPDX-License-Identifier: Apache-2.0
// Launches one product of a multi-LoRA batch: one launch where the skinny kernel (up to 64 rows) or the GEMM takes its
// sizes, else the bare product followed by an epilogue launch, by tiles of 16 rows or by rows. A launch before it
// computes x ⊙ prologue where a record has a prologue.
#pragma once
#include <graft/backend/gpu/dispatch/multi_lora.h>
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/kernels/gemm/launch_cache.cuh>
#include <graft/backend/gpu/kernels/multi_lora/gemm_sm90.cuh>
#include <graft/backend/gpu/kernels/multi_lora/skinny_sm90.cuh>
#include <graft/backend/gpu/kernels/multi_lora/tile_epilogue.cuh>

namespace graft::gpu {

struct multi_lora_kernels {
  kernel_entry skinny[4 * multi_lora_shapes], gemm[2 * ranks];
  kernel_entry tiles, finish;
  status (*scale)(cudaStream_t, const multi_lora_batch&, const void* x, void* to, long long rows, int k) = nullptr;
};

namespace detail {
template <class T, int Tokens, int Shape, int Segments> void add_multi_lora_skinny(multi_lora_kernels& to) {
  constexpr int rows = skinny_shapes[Shape].rows, splits = skinny_shapes[Shape].splits;
  using block = multi_lora_skinny_block<T, Tokens, rows, splits, Segments>;
  to.skinny[multi_lora_index(Tokens, rows, Segments)] = {
      address_of(&multi_lora_skinny_kernel<T, Tokens, rows, splits, Segments>), static_cast<unsigned>(block::threads),
      block::shape::bytes};
}
template <class T, int Segments> void add_multi_lora_skinny_kernels(multi_lora_kernels& to) {
  add_multi_lora_skinny<T, 16, 0, Segments>(to), add_multi_lora_skinny<T, max_multi_lora_rows, 0, Segments>(to);
  add_multi_lora_skinny<T, 16, 1, Segments>(to), add_multi_lora_skinny<T, max_multi_lora_rows, 1, Segments>(to);
  add_multi_lora_skinny<T, 16, 2, Segments>(to), add_multi_lora_skinny<T, max_multi_lora_rows, 2, Segments>(to);
}
template <class T, int Rank> kernel_entry multi_lora_gemm_entry(int tile) {
  return tile == 128
             ? kernel_entry{address_of(&multi_lora_gemm_kernel<T, 128, Rank>), 384, gemm_shape<128, Rank>::bytes}
             : kernel_entry{address_of(&multi_lora_gemm_kernel<T, 256, Rank>), 384, gemm_shape<256, Rank>::bytes};
}
constexpr int multi_lora_gemm_index(int tile, int rank) { return (tile == 128 ? 0 : ranks) + rank_index(rank); }
}  // namespace detail

// A program may compile the GEMM and the skinny kernels in separate files.
template <class T> multi_lora_kernels all_multi_lora_gemms() {
  multi_lora_kernels k;
  if constexpr (sizeof(T) == 2)
    for (const int tile : {128, 256}) {
      k.gemm[detail::multi_lora_gemm_index(tile, 16)] = detail::multi_lora_gemm_entry<T, 16>(tile);
      k.gemm[detail::multi_lora_gemm_index(tile, 32)] = detail::multi_lora_gemm_entry<T, 32>(tile);
      k.gemm[detail::multi_lora_gemm_index(tile, 64)] = detail::multi_lora_gemm_entry<T, 64>(tile);
    }
  return k;
}
template <class T>
status scale_rows_of_batch(cudaStream_t stream, const multi_lora_batch& of, const void* x, void* to, long long rows,
                           int k) {
  return each(stream, rows * k, scale_rows_by_record<T>{of, static_cast<const T*>(x), static_cast<T*>(to), k},
              "factors of the rows");
}
template <class T> multi_lora_kernels all_multi_lora_skinny() {
  multi_lora_kernels k;
  if constexpr (sizeof(T) == 2) {
    detail::add_multi_lora_skinny_kernels<T, 1>(k), detail::add_multi_lora_skinny_kernels<T, max_segments>(k);
    k.tiles = {detail::address_of(&multi_lora_tile_kernel<T>), multi_lora_tile<T>::threads, 0};
  }
  k.finish = {detail::address_of(&multi_lora_epilogue_kernel<T>), multi_lora_epilogue_threads, 0};
  k.scale = &scale_rows_of_batch<T>;
  return k;
}
template <class T> multi_lora_kernels all_multi_lora_kernels() {
  multi_lora_kernels k = all_multi_lora_skinny<T>();
  const multi_lora_kernels many = all_multi_lora_gemms<T>();
  for (int i = 0; i < 2 * ranks; ++i) k.gemm[i] = many.gemm[i];
  return k;
}

// The tensors of one call.
struct multi_lora_operands {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  activation act = activation::none;
  multi_lora_batch batch{};
  multi_lora_partials sums{};
  multi_lora_tiles blocks{};
  void* scaled = nullptr;  // memory for x ⊙ prologue; null: no record has a prologue
  bool exclusive = false;  // no other layer runs on the device at the same time (engine::queue)
  bool pdl = false;        // weights and records may be read before the previous kernel in the stream has finished
};

// Launches products with one input as segments of one launch. x, batch, sums, exclusive and pdl are those of all[0].
inline status run_multi_lora_skinny(cudaStream_t stream, const multi_lora_kernels& kernels, const skinny_choice& c,
                                    const gemm_problem* p, const multi_lora_operands* all, int count) {
  const kernel_entry& kernel = kernels.skinny[multi_lora_index(c.tokens, c.rows, count)];
  const multi_lora_operands& o = all[0];
  skinny_maps maps{};
  const int tokens = static_cast<int>((p->m + 7) / 8 * 8);
  if (status s = make_map(maps.x[0], p->type, {o.x, p->m, p->k}, tokens, 64); !s) return s;
  skinny_args g{};
  g.m = static_cast<int>(p->m), g.k_steps = (p->k + 63) / 64, g.ring = multi_lora_stages(c, p->k, count);
  g.x_bytes = static_cast<std::uint32_t>(tokens) * 128;
  multi_lora_skinny_args multi_lora{{{}, o.batch.of_row, count}, o.sums, o.x, p->k};
  for (int i = 0, tile = 0; i < max_segments; ++i) {
    g.first_tile[i] = i < count ? tile : c.tiles;
    if (i >= count) continue;
    g.segment[i] = {all[i].y, {}, all[i].residual, p[i].n, all[i].act};
    multi_lora.tables.records[i] = all[i].batch.records, maps.x[i] = maps.x[0];
    if (status s = make_map(maps.w[i], p->type, {all[i].w, p[i].n, p->k}, c.rows, 64); !s) return s;
    tile += (p[i].n + c.rows - 1) / c.rows;
  }
  const dim3 grid(static_cast<unsigned>(c.splits), static_cast<unsigned>(c.tiles));
  prepared_launch to;
  if (status s = detail::finish(to, kernel, grid, "multi-LoRA skinny GEMM", c.splits, true, !o.exclusive); !s) return s;
  void* arguments[] = {&maps, &g, &multi_lora};
  const cudaLaunchConfig_t config{grid,   dim3(kernel.threads), kernel.shared,
                                  stream, to.attributes,        to.fixed + (o.pdl ? 1U : 0U)};
  return launch(config, kernel.kernel, arguments, to.name);
}

// Launches the multi-LoRA GEMM for more than 64 rows.
inline status run_multi_lora_gemm(cudaStream_t stream, const multi_lora_kernels& kernels, const gemm_choice& c,
                                  const gemm_problem& p, const multi_lora_operands& o) {
  const int rank = o.blocks.rank;
  const kernel_entry& kernel = kernels.gemm[detail::multi_lora_gemm_index(c.tile_n, rank)];
  gemm_maps maps{};
  gemm_args g{};
  g.m = static_cast<int>(p.m), g.n = p.n, g.k = p.k, g.tile_n = c.tile_n, g.group = c.group, g.owners = c.owners;
  g.rank = rank, g.act = o.act, g.residual = o.residual;
  g.partial = static_cast<float*>(o.blocks.workspace);
  g.u = static_cast<char*>(o.blocks.workspace) + c.partial_bytes, g.counters = o.blocks.counters;
  multi_lora_gemm_args rows{o.batch.records, o.batch.of_row, o.blocks.adapters_of_tile, g.m, o.blocks.epilogue_steps};
  if (status s = make_map(maps.x, p.type, {o.x, p.m, p.k}, 128, 64); !s) return s;
  if (status s = make_map(maps.w, p.type, {o.w, p.n, p.k}, c.tile_n / 2, 64); !s) return s;
  if (status s = make_map(maps.y, p.type, {o.y, p.m, p.n}, 64, 64); !s) return s;
  maps.u = maps.x, maps.before = maps.residual = maps.y;
  if (o.residual != nullptr)
    if (status s = make_map(maps.residual, p.type, {o.residual, p.m, p.n}, 128, 64); !s) return s;
  prepared_launch to;
  const dim3 grid(static_cast<unsigned>(2 * c.pairs));
  if (status s = detail::finish(to, kernel, grid, "multi-LoRA GEMM", 2, true, !o.exclusive); !s) return s;
  void* arguments[] = {&maps, &g, &rows};
  const cudaLaunchConfig_t config{grid,   dim3(kernel.threads), kernel.shared,
                                  stream, to.attributes,        to.fixed + (o.pdl ? 1U : 0U)};
  return launch(config, kernel.kernel, arguments, to.name);
}

template <class T> class multi_lora_gemm {
 public:
  // `p.aligned` is updated from the pointers here. The records determine rank, prologue and epilogue.
  status run(cudaStream_t stream, const gemm_kernel_set& kernels, const multi_lora_kernels& multi_lora,
             const target& device, gemm_problem p, multi_lora_operands o);

 private:
  status finish(cudaStream_t stream, const multi_lora_kernels& multi_lora, const target& device, const gemm_problem& p,
                const multi_lora_operands& o) {
    multi_lora_epilogue_args rest{o.batch, o.x, o.y, o.residual, o.act, p.m, p.n, p.k};
    const multi_lora_tiling by = tile_multi_lora(p, device);
    const kernel_entry& kernel = by.tiles > 0 ? multi_lora.tiles : multi_lora.finish;
    const dim3 grid = by.tiles > 0 ? dim3(static_cast<unsigned>(by.tiles), static_cast<unsigned>(by.splits))
                                   : dim3(static_cast<unsigned>(p.m));
    void* arguments[] = {&rest};
    const cudaLaunchConfig_t config{grid, dim3(kernel.threads), 0, stream, nullptr, 0};
    return launch(config, kernel.kernel, arguments, "multi-LoRA epilogue");
  }

  gemm_launch_cache bare_;
  const void* bare_w_ = nullptr;
};

// Outside the class, so that a program may compile it once (extern template).
template <class T>
status multi_lora_gemm<T>::run(cudaStream_t stream, const gemm_kernel_set& kernels,
                               const multi_lora_kernels& multi_lora, const target& device, gemm_problem p,
                               multi_lora_operands o) {
  if (multi_lora.finish.kernel == nullptr) return fail("this layer was compiled without the multi-LoRA kernels");
  if (p.m == 0 || p.n == 0) return ok;
  if (o.scaled != nullptr) {
    if (status s = multi_lora.scale(stream, o.batch, o.x, o.scaled, p.m, p.k); !s) return s;
    o.x = o.scaled, o.pdl = false;
  }
  p.rank = 0, p.prologue = p.epilogue_steps = false;
  for (const void* pointer : {o.x, static_cast<const void*>(o.y), o.residual})
    p.aligned = p.aligned && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  if (const skinny_choice c = choose_multi_lora(&p, 1, device); c.rows > 0)
    return run_multi_lora_skinny(stream, multi_lora, c, &p, &o, 1);
  if (const gemm_choice c = choose_multi_lora_gemm(p, o.blocks.rank, device); c.pairs > 0)
    return run_multi_lora_gemm(stream, multi_lora, c, p, o);
  if (bare_.empty() || o.w != bare_w_) {
    gemm_operands plain;
    plain.w = bare_w_ = o.w, plain.exclusive = o.exclusive, p.plain = true;
    bare_ = gemm_launch_cache(kernels, device, p, plain);
  }
  auto bound = bare_.at(p.m, o.x, o.y, nullptr);
  if (!bound) return bound.failure();
  if (status s = launch(stream, **bound, o.pdl); !s) return s;
  return finish(stream, multi_lora, device, p, o);
}

}  // namespace graft::gpu
