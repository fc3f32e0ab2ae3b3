// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one program and share its GPU, for tests of tensor and data parallelism where there is only
// one GPU. One thread computes at a time: it passes the lock on at every collective, which completes when all ranks
// have contributed. Sums are computed on the host in the order of the ranks. A missing rank is an error for the others.
#pragma once
#include <cuda_runtime_api.h>
#include <graft/core/bf16.h>
#include <graft/parallel/communicator.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace test {

class collective_barrier {
 public:
  explicit collective_barrier(int ranks) : contributions(static_cast<std::size_t>(ranks)) {}
  std::mutex running;
  std::vector<std::vector<float>> contributions;

  // Waits until all ranks have called it; other ranks have the lock meanwhile.
  graft::status wait_for_all(std::unique_lock<std::mutex>& mine) {
    const long long now = round_;
    if (++here_ == contributions.size()) return here_ = 0, ++round_, all_.notify_all(), graft::ok;
    if (all_.wait_for(mine, std::chrono::seconds(30), [&] { return round_ != now; })) return graft::ok;
    return graft::fail("another rank did not come to the exchange");
  }

 private:
  std::condition_variable all_;
  std::size_t here_ = 0;
  long long round_ = 0;
};

// Constructed by the thread that is this rank, which has the lock from then on.
class simulated_rank final : public graft::communicator {
 public:
  simulated_rank(collective_barrier& all, int rank) : all_(&all), lock_(all.running), rank_(rank) {
    static_cast<void>(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~simulated_rank() override { static_cast<void>(cudaStreamDestroy(stream_)); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(all_->contributions.size()); }
  bool reads_device_memory() const override { return true; }
  void* stream() const override { return stream_; }

  graft::status all_reduce(const graft::mutable_view& values, graft::reduction operation) override {
    if (graft::status s = graft::detail::check_reduction(values, true); !s) return s;
    if (values.type != graft::dtype::f32 && values.type != graft::dtype::bf16)
      return graft::fail("ranks in turns exchange f32 and bf16");
    std::vector<float>& mine = all_->contributions[static_cast<std::size_t>(rank_)];
    if (graft::status s = fetch(values, mine); !s) return s;
    if (graft::status s = all_->wait_for_all(lock_); !s) return s;
    std::vector<float> made = all_->contributions[0];
    for (std::size_t r = 1; r < all_->contributions.size(); ++r) {
      const std::vector<float>& next = all_->contributions[r];
      if (next.size() != made.size()) return graft::fail("ranks brought tensors of different sizes");
      for (std::size_t i = 0; i < made.size(); ++i)
        made[i] = operation == graft::reduction::sum ? made[i] + next[i] : std::max(made[i], next[i]);
    }
    if (graft::status s = send(made, values); !s) return s;
    return all_->wait_for_all(lock_);
  }
  graft::status begin_all_reduce(const graft::mutable_view& v) override { return all_reduce(v, graft::reduction::sum); }
  graft::status wait() override { return graft::ok; }
  graft::status all_gather(const graft::view&, const graft::mutable_view&) override { return only_sums(); }
  graft::status reduce_scatter(const graft::view&, const graft::mutable_view&) override { return only_sums(); }
  graft::status broadcast(const graft::mutable_view&, int) override { return only_sums(); }
  graft::status barrier() override { return all_->wait_for_all(lock_); }

 private:
  static graft::status only_sums() { return graft::fail("ranks in turns only reduce"); }
  graft::status copy(void* to, const void* from, std::size_t bytes) {
    const bool copied = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_) == cudaSuccess &&
                        cudaStreamSynchronize(stream_) == cudaSuccess;
    return copied ? graft::status(graft::ok) : graft::fail("what is exchanged cannot be copied");
  }
  graft::status fetch(const graft::mutable_view& from, std::vector<float>& to) {
    const auto n = static_cast<std::size_t>(from.count());
    to.resize(n);
    if (from.type == graft::dtype::f32) return copy(to.data(), from.data, 4 * n);
    std::vector<graft::bf16> narrow(n);
    if (graft::status s = copy(narrow.data(), from.data, 2 * n); !s) return s;
    for (std::size_t i = 0; i < n; ++i) to[i] = graft::widen(narrow[i]);
    return graft::ok;
  }
  graft::status send(const std::vector<float>& from, const graft::mutable_view& to) {
    if (to.type == graft::dtype::f32) return copy(to.data, from.data(), 4 * from.size());
    std::vector<graft::bf16> narrow(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) narrow[i] = graft::narrow(from[i]);
    return copy(to.data, narrow.data(), 2 * from.size());
  }

  collective_barrier* all_;
  std::unique_lock<std::mutex> lock_;
  int rank_;
  cudaStream_t stream_ = nullptr;
};

// Returns the results of f(communicator) of several ranks, each called on a thread of its own.
template <class Made, class F> std::vector<Made> by_ranks(int ranks, F f) {
  collective_barrier all(ranks);
  std::vector<Made> made(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] { made[static_cast<std::size_t>(r)] = f(std::make_shared<simulated_rank>(all, r)); });
  for (std::thread& t : threads) t.join();
  return made;
}

}  // namespace test
