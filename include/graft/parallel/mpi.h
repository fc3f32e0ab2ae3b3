// SPDX-License-Identifier: Apache-2.0
// The communicator over MPI (OpenMPI, MPICH), for processes on CPUs: target graft::mpi. Every collective is nonblocking
// and polled until the timeout, so a rank that died is an error and no process waits forever.
// An all-reduce is a reduce-scatter (all-to-all, after which each rank sums one chunk in the order of the ranks) and an
// all-gather. It moves as many bytes as a ring and gives the same bits on every rank in every run, while MPI_Allreduce
// guarantees neither the order nor the bits.
#pragma once
#include <graft/parallel/communicator.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace graft {

struct mpi_settings {
  double timeout = 300;  // seconds
};

class mpi_communicator final : public communicator {
 public:
  // Makes a communicator of all ranks of the program. It initializes MPI if the program has not, and then finalizes it
  // too.
  static result<std::unique_ptr<mpi_communicator>> make(const mpi_settings& settings = {}) {
    int running = 0, provided = 0;
    MPI_Initialized(&running);
    if (running == 0 && MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
      return fail("MPI does not start; is the program run by mpirun, or MPI installed?");
    std::unique_ptr<mpi_communicator> made(new mpi_communicator(settings, running == 0));
    MPI_Comm_dup(MPI_COMM_WORLD, &made->comm_);
    MPI_Comm_set_errhandler(made->comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(made->comm_, &made->rank_), MPI_Comm_size(made->comm_, &made->size_);
    return result<std::unique_ptr<mpi_communicator>>(std::move(made));
  }
  ~mpi_communicator() override {
    if (failure_) MPI_Abort(comm_, 1);  // other ranks are blocked or dead, so MPI_Finalize would not return
    MPI_Comm_free(&comm_);
    if (ends_mpi_) MPI_Finalize();
  }
  mpi_communicator(const mpi_communicator&) = delete;
  mpi_communicator& operator=(const mpi_communicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  status all_reduce(const mutable_view& values, reduction reduce_op) override {
    if (reduce_op == reduction::max) {
      if (status s = detail::check_reduction(values); !s) return s;
      if (status s = check_count(values.count()); !s) return s;
      if (size_ == 1) return ok;
      return collective([&](MPI_Request* r) {
        return MPI_Iallreduce(MPI_IN_PLACE, values.data, static_cast<int>(values.count()), type_of(values), MPI_MAX,
                              comm_, r);
      });
    }
    if (status s = begin_all_reduce(values); !s) return s;
    return wait();
  }
  // Gathers the sum that was begun before while the chunks of this one are exchanged. The order of collectives is the
  // same on every rank, as MPI requires, because it follows from the calls alone.
  status begin_all_reduce(const mutable_view& values) override {
    if (status s = detail::check_reduction(values); !s) return s;
    if (status s = check_count(values.count()); !s) return s;
    if (size_ == 1) return ok;  // the values of a single rank are the sum
    if (status s = start_gather(); !s) return s;
    sum& now = sums_.emplace_back(values, size_, rank_);
    return begin(now.request, [&](MPI_Request* r) {
      return MPI_Ialltoallv(values.data, now.count.data(), now.first.data(), type_of(values), now.received.data(),
                            now.mine.data(), now.offsets.data(), type_of(values), comm_, r);
    });
  }
  status wait() override {
    if (status s = start_gather(); !s) return s;
    for (sum& one : sums_)
      if (status s = finish(one.request); !s) return s;
    sums_.clear();
    return ok;
  }
  status all_gather(const view& mine, const mutable_view& all) override {
    if (status s = check_both(mine, all); !s) return s;
    if (status s = detail::check_shards(mine, all, size_); !s) return s;
    const int n = static_cast<int>(detail::bytes_of(mine));
    return collective(
        [&](MPI_Request* r) { return MPI_Iallgather(mine.data, n, MPI_BYTE, all.data, n, MPI_BYTE, comm_, r); });
  }
  status reduce_scatter(const view& all, const mutable_view& mine) override {
    if (status s = check_both(all, mine); !s) return s;
    if (status s = detail::check_reduction(mine); !s) return s;
    if (status s = detail::check_shards(mine, all, size_); !s) return s;
    const auto n = static_cast<std::size_t>(detail::bytes_of(mine));
    std::vector<std::byte> received(n * static_cast<std::size_t>(size_));
    const int bytes = static_cast<int>(n);
    if (status s = collective([&](MPI_Request* r) {
          return MPI_Ialltoall(all.data, bytes, MPI_BYTE, received.data(), bytes, MPI_BYTE, comm_, r);
        });
        !s)
      return s;
    reduce_in_order(received.data(), mine.data, mine.count(), mine.type);
    return ok;
  }
  status broadcast(const mutable_view& values, int from) override {
    if (from < 0 || from >= size_) return fail("rank ", from, " cannot broadcast, there are ", size_, " ranks");
    if (status s = detail::check_collective(values); !s) return s;
    if (status s = check_count(detail::bytes_of(values)); !s) return s;
    return collective([&](MPI_Request* r) {
      return MPI_Ibcast(values.data, static_cast<int>(detail::bytes_of(values)), MPI_BYTE, from, comm_, r);
    });
  }
  status barrier() override {
    return collective([&](MPI_Request* r) { return MPI_Ibarrier(comm_, r); });
  }

 private:
  // A sum in progress: rank r sums the count[r] elements from first[r] on; `received` has all ranks' values of this
  // rank's chunk.
  struct sum {
    mutable_view values;
    std::vector<int> count, first, mine, offsets;
    std::vector<std::byte> received;
    MPI_Request request = MPI_REQUEST_NULL;
    bool gathering = false;

    sum(const mutable_view& v, int ranks, int rank) : values(v) {
      const long long n = v.count(), chunk = (n + ranks - 1) / ranks;
      for (int r = 0; r < ranks; ++r) {
        first.push_back(static_cast<int>(std::min(n, r * chunk)));
        count.push_back(static_cast<int>(std::min(n, (r + 1) * chunk)) - first.back());
      }
      mine.assign(count.size(), count[static_cast<std::size_t>(rank)]);
      for (int r = 0; r < ranks; ++r) offsets.push_back(r * mine[0]);
      received.resize(static_cast<std::size_t>(ranks * mine[0]) * static_cast<std::size_t>(bits_of(v.type)) / 8);
    }
  };

  mpi_communicator(const mpi_settings& settings, bool ends) : timeout_(settings.timeout), ends_mpi_(ends) {}

  static MPI_Datatype type_of(const mutable_view& v) { return v.type == dtype::f32 ? MPI_FLOAT : MPI_DOUBLE; }
  // MPI's counts are int.
  static status check_count(long long n) {
    if (n <= std::numeric_limits<int>::max()) return ok;
    return fail("a collective has a count of ", n, ", and MPI's counts are below 2^31: reduce the tensor in chunks");
  }
  template <class One, class Other> static status check_both(const One& a, const Other& b) {
    if (status s = detail::check_collective(a); !s) return s;
    if (status s = detail::check_collective(b); !s) return s;
    return check_count(std::max(detail::bytes_of(a), detail::bytes_of(b)));
  }
  template <class Real> void reduce_in_order_as(const std::byte* from, std::byte* to, long long n) const {
    const Real* const in = reinterpret_cast<const Real*>(from);
    Real* const out = reinterpret_cast<Real*>(to);
    for (long long i = 0; i < n; ++i) {
      Real all = in[i];
      for (int r = 1; r < size_; ++r) all += in[r * n + i];
      out[i] = all;
    }
  }
  void reduce_in_order(const std::byte* from, void* to, long long n, dtype type) const {
    auto* const out = static_cast<std::byte*>(to);
    type == dtype::f32 ? reduce_in_order_as<float>(from, out, n) : reduce_in_order_as<double>(from, out, n);
  }
  // Waits for the chunks of the sum that was begun last, adds them in the order of the ranks, and starts the
  // all-gather.
  status start_gather() {
    if (failure_) return *failure_;
    if (sums_.empty() || sums_.back().gathering) return ok;
    sum& last = sums_.back();
    if (status s = finish(last.request); !s) return s;
    const auto here = static_cast<std::size_t>(rank_);
    const long long each = bits_of(last.values.type) / 8;
    std::byte* const chunk = static_cast<std::byte*>(last.values.data) + last.first[here] * each;
    reduce_in_order(last.received.data(), chunk, last.count[here], last.values.type);
    last.gathering = true;
    return begin(last.request, [&](MPI_Request* r) {
      return MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, last.values.data, last.count.data(), last.first.data(),
                             type_of(last.values), comm_, r);
    });
  }

  template <class Begin> status begin(MPI_Request& request, Begin start) {
    if (failure_) return *failure_;
    const int code = start(&request);
    return code == MPI_SUCCESS ? status(ok) : abort_with(code);
  }
  status finish(MPI_Request& request) {
    using clock = std::chrono::steady_clock;
    const auto begun = clock::now();
    for (int done = 0, polls = 0; done == 0; ++polls) {
      if (const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE); code != MPI_SUCCESS) return abort_with(code);
      const std::chrono::duration<double> waited = clock::now() - begun;
      if (done == 0 && waited.count() > timeout_) return abort_with();
      if (polls > 50) std::this_thread::sleep_for(std::chrono::microseconds(polls > 2000 ? 1000 : 10));
    }
    return ok;
  }
  template <class Begin> status collective(Begin start) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (status s = begin(request, start); !s) return s;
    return finish(request);
  }
  status abort_with(int code) {
    char why[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, why, &length);
    failure_ = fail("rank ", rank_, " of ", size_, ": MPI reports: ", static_cast<const char*>(why));
    return *failure_;
  }
  status abort_with() {
    failure_ = fail("rank ", rank_, " of ", size_, " waited ", static_cast<long long>(timeout_),
                    " s for the others: one of them has stopped, or the network stalls");
    return *failure_;
  }

  double timeout_;
  bool ends_mpi_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::optional<error> failure_;
  std::deque<sum> sums_;
};

}  // namespace graft
