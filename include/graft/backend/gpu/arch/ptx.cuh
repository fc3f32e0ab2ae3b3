// SPDX-License-Identifier: Apache-2.0
// PTX wrappers: mbarrier, TMA (cp.async.bulk), cp.async, multicast, thread block clusters and distributed shared memory
// (DSMEM), setmaxnreg, ldmatrix and stmatrix, programmatic dependent launch, and acquire/release flags in global
// memory. They are what cuda::ptx of CUDA 13.0 lacks or has in another form. Shared memory is addressed by its 32-bit
// window address. mma.sync is in mma_sync.cuh, wgmma in wgmma.cuh. Kernels use mbarriers through tile/pipeline.cuh.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace graft::gpu::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// ---- mbarrier -------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void barrier_init(std::uint32_t bar, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive_expect_tx(std::uint32_t bar, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// acc | (word & mask) in one instruction that the compiler neither moves nor simplifies.
__device__ __forceinline__ void or_masked(std::uint32_t& acc, std::uint32_t word, std::uint32_t mask) {
  asm volatile("lop3.b32 %0, %1, %2, %0, 0xEA;" : "+r"(acc) : "r"(word), "r"(mask));
}
// Arrives at the barrier with this address in block `rank` of the cluster. Default semantics suffice, because only an
// asynchronous copy follows a released stage and the barrier itself orders it; .release.cluster costs a microsecond per
// call.
__device__ __forceinline__ void barrier_arrive_cluster(std::uint32_t bar, std::uint32_t rank) {
  asm volatile(
      "{.reg .b32 r;\n mapa.shared::cluster.u32 r, %0, %1;\n mbarrier.arrive.shared::cluster.b64 _, [r];}" ::"r"(bar),
      "r"(rank)
      : "memory");
}
// Returns when the phase with this parity has completed.
__device__ __forceinline__ void barrier_wait(std::uint32_t bar, std::uint32_t parity) {
  asm volatile(
      "{.reg .pred p;\nWAIT_%=:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE_%=;\n"
      " bra WAIT_%=;\nDONE_%=:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// ---- TMA: tensor and bulk copies ------------------------------------------------------------------------------------
// L2 cache policies, as createpolicy.fractional.L2 encodes them for a fraction of 1.
inline constexpr std::uint64_t evict_first = 0x12F0000000000000ULL, evict_last = 0x14F0000000000000ULL;

// Prefetches the tensor map, so that the first copy with it does not wait for the descriptor.
__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void load_tile(std::uint32_t to, const CUtensorMap* map, int col, int row,
                                          std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(col), "r"(row), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void load_tile(std::uint32_t to, const CUtensorMap* map, int col, int row, std::uint32_t bar,
                                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3}], "
      "[%4], %5;" ::"r"(to),
      "l"(map), "r"(col), "r"(row), "r"(bar), "l"(policy)
      : "memory");
}
// Multicast: every block of the cluster in `mask` receives the tile at this offset, and its own barrier counts the
// bytes.
__device__ __forceinline__ void load_tile_multicast(std::uint32_t to, const CUtensorMap* map, int col, int row,
                                                    std::uint32_t bar, std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(col), "r"(row), "r"(bar), "h"(mask)
      : "memory");
}
// Copies contiguous bytes, a multiple of 16, and asks L2 to keep them.
__device__ __forceinline__ void load_bulk(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(evict_last)
      : "memory");
}
// Copies contiguous bytes that nobody reads a second time.
__device__ __forceinline__ void load_bulk_evict_first(std::uint32_t to, const void* from, std::uint32_t bytes,
                                                      std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(evict_first)
      : "memory");
}
__device__ __forceinline__ void load_bulk_multicast(std::uint32_t to, const void* from, std::uint32_t bytes,
                                                    std::uint32_t bar, std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void store_tile(const CUtensorMap* map, int col, int row, std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n cp.async.bulk.commit_group;" ::"l"(
          map),
      "r"(col), "r"(row), "r"(from)
      : "memory");
}
// Loads a box of heads (make_heads_map in tensor_map.h) that begins at `row` and at column chunk `chunk`.
__device__ __forceinline__ void load_box(std::uint32_t to, const CUtensorMap* map, int row, int chunk,
                                         std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(map), "r"(0), "r"(row), "r"(chunk), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void load_box_multicast(std::uint32_t to, const CUtensorMap* map, int row, int chunk,
                                                   std::uint32_t bar, std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(0), "r"(row), "r"(chunk), "r"(bar), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void store_box(const CUtensorMap* map, int row, int chunk, std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n cp.async.bulk.commit_group;" ::
          "l"(map),
      "r"(0), "r"(row), "r"(chunk), "r"(from)
      : "memory");
}
// Waits until all but the latest Pending store groups of this thread have read their shared memory.
template <int Pending> __device__ __forceinline__ void wait_for_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Makes ordinary stores to shared memory visible to the async proxy: TMA stores and wgmma operands.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Makes global memory that other CTAs wrote by ordinary stores, and that an acquire has made visible here,
// readable by TMA copies.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// ---- cp.async, loads from global memory -----------------------------------------------------------------------------
// Copies 16 bytes, of which those from `bytes` on are zeros, past the L1 cache.
__device__ __forceinline__ void copy_async16(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_async4(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the latest Pending groups of copies of this thread are in flight.
template <int Pending> __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Loads a number where it stands: a load that is not volatile would move to its first use.
__device__ __forceinline__ std::int64_t load_early(const std::int64_t* p) {
  std::int64_t v;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}
// Loads sixteen bytes that nobody reads a second time, or zeros where `valid` is false. The asm is volatile so that
// several loads in a row are all issued before the first use; the compiler would sink each load to its use.
__device__ __forceinline__ uint4 load_streaming(const void* p, bool valid) {
  uint4 v;
  asm volatile(
      "{.reg .pred p;\n setp.ne.b32 p, %5, 0;\n mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p), "r"(static_cast<int>(valid)));
  return v;
}

// Prefetches a line into the L1 cache.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }

// ---- clusters, named barriers, register budgets, shared memory ------------------------------------------------------
__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Cluster barrier for the start of a kernel, in two halves. The relaxed arrive orders no memory but the mbarriers that
// barrier_init_fence() has published; a full release would take longer than the rest of the start while weights stream.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync_relaxed() { cluster_arrive(), cluster_wait(); }
// bar.sync counts warps, so all lanes of a warp must be converged here.
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// For warps whose lanes may have diverged in a branch or a wait: the first lane to arrive would count for the whole
// warp.
__device__ __forceinline__ void named_barrier_reconverge(int id, int threads) {
  __syncwarp();
  named_barrier(id, threads);
}
__device__ __forceinline__ void named_arrive(int id, int threads) {  // does not wait for the other warps
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// The barrier number is a constant here: with a variable one the compiler reserves all sixteen barriers.
template <int Id, int Threads> __device__ __forceinline__ void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}
template <int Id, int Threads> __device__ __forceinline__ void named_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}
// setmaxnreg: a producer warpgroup gives registers back, a consumer warpgroup takes them.
template <int Registers> __device__ __forceinline__ void dealloc_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> __device__ __forceinline__ void alloc_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
// Stores four floats into the distributed shared memory (DSMEM) of block `rank` and counts the bytes on that block's
// barrier.
__device__ __forceinline__ void store_dsmem_async(std::uint32_t address, std::uint32_t bar, std::uint32_t rank,
                                                  float4 v) {
  asm volatile(
      "{.reg .b32 to, at;\n mapa.shared::cluster.u32 to, %0, %2;\n mapa.shared::cluster.u32 at, %1, %2;\n"
      " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [at];}" ::"r"(address),
      "r"(bar), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
// Loads four floats from this address of block `rank` of the cluster.
__device__ __forceinline__ float4 load_dsmem4(std::uint32_t address, std::uint32_t rank) {
  float4 v;
  asm volatile(
      "{.reg .b32 from;\n mapa.shared::cluster.u32 from, %4, %5;\n ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [from];}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}
// mapa alone: the cluster address of a shared memory address of block `rank`. load_mapped4() reads from it, and offsets
// may be added in between.
__device__ __forceinline__ std::uint32_t map_shared_rank(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ float4 load_mapped4(std::uint32_t there) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}
__device__ __forceinline__ float load_dsmem(std::uint32_t address, std::uint32_t rank) {
  float v;
  asm volatile("{.reg .b32 from;\n mapa.shared::cluster.u32 from, %1, %2;\n ld.shared::cluster.f32 %0, [from];}"
               : "=f"(v)
               : "r"(address), "r"(rank)
               : "memory");
  return v;
}
__device__ __forceinline__ float4 load_shared_float4(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared_uint4(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ float2 load_shared_float2(std::uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared(std::uint32_t address) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
// Like load_shared(), but the compiler may move it among other loads.
__device__ __forceinline__ std::uint32_t load_shared_unordered(std::uint32_t address) {
  std::uint32_t v;
  asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared_half(std::uint32_t address) {
  std::uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(v) : "memory");
}
__device__ __forceinline__ void load_matrix(std::uint32_t (&v)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}
// ldmatrix.trans: each of the four 8 x 8 matrices is transposed.
__device__ __forceinline__ void load_matrix_trans(std::uint32_t (&v)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}
// Transposes an 8 x 8 matrix of 16-bit elements in registers; each lane has two neighbors of a row.
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t v) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(v));
  return transposed;
}
__device__ __forceinline__ void store_matrix(std::uint32_t address, const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}
// stmatrix.trans of two 8 x 8 matrices: a column of the fragment becomes a row of eight elements in shared memory.
__device__ __forceinline__ void store_matrix_trans(std::uint32_t address, std::uint32_t first, std::uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
               : "memory");
}

// ---- arithmetic of packed 16-bit pairs, fast exponential ------------------------------------------------------------
__device__ __forceinline__ std::uint32_t sub_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t v;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}
__device__ __forceinline__ std::uint32_t sub_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t v;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- programmatic dependent launch, and flags between CTAs of one kernel -----------------------------------
// Forces the compiler to have the value in a register here, instead of recomputing it at every use.
__device__ __forceinline__ void keep(int& v) { asm volatile("" : "+r"(v)); }
// Keeps the compiler from moving accesses to accumulators across a wgmma wait or issue; emits no instruction.
template <int N> __device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Does as keep() for a pointer, and tells the compiler that it still points to global memory.
template <class V> __device__ __forceinline__ void keep_global_pointer(V*& p) {
  asm volatile("" : "+l"(p));
  __builtin_assume(__isGlobal(p));
}
// griddepcontrol.wait: everything that earlier kernels of the stream wrote is visible afterwards. Weights and adapters
// may be read before it, activations only after it.
__device__ __forceinline__ void wait_for_dependency() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next kernel of the stream may start, up to its own griddepcontrol.wait.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// A 16-bit value from L2. The compiler moves __ldcg, whose asm is not volatile, out of loops and before the condition
// that the pointer is not null.
template <class T> __device__ __forceinline__ T load_from_l2(const T* p) {
  static_assert(sizeof(T) == 2);
  std::uint16_t bits;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(bits) : "l"(p) : "memory");
  return *reinterpret_cast<const T*>(&bits);
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void add_release(std::uint32_t* p, std::uint32_t v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ std::uint32_t add_acquire_release(std::uint32_t* p, std::uint32_t v) {
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
}

}  // namespace graft::gpu::ptx
