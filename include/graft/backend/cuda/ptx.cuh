// SPDX-License-Identifier: Apache-2.0
// The instructions of sm_90 that cuda::ptx of CUDA 13.0 does not have, or not in the form needed: barriers in shared
// memory, tensor copies with cache hints, clusters, register budgets, dependent launches, flags between thread blocks.
// Shared memory is addressed by its 32-bit window address.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace graft::cuda::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// ---- mbarrier --------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void barrier_init(std::uint32_t bar, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint32_t bar, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// An arrival that is behind loads of shared memory. ptxas else puts it in front of the first use of what they bring, and the
// copy that fills a stage again has been seen to overtake the last one: sixteen columns of attention were those of another
// tile. So the barrier's address has a part that is zero, but only known when a word of each load, or of a sum that it went
// into, is there: `count` is not negative, which the compiler cannot know.
class read_before {
 public:
  __device__ explicit read_before(int count) : none_(static_cast<std::uint32_t>(count >> 31)) {}
  __device__ __forceinline__ void add(std::uint32_t word) {
    asm volatile("lop3.b32 %0, %1, %2, %0, 0xEA;" : "+r"(zero_) : "r"(word), "r"(none_));  // zero_ | (word & none_)
  }
  __device__ __forceinline__ void arrive(std::uint32_t bar) {
    barrier_arrive(bar + zero_);
    zero_ = 0;
  }

 private:
  std::uint32_t none_, zero_ = 0;
};
// The same barrier in block `rank` of the cluster. The default semantics: .release.cluster would cost a microsecond per
// call, and all that follows a released stage is an asynchronous copy, which the barrier itself orders.
__device__ __forceinline__ void barrier_arrive_at(std::uint32_t bar, std::uint32_t rank) {
  asm volatile(
      "{.reg .b32 r;\n mapa.shared::cluster.u32 r, %0, %1;\n mbarrier.arrive.shared::cluster.b64 _, [r];}" ::"r"(bar),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint32_t bar, std::uint32_t parity) {
  asm volatile(
      "{.reg .pred p;\nWAIT_%=:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE_%=;\n"
      " bra WAIT_%=;\nDONE_%=:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}

// ---- tensor copies ---------------------------------------------------------------------------------------------------
// Cache policies as createpolicy.fractional.L2 encodes them for the whole access.
inline constexpr std::uint64_t evict_first = 0x12F0000000000000ULL, evict_last = 0x14F0000000000000ULL;

// A map into the cache, for tiles that are asked for by it soon.
__device__ __forceinline__ void bring(const CUtensorMap* map) {
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
// The same offset in every block of `mask` receives the tile, and its barrier the bytes.
__device__ __forceinline__ void load_tile_multicast(std::uint32_t to, const CUtensorMap* map, int col, int row,
                                                    std::uint32_t bar, std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(col), "r"(row), "r"(bar), "h"(mask)
      : "memory");
}
// Contiguous bytes, a multiple of 16.
__device__ __forceinline__ void load_bytes(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(evict_last)
      : "memory");
}
// The same for bytes that are not needed again.
__device__ __forceinline__ void load_bytes_once(std::uint32_t to, const void* from, std::uint32_t bytes,
                                                std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(evict_first)
      : "memory");
}
__device__ __forceinline__ void load_bytes_multicast(std::uint32_t to, const void* from, std::uint32_t bytes,
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
// A box of heads (tensor_map.h): rows from `row` on, `chunk` and those after it.
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
// At most Pending stores have not yet read their shared memory.
template <int Pending> __device__ __forceinline__ void stores_have_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Shared memory written by ordinary stores is read next by a copy or by the tensor cores.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Memory of the device written by ordinary stores of other thread blocks, and seen here, is read next by a copy.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Sixteen bytes that are not needed again, zeros where `valid` is false. Volatile: a row of these stays in front of what
// uses them, where the compiler would rather load each at the last moment.
__device__ __forceinline__ uint4 load_once(const void* p, bool valid) {
  uint4 v;
  asm volatile(
      "{.reg .pred p;\n setp.ne.b32 p, %5, 0;\n mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p), "r"(static_cast<int>(valid)));
  return v;
}

// Into the cache of this multiprocessor, for a load that comes soon.
__device__ __forceinline__ void bring(const void* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }

// ---- thread blocks ---------------------------------------------------------------------------------------------------
__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same for blocks that begin: orders nothing but barriers behind barrier_init_fence(), and waits for no memory, which
// takes longer than the rest of a beginning while weights pass through.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_meet() { cluster_arrive(), cluster_wait(); }
__device__ __forceinline__ void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// It counts warps: of one whose lanes are apart, behind a branch or a wait of each lane, the first would count for all.
__device__ __forceinline__ void named_barrier_of_lanes(int id, int threads) {
  __syncwarp();
  named_barrier(id, threads);
}
__device__ __forceinline__ void named_arrive(int id, int threads) {  // and does not wait for the others
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
template <int Registers> __device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> __device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
// Four floats into the shared memory of block `rank`, counted on that block's barrier.
__device__ __forceinline__ void store_at(std::uint32_t address, std::uint32_t bar, std::uint32_t rank, float4 v) {
  asm volatile(
      "{.reg .b32 to, at;\n mapa.shared::cluster.u32 to, %0, %2;\n mapa.shared::cluster.u32 at, %1, %2;\n"
      " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [at];}" ::"r"(address),
      "r"(bar), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
// The same address in block `rank` of the cluster.
__device__ __forceinline__ float4 load_at(std::uint32_t address, std::uint32_t rank) {
  float4 v;
  asm volatile(
      "{.reg .b32 from;\n mapa.shared::cluster.u32 from, %4, %5;\n ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [from];}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}
// The same in two steps: where block `rank` has an address, and what lies there or behind it.
__device__ __forceinline__ std::uint32_t address_at(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ __forceinline__ float4 load_cluster(std::uint32_t there) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}
__device__ __forceinline__ float load_one_at(std::uint32_t address, std::uint32_t rank) {
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
// Each of the four 8 x 8 matrices transposed.
__device__ __forceinline__ void load_matrix_across(std::uint32_t (&v)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}
// An 8 x 8 matrix in registers, two neighbours of a row to a lane, transposed.
__device__ __forceinline__ std::uint32_t turn_matrix(std::uint32_t v) {
  std::uint32_t turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(v));
  return turned;
}
__device__ __forceinline__ void store_matrix(std::uint32_t address, const std::uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}
// Two of them, turned: what a matrix has as a column is a row of eight in shared memory.
__device__ __forceinline__ void store_matrix_turned(std::uint32_t address, std::uint32_t first, std::uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
               : "memory");
}

// ---- between kernels, and between thread blocks of one kernel ---------------------------------------------------------
// The compiler has computed it when it comes here, and still knows that it points to device memory.
__device__ __forceinline__ void keep(int& v) { asm volatile("" : "+r"(v)); }
template <class V> __device__ __forceinline__ void keep_global(V*& p) {
  asm volatile("" : "+l"(p));
  __builtin_assume(__isGlobal(p));
}
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_relaxed4(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
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

}  // namespace graft::cuda::ptx
