// SPDX-License-Identifier: Apache-2.0
// Attention on device tensors by the kernels for whole models: from the tensors of a call to tensor maps and launches.
#pragma once
#include <graft/backend/cuda/attention_kernels.cuh>
#include <graft/backend/cuda/choice_timer.cuh>
#include <graft/backend/cuda/launch.h>
#include <graft/backend/cuda/tensor_map.h>

#include <algorithm>
#include <cmath>

namespace graft::cuda {

template <class T> class attention_calls {
 public:
  // `timer` null: rules choose.
  attention_calls(const attention_kernels& kernels, const target& device, choice_timer* timer = nullptr)
      : kernels_(kernels), device_(device), timer_(timer) {}

  status forward(cudaStream_t stream, const attention_size& p, const attention_tensors& t) const {
    const attention_choice c = choose_attention(p, device_);
    if (c.mma) return forward_by_mma(stream, p, t, c);
    if (c.how == attention_way::decode) return timer_ == nullptr ? decode(stream, p, t, c) : timed_decode(stream, p, t);
    if (c.how != attention_way::prefill) return fail("no attention kernel takes heads of ", p.head, " here");
    if (p.cached)
      if (status s = append(stream, p, t); !s) return s;
    return prefill(stream, p, t, c);
  }
  status backward(cudaStream_t stream, const attention_size& p, const attention_grad_tensors& t) const {
    const attention_choice c = choose_attention_grad(p, device_);
    if (c.how != attention_way::prefill) return fail("no attention kernel has a gradient for heads of ", p.head);
    const attention_room r = room_of_attention_grad(p, device_);
    char* const room = static_cast<char*>(t.room);
    auto* const own_sums = reinterpret_cast<float*>(room + r.sums);
    const void* const out = t.out != nullptr ? t.out : room + r.out;
    const float* const sums = t.out != nullptr ? t.sums : own_sums;
    if (t.out == nullptr)
      if (status s = forward(stream, p, {t.qkv, t.spans, nullptr, 0, room + r.out, own_sums}); !s) return s;
    const attention_notes notes{reinterpret_cast<float*>(room + r.numbers), reinterpret_cast<int2*>(room + r.spans),
                                reinterpret_cast<int4*>(room + r.bounds)};
    const part_of q = queries(p, t.qkv), k = keys(p, t.qkv, 0), v = keys(p, t.qkv, 1), d{t.d_out, p.heads, p.heads};
    const row_spans spans{t.spans, static_cast<int>(p.rows)};
    const int i = head_index(p.head);
    if (c.mma) {
      const mma_grad_args<T> a{spans,
                               rows_of(p, q),
                               rows_of(p, k),
                               rows_of(p, v),
                               rows_of(p, d),
                               rows_of(p, {out, p.heads, p.heads}),
                               p.heads,
                               p.heads / p.groups,
                               scale(p),
                               sums,
                               notes,
                               static_cast<T*>(t.d_qkv),
                               static_cast<T*>(const_cast<void*>(keys(p, t.d_qkv, 0).data)),
                               static_cast<T*>(const_cast<void*>(keys(p, t.d_qkv, 1).data)),
                               static_cast<long long>(p.heads + 2 * p.groups) * p.head};
      const auto blocks = static_cast<unsigned>((p.rows + 127) / 128 * 2), heads = static_cast<unsigned>(p.heads),
                 groups = static_cast<unsigned>(p.groups);
      if (status s = start(stream, kernels_.mma.query_grad[i], dim3(blocks, heads), "attention's dQ", a); !s) return s;
      return start(stream, kernels_.mma.key_grad[i], dim3(blocks, groups, 2), "attention's dK and dV", a);
    }
    key_grad_maps first{};
    query_grad_maps second{};
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
    const int group = p.heads / p.groups, rows = static_cast<int>(p.rows), tiles = (rows + 127) / 128;
    const grad_notes_args before{spans, p.heads, out, t.d_out, sums, notes};
    if (status s =
            start(stream, kernels_.grad_notes[i],
                  dim3(static_cast<unsigned>(2 * tiles), static_cast<unsigned>(p.heads)), "attention's notes", before);
        !s)
      return s;
    const score_pieces all = score_pieces_of(p, device_);
    auto* const ds = reinterpret_cast<std::uint32_t*>(room + r.scores);
    float* const partial = all.tiles < tiles ? reinterpret_cast<float*>(room + r.partial) : nullptr;
    for (int column = 0; column < p.groups; column += all.columns)
      for (int tile = 0; tile < tiles; tile += all.tiles) {
        const score_piece piece{column, std::min(all.columns, p.groups - column), tile,
                                std::min(all.tiles, tiles - tile), ds};
        key_grad_args a{rows, p.heads, group, scale(p), notes, piece};
        if (status s = start(stream, kernels_.key_grad[i], dim3(at_most(2LL * piece.tiles * piece.columns) / 2 * 2), 2,
                             "attention's dK and dV", first, a);
            !s)
          return s;
        query_grad_args b{rows, p.heads, group, scale(p), notes, piece, partial, tile + piece.tiles == tiles};
        if (status s = start(stream, kernels_.query_grad[i], dim3(at_most((tiles + 1) / 2 * piece.columns * group)), 1,
                             "attention's dQ", second, b);
            !s)
          return s;
      }
    return ok;
  }

 private:
  // Heads side by side, in rows of so many heads.
  struct part_of {
    const void* data;
    int heads, pitch;
  };
  struct wanted_map {
    CUtensorMap* to;
    part_of of;
    int box_rows, ranks = 1;  // thread blocks that share the chunks of a box
    long long rows = 0;       // those of the call where it is 0
  };
  static float scale(const attention_size& p) { return 1 / std::sqrt(static_cast<float>(p.head)); }
  static part_of queries(const attention_size& p, const void* qkv) { return {qkv, p.heads, p.heads + 2 * p.groups}; }
  static part_of keys(const attention_size& p, const void* qkv, int which) {
    const long long before = p.heads + static_cast<long long>(which) * p.groups;
    return {static_cast<const char*>(qkv) + before * p.head * 2, p.groups, p.heads + 2 * p.groups};
  }
  static part_of cached(const attention_size& p, const void* cache, int which) {
    return {static_cast<const char*>(cache) + static_cast<long long>(which) * p.groups * p.head * 2, p.groups,
            2 * p.groups};
  }
  static int chunks(const attention_size& p) { return p.head / (p.head % 64 == 0 ? 64 : p.head % 32 == 0 ? 32 : 16); }
  static status maps(const attention_size& p, std::initializer_list<wanted_map> all) {
    const int chunk = p.head / chunks(p);
    for (const wanted_map& m : all) {
      const matrix of{m.of.data, m.rows > 0 ? m.rows : p.rows, static_cast<long long>(m.of.heads) * p.head,
                      static_cast<long long>(m.of.pitch) * p.head};
      if (status s = make_heads_map(*m.to, dtype_of<T>, of, m.box_rows, chunk, chunks(p) / m.ranks); !s) return s;
    }
    return ok;
  }
  unsigned at_most(long long blocks) const {
    return static_cast<unsigned>(blocks < device_.processors ? blocks : device_.processors);
  }
  // `most_shared`: of all launches of this kernel, so that none takes room from one that was captured.
  template <class Maps, class Args>
  static status start(cudaStream_t stream, const kernel_entry& what, dim3 grid, int cluster, const char* name, Maps& m,
                      Args& a, bool chained = false, unsigned most_shared = 0) {
    if (status s = check(cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(std::max(what.shared, most_shared))),
                         name);
        !s)
      return s;
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t how{grid, dim3(what.threads), what.shared, stream, attributes, chained ? 2U : 1U};
    void* arguments[] = {&m, &a};
    return launch(how, what.kernel, arguments, name);
  }
  // Kernels without tensor maps and clusters.
  template <class Args>
  static status start(cudaStream_t stream, const kernel_entry& what, dim3 grid, const char* name, const Args& a) {
    if (what.kernel == nullptr) return fail("the kernel '", name, "' by mma.sync is not compiled into this program");
    if (status s = check(cudaFuncSetAttribute(what.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(what.shared)),
                         name);
        !s)
      return s;
    const cudaLaunchConfig_t how{grid, dim3(what.threads), what.shared, stream, nullptr, 0};
    void* arguments[] = {const_cast<Args*>(&a)};
    return launch(how, what.kernel, arguments, name);
  }
  static head_rows<T> rows_of(const attention_size& p, const part_of& part, long long rows = 0) {
    return {static_cast<const T*>(part.data), static_cast<long long>(part.pitch) * p.head,
            static_cast<int>(rows > 0 ? rows : p.rows)};
  }
  status forward_by_mma(cudaStream_t stream, const attention_size& p, const attention_tensors& t,
                        const attention_choice& c) const {
    if (p.cached)
      if (status s = append(stream, p, t); !s) return s;
    const row_spans spans{t.spans, static_cast<int>(p.rows)};
    const head_rows<T> q = rows_of(p, queries(p, t.qkv)),
                       k = p.cached ? rows_of(p, cached(p, t.cache, 0), t.places) : rows_of(p, keys(p, t.qkv, 0)),
                       v = p.cached ? rows_of(p, cached(p, t.cache, 1), t.places) : rows_of(p, keys(p, t.qkv, 1));
    const int i = head_index(p.head), share = p.heads / p.groups;
    auto* const out = static_cast<T*>(t.out);
    if (c.how == attention_way::prefill) {
      const mma_prefill_args<T> a{spans, q, k, v, p.heads, share, scale(p), out, t.sums};
      const dim3 grid(static_cast<unsigned>((p.rows + 63) / 64), static_cast<unsigned>(p.heads));
      return start(stream, kernels_.mma.prefill[i], grid, "prefill attention", a);
    }
    auto* const room = static_cast<float*>(t.room);
    if (c.parts > 1 && room == nullptr) return fail("attention of few rows has no room for its parts");
    const mma_decode_args<T> a{spans, q, k, v, p.heads, share, c.parts, scale(p), out, room};
    const dim3 grid(static_cast<unsigned>(c.parts), static_cast<unsigned>(p.rows * p.groups));
    if (status s = start(stream, kernels_.mma.decode[i], grid, "decode attention", a); !s || c.parts == 1) return s;
    const mma_decode_sum_args<T> sum{room, out, p.head, c.parts, scale(p)};
    return start(stream, kernels_.mma.decode_sum, dim3(static_cast<unsigned>(p.rows * p.heads)), "decode attention",
                 sum);
  }
  status prefill(cudaStream_t stream, const attention_size& p, const attention_tensors& t,
                 const attention_choice& c) const {
    prefill_maps m{};
    const int box = p.head > 128 ? 64 : 128;
    const part_of k = p.cached ? cached(p, t.cache, 0) : keys(p, t.qkv, 0),
                  v = p.cached ? cached(p, t.cache, 1) : keys(p, t.qkv, 1);
    const long long rows = p.cached ? t.places : p.rows;
    if (status s = maps(p, {{&m.q, queries(p, t.qkv), 64},
                            {&m.k, k, box, c.cluster, rows},
                            {&m.v, v, box, c.cluster, rows},
                            {&m.o, {t.out, p.heads, p.heads}, 64}});
        !s)
      return s;
    prefill_args a{{t.spans, static_cast<int>(p.rows)}, p.heads, p.heads / p.groups, scale(p), t.sums};
    return start(stream, kernels_.prefill[head_index(p.head)][c.cluster - 1], dim3(static_cast<unsigned>(c.blocks)),
                 c.cluster, "prefill attention", m, a, t.chained && !p.cached);
  }
  status append(cudaStream_t stream, const attention_size& p, const attention_tensors& t) const {
    const int head = p.head / 8, pieces = 2 * p.groups * head;
    append_args<uint4> a{{t.spans, static_cast<int>(p.rows)},
                         static_cast<const uint4*>(t.qkv),
                         static_cast<uint4*>(t.cache),
                         (p.heads + 2 * p.groups) * head,
                         p.heads * head,
                         pieces};
    const cudaLaunchConfig_t how{
        dim3(static_cast<unsigned>((p.rows * pieces + 255) / 256)), dim3(256), 0, stream, nullptr, 0};
    void* arguments[] = {&a};
    return launch(how, kernels_.append.kernel, arguments, "appending to a cache");
  }
  status decode(cudaStream_t stream, const attention_size& p, const attention_tensors& t,
                const attention_choice& c) const {
    decode_maps m{};
    const part_of both{t.cache, 2 * p.groups, 2 * p.groups};
    if (status s = maps(p, {{&m.tile, both, 64, 1, t.places}, {&m.piece, both, 16, chunks(p), t.places}}); !s) return s;
    const long long q = static_cast<long long>(p.heads) * p.head, kv = static_cast<long long>(p.groups) * p.head;
    const auto* const all = static_cast<const T*>(t.qkv);
    const apart_heads side_by_side{all, all + q, all + q + kv}, &from = t.apart != nullptr ? *t.apart : side_by_side;
    auto rows = [&](const void* data, long long pitch) {
      return heads_of_rows<T>{static_cast<const T*>(data), t.apart != nullptr ? pitch : q + 2 * kv};
    };
    const int finished = (p.heads / p.groups * p.head / 4 + c.parts - 1) / c.parts;
    decode_args<T> a{{t.spans, static_cast<int>(p.rows)},
                     rows(from.q, q),
                     rows(from.k, kv),
                     rows(from.v, kv),
                     from.angles,
                     from.positions,
                     static_cast<T*>(t.cache),
                     static_cast<T*>(t.out),
                     p.heads,
                     p.groups,
                     p.heads / p.groups,
                     scale(p),
                     c.spread > 0 ? spread_stages(p.head)
                     : c.small    ? decode_stages(p.head) / 2
                                  : decode_stages(p.head, c.long_ring),
                     finished,
                     ((1U << 20) + static_cast<unsigned>(finished) - 1) / static_cast<unsigned>(finished),
                     t.settled,
                     static_cast<float*>(t.room),
                     t.counters};
    const kernel_entry(&ways)[4] = kernels_.decode[head_index(p.head)];
    if (c.spread > 0 && (t.room == nullptr || t.counters == nullptr))
      return fail("attention of few rows has no room for its parts");
    if (c.spread > 0)
      return start(stream, ways[3], dim3(static_cast<unsigned>(c.spread)), 1, "decode attention", m, a, t.chained);
    const dim3 grid(static_cast<unsigned>(c.parts), static_cast<unsigned>(p.groups), static_cast<unsigned>(p.rows));
    int way = c.long_ring ? 1 : 0;
    if (c.small) way = 2;
    return start(stream, ways[way], grid, c.parts, "decode attention", m, a, t.chained, c.small ? 0 : ways[1].shared);
  }

  // How long it takes follows from how full the cache is: it is timed with one that is half full.
  status timed_decode(cudaStream_t stream, const attention_size& p, const attention_tensors& t) const {
    attention_tensors half = t;
    half.spans = nullptr;
    long long places = 64;
    while (places * p.rows < p.places) places *= 2;
    const result<attention_choice> c = timer_->choose(
        "decode attention " + name_of(p), places, ways_of(p, device_), [&](const attention_choice& how) -> status {
          if (half.spans == nullptr) {
            const result<const long long*> spans = timer_->half_full(p.rows, p.places);
            if (!spans) return spans.failure();
            half.spans = *spans;
          }
          return decode(timer_->stream(), p, half, how);
        });
    if (!c) return c.failure();
    return decode(stream, p, t, *c);
  }

  const attention_kernels& kernels_;
  const target& device_;
  choice_timer* timer_;
};

template <class T>
status run_attention(cudaStream_t stream, const attention_kernels& kernels, const target& device, choice_timer* timer,
                     const attention_size& p, const attention_tensors& t) {
  return attention_calls<T>(kernels, device, timer).forward(stream, p, t);
}
template <class T>
status run_attention_grad(cudaStream_t stream, const attention_kernels& kernels, const target& device,
                          const attention_size& p, const attention_grad_tensors& t) {
  return attention_calls<T>(kernels, device).backward(stream, p, t);
}
// All of them, with these functions.
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

}  // namespace graft::cuda
