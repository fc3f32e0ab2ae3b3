// SPDX-License-Identifier: Apache-2.0
// Several processes that compute one thing: who of how many this one is, and what they exchange. Every rank calls the
// same functions in the same order with tensors of the same sizes. Tensors are contiguous; sums are made in an order
// that follows from the ranks alone, so that the same run gives the same bits on all of them. A rank that does not answer
// within the timeout is an error here, and so is everything after it: the others may have gone on.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>

#include <functional>

namespace graft {

enum class reduction : unsigned char { sum, largest };

class communicator {
 public:
  virtual ~communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool reads_device_memory() const { return false; }
  virtual void* stream() const { return nullptr; }  // that exchanges are ordered on, where there is one

  // Every rank's numbers become those of all together. Floats and doubles; bf16 and f16 too where they are in device memory.
  virtual status all_reduce(const mutable_view& values, reduction how) = 0;
  // The same, finished when wait() returns: what is computed in between overlaps with it. Sums only.
  virtual status begin_all_reduce(const mutable_view& values) = 0;
  virtual status wait() = 0;
  // What is put on the stream from here on sees what was begun, without waiting for it here; without a stream it waits.
  virtual status join() { return wait(); }
  // Where exchanges are ordered on a stream: until what the caller waits for is done, or the timeout is over.
  virtual status wait_until(const std::function<bool()>&) { return ok; }
  // `mine` of rank r is part r of `all`, which has as many elements for every rank.
  virtual status all_gather(const view& mine, const mutable_view& all) = 0;
  // Part r of the sum of everybody's `all`, for rank r.
  virtual status reduce_scatter(const view& all, const mutable_view& mine) = 0;
  virtual status broadcast(const mutable_view& values, int from) = 0;
  virtual status barrier() = 0;

 protected:
  communicator() = default;
  communicator(const communicator&) = default;
  communicator& operator=(const communicator&) = default;
};

// What every implementation asks of the tensors it is given.
namespace detail {
template <class Void> status check_exchanged(const basic_view<Void>& v) {
  if (v.data == nullptr && v.count() != 0) return fail("a tensor to exchange has no data");
  if (!v.contiguous()) return fail("a tensor to exchange has gaps, expected one that is contiguous");
  return ok;
}
inline status check_reduced(const mutable_view& v, bool narrow = false) {
  if (v.type != dtype::f32 && v.type != dtype::f64 && !(narrow && (v.type == dtype::bf16 || v.type == dtype::f16)))
    return fail("a tensor to reduce is ", name_of(v.type), ", expected f32 or f64", narrow ? ", bf16 or f16" : "");
  return check_exchanged(v);
}
template <class Void> long long bytes_of(const basic_view<Void>& v) { return v.count() * bits_of(v.type) / 8; }
template <class One, class All> status check_parts(const basic_view<One>& one, const basic_view<All>& all, int ranks) {
  if (one.type == all.type && one.count() * ranks == all.count()) return ok;
  return fail("a part has ", one.count(), " elements of ", name_of(one.type), " and all parts ", all.count(), " of ",
              name_of(all.type), ", expected ", ranks, " times as many of the same type");
}
}  // namespace detail

}  // namespace graft
