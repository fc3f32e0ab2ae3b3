// SPDX-License-Identifier: Apache-2.0
// Exchange of partial sums between the CTAs that share a result (split-K, split-KV, the shrink of a GEMM),
// sm_90. Every sum is added in the order of its parts by the block that finishes it, so that the same call gives the
// same bits; there are no float atomics.
//
//   arrival_counter    through global memory: ordinary stores, then one arrival per block, which releases them
//   cluster_mailbox    within a cluster: st.async into the shared memory of the block that finishes a share, which
//                      counts the bytes on an mbarrier. No barrier of the cluster is needed, and no load crosses the
//                      network.
//
// Where all blocks of a cluster finish shares of equal size from sums in shared memory (wgrad), they read each other's
// shared memory between two cluster barriers instead: ptx::load_mapped4, ptx::load_dsmem.
//
// Deadlock     Blocks that wait for each other must be resident at the same time: a cluster is, a grid needs a
//              cooperative launch or a grid that fits the device.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>

#include <cstdint>

namespace graft::gpu {

__device__ __forceinline__ void add_to(float4& sum, const float4& v) {
  sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
}

// A counter in global memory, zero before and after a launch unless `before` says otherwise. One thread of a block
// calls the members, after a barrier of the threads whose stores it publishes: release is cumulative and covers them.
struct arrival_counter {
  std::uint32_t* count;

  __device__ __forceinline__ void arrive(std::uint32_t times = 1) const { ptx::add_release(count, times); }
  // Also acquires what earlier arrivals published; returns how many there were.
  __device__ __forceinline__ std::uint32_t arrive_acquire() const { return ptx::add_acquire_release(count, 1); }
  // Returns true if this is the last of `users` arrivals: that block resets the counters for the next launch or graph
  // replay.
  __device__ __forceinline__ bool arrive_last(std::uint32_t users) const { return arrive_acquire() + 1 == users; }
  // Waits for `arrivals` since the count was `before`.
  template <int Nanoseconds = 0>
  __device__ __forceinline__ void wait_for(std::uint32_t arrivals, std::uint32_t before = 0) const {
    while (ptx::load_acquire(count) - before < arrivals)
      if constexpr (Nanoseconds > 0) __nanosleep(Nanoseconds);
  }
};

// The mbarrier, at the same address of every block of a cluster, that counts what other blocks send. One thread
// initializes it and says how many bytes come, before the blocks pass a cluster barrier.
struct cluster_mailbox {
  std::uint32_t barrier;

  __device__ __forceinline__ void init() const { ptx::barrier_init(barrier, 1); }
  __device__ __forceinline__ void expect(std::uint32_t bytes) const { ptx::barrier_arrive_expect_tx(barrier, bytes); }
  // Stores four floats at `address` of the shared memory of block `rank`.
  __device__ __forceinline__ void send(std::uint32_t address, std::uint32_t rank, const float4& v) const {
    ptx::store_dsmem_async(address, barrier, rank, v);
  }
  __device__ __forceinline__ void wait(std::uint32_t phase = 0) const { ptx::barrier_wait(barrier, phase); }
};

}  // namespace graft::gpu
