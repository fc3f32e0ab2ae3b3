// SPDX-License-Identifier: Apache-2.0
// One product with its slots, ready to be launched: bind() builds the tensor maps and the arguments of the kernels that
// choose() named, launch() hands them to the device and does nothing else, point() gives them other tensors of the same
// sizes. Nothing here allocates, waits, or touches memory of the device; a captured launch can be replayed.
#pragma once
#include <graft/backend/cuda/cells.cuh>
#include <graft/backend/cuda/device.h>
#include <graft/backend/cuda/launch.h>
#include <graft/backend/cuda/linear_kernels.cuh>
#include <graft/backend/cuda/sum_operand.h>
#include <graft/backend/cuda/tensor_map.h>

namespace graft::cuda {

struct linear_operands {
  const void* x = nullptr;
  const void* w = nullptr;
  void* y = nullptr;
  const void* residual = nullptr;
  activation act = activation::none;
  adapter_slot slot{};
  const void* a = nullptr;            // the packed A of the slot, for a shrink of its own
  void* s = nullptr;                  // S of the side branch, [m, rank]: where it is wanted, or lies; null: nowhere
  void* before = nullptr;             // where the sum before the post slot is wanted; null: nowhere
  const void* turn = nullptr;         // R of a rotation behind it, packed; null: none
  beside_sum sums[2]{};               // sums over the tokens that may run beside the product
  void* workspace = nullptr;          // choice.workspace_bytes()
  std::uint32_t* counters = nullptr;  // four for every 128 tokens; zero, and zero again after the call
  bool alone = false;                 // no kernel that waits for its own thread blocks runs beside this one
};

struct gemm_call {
  gemm_maps maps;
  gemm_args args;
  beside_maps sum_maps;
  beside_args sums;
};
struct stream_call {
  stream_maps maps;
  stream_args args;
};
struct parts_call {
  sum_maps maps;
  sum_args args;
};
// The arguments of a kernel of one of these families. A union of our own: std::variant is a hundred functions in every
// file with a layer.
class launch_arguments {
 public:
  launch_arguments() : tiles_{} {}
  tile_args& make_tiles() { return of_ = family::tiles, tiles_ = {}; }
  gemm_call& make_gemm() { return of_ = family::gemm, gemm_ = {}; }
  stream_call& make_stream() { return of_ = family::stream, stream_ = {}; }
  parts_call& make_parts() { return of_ = family::parts, parts_ = {}; }
  // Null where they are of another family.
  tile_args* tiles() { return of_ == family::tiles ? &tiles_ : nullptr; }
  gemm_call* gemm() { return of_ == family::gemm ? &gemm_ : nullptr; }
  stream_call* stream() { return of_ == family::stream ? &stream_ : nullptr; }
  parts_call* parts() { return of_ == family::parts ? &parts_ : nullptr; }

 private:
  enum class family : unsigned char { tiles, gemm, stream, parts };
  family of_ = family::tiles;
  union {
    tile_args tiles_;
    gemm_call gemm_;
    stream_call stream_;
    parts_call parts_;
  };
};
// One kernel with everything it is launched with.
struct bound_launch {
  kernel_entry what{};
  dim3 grid{};
  cudaLaunchAttribute attributes[3]{};
  unsigned fixed = 0;  // attributes of every launch; the one behind them lets it begin before the kernel ahead ends
  bool may_chain = false;
  const char* name = "";
  launch_arguments with{};
};
struct bound_linear {
  int device = 0, count = 0;  // of kernels: none for an empty product, one, or a shrink and the product
  bound_launch at[2];
  const void* x = nullptr;           // what they are bound to now,
  const void* each[max_segments]{};  // and of several layers each
  void* y = nullptr;
  const void* residual = nullptr;
  unsigned beside = 0;  // which sums run beside the product, as they are bound now
  beside_sum sums[2]{};
};
// Layers of one launch, each with its weight, its adapter of the same rank, and its output; x is that of the launch where
// it is null.
struct stream_layer {
  const void* w;
  stream_segment to;
  const void* x = nullptr;
};

namespace detail {
inline status finish(bound_launch& b, const kernel_entry& what, dim3 grid, const char* name, int cluster, bool chain,
                     bool cooperative) {
  if (what.kernel == nullptr) return fail("the kernel '", name, "' is not compiled into this program for these sizes");
  b.what = what, b.grid = grid, b.name = name, b.may_chain = chain, b.fixed = 0;
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
inline void* place_of_s(const linear_operands& o, const linear_choice& c) {
  return o.s != nullptr ? o.s : static_cast<char*>(o.workspace) + c.partial_bytes;
}

inline status bind_stream(bound_launch& b, const linear_kernels& kernels, dtype type, const stream_choice& c,
                          stream_args g, const matrix& x, int rank, const stream_layer* layers, int count, bool chain) {
  stream_call& to = b.with.make_stream();
  g.m = static_cast<int>(x.rows);
  g.k_steps = static_cast<int>((x.cols + 63) / 64);
  const int tokens = (g.m + 7) / 8 * 8;  // others of the kernel's stay as they lie: nothing of theirs is stored
  g.x_bytes = static_cast<std::uint32_t>(tokens) * 128;
  g.gated = c.gated;
  for (int i = 0, tile = 0; i < max_segments; ++i) {
    g.first_tile[i] = i < count ? tile : c.tiles;
    g.segment[i] = layers[i < count ? i : 0].to;
    if (i >= count) continue;
    tile += c.gated ? c.tiles : (g.segment[i].n + c.rows - 1) / c.rows;
    const int box = c.gated ? c.rows / 2 : c.rows;
    if (status s = make_map(to.maps.w[i], type, {layers[i].w, g.segment[i].n, x.cols}, box, 64); !s) return s;
    const matrix own{layers[i].x != nullptr ? layers[i].x : x.data, x.rows, x.cols};
    if (status s = make_map(to.maps.x[i], type, own, tokens, 64); !s) return s;
  }
  to.args = g;
  const int shape = shape_index(c.rows, c.any);
  return finish(b, kernels.stream[kernel_list::stream_bit(c.tokens, shape, rank)],
                dim3(static_cast<unsigned>(c.splits), static_cast<unsigned>(c.tiles)), "stream", c.splits, chain,
                false);
}
// Sums of the same sizes, pointed at other tensors.
inline status bind_sums(gemm_call& to, dtype type, unsigned which, const beside_sum* sums) {
  int n = 0;
  for (const bool waits : {false, true})  // the one that waits for S comes second
    for (unsigned k = 0; k < 2; ++k) {
      const beside_sum& s = sums[k];
      if ((which >> k & 1) == 0 || s.waits != waits) continue;
      const int m = to.args.m, rank = to.args.rank;
      if (status made = make_map(to.sum_maps.z[n], type, {s.z.data, m, s.z.columns, s.z.pitch}, 128, 64); !made)
        return made;
      const matrix q = {s.q.data, m, s.dots ? s.q.columns : s.q.pitch, s.q.pitch};
      if (status made = make_map(to.sum_maps.q[n], type, q, 128, s.dots ? 64 : rank); !made) return made;
      to.sums.job[n++] = {s.z.columns, s.q.columns, s.by_column, s.waits, s.adds, s.factor, s.to};
    }
  to.sums.jobs = n;
  return ok;
}
inline status bind_gemm(bound_launch& b, const linear_kernels& kernels, const product_shape& p, const linear_choice& c,
                        const linear_operands& o) {
  void* s_at = place_of_s(o, c);
  const int kernel_rank = c.how == way::gemm ? p.rank : 0, extra = c.how == way::gemm_two ? (p.rank + 63) / 64 : 0;
  gemm_call& to = b.with.make_gemm();
  to.args = {static_cast<int>(p.m),
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
             o.counters,
             o.before != nullptr,
             0};
  if (status s = make_map(to.maps.x, p.type, {o.x, p.m, p.k}, 128, 64); !s) return s;
  const matrix w = p.across ? matrix{o.w, p.k, p.n} : matrix{o.w, p.n, p.k};
  if (status s = make_map(to.maps.w, p.type, w, p.across ? 64 : c.tile_n / 2, 64); !s) return s;
  if (status s = make_map(to.maps.y, p.type, {o.y, p.m, p.n}, 64, 64); !s) return s;
  to.maps.s = to.maps.x, to.maps.before = to.maps.residual = to.maps.y;
  if (o.residual != nullptr)
    if (status s = make_map(to.maps.residual, p.type, {o.residual, p.m, p.n}, 128, 64); !s) return s;
  if (o.before != nullptr)
    if (status s = make_map(to.maps.before, p.type, {o.before, p.m, p.n}, 64, 64); !s) return s;
  if (extra > 0)
    if (status s = make_map(to.maps.s, p.type, {s_at, p.m, p.rank}, 128, to.args.side_pitch() / 2); !s) return s;
  if (o.turn != nullptr) to.args.slot.b_tiles = o.turn, to.args.rank = turned_width;
  if (c.beside != 0) {
    to.sums.blocks = c.beside_blocks;
    if (status s = bind_sums(to, p.type, c.beside, o.sums); !s) return s;
    for (int k = 0; k < to.sums.jobs; ++k) to.args.watchers += to.sums.job[k].waits ? c.beside_blocks : 0;
    return finish(b, o.turn != nullptr ? kernels.dots_turn : kernels.beside[rank_index(kernel_rank)],
                  dim3(static_cast<unsigned>(2 * c.pairs + c.beside_blocks)), "gemm with sums beside it", 2, c.early,
                  kernel_rank > 0 && !o.alone);
  }
  if (o.turn != nullptr)
    return finish(b, kernels.turn[o.slot.pre != nullptr ? 1 : 0], dim3(static_cast<unsigned>(2 * c.pairs)),
                  "gemm with a rotation behind it", 2, true, false);
  const int variant = (p.across ? first_across : 0) + (o.slot.pre != nullptr ? with_pre : rank_index(kernel_rank));
  return finish(b, kernels.gemm[kernel_list::gemm_bit(c.tile_n, variant)], dim3(static_cast<unsigned>(2 * c.pairs)),
                "gemm", 2, c.early, kernel_rank > 0 && !o.alone);
}
// x takes the place of the weight, and a narrow weight that of the tokens.
inline status bind_narrow(bound_launch& b, const linear_kernels& kernels, dtype type, const stream_choice& c,
                          const matrix& x, const matrix& w, void* y) {
  stream_args g{};
  g.by_row = true;
  const stream_layer rows{x.data, {y, {}, nullptr, static_cast<int>(x.rows), activation::none}};
  return bind_stream(b, kernels, type, c, g, w, 0, &rows, 1, false);
}
// By parts of the inner axis.
inline status bind_parts(bound_launch& b, const linear_kernels& kernels, dtype type, const linear_choice& c,
                         const matrix& x, const matrix& w, void* y) {
  using shape = sum_shape<wide_rank, sum_of::rows>;
  parts_call& to = b.with.make_parts();
  if (status s = make_map(to.maps.z, type, x, sum_columns, 64); !s) return s;
  if (status s = make_map(to.maps.q, type, w, wide_rank, 64); !s) return s;
  to.args = {static_cast<int>((x.cols + sum_step - 1) / sum_step),
             static_cast<int>(x.rows),
             static_cast<int>(w.rows),
             true,
             false,
             {},
             {y, type},
             c.parts_alone ? shape::stages_alone : 0};
  const dim3 grid(static_cast<unsigned>(c.parts), static_cast<unsigned>((x.rows + sum_columns - 1) / sum_columns),
                  static_cast<unsigned>((w.rows + wide_rank - 1) / wide_rank));
  const status made = finish(b, kernels.by_parts, grid, "gemm by parts of its depth", c.parts, false, false);
  if (!c.parts_alone) b.what.shared = shape::bytes;
  return made;
}
// S = x Aᵀ in a launch of its own.
inline status bind_shrink(bound_launch& b, const linear_kernels& kernels, const product_shape& p,
                          const linear_choice& c, const linear_operands& o) {
  void* s = place_of_s(o, c);
  if (c.stream.rows > 0) return bind_narrow(b, kernels, p.type, c.stream, {o.x, p.m, p.k}, {o.a, p.rank, p.k}, s);
  if (c.parts > 0) return bind_parts(b, kernels, p.type, c, {o.x, p.m, p.k}, {o.a, p.rank, p.k}, s);
  product_shape shrink = p;
  shrink.n = p.rank, shrink.rank = 0, shrink.across = false;
  linear_choice plain = c;
  plain.how = way::gemm, plain.tile_n = 128, plain.beside = 0;
  plain.pairs = static_cast<int>((p.m + 255) / 256) * ((p.rank + 127) / 128);
  plain.pairs = launched_pairs(plain.pairs, c.pairs > 0 ? c.pairs : 1);
  linear_operands to = o;
  to.w = o.a, to.y = s, to.slot = {}, to.residual = to.before = nullptr, to.act = activation::none;
  return bind_gemm(b, kernels, shrink, plain, to);
}
// The kernels without tensor maps: the shrink is the same kernel with A as its weight.
inline status bind_tiles(bound_launch& b, const linear_kernels& kernels, way how, const tile_args& g) {
  b.with.make_tiles() = g;
  const int tile = how == way::mma ? mma::tile : simt::tile;
  const dim3 grid(static_cast<unsigned>((g.n + tile - 1) / tile), static_cast<unsigned>((g.m + tile - 1) / tile));
  return finish(b, how == way::mma ? kernels.mma : kernels.simt, grid, name_of(how), 1, false, false);
}
inline status point_x(bound_launch& b, const void* x) {
  if (auto* g = b.with.gemm()) return move_map(g->maps.x, x);
  if (auto* s = b.with.stream()) return move_map(s->args.by_row ? s->maps.w[0] : s->maps.x[0], x);
  if (auto* t = b.with.parts()) return move_map(t->maps.z, x);
  b.with.tiles()->x = x;
  return ok;
}
inline status point_y(bound_launch& b, void* y, const void* residual) {
  if (auto* g = b.with.gemm()) {
    if (residual != nullptr)
      if (status s = move_map(g->maps.residual, residual); !s) return s;
    return g->args.residual = residual, move_map(g->maps.y, y);
  }
  if (auto* s = b.with.stream())
    s->args.segment[0].y = y, s->args.segment[0].residual = residual;
  else if (auto* p = b.with.parts())
    p->args.to.at = y;
  else if (auto* t = b.with.tiles())
    t->y = y, t->residual = residual;
  return ok;
}
}  // namespace detail

inline status bind(bound_linear& to, const linear_kernels& kernels, const product_shape& p, const linear_choice& c,
                   const linear_operands& o) {
  to.count = 0;
  to.device = device_now();
  to.x = o.x, to.y = o.y, to.residual = o.residual;
  to.beside = c.beside, to.sums[0] = o.sums[0], to.sums[1] = o.sums[1];
  if (p.m == 0 || p.n == 0) return ok;
  if (c.how == way::stream) {
    const stream_layer layer{o.w, {o.y, o.slot, o.residual, p.n, o.act}};
    to.count = 1;
    return detail::bind_stream(to.at[0], kernels, p.type, c.stream, stream_args{}, {o.x, p.m, p.k}, p.rank, &layer, 1,
                               true);
  }
  if (c.how == way::narrow) {
    to.count = 1;
    return detail::bind_narrow(to.at[0], kernels, p.type, c.stream, {o.x, p.m, p.k}, {o.w, p.n, p.k}, o.y);
  }
  if (c.how == way::by_parts) {
    to.count = 1;
    return detail::bind_parts(to.at[0], kernels, p.type, c, {o.x, p.m, p.k}, {o.w, p.n, p.k}, o.y);
  }
  if (c.how == way::gemm || c.how == way::gemm_two) {
    to.count = c.launches;
    if (c.launches == 2)
      if (status s = detail::bind_shrink(to.at[0], kernels, p, c, o); !s) return s;
    return detail::bind_gemm(to.at[to.count - 1], kernels, p, c, o);
  }
  void* s_at = detail::place_of_s(o, c);
  if (c.launches == 2) {
    const tile_args shrink{.m = p.m, .n = p.rank, .k = p.k, .x = o.x, .w = o.a, .y = s_at};
    if (status s = detail::bind_tiles(to.at[to.count++], kernels, c.how, shrink); !s) return s;
  }
  return detail::bind_tiles(to.at[to.count++], kernels, c.how,
                            {.m = p.m,
                             .n = p.n,
                             .k = p.k,
                             .x = o.x,
                             .w = o.w,
                             .y = o.y,
                             .s = p.rank > 0 ? s_at : nullptr,
                             .residual = o.residual,
                             .before = o.before,
                             .across = p.across,
                             .act = o.act,
                             .slot = o.slot});
}
// Several layers in one launch.
inline status bind_together(bound_linear& to, const linear_kernels& kernels, dtype type, const stream_choice& c,
                            const matrix& x, int rank, const stream_layer* layers, int count) {
  to.count = 1;
  to.device = device_now();
  for (int i = 0; i < count; ++i) to.each[i] = layers[i].x != nullptr ? layers[i].x : x.data;
  return detail::bind_stream(to.at[0], kernels, type, c, stream_args{}, x, rank, layers, count, true);
}

// Other tensors, of the same sizes and alignment; a residual only where there was one.
inline status point(bound_linear& b, const void* x, void* y, const void* residual) {
  for (int i = 0; i < b.count && x != b.x; ++i)
    if (status s = detail::point_x(b.at[i], x); !s) return s;
  if (b.count > 0 && (y != b.y || residual != b.residual))
    if (status s = detail::point_y(b.at[b.count - 1], y, residual); !s) return s;
  b.x = x, b.y = y, b.residual = residual;
  return ok;
}
inline status point(bound_linear& b, dtype type, const beside_sum* sums) {
  if (b.count == 0 || b.beside == 0 || (sums[0] == b.sums[0] && sums[1] == b.sums[1])) return ok;
  b.sums[0] = sums[0], b.sums[1] = sums[1];
  return detail::bind_sums(*b.at[b.count - 1].with.gemm(), type, b.beside, sums);
}
// The same for `layers` that were bound together: an x for each, and `count` outputs.
inline status point(bound_linear& b, const void* const* x, int layers, void* const* y, int count) {
  stream_call& to = *b.at[0].with.stream();
  for (int i = 0; i < layers; ++i) {
    if (x[i] == b.each[i]) continue;
    if (status s = move_map(to.maps.x[i], x[i]); !s) return s;
    b.each[i] = x[i];
  }
  for (int i = 0; i < count; ++i) to.args.segment[i].y = y[i];
  return ok;
}

// Norms ahead of x and behind y, of this call. False: it is not a kernel that may have them inside.
inline bool take_norms(bound_linear& b, const norm_ahead& ahead, const norm_behind& behind) {
  auto* const s = b.count == 1 ? b.at[0].with.stream() : nullptr;
  if (s == nullptr || s->args.m > most_normed_tokens) return ahead.squares == nullptr && behind.gain == nullptr;
  s->args.ahead = ahead, s->args.behind = behind;
  return true;
}

// `chained`: the weights may be read before the kernel ahead in the stream has finished.
inline status launch(cudaStream_t stream, bound_linear& b, bool chained) {
  const on_device here(b.device);
  for (int i = 0; i < b.count; ++i) {
    bound_launch& k = b.at[i];
    const cudaLaunchConfig_t how{k.grid, dim3(k.what.threads), k.what.shared,
                                 stream, k.attributes,         k.fixed + (chained && k.may_chain ? 1 : 0)};
    void* arguments[4] = {};
    if (auto* g = k.with.gemm())
      arguments[0] = &g->maps, arguments[1] = &g->args, arguments[2] = &g->sum_maps, arguments[3] = &g->sums;
    else if (auto* s = k.with.stream())
      arguments[0] = &s->maps, arguments[1] = &s->args;
    else if (auto* p = k.with.parts())
      arguments[0] = &p->maps, arguments[1] = &p->args;
    else
      arguments[0] = k.with.tiles();
    if (status s = launch(how, k.what.kernel, arguments, k.name); !s) return s;
  }
  return ok;
}

}  // namespace graft::cuda
