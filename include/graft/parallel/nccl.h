// SPDX-License-Identifier: Apache-2.0
// The communicator over NCCL, for processes with a GPU each: target graft::nccl. Exchanges are put on a stream and run in
// its order, sums that are only begun on one beside it, until join() or wait(); both also inside a captured graph. wait()
// is what looks at the time. Sums are in NCCL's order, which is the same in every run with the same ranks on the same
// machines. Numbers in host memory travel through device memory, at once.
// How the ranks find each other is the caller's: rank 0 makes an id, and brings it to the others by another communicator,
//     nccl_communicator::make(others, {.stream = stream});          // over MPI
// or by a file on a disk that all of them see.
//     nccl_communicator::make("shared/nccl-id", rank, size, {.stream = stream});
// A model that ranks share runs on the stream of its communicator.
#pragma once
#include <graft/backend/cuda/memory.h>
#include <graft/parallel/communicator.h>
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace graft {

struct nccl_settings {
  cudaStream_t stream = nullptr;  // none: one of its own
  double timeout = 300;           // seconds
};

class nccl_communicator final : public communicator {
 public:
  using made = result<std::unique_ptr<nccl_communicator>>;

  static made make(communicator& others, const nccl_settings& how = {}) {
    ncclUniqueId id{};
    if (others.rank() == 0)
      if (const ncclResult_t r = ncclGetUniqueId(&id); r != ncclSuccess) return error_of("making an id", r);
    // Eight bytes at a time: an id is bytes, and what is exchanged has a type.
    static_assert(sizeof(id) % sizeof(std::int64_t) == 0);
    const mutable_view bytes{&id, dtype::i64, {static_cast<long long>(sizeof(id) / sizeof(std::int64_t)), 1, 1, 1}, 1};
    if (status s = others.broadcast(bytes, 0); !s) return s.failure();
    return join(id, others.rank(), others.size(), how);
  }
  // The file must not be there before; rank 0 writes it and removes it when all have joined.
  static made make(const std::string& file, int rank, int size, const nccl_settings& how = {}) {
    ncclUniqueId id{};
    if (rank == 0) {
      if (const ncclResult_t r = ncclGetUniqueId(&id); r != ncclSuccess) return error_of("making an id", r);
      if (status s = write(file, id); !s) return s.failure();
    } else if (status s = read(file, id, how.timeout); !s) {
      return s.failure();
    }
    made all = join(id, rank, size, how);
    if (rank == 0) static_cast<void>(std::remove(file.c_str()));
    return all;
  }
  ~nccl_communicator() override {
    if (ranks_ != nullptr) static_cast<void>(ncclCommDestroy(ranks_));
    for (cudaEvent_t e : {ready_, summed_})
      if (e != nullptr) static_cast<void>(cudaEventDestroy(e));
    for (cudaStream_t s : {beside_, own_})
      if (s != nullptr) static_cast<void>(cudaStreamDestroy(s));
  }
  nccl_communicator(const nccl_communicator&) = delete;
  nccl_communicator& operator=(const nccl_communicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool reads_device_memory() const override { return true; }
  void* stream() const override { return how_.stream; }

  status all_reduce(const mutable_view& values, reduction how) override {
    if (status s = detail::check_reduced(values, true); !s) return s;
    if (status s = join(); !s) return s;
    return in_place(values, [&](void* at) {
      return ncclAllReduce(at, at, elements(values), type_of(values), how == reduction::sum ? ncclSum : ncclMax, ranks_,
                           how_.stream);
    });
  }
  status begin_all_reduce(const mutable_view& values) override {
    if (broken_) return *broken_;
    if (!in_device_memory(values.data)) return all_reduce(values, reduction::sum);
    if (status s = detail::check_reduced(values, true); !s) return s;
    if (status s = follow(beside_, how_.stream, ready_); !s) return s;
    begun_ = true;
    return put(ncclAllReduce(values.data, values.data, elements(values), type_of(values), ncclSum, ranks_, beside_));
  }
  status join() override {
    if (!std::exchange(begun_, false)) return ok;
    return follow(how_.stream, beside_, summed_);
  }
  status wait() override {
    if (status s = join(); !s) return s;
    if (status s = wait_until([&] { return cudaStreamQuery(how_.stream) != cudaErrorNotReady; }); !s) return s;
    return cuda::check(cudaStreamQuery(how_.stream), "waiting for an exchange");
  }
  status wait_until(const std::function<bool()>& done) override {
    using clock = std::chrono::steady_clock;
    const auto begun = clock::now();
    for (;;) {
      if (broken_) return *broken_;
      ncclResult_t seen = ncclSuccess;
      if (ncclCommGetAsyncError(ranks_, &seen) != ncclSuccess || (seen != ncclSuccess && seen != ncclInProgress))
        return broken(error_of("an exchange", seen));
      if (done()) return ok;
      const std::chrono::duration<double> waited = clock::now() - begun;
      if (waited.count() > how_.timeout)
        return broken(fail("rank ", rank_, " of ", size_, " waited ", static_cast<long long>(how_.timeout),
                           " s for the others: one of them has stopped, or the network stalls"));
      std::this_thread::yield();
    }
  }
  status all_gather(const view& mine, const mutable_view& all) override {
    if (status s = check_both(mine, all); !s) return s;
    if (status s = detail::check_parts(mine, all, size_); !s) return s;
    return put(ncclAllGather(mine.data, all.data, bytes(mine), ncclChar, ranks_, how_.stream));
  }
  status reduce_scatter(const view& all, const mutable_view& mine) override {
    if (status s = check_both(all, mine); !s) return s;
    if (status s = detail::check_reduced(mine, true); !s) return s;
    if (status s = detail::check_parts(mine, all, size_); !s) return s;
    return put(ncclReduceScatter(all.data, mine.data, elements(mine), type_of(mine), ncclSum, ranks_, how_.stream));
  }
  status broadcast(const mutable_view& values, int from) override {
    if (from < 0 || from >= size_) return fail("rank ", from, " cannot broadcast, there are ", size_, " ranks");
    if (status s = detail::check_exchanged(values); !s) return s;
    return in_place(
        values, [&](void* at) { return ncclBroadcast(at, at, bytes(values), ncclChar, from, ranks_, how_.stream); });
  }
  status barrier() override {
    double none = 0;
    return all_reduce(view_into(&none, 1), reduction::sum);
  }

 private:
  nccl_communicator(int rank, int size, const nccl_settings& how) : rank_(rank), size_(size), how_(how) {}

  static made join(const ncclUniqueId& id, int rank, int size, const nccl_settings& how) {
    std::unique_ptr<nccl_communicator> c(new nccl_communicator(rank, size, how));
    if (status s = c->open(); !s) return s.failure();
    if (const ncclResult_t r = ncclCommInitRank(&c->ranks_, size, id, rank); r != ncclSuccess)
      return error_of("joining the others", r);
    return made(std::move(c));
  }
  status open() {
    if (how_.stream == nullptr) {
      if (status s = cuda::check(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "a stream of exchanges"); !s)
        return s;
      how_.stream = own_;
    }
    if (status s = cuda::check(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "a stream of sums"); !s)
      return s;
    for (cudaEvent_t* e : {&ready_, &summed_})
      if (status s = cuda::check(cudaEventCreateWithFlags(e, cudaEventDisableTiming), "an event of sums"); !s) return s;
    return ok;
  }
  // What is put on `later` from here on comes after what `earlier` has now.
  static status follow(cudaStream_t later, cudaStream_t earlier, cudaEvent_t by) {
    if (status s = cuda::check(cudaEventRecord(by, earlier), "the order of two streams"); !s) return s;
    return cuda::check(cudaStreamWaitEvent(later, by, 0), "the order of two streams");
  }
  static error error_of(const char* what, ncclResult_t r) { return fail("NCCL: ", what, ": ", ncclGetErrorString(r)); }
  // From here on everything gives this error. What waits for the others on the device is ended: the stream goes on.
  status broken(const error& why) {
    broken_ = why;
    static_cast<void>(ncclCommAbort(std::exchange(ranks_, nullptr)));
    return *broken_;
  }
  status put(ncclResult_t r) { return r == ncclSuccess ? status(ok) : broken(error_of("an exchange", r)); }

  template <class Void> static std::size_t bytes(const basic_view<Void>& v) {
    return static_cast<std::size_t>(detail::bytes_of(v));
  }
  static std::size_t elements(const mutable_view& v) { return static_cast<std::size_t>(v.count()); }
  static ncclDataType_t type_of(const mutable_view& v) {
    return v.type == dtype::f32    ? ncclFloat
           : v.type == dtype::f64  ? ncclDouble
           : v.type == dtype::bf16 ? ncclBfloat16
                                   : ncclHalf;
  }
  static bool in_device_memory(const void* p) {
    cudaPointerAttributes a{};
    const bool known = cudaPointerGetAttributes(&a, p) == cudaSuccess;
    return known && (a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged);
  }
  template <class One, class Other> status check_both(const One& a, const Other& b) const {
    if (broken_) return *broken_;
    if (status s = detail::check_exchanged(a); !s) return s;
    if (status s = detail::check_exchanged(b); !s) return s;
    if (in_device_memory(a.data) && in_device_memory(b.data)) return ok;
    return fail(
        "NCCL gathers and scatters device memory, and one of these tensors lies elsewhere: copy it to the device "
        "first");
  }
  // `exchange` where the values lie; from host memory there and back.
  template <class Exchange> status in_place(const mutable_view& values, Exchange exchange) {
    if (broken_) return *broken_;
    if (in_device_memory(values.data)) return put(exchange(values.data));
    if (status s = stage_.reserve(detail::bytes_of(values)); !s) return s;
    const auto copy = [&](void* to, const void* from, cudaMemcpyKind way) {
      return cuda::check(cudaMemcpyAsync(to, from, bytes(values), way, how_.stream), "copying what is exchanged");
    };
    if (status s = copy(stage_.data(), values.data, cudaMemcpyHostToDevice); !s) return s;
    if (status s = put(exchange(stage_.data())); !s) return s;
    if (status s = copy(values.data, stage_.data(), cudaMemcpyDeviceToHost); !s) return s;
    return wait();
  }

  static status write(const std::string& file, const ncclUniqueId& id) {
    const std::string beside = file + ".new";
    std::FILE* const f = std::fopen(beside.c_str(), "wb");
    const bool whole = f != nullptr && std::fwrite(&id, sizeof(id), 1, f) == 1;
    const bool closed = f != nullptr && std::fclose(f) == 0;
    if (whole && closed && std::rename(beside.c_str(), file.c_str()) == 0) return ok;
    return fail(file.c_str(), ": the file by which the ranks find each other cannot be written");
  }
  static status read(const std::string& file, ncclUniqueId& id, double timeout) {
    const auto begun = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() < timeout) {
      if (std::FILE* const f = std::fopen(file.c_str(), "rb"); f != nullptr) {
        const bool whole = std::fread(&id, sizeof(id), 1, f) == 1;
        std::fclose(f);
        if (whole) return ok;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return fail(file.c_str(), ": rank 0 has not written it within the timeout");
  }

  int rank_, size_;
  nccl_settings how_;
  ncclComm_t ranks_ = nullptr;
  cudaStream_t own_ = nullptr, beside_ = nullptr;
  cudaEvent_t ready_ = nullptr, summed_ = nullptr;
  bool begun_ = false;
  std::optional<error> broken_;
  cuda::buffer stage_;
};

}  // namespace graft
