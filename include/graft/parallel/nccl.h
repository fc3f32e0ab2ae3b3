// SPDX-License-Identifier: Apache-2.0
// The communicator over NCCL, for processes with a GPU each: target graft::nccl. Collectives run in order on a stream;
// sums that are begun run on a second stream until join() or wait(). Both can be captured in a CUDA graph. Only wait()
// and wait_until() check the timeout. Sums are in NCCL's order, which is the same in every run with the same ranks on
// the same machines. Tensors in host memory are staged through device memory, and their collectives return when they
// are complete.
// The ranks find each other by an id that rank 0 makes and sends to the others, through another communicator,
//     nccl_communicator::make(others, {.stream = stream});          // over MPI
// or through a file on a disk that all ranks share.
//     nccl_communicator::make("shared/nccl-id", rank, size, {.stream = stream});
// A tensor-parallel model runs on the stream of its communicator.
#pragma once
#include <graft/backend/gpu/runtime/device_memory.h>
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
  cudaStream_t stream = nullptr;  // null: the communicator makes one
  double timeout = 300;           // seconds
};

class nccl_communicator final : public communicator {
 public:
  using made = result<std::unique_ptr<nccl_communicator>>;

  static made make(communicator& others, const nccl_settings& settings = {}) {
    ncclUniqueId id{};
    if (others.rank() == 0)
      if (const ncclResult_t r = ncclGetUniqueId(&id); r != ncclSuccess) return error_of("making an id", r);
    // The bytes of the id are sent as int64, since the tensor of a collective has an element type.
    static_assert(sizeof(id) % sizeof(std::int64_t) == 0);
    const mutable_view bytes{&id, dtype::i64, {static_cast<long long>(sizeof(id) / sizeof(std::int64_t)), 1, 1, 1}, 1};
    if (status s = others.broadcast(bytes, 0); !s) return s.failure();
    return join(id, others.rank(), others.size(), settings);
  }
  // The file must not exist before; rank 0 writes it and removes it when all ranks have joined.
  static made make(const std::string& file, int rank, int size, const nccl_settings& settings = {}) {
    ncclUniqueId id{};
    if (rank == 0) {
      if (const ncclResult_t r = ncclGetUniqueId(&id); r != ncclSuccess) return error_of("making an id", r);
      if (status s = write(file, id); !s) return s.failure();
    } else if (status s = read(file, id, settings.timeout); !s) {
      return s.failure();
    }
    made all = join(id, rank, size, settings);
    if (rank == 0) static_cast<void>(std::remove(file.c_str()));
    return all;
  }
  ~nccl_communicator() override {
    if (comm_ != nullptr) static_cast<void>(ncclCommDestroy(comm_));
    for (cudaEvent_t e : {ready_, reduced_})
      if (e != nullptr) static_cast<void>(cudaEventDestroy(e));
    for (cudaStream_t s : {side_stream_, own_})
      if (s != nullptr) static_cast<void>(cudaStreamDestroy(s));
  }
  nccl_communicator(const nccl_communicator&) = delete;
  nccl_communicator& operator=(const nccl_communicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool reads_device_memory() const override { return true; }
  void* stream() const override { return settings_.stream; }

  status all_reduce(const mutable_view& values, reduction reduce_op) override {
    if (status s = detail::check_reduction(values, true); !s) return s;
    if (status s = join(); !s) return s;
    return in_place(values, [&](void* at) {
      return ncclAllReduce(at, at, elements(values), type_of(values), reduce_op == reduction::sum ? ncclSum : ncclMax,
                           comm_, settings_.stream);
    });
  }
  status begin_all_reduce(const mutable_view& values) override {
    if (failure_) return *failure_;
    if (!in_device_memory(values.data)) return all_reduce(values, reduction::sum);
    if (status s = detail::check_reduction(values, true); !s) return s;
    if (status s = order_after(side_stream_, settings_.stream, ready_); !s) return s;
    begun_ = true;
    return put(
        ncclAllReduce(values.data, values.data, elements(values), type_of(values), ncclSum, comm_, side_stream_));
  }
  status join() override {
    if (!std::exchange(begun_, false)) return ok;
    return order_after(settings_.stream, side_stream_, reduced_);
  }
  status wait() override {
    if (status s = join(); !s) return s;
    if (status s = wait_until([&] { return cudaStreamQuery(settings_.stream) != cudaErrorNotReady; }); !s) return s;
    return gpu::check(cudaStreamQuery(settings_.stream), "waiting for a collective");
  }
  status wait_until(const std::function<bool()>& done) override {
    using clock = std::chrono::steady_clock;
    const auto begun = clock::now();
    for (;;) {
      if (failure_) return *failure_;
      ncclResult_t seen = ncclSuccess;
      if (ncclCommGetAsyncError(comm_, &seen) != ncclSuccess || (seen != ncclSuccess && seen != ncclInProgress))
        return broken(error_of("a collective", seen));
      if (done()) return ok;
      const std::chrono::duration<double> waited = clock::now() - begun;
      if (waited.count() > settings_.timeout)
        return broken(fail("rank ", rank_, " of ", size_, " waited ", static_cast<long long>(settings_.timeout),
                           " s for the others: one of them has stopped, or the network stalls"));
      std::this_thread::yield();
    }
  }
  status all_gather(const view& mine, const mutable_view& all) override {
    if (status s = check_both(mine, all); !s) return s;
    if (status s = detail::check_shards(mine, all, size_); !s) return s;
    return put(ncclAllGather(mine.data, all.data, bytes(mine), ncclChar, comm_, settings_.stream));
  }
  status reduce_scatter(const view& all, const mutable_view& mine) override {
    if (status s = check_both(all, mine); !s) return s;
    if (status s = detail::check_reduction(mine, true); !s) return s;
    if (status s = detail::check_shards(mine, all, size_); !s) return s;
    return put(ncclReduceScatter(all.data, mine.data, elements(mine), type_of(mine), ncclSum, comm_, settings_.stream));
  }
  status broadcast(const mutable_view& values, int from) override {
    if (from < 0 || from >= size_) return fail("rank ", from, " cannot broadcast, there are ", size_, " ranks");
    if (status s = detail::check_collective(values); !s) return s;
    return in_place(values, [&](void* at) {
      return ncclBroadcast(at, at, bytes(values), ncclChar, from, comm_, settings_.stream);
    });
  }
  status barrier() override {
    double none = 0;
    return all_reduce(view_into(&none, 1), reduction::sum);
  }

 private:
  nccl_communicator(int rank, int size, const nccl_settings& settings)
      : rank_(rank), size_(size), settings_(settings) {}

  static made join(const ncclUniqueId& id, int rank, int size, const nccl_settings& settings) {
    std::unique_ptr<nccl_communicator> c(new nccl_communicator(rank, size, settings));
    if (status s = c->open(); !s) return s.failure();
    if (const ncclResult_t r = ncclCommInitRank(&c->comm_, size, id, rank); r != ncclSuccess)
      return error_of("joining the others", r);
    return made(std::move(c));
  }
  status open() {
    if (settings_.stream == nullptr) {
      if (status s = gpu::check(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "the stream of collectives");
          !s)
        return s;
      settings_.stream = own_;
    }
    if (status s =
            gpu::check(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking), "the stream of reductions");
        !s)
      return s;
    for (cudaEvent_t* e : {&ready_, &reduced_})
      if (status s = gpu::check(cudaEventCreateWithFlags(e, cudaEventDisableTiming), "the event of reductions"); !s)
        return s;
    return ok;
  }
  // Orders work that is submitted to `later` from here on after everything that `earlier` has now.
  static status order_after(cudaStream_t later, cudaStream_t earlier, cudaEvent_t by) {
    if (status s = gpu::check(cudaEventRecord(by, earlier), "the order of two streams"); !s) return s;
    return gpu::check(cudaStreamWaitEvent(later, by, 0), "the order of two streams");
  }
  static error error_of(const char* what, ncclResult_t r) { return fail("NCCL: ", what, ": ", ncclGetErrorString(r)); }
  // Makes every later call return this error, and aborts collectives that wait on the device, so that the stream
  // continues.
  status broken(const error& why) {
    failure_ = why;
    static_cast<void>(ncclCommAbort(std::exchange(comm_, nullptr)));
    return *failure_;
  }
  status put(ncclResult_t r) { return r == ncclSuccess ? status(ok) : broken(error_of("a collective", r)); }

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
    if (failure_) return *failure_;
    if (status s = detail::check_collective(a); !s) return s;
    if (status s = detail::check_collective(b); !s) return s;
    if (in_device_memory(a.data) && in_device_memory(b.data)) return ok;
    return fail(
        "NCCL gathers and scatters device memory, and one of these tensors lies elsewhere: copy it to the device "
        "first");
  }
  // Calls `exchange` on the values in device memory, which for host memory is a copy that is copied back.
  template <class Exchange> status in_place(const mutable_view& values, Exchange exchange) {
    if (failure_) return *failure_;
    if (in_device_memory(values.data)) return put(exchange(values.data));
    if (status s = stage_.reserve(detail::bytes_of(values)); !s) return s;
    const auto copy = [&](void* to, const void* from, cudaMemcpyKind direction) {
      return gpu::check(cudaMemcpyAsync(to, from, bytes(values), direction, settings_.stream),
                        "copying the tensor of a collective");
    };
    if (status s = copy(stage_.data(), values.data, cudaMemcpyHostToDevice); !s) return s;
    if (status s = put(exchange(stage_.data())); !s) return s;
    if (status s = copy(values.data, stage_.data(), cudaMemcpyDeviceToHost); !s) return s;
    return wait();
  }

  static status write(const std::string& file, const ncclUniqueId& id) {
    const std::string temporary = file + ".new";
    std::FILE* const f = std::fopen(temporary.c_str(), "wb");
    const bool whole = f != nullptr && std::fwrite(&id, sizeof(id), 1, f) == 1;
    const bool closed = f != nullptr && std::fclose(f) == 0;
    if (whole && closed && std::rename(temporary.c_str(), file.c_str()) == 0) return ok;
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
  nccl_settings settings_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t own_ = nullptr, side_stream_ = nullptr;
  cudaEvent_t ready_ = nullptr, reduced_ = nullptr;
  bool begun_ = false;
  std::optional<error> failure_;
  gpu::buffer stage_;
};

}  // namespace graft
