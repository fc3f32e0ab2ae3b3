// SPDX-License-Identifier: Apache-2.0
// What an optimizer does to all parameters at once, on the GPU: one launch over the pieces of all of them for each of
// gradients' sums, squares, clipping and AdamW's step. Norm and factor stay on the device, and so do the numbers of a step,
// so that it can be captured and replayed; sums have a fixed order.
#pragma once
#include <graft/backend/cuda/each.cuh>
#include <graft/backend/cuda/engine_memory.cuh>
#include <graft/backend/cuda/library.h>
#include <graft/backend/update_piece.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace graft::cuda {

namespace detail {

// A thread block for each piece, as large as there are: a thread waits for memory with every element.
inline constexpr unsigned piece_threads = 1024;

struct clear_piece {
  const update_piece* all;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const update_piece p = all[k];
    for (long long i = t.rank; i < p.count; i += t.size) p.gradient[i] = 0;
  }
};
struct square_piece {
  const update_piece* all;
  double* sums;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const update_piece p = all[k];
    double sum = 0;
    for (long long i = t.rank; i < p.count; i += t.size)
      sum += static_cast<double>(p.gradient[i]) * static_cast<double>(p.gradient[i]);
    sum = t.sum(sum);
    if (t.leads()) sums[k] = sum;
  }
};
// norm[0]: the norm of all gradients, norm[1]: the factor that clips them.
struct norm_of_pieces {
  const double* sums;
  int n;
  double largest;
  double* norm;
  template <class Team> __host__ __device__ void operator()(long long, Team t) const {
    double sum = 0;
    for (int i = t.rank; i < n; i += t.size) sum += sums[i];
    sum = t.sum(sum);
    if (!t.leads()) return;
    norm[0] = std::sqrt(sum);
    const double factor = largest / (norm[0] + 1e-6);
    norm[1] = factor >= 1 ? 1 : factor;  // NaN stays
  }
};
struct clip_piece {
  const update_piece* all;
  const double* norm;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const update_piece p = all[k];
    const auto factor = static_cast<float>(norm[1]);
    for (long long i = t.rank; i < p.count; i += t.size) p.gradient[i] *= factor;
  }
};
struct step_piece {
  const update_piece* all;
  const adamw_numbers* numbers;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const update_piece p = all[k];
    const adamw_numbers n = *numbers;
    for (long long i = t.rank; i < p.count; i += t.size) n.update(p, i, [](float v) { return std::sqrt(v); });
  }
};
struct sum_piece {
  const gradient_sum* all;
  template <class Team> __host__ __device__ void operator()(long long k, Team t) const {
    const gradient_sum s = all[k];
    const auto* const from = static_cast<const float*>(s.from);
    for (long long i = t.rank; i < s.count; i += t.size) s.to[i] += from[i];
  }
};

template <class Piece> status upload_pieces(cudaStream_t stream, const std::vector<Piece>& all, buffer& to) {
  const auto bytes = static_cast<long long>(all.size() * sizeof(Piece));
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

class parameter_updates {
 public:
  explicit parameter_updates(cudaStream_t stream = nullptr) : stream_(stream) {}

  // Numbers that belong to the parameters, and a copy in host memory where somebody asks for it.
  class memory {
   public:
    status reserve(parameter_updates& on, std::size_t n) {
      host_.resize(n);
      if (status s = device_.reserve(static_cast<long long>(n * 4)); !s) return s;
      return check(cudaMemsetAsync(device_.data(), 0, n * 4, on.stream_), "clearing");
    }
    float* data() { return device_.as<float>(); }
    std::span<float> host() { return host_; }
    status fetch(parameter_updates& on) { return move(on, host_.data(), device_.data()); }
    status send(parameter_updates& on) { return move(on, device_.data(), host_.data()); }

   private:
    status move(parameter_updates& on, void* to, const void* from) {
      if (status s = check(cudaMemcpyAsync(to, from, host_.size() * 4, cudaMemcpyDefault, on.stream_), "copying"); !s)
        return s;
      return check(cudaStreamSynchronize(on.stream_), "copying");
    }
    buffer device_;
    std::vector<float> host_;
  };

  status bind(const std::vector<update_piece>& pieces) {
    count_ = static_cast<int>(pieces.size());
    if (status s = detail::upload_pieces(stream_, pieces, pieces_); !s) return s;
    return sums_.reserve((count_ + 2) * static_cast<long long>(sizeof(double)));
  }
  status clip(double largest);
  // Waits for it.
  result<double> norm() {
    double found = 0;
    if (status s = check(cudaMemcpyAsync(&found, sums_.data(), sizeof found, cudaMemcpyDeviceToHost, stream_),
                         "reading the norm");
        !s)
      return s.failure();
    if (status s = check(cudaStreamSynchronize(stream_), "reading the norm"); !s) return s.failure();
    return found;
  }
  status bring(const adamw_numbers& n) { return numbers_.write(&n, sizeof n); }
  status step();
  status clear_gradients();

 private:
  const update_piece* pieces() const { return pieces_.as<const update_piece>(); }
  template <class F> status on_pieces(const F& f, const char* name) {
    return on_stream{stream_}.blocks(count_, detail::piece_threads, f, name);
  }

  cudaStream_t stream_;
  buffer pieces_, sums_;
  staged_memory numbers_;
  int count_ = 0;
};

// Gradients that are added to those of their parameters. A parameter with several uses takes as many rounds, so that each
// element is added to in a fixed order.
class summed_gradients {
 public:
  status bind(cudaStream_t stream, const std::vector<gradient_sum>& all) {
    std::vector<gradient_sum> ordered;
    std::vector<bool> taken(all.size());
    rounds_.clear();
    while (ordered_sums(all, taken, ordered)) {}
    return detail::upload_pieces(stream, ordered, pieces_);
  }
  status add(cudaStream_t stream);

 private:
  // One round: the next use of each parameter, in pieces. False where none is left.
  bool ordered_sums(const std::vector<gradient_sum>& all, std::vector<bool>& taken, std::vector<gradient_sum>& to) {
    const std::size_t first = to.size();
    std::vector<const float*> written;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (taken[k] || std::find(written.begin(), written.end(), all[k].to) != written.end()) continue;
      taken[k] = true, written.push_back(all[k].to);
      for (long long at = 0; at < all[k].count; at += update_piece_size)
        to.push_back({all[k].to + at, static_cast<const float*>(all[k].from) + at,
                      std::min(update_piece_size, all[k].count - at)});
    }
    if (to.size() == first) return false;
    rounds_.push_back({first, to.size() - first});
    return true;
  }

  buffer pieces_;
  std::vector<std::pair<std::size_t, std::size_t>> rounds_;
};

#if GRAFT_CUDA_BODIES
GRAFT_CUDA_LIBRARY status parameter_updates::clip(double largest) {
  double *const norm = sums_.as<double>(), *const sums = norm + 2;
  if (status s = on_pieces(detail::square_piece{pieces(), sums}, "squares of gradients"); !s) return s;
  const detail::norm_of_pieces all{sums, count_, largest, norm};
  if (status s = on_stream{stream_}.matrices(1, 256, all, "norm of gradients"); !s) return s;
  return on_pieces(detail::clip_piece{pieces(), norm}, "clipping");
}
GRAFT_CUDA_LIBRARY status parameter_updates::step() {
  if (status s = numbers_.send(stream_); !s) return s;
  return on_pieces(detail::step_piece{pieces(), static_cast<const adamw_numbers*>(numbers_.data())}, "AdamW");
}
GRAFT_CUDA_LIBRARY status parameter_updates::clear_gradients() {
  return on_pieces(detail::clear_piece{pieces()}, "clearing gradients");
}
GRAFT_CUDA_LIBRARY status summed_gradients::add(cudaStream_t stream) {
  for (const auto& [first, count] : rounds_)
    if (status s =
            on_stream{stream}.blocks(static_cast<long long>(count), detail::piece_threads,
                                     detail::sum_piece{pieces_.as<const gradient_sum>() + first}, "sums of gradients");
        !s)
      return s;
  return ok;
}
#endif

}  // namespace graft::cuda
