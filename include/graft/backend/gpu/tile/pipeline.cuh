// SPDX-License-Identifier: Apache-2.0
// The pipeline between the warps of a CTA that load (producers) and those that compute (consumers), sm_90: a
// ring of stages in shared memory with two mbarriers per stage, full and empty, and the rule of when a stage may be
// released. CUTLASS's words:
//
//   producer_acquire(at)             waits until all consumers have released the stage
//   producer_commit(stage, bytes)    expects `bytes` on the returned barrier; the stage is full when the copies that
//                                    the producer issues on that barrier have arrived
//   consumer_wait(at)                waits until the stage is full
//   consumer_release(stage, done)    gives the stage back; `done` is evidence that its reads are complete
//
// Position     pipeline_state is a stage with the parity of its barriers, which flips when the ring wraps around
//              (cutlass::PipelineState). Consumers begin with parity 0; a producer begins with parity 1, so that its
//              first acquire of each stage returns at once, or leaves out the acquire in the first round.
// Release      A released stage is overwritten by the next copy, and an arrival on a barrier waits for nothing by
//              itself, so every read of the stage must be complete before it:
//                products      wgmma reads shared memory asynchronously. products_done<Pending>() waits for the groups,
//                              and wgmma_pipeline_state does this with one group in flight.
//                registers     ptxas moves the arrival in front of the first use of words that ld.shared or ldmatrix
//                              loaded, and thus in front of their arrival (observed in attention: sixteen columns of
//                              another tile). register_reads makes the address of the barrier depend on the words.
//                a barrier     when all readers have used their words and then passed bar.sync: barrier_done().
//                TMA stores    read shared memory asynchronously too: stores_done().
//              reads_done is what they return, and a release without it does not compile; nothing_read() says that
//              there was no read. test/gpu_host/pipeline_order.sh checks the machine code of each form.
#pragma once
#include <graft/backend/gpu/arch/ptx.cuh>
#include <graft/backend/gpu/arch/wgmma.cuh>

#include <cstdint>

namespace graft::gpu {

struct pipeline_state {
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ static constexpr pipeline_state producer() { return {0, 1}; }
  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// Evidence that a thread's reads of a stage are complete. It has no data and takes no instruction.
class reads_done {
  constexpr __device__ reads_done() = default;
  template <int Pending> friend __device__ __forceinline__ reads_done products_done();
  friend __device__ reads_done barrier_done(int id, int threads);
  friend __device__ reads_done stores_done();
  friend __device__ reads_done nothing_read();
};
// All groups of products but the latest Pending have read their operands; the caller may read their accumulators.
template <int Pending> __device__ reads_done products_done() {
  wgmma_wait<Pending>();
  return {};
}
// Waits for the other warps, which have used what they read as operands before they come here.
__device__ __forceinline__ reads_done barrier_done(int id, int threads) {
  ptx::named_barrier(id, threads);
  return {};
}
// The TMA stores of this thread have read the stage.
__device__ __forceinline__ reads_done stores_done() {
  ptx::wait_for_store_reads<0>();
  return {};
}
// The caller has read nothing of the stage.
__device__ __forceinline__ reads_done nothing_read() { return {}; }

struct pipeline {
  std::uint32_t barriers;  // shared address of the full barriers, one per stage, and of the empty barriers after them
  int stages;

  static constexpr std::uint32_t bytes(int stages) { return 16 * static_cast<std::uint32_t>(stages); }
  __device__ std::uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ std::uint32_t empty(int stage) const { return full(stages + stage); }

  // One thread initializes a stage before the CTA, or the cluster, passes a barrier. `commits` are the commits
  // that make the stage full, and `releases` those that make it empty.
  __device__ __forceinline__ void init(int stage, std::uint32_t commits, std::uint32_t releases) const {
    ptx::barrier_init(full(stage), commits), ptx::barrier_init(empty(stage), releases);
  }

  __device__ __forceinline__ void producer_acquire(const pipeline_state& at) const {
    ptx::barrier_wait(empty(at.stage), at.phase);
  }
  __device__ __forceinline__ std::uint32_t producer_commit(int stage, std::uint32_t bytes) const {
    ptx::barrier_arrive_expect_tx(full(stage), bytes);
    return full(stage);
  }
  // By each of the threads that filled the stage with ordinary stores.
  __device__ __forceinline__ void producer_commit(int stage) const { ptx::barrier_arrive(full(stage)); }
  __device__ __forceinline__ void consumer_wait(const pipeline_state& at) const {
    ptx::barrier_wait(full(at.stage), at.phase);
  }
  // By one elected thread per warpgroup or warp, or by every reader, as init() was told.
  __device__ __forceinline__ void consumer_release(int stage, reads_done) const { ptx::barrier_arrive(empty(stage)); }
  // Releases the stage of CTA `rank` of the cluster, which multicasts into this one.
  __device__ __forceinline__ void consumer_release(int stage, std::uint32_t rank, reads_done) const {
    ptx::barrier_arrive_cluster(empty(stage), rank);
  }
};

// Words of a stage that were loaded to registers, or sums that they entered. The address of the barrier depends on all
// of them through a term that is always zero: `count` is never negative, which the compiler cannot know.
class register_reads {
 public:
  __device__ explicit register_reads(int count) : none_(static_cast<std::uint32_t>(count >> 31)) {}
  __device__ __forceinline__ void add(std::uint32_t word) { ptx::or_masked(zero_, word, none_); }
  __device__ __forceinline__ void release(const pipeline& ring, int stage) { release(ring.empty(stage)); }
  // A stage that is not in a ring.
  __device__ __forceinline__ void release(std::uint32_t empty) {
    ptx::barrier_arrive(empty + zero_);
    zero_ = 0;
  }

 private:
  std::uint32_t none_, zero_ = 0;
};

// A consumer whose products read the stages as operands, with one group in flight: the tensor cores have work while the
// stage of the group before is released. The calls of all lanes of a warpgroup are converged.
struct wgmma_pipeline_state : pipeline_state {
  int in_flight = -1;  // stage of the group in flight, or -1

  // Closes the group of products on the current stage, waits for the one before and, in elected threads, calls
  // release(stage, done) for its stage.
  template <class Release>
  __device__ __forceinline__ reads_done commit(int stages, bool elected, const Release& release) {
    wgmma_commit();
    const reads_done done = products_done<1>();
    if (in_flight >= 0 && elected) release(in_flight, done);
    in_flight = stage;
    advance(stages);
    return done;
  }
};

}  // namespace graft::gpu
