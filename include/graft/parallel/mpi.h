// SPDX-License-Identifier: Apache-2.0
// The communicator over MPI (OpenMPI, MPICH), for processes on CPUs: target graft::mpi. Every exchange is a nonblocking
// collective that is asked about until the timeout, so that a rank that died is an error and no process waits for ever.
// A sum is an exchange of parts, a sum of each part by one rank in the order of the ranks, and a gathering of the parts:
// the bytes of a ring, and the same bits on every rank in every run. MPI_Allreduce promises neither the order nor the bits.
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
  // All ranks of the program. The first one that is made starts MPI where the program has not, and ends it again.
  static result<std::unique_ptr<mpi_communicator>> make(const mpi_settings& how = {}) {
    int running = 0, given = 0;
    MPI_Initialized(&running);
    if (running == 0 && MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS)
      return fail("MPI does not start; is the program run by mpirun, or MPI installed?");
    std::unique_ptr<mpi_communicator> made(new mpi_communicator(how, running == 0));
    MPI_Comm_dup(MPI_COMM_WORLD, &made->ranks_);
    MPI_Comm_set_errhandler(made->ranks_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(made->ranks_, &made->rank_), MPI_Comm_size(made->ranks_, &made->size_);
    return result<std::unique_ptr<mpi_communicator>>(std::move(made));
  }
  ~mpi_communicator() override {
    if (broken_) MPI_Abort(ranks_, 1);  // the others wait for nothing, or are dead: MPI cannot be ended in order
    MPI_Comm_free(&ranks_);
    if (ends_mpi_) MPI_Finalize();
  }
  mpi_communicator(const mpi_communicator&) = delete;
  mpi_communicator& operator=(const mpi_communicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  status all_reduce(const mutable_view& values, reduction how) override {
    if (how == reduction::largest) {
      if (status s = detail::check_reduced(values); !s) return s;
      if (status s = check_count(values.count()); !s) return s;
      if (size_ == 1) return ok;
      return collective([&](MPI_Request* r) {
        return MPI_Iallreduce(MPI_IN_PLACE, values.data, static_cast<int>(values.count()), type_of(values), MPI_MAX,
                              ranks_, r);
      });
    }
    if (status s = begin_all_reduce(values); !s) return s;
    return wait();
  }
  // The parts of the sum before this one are gathered while the parts of this one travel. What starts in which order is
  // the same on every rank, as MPI asks, because it follows from the calls alone.
  status begin_all_reduce(const mutable_view& values) override {
    if (status s = detail::check_reduced(values); !s) return s;
    if (status s = check_count(values.count()); !s) return s;
    if (size_ == 1) return ok;  // what one rank has is the sum
    if (status s = gather_summed(); !s) return s;
    sum& now = sums_.emplace_back(values, size_, rank_);
    return begin(now.request, [&](MPI_Request* r) {
      return MPI_Ialltoallv(values.data, now.count.data(), now.first.data(), type_of(values), now.received.data(),
                            now.mine.data(), now.place.data(), type_of(values), ranks_, r);
    });
  }
  status wait() override {
    if (status s = gather_summed(); !s) return s;
    for (sum& one : sums_)
      if (status s = finish(one.request); !s) return s;
    sums_.clear();
    return ok;
  }
  status all_gather(const view& mine, const mutable_view& all) override {
    if (status s = check_both(mine, all); !s) return s;
    if (status s = detail::check_parts(mine, all, size_); !s) return s;
    const int n = static_cast<int>(detail::bytes_of(mine));
    return collective(
        [&](MPI_Request* r) { return MPI_Iallgather(mine.data, n, MPI_BYTE, all.data, n, MPI_BYTE, ranks_, r); });
  }
  status reduce_scatter(const view& all, const mutable_view& mine) override {
    if (status s = check_both(all, mine); !s) return s;
    if (status s = detail::check_reduced(mine); !s) return s;
    if (status s = detail::check_parts(mine, all, size_); !s) return s;
    const auto n = static_cast<std::size_t>(detail::bytes_of(mine));
    std::vector<std::byte> received(n * static_cast<std::size_t>(size_));
    const int bytes = static_cast<int>(n);
    if (status s = collective([&](MPI_Request* r) {
          return MPI_Ialltoall(all.data, bytes, MPI_BYTE, received.data(), bytes, MPI_BYTE, ranks_, r);
        });
        !s)
      return s;
    add_up(received.data(), mine.data, mine.count(), mine.type);
    return ok;
  }
  status broadcast(const mutable_view& values, int from) override {
    if (from < 0 || from >= size_) return fail("rank ", from, " cannot broadcast, there are ", size_, " ranks");
    if (status s = detail::check_exchanged(values); !s) return s;
    if (status s = check_count(detail::bytes_of(values)); !s) return s;
    return collective([&](MPI_Request* r) {
      return MPI_Ibcast(values.data, static_cast<int>(detail::bytes_of(values)), MPI_BYTE, from, ranks_, r);
    });
  }
  status barrier() override {
    return collective([&](MPI_Request* r) { return MPI_Ibarrier(ranks_, r); });
  }

 private:
  // A sum on its way: the elements that each rank adds up, and this rank's share of everybody.
  struct sum {
    mutable_view values;
    std::vector<int> count, first, mine, place;
    std::vector<std::byte> received;
    MPI_Request request = MPI_REQUEST_NULL;
    bool gathers = false;

    sum(const mutable_view& v, int ranks, int rank) : values(v) {
      const long long n = v.count(), part = (n + ranks - 1) / ranks;
      for (int r = 0; r < ranks; ++r) {
        first.push_back(static_cast<int>(std::min(n, r * part)));
        count.push_back(static_cast<int>(std::min(n, (r + 1) * part)) - first.back());
      }
      mine.assign(count.size(), count[static_cast<std::size_t>(rank)]);
      for (int r = 0; r < ranks; ++r) place.push_back(r * mine[0]);
      received.resize(static_cast<std::size_t>(ranks * mine[0]) * static_cast<std::size_t>(bits_of(v.type)) / 8);
    }
  };

  mpi_communicator(const mpi_settings& how, bool ends) : timeout_(how.timeout), ends_mpi_(ends) {}

  static MPI_Datatype type_of(const mutable_view& v) { return v.type == dtype::f32 ? MPI_FLOAT : MPI_DOUBLE; }
  // MPI counts with int.
  static status check_count(long long n) {
    if (n <= std::numeric_limits<int>::max()) return ok;
    return fail("an exchange counts to ", n, ", MPI to less than 2^31: exchange the tensor by parts");
  }
  template <class One, class Other> static status check_both(const One& a, const Other& b) {
    if (status s = detail::check_exchanged(a); !s) return s;
    if (status s = detail::check_exchanged(b); !s) return s;
    return check_count(std::max(detail::bytes_of(a), detail::bytes_of(b)));
  }
  template <class Real> void add_up_as(const std::byte* from, std::byte* to, long long n) const {
    const Real* const in = reinterpret_cast<const Real*>(from);
    Real* const out = reinterpret_cast<Real*>(to);
    for (long long i = 0; i < n; ++i) {
      Real all = in[i];
      for (int r = 1; r < size_; ++r) all += in[r * n + i];
      out[i] = all;
    }
  }
  void add_up(const std::byte* from, void* to, long long n, dtype type) const {
    auto* const out = static_cast<std::byte*>(to);
    type == dtype::f32 ? add_up_as<float>(from, out, n) : add_up_as<double>(from, out, n);
  }
  // The last sum whose parts are on their way: they arrive, are added, and the added parts set out.
  status gather_summed() {
    if (broken_) return *broken_;
    if (sums_.empty() || sums_.back().gathers) return ok;
    sum& last = sums_.back();
    if (status s = finish(last.request); !s) return s;
    const auto here = static_cast<std::size_t>(rank_);
    const long long each = bits_of(last.values.type) / 8;
    std::byte* const part = static_cast<std::byte*>(last.values.data) + last.first[here] * each;
    add_up(last.received.data(), part, last.count[here], last.values.type);
    last.gathers = true;
    return begin(last.request, [&](MPI_Request* r) {
      return MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, last.values.data, last.count.data(), last.first.data(),
                             type_of(last.values), ranks_, r);
    });
  }

  template <class Begin> status begin(MPI_Request& request, Begin how) {
    if (broken_) return *broken_;
    const int code = how(&request);
    return code == MPI_SUCCESS ? status(ok) : break_off(code);
  }
  status finish(MPI_Request& request) {
    using clock = std::chrono::steady_clock;
    const auto begun = clock::now();
    for (int done = 0, asked = 0; done == 0; ++asked) {
      if (const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE); code != MPI_SUCCESS) return break_off(code);
      const std::chrono::duration<double> waited = clock::now() - begun;
      if (done == 0 && waited.count() > timeout_) return break_off();
      if (asked > 50) std::this_thread::sleep_for(std::chrono::microseconds(asked > 2000 ? 1000 : 10));
    }
    return ok;
  }
  template <class Begin> status collective(Begin how) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (status s = begin(request, how); !s) return s;
    return finish(request);
  }
  status break_off(int code) {
    char why[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, why, &length);
    broken_ = fail("rank ", rank_, " of ", size_, ": MPI reports: ", static_cast<const char*>(why));
    return *broken_;
  }
  status break_off() {
    broken_ = fail("rank ", rank_, " of ", size_, " waited ", static_cast<long long>(timeout_),
                   " s for the others: one of them has stopped, or the network stalls");
    return *broken_;
  }

  double timeout_;
  bool ends_mpi_;
  MPI_Comm ranks_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::optional<error> broken_;
  std::deque<sum> sums_;
};

}  // namespace graft
