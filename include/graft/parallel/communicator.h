// SPDX-License-Identifier: Apache-2.0
// The interface of collective communication between the ranks of a run: all-reduce, all-gather, reduce-scatter,
// broadcast. Every rank calls the same functions in the same order with tensors of the same sizes. Tensors are
// contiguous. The order of a sum follows from the ranks alone, so the same run gives the same bits on all of them. A
// rank that does not answer within the timeout is an error, and so is every later call, because the other ranks may
// have gone on.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>

#include <functional>

namespace graft {

enum class reduction : unsigned char { sum, max };

class communicator {
 public:
  virtual ~communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool reads_device_memory() const { return false; }
  virtual void* stream() const { return nullptr; }  // the CUDA stream on which collectives are ordered, if any

  // Replaces every rank's values by their sum or maximum. The type is f32 or f64, in device memory also bf16 or f16.
  virtual status all_reduce(const mutable_view& values, reduction reduce_op) = 0;
  // Begins a sum that is complete when wait() returns, so that it overlaps with the computation in between.
  virtual status begin_all_reduce(const mutable_view& values) = 0;
  virtual status wait() = 0;
  // Orders later work of the stream after the sums that were begun, without blocking the host; without a stream it
  // waits.
  virtual status join() { return wait(); }
  // On a stream this blocks until the function returns true, a rank has failed, or the timeout is over.
  virtual status wait_until(const std::function<bool()>&) { return ok; }
  // `mine` of rank r becomes shard r of `all`; shards have equal sizes.
  virtual status all_gather(const view& mine, const mutable_view& all) = 0;
  // `mine` of rank r becomes shard r of the sum of all ranks' `all`.
  virtual status reduce_scatter(const view& all, const mutable_view& mine) = 0;
  virtual status broadcast(const mutable_view& values, int from) = 0;
  virtual status barrier() = 0;

 protected:
  communicator() = default;
  communicator(const communicator&) = default;
  communicator& operator=(const communicator&) = default;
};

// Checks of a collective's tensors that all implementations share.
namespace detail {
template <class Void> status check_collective(const basic_view<Void>& v) {
  if (v.data == nullptr && v.count() != 0) return fail("a tensor of a collective has no data");
  if (!v.contiguous()) return fail("a tensor of a collective has gaps, expected one that is contiguous");
  return ok;
}
inline status check_reduction(const mutable_view& v, bool narrow = false) {
  if (v.type != dtype::f32 && v.type != dtype::f64 && !(narrow && (v.type == dtype::bf16 || v.type == dtype::f16)))
    return fail("a tensor to reduce is ", name_of(v.type), ", expected f32 or f64", narrow ? ", bf16 or f16" : "");
  return check_collective(v);
}
template <class Void> long long bytes_of(const basic_view<Void>& v) { return v.count() * bits_of(v.type) / 8; }
template <class One, class All> status check_shards(const basic_view<One>& one, const basic_view<All>& all, int ranks) {
  if (one.type == all.type && one.count() * ranks == all.count()) return ok;
  return fail("a shard has ", one.count(), " elements of ", name_of(one.type), " and all shards ", all.count(), " of ",
              name_of(all.type), ", expected ", ranks, " times as many of the same type");
}
}  // namespace detail

}  // namespace graft
