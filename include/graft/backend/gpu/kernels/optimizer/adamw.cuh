// SPDX-License-Identifier: Apache-2.0
// AdamW, gradient norm, clipping and accumulation for all parameters at once: each operation is one launch over the
// chunks of all parameters. The norm, the clipping factor and the step's hyperparameters stay in device memory, so that
// a captured step can be replayed. Sums have a fixed order.
#pragma once
#include <graft/backend/gpu/kernels/elementwise/for_each.cuh>
#include <graft/backend/gpu/runtime/engine_memory.cuh>
#include <graft/backend/gpu/runtime/library.h>
#include <graft/backend/optimizer_chunk.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace graft::gpu {

namespace detail {

// A CTA per chunk, with the most threads possible, because every element waits for memory.
inline constexpr unsigned chunk_threads = 1024;

struct clear_chunk {
  const optimizer_chunk* all;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const optimizer_chunk p = all[k];
    for (long long i = t.rank; i < p.count; i += t.size) p.gradient[i] = 0;
  }
};
struct square_chunk {
  const optimizer_chunk* all;
  double* sums;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const optimizer_chunk p = all[k];
    double sum = 0;
    for (long long i = t.rank; i < p.count; i += t.size)
      sum += static_cast<double>(p.gradient[i]) * static_cast<double>(p.gradient[i]);
    sum = t.sum(sum);
    if (t.is_leader()) sums[k] = sum;
  }
};
// norm[0] is the norm of all gradients, norm[1] the factor that clips them, as in torch.nn.utils.clip_grad_norm_.
struct norm_of_chunks {
  const double* sums;
  int n;
  double largest;
  double* norm;
  template <class Team> __host__ __device__ void operator()(long long, Team t) const {
    double sum = 0;
    for (int i = t.rank; i < n; i += t.size) sum += sums[i];
    sum = t.sum(sum);
    if (!t.is_leader()) return;
    norm[0] = std::sqrt(sum);
    const double factor = largest / (norm[0] + 1e-6);
    norm[1] = factor >= 1 ? 1 : factor;  // a NaN norm keeps its NaN factor
  }
};
struct clip_chunk {
  const optimizer_chunk* all;
  const double* norm;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const optimizer_chunk p = all[k];
    const auto factor = static_cast<float>(norm[1]);
    for (long long i = t.rank; i < p.count; i += t.size) p.gradient[i] *= factor;
  }
};
struct step_chunk {
  const optimizer_chunk* all;
  const adamw_step* numbers;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const optimizer_chunk p = all[k];
    const adamw_step n = *numbers;
    for (long long i = t.rank; i < p.count; i += t.size) n.update(p, i, [](float v) { return std::sqrt(v); });
  }
};
struct sum_chunk {
  const gradient_addend* all;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const gradient_addend s = all[k];
    const auto* const from = static_cast<const float*>(s.from);
    for (long long i = t.rank; i < s.count; i += t.size) s.to[i] += from[i];
  }
};

template <class Chunk> status upload_chunks(cudaStream_t stream, const std::vector<Chunk>& all, buffer& to) {
  const auto bytes = static_cast<long long>(all.size() * sizeof(Chunk));
  if (bytes == 0) return ok;
  if (status s = to.reserve(bytes); !s) return s;
  if (status s =
          check(cudaMemcpyAsync(to.data(), all.data(), static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream),
                "the table of parameters");
      !s)
    return s;
  return check(cudaStreamSynchronize(stream), "the table of parameters");
}

}  // namespace detail

class optimizer_step {
 public:
  explicit optimizer_step(cudaStream_t stream = nullptr) : stream_(stream) {}

  // Optimizer state of the parameters in device memory, with a host copy for saving and loading.
  class memory {
   public:
    status reserve(optimizer_step& on, std::size_t n) {
      host_.resize(n);
      if (status s = device_.reserve(static_cast<long long>(n * 4)); !s) return s;
      return check(cudaMemsetAsync(device_.data(), 0, n * 4, on.stream_), "clearing");
    }
    float* data() { return device_.as<float>(); }
    std::span<float> host() { return host_; }
    status fetch(optimizer_step& on) { return move(on, host_.data(), device_.data()); }
    status send(optimizer_step& on) { return move(on, device_.data(), host_.data()); }

   private:
    status move(optimizer_step& on, void* to, const void* from) {
      if (status s = check(cudaMemcpyAsync(to, from, host_.size() * 4, cudaMemcpyDefault, on.stream_), "copying"); !s)
        return s;
      return check(cudaStreamSynchronize(on.stream_), "copying");
    }
    buffer device_;
    std::vector<float> host_;
  };

  status bind(const std::vector<optimizer_chunk>& chunks) {
    count_ = static_cast<int>(chunks.size());
    if (status s = detail::upload_chunks(stream_, chunks, chunks_); !s) return s;
    return sums_.reserve((count_ + 2) * static_cast<long long>(sizeof(double)));
  }
  status clip(double largest);
  // Waits for the stream and returns the gradient norm.
  result<double> norm() {
    double found = 0;
    if (status s = check(cudaMemcpyAsync(&found, sums_.data(), sizeof found, cudaMemcpyDeviceToHost, stream_),
                         "reading the norm");
        !s)
      return s.failure();
    if (status s = check(cudaStreamSynchronize(stream_), "reading the norm"); !s) return s.failure();
    return found;
  }
  status set_step(const adamw_step& n) { return numbers_.write(&n, sizeof n); }
  status step();
  status clear_gradients();

 private:
  const optimizer_chunk* chunks() const { return chunks_.as<const optimizer_chunk>(); }
  template <class F> status on_chunks(const F& f, const char* name) {
    return on_stream{stream_}.blocks(count_, detail::chunk_threads, f, name);
  }

  cudaStream_t stream_;
  buffer chunks_, sums_;
  staged_memory numbers_;
  int count_ = 0;
};

// Adds gradients to those of their parameters. A parameter with several uses takes as many rounds, so that the
// additions to each element have a fixed order.
class gradient_accumulator {
 public:
  status bind(cudaStream_t stream, const std::vector<gradient_addend>& all) {
    std::vector<gradient_addend> ordered;
    std::vector<bool> taken(all.size());
    rounds_.clear();
    while (next_round(all, taken, ordered)) {}
    return detail::upload_chunks(stream, ordered, chunks_);
  }
  status add(cudaStream_t stream);

 private:
  // Appends one round: the next use of each parameter, in chunks. Returns false if none is left.
  bool next_round(const std::vector<gradient_addend>& all, std::vector<bool>& taken, std::vector<gradient_addend>& to) {
    const std::size_t first = to.size();
    std::vector<const float*> written;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (taken[k] || std::find(written.begin(), written.end(), all[k].to) != written.end()) continue;
      taken[k] = true, written.push_back(all[k].to);
      for (long long at = 0; at < all[k].count; at += optimizer_chunk_size)
        to.push_back({all[k].to + at, static_cast<const float*>(all[k].from) + at,
                      std::min(optimizer_chunk_size, all[k].count - at)});
    }
    if (to.size() == first) return false;
    rounds_.push_back({first, to.size() - first});
    return true;
  }

  buffer chunks_;
  std::vector<std::pair<std::size_t, std::size_t>> rounds_;
};

#if GRAFT_GPU_BODIES
GRAFT_GPU_LIBRARY status optimizer_step::clip(double largest) {
  double *const norm = sums_.as<double>(), *const sums = norm + 2;
  if (status s = on_chunks(detail::square_chunk{chunks(), sums}, "squares of gradients"); !s) return s;
  const detail::norm_of_chunks all{sums, count_, largest, norm};
  if (status s = on_stream{stream_}.matrices(1, 256, all, "norm of gradients"); !s) return s;
  return on_chunks(detail::clip_chunk{chunks(), norm}, "clipping");
}
GRAFT_GPU_LIBRARY status optimizer_step::step() {
  if (status s = numbers_.send(stream_); !s) return s;
  return on_chunks(detail::step_chunk{chunks(), static_cast<const adamw_step*>(numbers_.data())}, "AdamW");
}
GRAFT_GPU_LIBRARY status optimizer_step::clear_gradients() {
  return on_chunks(detail::clear_chunk{chunks()}, "clearing gradients");
}
GRAFT_GPU_LIBRARY status gradient_accumulator::add(cudaStream_t stream) {
  for (const auto& [first, count] : rounds_)
    if (status s = on_stream{stream}.blocks(static_cast<long long>(count), detail::chunk_threads,
                                            detail::sum_chunk{chunks_.as<const gradient_addend>() + first},
                                            "sums of gradients");
        !s)
      return s;
  return ok;
}
#endif

}  // namespace graft::gpu
