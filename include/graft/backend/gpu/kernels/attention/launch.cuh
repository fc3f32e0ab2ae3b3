// SPDX-License-Identifier: Apache-2.0
// Launches the attention kernels: forward and backward of one call, from tensors to TMA maps and grids.
#pragma once
#include <graft/backend/gpu/arch/tensor_map.h>
#include <graft/backend/gpu/kernels/attention/instances.cuh>
#include <graft/backend/gpu/runtime/autotuner.cuh>
#include <graft/backend/gpu/runtime/launch.h>

#include <algorithm>
#include <cmath>

namespace graft::gpu {

template <class T> class attention_launcher {
 public:
  // With a `tuner` decode kernels are chosen by autotuning, else by heuristic (dispatch/attention.h).
  attention_launcher(const attention_kernels& kernels, const target& device, autotuner* tuner = nullptr)
      : kernels_(kernels), device_(device), timer_(tuner) {}

  status forward(cudaStream_t stream, const attention_size& p, const attention_tensors& t) const {
    const attention_choice c = choose_attention(p, device_);
    if (c.mma) return forward_by_mma(stream, p, t, c);
    if (c.path == attention_path::decode)
      return timer_ == nullptr ? decode(stream, p, t, c) : autotuned_decode(stream, p, t);
    if (c.path != attention_path::prefill) return fail("no attention kernel takes heads of ", p.head, " here");
    if (p.cached)
      if (status s = append(stream, p, t); !s) return s;
    return prefill(stream, p, t, c);
  }
  status backward(cudaStream_t stream, const attention_size& p, const attention_grad_tensors& t) const {
    const attention_choice c = choose_attention_grad(p, device_);
    if (c.path != attention_path::prefill) return fail("no attention kernel has a gradient for heads of ", p.head);
    const attention_backward_workspace r = attention_backward_workspace_of(p, device_);
    char* const workspace = static_cast<char*>(t.workspace);
    auto* const own_lse = reinterpret_cast<float*>(workspace + r.lse);
    const void* const out = t.out != nullptr ? t.out : workspace + r.out;
    const float* const lse = t.out != nullptr ? t.lse : own_lse;
    if (t.out == nullptr)
      if (status s = forward(stream, p, {t.qkv, t.ranges, nullptr, 0, workspace + r.out, own_lse}); !s) return s;
    const row_statistics statistics{reinterpret_cast<float*>(workspace + r.numbers),
                                    reinterpret_cast<int2*>(workspace + r.ranges),
                                    reinterpret_cast<int4*>(workspace + r.key_bounds)};
    const head_view q = queries(p, t.qkv), k = keys(p, t.qkv, 0), v = keys(p, t.qkv, 1), d = outputs(p, t.d_out);
    const attention_ranges ranges{t.ranges, static_cast<int>(p.rows)};
    const int i = head_index(p.head), capped = p.is_capped();
    void* const d_sinks = const_cast<void*>(sinks(p, t.d_qkv).p);
    if (c.mma) {
      const mma_grad_args<T> a{ranges,
                               rows_of(p, q),
                               rows_of(p, k),
                               rows_of(p, v),
                               rows_of(p, d),
                               rows_of(p, outputs(p, out)),
                               p.heads,
                               p.heads / p.kv_heads,
                               scale(p),
                               lse,
                               statistics,
                               static_cast<T*>(t.d_qkv),
                               static_cast<T*>(const_cast<void*>(keys(p, t.d_qkv, 0).data)),
                               static_cast<T*>(const_cast<void*>(keys(p, t.d_qkv, 1).data)),
                               p.row_elements(),
                               cap(p),
                               sinks(p, t.qkv),
                               d_sinks};
      const auto blocks = static_cast<unsigned>((p.rows + 127) / 128 * 2), heads = static_cast<unsigned>(p.heads),
                 kv_heads = static_cast<unsigned>(p.kv_heads);
      if (status s = start(stream, kernels_.mma.query_grad[capped][i], dim3(blocks, heads), "attention's dQ", a); !s)
        return s;
      return start(stream, kernels_.mma.key_grad[capped][i], dim3(blocks, kv_heads, 2), "attention's dK and dV", a);
    }
    dkv_maps first{};
    dq_maps second{};
    if (status s = maps(p, {{&first.q, q, 64},
                            {&first.d_out, d, 64},
                            {&first.k, k, 64},
                            {&first.v, v, 64},
                            {&first.dk, keys(p, t.d_qkv, 0), 64},
                            {&first.dv, keys(p, t.d_qkv, 1), 64},
                            {&second.k, k, 64},
                            {&second.dq, queries(p, t.d_qkv), 64}});
        !s)
      return s;
    const int group = p.heads / p.kv_heads, rows = static_cast<int>(p.rows), tiles = (rows + 127) / 128;
    const row_statistics_args before{ranges, p.heads, out, t.d_out, lse, statistics, sinks(p, t.qkv), d_sinks};
    if (status s = start(stream, kernels_.row_statistics_entry[i],
                         dim3(static_cast<unsigned>(2 * tiles), static_cast<unsigned>(p.heads)),
                         "attention row statistics", before);
        !s)
      return s;
    const ds_slabs all = ds_slabs_of(p, device_);
    auto* const ds = reinterpret_cast<std::uint32_t*>(workspace + r.scores);
    float* const partial = all.tiles < tiles ? reinterpret_cast<float*>(workspace + r.partial) : nullptr;
    for (int column = 0; column < p.kv_heads; column += all.columns)
      for (int tile = 0; tile < tiles; tile += all.tiles) {
        const ds_slab slab{column, std::min(all.columns, p.kv_heads - column), tile, std::min(all.tiles, tiles - tile),
                           ds};
        dkv_args a{rows, p.heads, group, scale(p), statistics, slab, cap(p)};
        if (status s =
                start(stream, kernels_.key_grad[capped][i], dim3(at_most(2LL * slab.tiles * slab.columns) / 2 * 2), 2,
                      "attention's dK and dV", first, a);
            !s)
          return s;
        dq_args b{rows, p.heads, group, scale(p), statistics, slab, partial, tile + slab.tiles == tiles};
        if (status s = start(stream, kernels_.query_grad[i], dim3(at_most((tiles + 1) / 2 * slab.columns * group)), 1,
                             "attention's dQ", second, b);
            !s)
          return s;
      }
    return ok;
  }

 private:
  // `heads` heads of rows that are `pitch` elements apart.
  struct head_view {
    const void* data;
    int heads;
    long long pitch;
  };
  struct map_request {
    CUtensorMap* to;
    head_view of;
    int box_rows, ranks = 1;  // ranks: CTAs of a cluster that divide the column chunks of a box
    long long rows = 0;       // 0: the rows of the call
  };
  static float scale(const attention_size& p) { return 1 / std::sqrt(static_cast<float>(p.head)); }
  static score_cap cap(const attention_size& p) {
    if (!p.is_capped()) return {};
    const auto largest = static_cast<float>(p.soft_cap);
    return {largest, 2 * log2_e * scale(p) / largest, 1 / (largest * log2_e)};
  }
  static head_view queries(const attention_size& p, const void* qkv) { return {qkv, p.heads, p.row_elements()}; }
  static head_view outputs(const attention_size& p, const void* out) {
    return {out, p.heads, static_cast<long long>(p.heads) * p.head};
  }
  // The sinks at the end of each row of q, k and v.
  static attention_sinks sinks(const attention_size& p, const void* qkv) {
    if (!p.sinks) return {};
    return {static_cast<const T*>(qkv) + static_cast<long long>(p.heads + 2 * p.kv_heads) * p.head, p.row_elements()};
  }
  static head_view keys(const attention_size& p, const void* qkv, int which) {
    const long long before = p.heads + static_cast<long long>(which) * p.kv_heads;
    return {static_cast<const char*>(qkv) + before * p.head * 2, p.kv_heads, p.row_elements()};
  }
  static head_view cached(const attention_size& p, const void* cache, int which) {
    return {static_cast<const char*>(cache) + static_cast<long long>(which) * p.kv_heads * p.head * 2, p.kv_heads,
            2LL * p.kv_heads * p.head};
  }
  static int chunks(const attention_size& p) { return p.head / (p.head % 64 == 0 ? 64 : p.head % 32 == 0 ? 32 : 16); }
  static status maps(const attention_size& p, std::initializer_list<map_request> all) {
    const int chunk = p.head / chunks(p);
    for (const map_request& m : all) {
      const matrix of{m.of.data, m.rows > 0 ? m.rows : p.rows, static_cast<long long>(m.of.heads) * p.head, m.of.pitch};
      if (status s = make_heads_map(*m.to, dtype_of<T>, of, m.box_rows, chunk, chunks(p) / m.ranks); !s) return s;
    }
    return ok;
  }
  unsigned at_most(long long blocks) const {
    return static_cast<unsigned>(blocks < device_.sm_count ? blocks : device_.sm_count);
  }
  // `max_shared_bytes` is the largest dynamic shared memory of any launch of this kernel: the attribute must not shrink
  // below what a captured launch needs.
  template <class Maps, class Args>
  static status start(cudaStream_t stream, const kernel_entry& what, dim3 grid, int cluster, const char* name, Maps& m,
                      Args& a, bool pdl = false, unsigned max_shared_bytes = 0) {
    if (status s = check(cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(std::max(what.shared, max_shared_bytes))),
                         name);
        !s)
      return s;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t config{grid, dim3(what.threads), what.shared, stream, attributes, pdl ? 2U : 1U};
    void* arguments[] = {&m, &a};
    return launch(config, what.kernel, arguments, name);
  }
  // Launches a kernel without TMA maps and clusters.
  template <class Args>
  static status start(cudaStream_t stream, const kernel_entry& what, dim3 grid, const char* name, const Args& a) {
    if (what.kernel == nullptr) return fail("the kernel '", name, "' by mma.sync is not compiled into this program");
    if (status s = check(cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(what.shared)),
                         name);
        !s)
      return s;
    const cudaLaunchConfig_t config{grid, dim3(what.threads), what.shared, stream, nullptr, 0};
    void* arguments[] = {const_cast<Args*>(&a)};
    return launch(config, what.kernel, arguments, name);
  }
  static head_rows<T> rows_of(const attention_size& p, const head_view& part, long long rows = 0) {
    return {static_cast<const T*>(part.data), part.pitch, static_cast<int>(rows > 0 ? rows : p.rows)};
  }
  status forward_by_mma(cudaStream_t stream, const attention_size& p, const attention_tensors& t,
                        const attention_choice& c) const {
    if (p.cached)
      if (status s = append(stream, p, t); !s) return s;
    const attention_ranges ranges{t.ranges, static_cast<int>(p.rows)};
    const head_rows<T> q = rows_of(p, queries(p, t.qkv)),
                       k = p.cached ? rows_of(p, cached(p, t.cache, 0), t.slots) : rows_of(p, keys(p, t.qkv, 0)),
                       v = p.cached ? rows_of(p, cached(p, t.cache, 1), t.slots) : rows_of(p, keys(p, t.qkv, 1));
    const int i = head_index(p.head), group_size = p.heads / p.kv_heads, capped = p.is_capped();
    auto* const out = static_cast<T*>(t.out);
    if (c.path == attention_path::prefill) {
      const mma_prefill_args<T> a{ranges, q, k, v, p.heads, group_size, scale(p), out, t.lse, cap(p), sinks(p, t.qkv)};
      const dim3 grid(static_cast<unsigned>((p.rows + 63) / 64), static_cast<unsigned>(p.heads));
      return start(stream, kernels_.mma.prefill[capped][i], grid, "prefill attention", a);
    }
    auto* const workspace = static_cast<float*>(t.workspace);
    if (c.kv_splits > 1 && workspace == nullptr) return fail("decode attention has no workspace for its KV splits");
    const mma_decode_args<T> a{ranges,      q,        k,   v,         p.heads, group_size,
                               c.kv_splits, scale(p), out, workspace, cap(p),  sinks(p, t.qkv)};
    const dim3 grid(static_cast<unsigned>(c.kv_splits), static_cast<unsigned>(p.rows * p.kv_heads));
    if (status s = start(stream, kernels_.mma.decode[capped][i], grid, "decode attention", a); !s || c.kv_splits == 1)
      return s;
    const mma_decode_sum_args<T> sum{
        workspace, out, p.head, p.heads, c.kv_splits, p.is_capped() ? cap(p).largest : scale(p), sinks(p, t.qkv)};
    return start(stream, kernels_.mma.decode_sum, dim3(static_cast<unsigned>(p.rows * p.heads)), "decode attention",
                 sum);
  }
  status prefill(cudaStream_t stream, const attention_size& p, const attention_tensors& t,
                 const attention_choice& c) const {
    prefill_maps m{};
    const int box = p.head > 128 ? 64 : 128;
    const head_view k = p.cached ? cached(p, t.cache, 0) : keys(p, t.qkv, 0),
                    v = p.cached ? cached(p, t.cache, 1) : keys(p, t.qkv, 1);
    const long long rows = p.cached ? t.slots : p.rows;
    if (status s = maps(p, {{&m.q, queries(p, t.qkv), 64},
                            {&m.k, k, box, c.cluster, rows},
                            {&m.v, v, box, c.cluster, rows},
                            {&m.o, outputs(p, t.out), 64}});
        !s)
      return s;
    prefill_args a{
        {t.ranges, static_cast<int>(p.rows)}, p.heads, p.heads / p.kv_heads, scale(p), t.lse, cap(p), sinks(p, t.qkv)};
    return start(stream, kernels_.prefill[p.is_capped()][head_index(p.head)][c.cluster - 1],
                 dim3(static_cast<unsigned>(c.blocks)), c.cluster, "prefill attention", m, a, t.pdl && !p.cached);
  }
  status append(cudaStream_t stream, const attention_size& p, const attention_tensors& t) const {
    const int head = p.head / 8, vectors = 2 * p.kv_heads * head;
    append_args<uint4> a{{t.ranges, static_cast<int>(p.rows)},
                         static_cast<const uint4*>(t.qkv),
                         static_cast<uint4*>(t.cache),
                         static_cast<int>(p.row_elements() / 8),
                         p.heads * head,
                         vectors};
    const cudaLaunchConfig_t config{
        dim3(static_cast<unsigned>((p.rows * vectors + 255) / 256)), dim3(256), 0, stream, nullptr, 0};
    void* arguments[] = {&a};
    return launch(config, kernels_.append.kernel, arguments, "appending to a cache");
  }
  status decode(cudaStream_t stream, const attention_size& p, const attention_tensors& t,
                const attention_choice& c) const {
    decode_maps m{};
    const head_view both{t.cache, 2 * p.kv_heads, 2LL * p.kv_heads * p.head};
    if (status s = maps(p, {{&m.tile, both, 64, 1, t.slots}, {&m.row_box, both, 16, chunks(p), t.slots}}); !s) return s;
    const long long q = static_cast<long long>(p.heads) * p.head, kv = static_cast<long long>(p.kv_heads) * p.head;
    const auto* const all = static_cast<const T*>(t.qkv);
    const separate_qkv packed_qkv{all, all + q, all + q + kv}, &from = t.separate != nullptr ? *t.separate : packed_qkv;
    auto rows = [&](const void* data, long long pitch) {
      return strided_heads<T>{static_cast<const T*>(data), t.separate != nullptr ? pitch : p.row_elements()};
    };
    const int float4s_per_split = (p.heads / p.kv_heads * p.head / 4 + c.kv_splits - 1) / c.kv_splits;
    decode_args<T> a{
        {t.ranges, static_cast<int>(p.rows)},
        rows(from.q, q),
        rows(from.k, kv),
        rows(from.v, kv),
        from.angles,
        from.positions,
        static_cast<T*>(t.cache),
        static_cast<T*>(t.out),
        p.heads,
        p.kv_heads,
        p.heads / p.kv_heads,
        scale(p),
        c.split_kv_blocks > 0 ? split_kv_stages(p.head)
        : c.small             ? decode_stages(p.head) / 2
                              : decode_stages(p.head, c.long_pipeline),
        float4s_per_split,
        ((1U << 20) + static_cast<unsigned>(float4s_per_split) - 1) / static_cast<unsigned>(float4s_per_split),
        t.no_pending_writes,
        static_cast<float*>(t.workspace),
        t.counters,
        cap(p),
        sinks(p, t.qkv)};
    const kernel_entry(&candidates)[4] = kernels_.decode[p.is_capped()][head_index(p.head)];
    if (c.split_kv_blocks > 0 && (t.workspace == nullptr || t.counters == nullptr))
      return fail("decode attention has no workspace for its KV splits");
    if (c.split_kv_blocks > 0)
      return start(stream, candidates[3], dim3(static_cast<unsigned>(c.split_kv_blocks)), 1, "decode attention", m, a,
                   t.pdl);
    const dim3 grid(static_cast<unsigned>(c.kv_splits), static_cast<unsigned>(p.kv_heads),
                    static_cast<unsigned>(p.rows));
    int variant = c.long_pipeline ? 1 : 0;
    if (c.small) variant = 2;
    return start(stream, candidates[variant], grid, c.kv_splits, "decode attention", m, a, t.pdl,
                 c.small ? 0 : candidates[1].shared);
  }

  // The time depends on how full the cache is; candidates are timed with a half-full one.
  status autotuned_decode(cudaStream_t stream, const attention_size& p, const attention_tensors& t) const {
    attention_tensors half = t;
    half.ranges = nullptr;
    long long slots = 64;
    while (slots * p.rows < p.slots) slots *= 2;
    const result<attention_choice> c =
        timer_->choose("decode attention " + name_of(p), slots, candidates_of(p, device_),
                       [&](const attention_choice& choice) -> status {
                         if (half.ranges == nullptr) {
                           const result<const long long*> ranges = timer_->half_full_ranges(p.rows, p.slots);
                           if (!ranges) return ranges.failure();
                           half.ranges = *ranges;
                         }
                         return decode(timer_->stream(), p, half, choice);
                       });
    if (!c) return c.failure();
    return decode(stream, p, t, *c);
  }

  const attention_kernels& kernels_;
  const target& device_;
  autotuner* timer_;
};

template <class T>
status run_attention(cudaStream_t stream, const attention_kernels& kernels, const target& device, autotuner* tuner,
                     const attention_size& p, const attention_tensors& t) {
  return attention_launcher<T>(kernels, device, tuner).forward(stream, p, t);
}
template <class T>
status run_attention_grad(cudaStream_t stream, const attention_kernels& kernels, const target& device,
                          const attention_size& p, const attention_grad_tensors& t) {
  return attention_launcher<T>(kernels, device).backward(stream, p, t);
}
// The kernels of the sm_90 and mma.sync families with their launch functions.
template <class T> const attention_kernels* compiled_attention() {
  static const attention_kernels all = [] {
    attention_kernels k = all_attention_kernels<T>();
    k.mma = all_mma_attention_kernels<T>();
    k.run = &run_attention<T>, k.run_grad = &run_attention_grad<T>;
    return k;
  }();
  return &all;
}
template <class T> attention_table attention_for() {
  if constexpr (dtype_of<T> == dtype::bf16) return &compiled_attention<T>;
  return nullptr;
}

}  // namespace graft::gpu
