// SPDX-License-Identifier: Apache-2.0
// Launches of one GEMM with its low-rank branch, epilogue and fused wgrads (prepared_gemm): bind() builds tensor maps
// and arguments of the kernels that choose() selected, set_tensors() points them at other tensors of the same sizes,
// launch() only launches. Nothing here allocates, synchronizes or touches device memory, so a launch can be captured
// and replayed.
#pragma once
#include <graft/backend/gpu/arch/tensor_map.h>
#include <graft/backend/gpu/kernels/gemm/instances.cuh>
#include <graft/backend/gpu/kernels/wgrad/operand.h>
#include <graft/backend/gpu/runtime/device.h>
#include <graft/backend/gpu/runtime/launch.h>
#include <graft/backend/gpu/tile/elements.cuh>

namespace graft::gpu {

struct gemm_operands {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  activation act = activation::none;
  adapter_args adapter{};
  const void* a = nullptr;  // packed A, row-major, for a separate shrink launch
  void* u = nullptr;        // U = x Aᵀ, [m, rank]: stored here, or read where precomputed; null: workspace
  void* before = nullptr;   // destination of the sum before the epilogue; null: not stored
  const void* fused_rotation = nullptr;  // packed R of an output rotation; null: none
  fused_wgrad sums[2]{};                 // wgrads that may be fused into the launch
  void* workspace = nullptr;             // choice.workspace_bytes()
  std::uint32_t* counters = nullptr;     // four per 128 tokens: zero before and after every call
  bool exclusive = false;                // no other kernel whose blocks wait for each other runs at the same time
};

struct gemm_call {
  gemm_maps maps;
  gemm_args args;
  fused_wgrad_maps wgrad_maps;
  fused_wgrad_args sums;
};
struct skinny_call {
  skinny_maps maps;
  skinny_args args;
};
struct split_k_call {
  wgrad_maps maps;
  wgrad_args args;
};
// Arguments of one kernel of any GEMM family: a hand-written tagged union, because std::variant would add about a
// hundred functions to every file with a layer.
class kernel_arguments {
 public:
  kernel_arguments() : tiles_{} {}
  tile_args& make_tiles() { return of_ = argument_kind::tiles, tiles_ = {}; }
  gemm_call& make_gemm() { return of_ = argument_kind::gemm, gemm_ = {}; }
  skinny_call& make_skinny() { return of_ = argument_kind::skinny, skinny_ = {}; }
  split_k_call& make_split_k() { return of_ = argument_kind::splits, splits_ = {}; }
  // Null where the arguments are of another family.
  tile_args* tiles() { return of_ == argument_kind::tiles ? &tiles_ : nullptr; }
  gemm_call* gemm() { return of_ == argument_kind::gemm ? &gemm_ : nullptr; }
  skinny_call* skinny() { return of_ == argument_kind::skinny ? &skinny_ : nullptr; }
  split_k_call* splits() { return of_ == argument_kind::splits ? &splits_ : nullptr; }

 private:
  enum class argument_kind : unsigned char { tiles, gemm, skinny, splits };
  argument_kind of_ = argument_kind::tiles;
  union {
    tile_args tiles_;
    gemm_call gemm_;
    skinny_call skinny_;
    split_k_call splits_;
  };
};
// One kernel with its launch configuration and arguments.
struct prepared_launch {
  kernel_entry what{};
  dim3 grid{};
  cudaLaunchAttribute attributes[3]{};
  unsigned fixed = 0;  // attributes used by every launch; the next one enables programmatic dependent launch
  bool may_use_pdl = false;
  const char* name = "";
  kernel_arguments with{};
};
struct prepared_gemm {
  int device = 0, count = 0;  // kernels: 0 for an empty product, 1, or 2 (shrink, then GEMM)
  prepared_launch at[2];
  const void* x = nullptr;           // currently bound tensors,
  const void* each[max_segments]{};  // x of each layer of a grouped GEMM
  void* y = nullptr;
  const void* residual = nullptr;
  unsigned fused_wgrads = 0;  // bit per wgrad that is fused into the bound launch
  fused_wgrad sums[2]{};
};
// A layer of a grouped skinny launch: weight, adapter (all of the same padded rank) and output. A null x is the
// launch's x.
struct skinny_layer {
  const void* w;
  skinny_product to;
  const void* x = nullptr;
};

namespace detail {
inline status finish(prepared_launch& b, const kernel_entry& what, dim3 grid, const char* name, int cluster,
                     bool allow_pdl, bool cooperative) {
  if (what.kernel == nullptr) return fail("the kernel '", name, "' is not compiled into this program for these sizes");
  b.what = what, b.grid = grid, b.name = name, b.may_use_pdl = allow_pdl, b.fixed = 0;
  if (cluster > 1) {
    b.attributes[b.fixed].id = cudaLaunchAttributeClusterDimension;
    b.attributes[b.fixed++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (cooperative) {
    b.attributes[b.fixed].id = cudaLaunchAttributeCooperative;
    b.attributes[b.fixed++].val.cooperative = 1;
  }
  b.attributes[b.fixed].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  b.attributes[b.fixed].val.programmaticStreamSerializationAllowed = 1;
  if (what.shared == 0) return ok;
  return check(
      cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(what.shared)),
      name);
}
inline void* shrink_ptr(const gemm_operands& o, const gemm_choice& c) {
  return o.u != nullptr ? o.u : static_cast<char*>(o.workspace) + c.partial_bytes;
}

inline status bind_skinny(prepared_launch& b, const gemm_kernel_set& kernels, dtype type, const skinny_choice& c,
                          skinny_args g, const matrix& x, int rank, const skinny_layer* layers, int count,
                          bool allow_pdl) {
  skinny_call& to = b.with.make_skinny();
  g.m = static_cast<int>(x.rows);
  g.k_steps = static_cast<int>((x.cols + 63) / 64);
  const int tokens = (g.m + 7) / 8 * 8;  // further tokens of the tile are neither loaded nor stored
  g.x_bytes = static_cast<std::uint32_t>(tokens) * 128;
  g.gated = c.gated;
  for (int i = 0, tile = 0; i < max_segments; ++i) {
    g.first_tile[i] = i < count ? tile : c.tiles;
    g.segment[i] = layers[i < count ? i : 0].to;
    if (i >= count) continue;
    tile += c.gated ? c.tiles : (g.segment[i].n + c.rows - 1) / c.rows;
    const matrix w = c.nn ? matrix{layers[i].w, x.cols, g.segment[i].n} : matrix{layers[i].w, g.segment[i].n, x.cols};
    const int box = c.nn ? 64 : c.gated ? c.rows / 2 : c.rows;
    if (status s = make_map(to.maps.w[i], type, w, box, 64); !s) return s;
    const matrix own{layers[i].x != nullptr ? layers[i].x : x.data, x.rows, x.cols};
    if (status s = make_map(to.maps.x[i], type, own, tokens, 64); !s) return s;
  }
  to.args = g;
  const kernel_entry& what =
      c.nn ? kernels.skinny_nn[gemm_kernel_mask::skinny_nn_bit(nn_shape_index(c.rows), rank)]
           : kernels.skinny[gemm_kernel_mask::skinny_bit(c.tokens, shape_index(c.rows, c.any), rank)];
  return finish(b, what, dim3(static_cast<unsigned>(c.splits), static_cast<unsigned>(c.tiles)), "skinny GEMM", c.splits,
                allow_pdl, false);
}
// Binds the fused wgrads selected by the bits of `which`; also rebinds them to other tensors of the same sizes.
inline status bind_wgrads(gemm_call& to, dtype type, unsigned which, const fused_wgrad* sums) {
  int n = 0;
  for (const bool waits_for_shrink : {false, true})  // the wgrad that waits for U comes second
    for (unsigned k = 0; k < 2; ++k) {
      const fused_wgrad& s = sums[k];
      if ((which >> k & 1) == 0 || s.waits_for_shrink != waits_for_shrink) continue;
      const int m = to.args.m, rank = to.args.rank;
      if (status made = make_map(to.wgrad_maps.z[n], type, {s.z.data, m, s.z.columns, s.z.pitch}, 128, 64); !made)
        return made;
      const matrix q = {s.q.data, m, s.columnwise ? s.q.columns : s.q.pitch, s.q.pitch};
      if (status made = make_map(to.wgrad_maps.q[n], type, q, 128, s.columnwise ? 64 : rank); !made) return made;
      to.sums.job[n++] = {s.z.columns, s.q.columns, s.by_column, s.waits_for_shrink, s.adds, s.factor, s.to};
    }
  to.sums.jobs = n;
  return ok;
}
inline status bind_gemm(prepared_launch& b, const gemm_kernel_set& kernels, const gemm_problem& p, const gemm_choice& c,
                        const gemm_operands& o) {
  void* u_at = shrink_ptr(o, c);
  const int kernel_rank = c.path == gemm_path::gemm ? p.rank : 0,
            branch_steps = c.path == gemm_path::gemm_after_shrink ? (p.rank + 63) / 64 : 0;
  gemm_call& to = b.with.make_gemm();
  to.args = {static_cast<int>(p.m),
             p.n,
             p.k,
             c.tile_n,
             c.group,
             kernel_rank > 0 ? c.owners : 0,
             p.rank,
             branch_steps,
             o.act,
             o.adapter,
             o.residual,
             static_cast<float*>(o.workspace),
             u_at,
             o.counters,
             o.before != nullptr,
             0};
  if (status s = make_map(to.maps.x, p.type, {o.x, p.m, p.k}, 128, 64); !s) return s;
  const matrix w = p.nn ? matrix{o.w, p.k, p.n} : matrix{o.w, p.n, p.k};
  if (status s = make_map(to.maps.w, p.type, w, p.nn ? 64 : c.tile_n / 2, 64); !s) return s;
  if (status s = make_map(to.maps.y, p.type, {o.y, p.m, p.n}, 64, 64); !s) return s;
  to.maps.u = to.maps.x, to.maps.before = to.maps.residual = to.maps.y;
  if (o.residual != nullptr)
    if (status s = make_map(to.maps.residual, p.type, {o.residual, p.m, p.n}, 128, 64); !s) return s;
  if (o.before != nullptr)
    if (status s = make_map(to.maps.before, p.type, {o.before, p.m, p.n}, 64, 64); !s) return s;
  if (branch_steps > 0)
    if (status s = make_map(to.maps.u, p.type, {u_at, p.m, p.rank}, 128, to.args.branch_pitch() / 2); !s) return s;
  if (o.fused_rotation != nullptr) to.args.adapter.b_tiles = o.fused_rotation, to.args.rank = rotation_tile_width;
  if (c.fused_wgrads != 0) {
    to.sums.blocks = c.wgrad_blocks;
    if (status s = bind_wgrads(to, p.type, c.fused_wgrads, o.sums); !s) return s;
    for (int k = 0; k < to.sums.jobs; ++k)
      to.args.waiting_wgrad_blocks += to.sums.job[k].waits_for_shrink ? c.wgrad_blocks : 0;
    return finish(
        b, o.fused_rotation != nullptr ? kernels.column_wgrad_rotated : kernels.fused_wgrads[rank_index(kernel_rank)],
        dim3(static_cast<unsigned>(2 * c.pairs + c.wgrad_blocks)), "GEMM with fused wgrads", 2, c.early,
        kernel_rank > 0 && !o.exclusive);
  }
  if (o.fused_rotation != nullptr)
    return finish(b, kernels.fused_rotation[o.adapter.prologue != nullptr ? 1 : 0],
                  dim3(static_cast<unsigned>(2 * c.pairs)), "GEMM with fused rotation", 2, true, false);
  const int variant = (p.nn ? first_nn : 0) + (o.adapter.prologue != nullptr ? with_prologue : rank_index(kernel_rank));
  return finish(b, kernels.gemm[gemm_kernel_mask::gemm_bit(c.tile_n, variant)],
                dim3(static_cast<unsigned>(2 * c.pairs)), "GEMM", 2, c.early, kernel_rank > 0 && !o.exclusive);
}
// Swap-AB: the skinny kernel with x as its weight and a narrow weight as its tokens.
inline status bind_swap_ab(prepared_launch& b, const gemm_kernel_set& kernels, dtype type, const skinny_choice& c,
                           const matrix& x, const matrix& w, void* y) {
  skinny_args g{};
  g.transposed_y = true;
  const skinny_layer rows{x.data, {y, {}, nullptr, static_cast<int>(x.rows), activation::none}};
  return bind_skinny(b, kernels, type, c, g, w, 0, &rows, 1, false);
}
// Split-K: the wgrad kernel in its rows form, with K divided over the blocks of a cluster.
inline status bind_split_k(prepared_launch& b, const gemm_kernel_set& kernels, dtype type, const gemm_choice& c,
                           const matrix& x, const matrix& w, void* y) {
  using shape = wgrad_shape<wide_tile_rank, wgrad_form::rows>;
  split_k_call& to = b.with.make_split_k();
  if (status s = make_map(to.maps.z[0], type, x, wgrad_tile_columns, 64); !s) return s;
  if (status s = make_map(to.maps.q[0], type, w, wide_tile_rank, 64); !s) return s;
  to.args = {static_cast<int>((x.cols + wgrad_step - 1) / wgrad_step), wgrad_tiles(static_cast<int>(x.rows)),
             c.one_block_per_sm ? shape::stages_one_block : 0};
  to.args.job[0] = {static_cast<int>(x.rows), static_cast<int>(w.rows), true, false, {}, {y, type}};
  const dim3 grid(static_cast<unsigned>(c.splits),
                  static_cast<unsigned>((x.rows + wgrad_tile_columns - 1) / wgrad_tile_columns),
                  static_cast<unsigned>((w.rows + wide_tile_rank - 1) / wide_tile_rank));
  const status made = finish(b, kernels.split_k, grid, "split-K GEMM", c.splits, false, false);
  if (!c.one_block_per_sm) b.what.shared = shape::bytes;
  return made;
}
// The shrink U = x Aᵀ as a separate launch before the GEMM.
inline status bind_shrink(prepared_launch& b, const gemm_kernel_set& kernels, const gemm_problem& p,
                          const gemm_choice& c, const gemm_operands& o) {
  void* u = shrink_ptr(o, c);
  if (c.skinny.rows > 0) return bind_swap_ab(b, kernels, p.type, c.skinny, {o.x, p.m, p.k}, {o.a, p.rank, p.k}, u);
  if (c.splits > 0) return bind_split_k(b, kernels, p.type, c, {o.x, p.m, p.k}, {o.a, p.rank, p.k}, u);
  gemm_problem shrink = p;
  shrink.n = p.rank, shrink.rank = 0, shrink.nn = false;
  gemm_choice plain = c;
  plain.path = gemm_path::gemm, plain.tile_n = 128, plain.fused_wgrads = 0;
  plain.pairs = static_cast<int>((p.m + 255) / 256) * ((p.rank + 127) / 128);
  plain.pairs = launched_pairs(plain.pairs, c.pairs > 0 ? c.pairs : 1);
  gemm_operands to = o;
  to.w = o.a, to.y = u, to.adapter = {}, to.residual = to.before = nullptr, to.act = activation::none;
  return bind_gemm(b, kernels, shrink, plain, to);
}
// Kernels without TMA. Their shrink is the same kernel with A as its weight.
inline status bind_tiles(prepared_launch& b, const gemm_kernel_set& kernels, gemm_path path, const tile_args& g) {
  b.with.make_tiles() = g;
  const int tile = path == gemm_path::mma ? mma::tile : simt::tile;
  const dim3 grid(static_cast<unsigned>((g.n + tile - 1) / tile), static_cast<unsigned>((g.m + tile - 1) / tile));
  return finish(b, path == gemm_path::mma ? kernels.mma : kernels.simt, grid, name_of(path), 1, false, false);
}
inline status set_x(prepared_launch& b, const void* x) {
  if (auto* g = b.with.gemm()) return set_map_address(g->maps.x, x);
  if (auto* s = b.with.skinny()) return set_map_address(s->args.transposed_y ? s->maps.w[0] : s->maps.x[0], x);
  if (auto* t = b.with.splits()) return set_map_address(t->maps.z[0], x);
  b.with.tiles()->x = x;
  return ok;
}
inline status set_y(prepared_launch& b, void* y, const void* residual) {
  if (auto* g = b.with.gemm()) {
    if (residual != nullptr)
      if (status s = set_map_address(g->maps.residual, residual); !s) return s;
    return g->args.residual = residual, set_map_address(g->maps.y, y);
  }
  if (auto* s = b.with.skinny())
    s->args.segment[0].y = y, s->args.segment[0].residual = residual;
  else if (auto* p = b.with.splits())
    p->args.job[0].to.at = y;
  else if (auto* t = b.with.tiles())
    t->y = y, t->residual = residual;
  return ok;
}
}  // namespace detail

inline status bind(prepared_gemm& to, const gemm_kernel_set& kernels, const gemm_problem& p, const gemm_choice& c,
                   const gemm_operands& o) {
  to.count = 0;
  to.device = current_device();
  to.x = o.x, to.y = o.y, to.residual = o.residual;
  to.fused_wgrads = c.fused_wgrads, to.sums[0] = o.sums[0], to.sums[1] = o.sums[1];
  if (p.m == 0 || p.n == 0) return ok;
  if (c.path == gemm_path::skinny) {
    const skinny_layer layer{o.w, {o.y, o.adapter, o.residual, p.n, o.act}};
    skinny_args g{};
    if (p.stores_shrink) g.shrink_result = o.u;
    to.count = 1;
    return detail::bind_skinny(to.at[0], kernels, p.type, c.skinny, g, {o.x, p.m, p.k}, p.rank, &layer, 1, true);
  }
  if (c.path == gemm_path::swap_ab) {
    to.count = 1;
    return detail::bind_swap_ab(to.at[0], kernels, p.type, c.skinny, {o.x, p.m, p.k}, {o.w, p.n, p.k}, o.y);
  }
  if (c.path == gemm_path::split_k) {
    to.count = 1;
    return detail::bind_split_k(to.at[0], kernels, p.type, c, {o.x, p.m, p.k}, {o.w, p.n, p.k}, o.y);
  }
  if (c.path == gemm_path::gemm || c.path == gemm_path::gemm_after_shrink) {
    to.count = c.launches;
    if (c.launches == 2)
      if (status s = detail::bind_shrink(to.at[0], kernels, p, c, o); !s) return s;
    return detail::bind_gemm(to.at[to.count - 1], kernels, p, c, o);
  }
  void* u_at = detail::shrink_ptr(o, c);
  if (c.launches == 2) {
    const tile_args shrink{.m = p.m, .n = p.rank, .k = p.k, .x = o.x, .w = o.a, .y = u_at};
    if (status s = detail::bind_tiles(to.at[to.count++], kernels, c.path, shrink); !s) return s;
  }
  return detail::bind_tiles(to.at[to.count++], kernels, c.path,
                            {.m = p.m,
                             .n = p.n,
                             .k = p.k,
                             .x = o.x,
                             .w = o.w,
                             .y = o.y,
                             .u = p.rank > 0 ? u_at : nullptr,
                             .residual = o.residual,
                             .before = o.before,
                             .nn = p.nn,
                             .act = o.act,
                             .adapter = o.adapter});
}
// Grouped skinny GEMM: several layers in one launch.
inline status bind_grouped(prepared_gemm& to, const gemm_kernel_set& kernels, dtype type, const skinny_choice& c,
                           const matrix& x, int rank, const skinny_layer* layers, int count) {
  to.count = 1;
  to.device = current_device();
  for (int i = 0; i < count; ++i) to.each[i] = layers[i].x != nullptr ? layers[i].x : x.data;
  return detail::bind_skinny(to.at[0], kernels, type, c, skinny_args{}, x, rank, layers, count, true);
}

// Rebinds to other tensors of the same sizes and alignment. A residual is allowed only where one was bound.
inline status set_tensors(prepared_gemm& b, const void* x, void* y, const void* residual) {
  for (int i = 0; i < b.count && x != b.x; ++i)
    if (status s = detail::set_x(b.at[i], x); !s) return s;
  if (b.count > 0 && (y != b.y || residual != b.residual))
    if (status s = detail::set_y(b.at[b.count - 1], y, residual); !s) return s;
  b.x = x, b.y = y, b.residual = residual;
  return ok;
}
inline status set_tensors(prepared_gemm& b, dtype type, const fused_wgrad* sums) {
  if (b.count == 0 || b.fused_wgrads == 0 || (sums[0] == b.sums[0] && sums[1] == b.sums[1])) return ok;
  b.sums[0] = sums[0], b.sums[1] = sums[1];
  return detail::bind_wgrads(*b.at[b.count - 1].with.gemm(), type, b.fused_wgrads, sums);
}
// Rebinds a grouped launch: one x per layer, and `count` outputs.
inline status set_tensors(prepared_gemm& b, const void* const* x, int layers, void* const* y, int count) {
  skinny_call& to = *b.at[0].with.skinny();
  for (int i = 0; i < layers; ++i) {
    if (x[i] == b.each[i]) continue;
    if (status s = set_map_address(to.maps.x[i], x[i]); !s) return s;
    b.each[i] = x[i];
  }
  for (int i = 0; i < count; ++i) to.args.segment[i].y = y[i];
  return ok;
}

// `pdl`: the kernels may read weights and adapters before the preceding kernel of the stream has finished.
inline status launch(cudaStream_t stream, prepared_gemm& b, bool pdl) {
  const device_guard here(b.device);
  for (int i = 0; i < b.count; ++i) {
    prepared_launch& k = b.at[i];
    const cudaLaunchConfig_t config{k.grid, dim3(k.what.threads), k.what.shared,
                                    stream, k.attributes,         k.fixed + (pdl && k.may_use_pdl ? 1 : 0)};
    void* arguments[4] = {};
    if (auto* g = k.with.gemm())
      arguments[0] = &g->maps, arguments[1] = &g->args, arguments[2] = &g->wgrad_maps, arguments[3] = &g->sums;
    else if (auto* s = k.with.skinny())
      arguments[0] = &s->maps, arguments[1] = &s->args;
    else if (auto* p = k.with.splits())
      arguments[0] = &p->maps, arguments[1] = &p->args;
    else
      arguments[0] = k.with.tiles();
    if (status s = launch(config, k.what.kernel, arguments, k.name); !s) return s;
  }
  return ok;
}

}  // namespace graft::gpu
