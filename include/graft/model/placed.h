// SPDX-License-Identifier: Apache-2.0
// Tensors of host memory where an engine reads them: on the CPU that is where they are, on a GPU a copy, made once for each
// tensor and kept as long as its owner is; of a base that several ranks share, a copy of this rank's part. And rows of
// numbers in the engine's own memory.
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>
#include <graft/run/rank_share.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace graft {

template <class Engine> class placed_tensors {
 public:
  // `as`: how numbers are to be stored, where they have to be copied. Without an owner they stay for good.
  result<view> of(typename Engine::queue& q, const view& host, dtype as, std::shared_ptr<const void> owner) {
    if constexpr (Engine::reads_host_memory)
      return host;
    else
      return copy_of(q, host, as, std::move(owner), {}, -1);
  }
  // This rank's part of a tensor along an axis, or, where that is negative, all of it.
  result<view> part_of(typename Engine::queue& q, const view& host, dtype as, std::shared_ptr<const void> owner,
                       const rank_share& share, int axis) {
    return copy_of(q, host, as, std::move(owner), share, axis);
  }
  // After the numbers of a tensor were written in host memory.
  status again(typename Engine::queue& q, const view& host) {
    for (auto [at, end] = all_.equal_range(host.data); at != end; ++at)
      if (result<view> placed = Engine::place(q, host, at->second.placed.type, at->second.memory); !placed)
        return placed.failure();
    return ok;
  }
  status all_again(typename Engine::queue& q) {
    for (auto& [data, c] : all_)
      if (result<view> placed = Engine::place(q, c.from, c.placed.type, c.memory); !placed) return placed.failure();
    return ok;
  }
  // Drops the copies of tensors that nobody else has any more.
  void forget_unused() {
    std::erase_if(all_, [](const auto& e) { return e.second.owner.use_count() == 1; });
  }
  // Calls f(host, placed) for all that were copied.
  template <class F> void each(F f) const {
    for (const auto& [data, c] : all_) f(c.from, c.placed);
  }

 private:
  struct copy {
    view from, placed;
    typename Engine::block memory;
    std::shared_ptr<const void> owner;
    int axis = -1;
  };
  result<view> copy_of(typename Engine::queue& q, const view& host, dtype as, std::shared_ptr<const void> owner,
                       const rank_share& share, int axis) {
    for (auto [at, end] = all_.equal_range(host.data); at != end; ++at)
      if (at->second.axis == axis && same_form(at->second.from, host)) return at->second.placed;
    copy c{host, {}, {}, std::move(owner), axis};
    code_part codes;
    result<view> part = share.part_of(host, axis, codes);
    if (!part) return part;
    result<view> placed = Engine::place(q, *part, as, c.memory);
    if (!placed) return placed;
    c.placed = *placed;
    all_.emplace(host.data, std::move(c));
    return placed;
  }
  static bool same_form(const view& a, const view& b) {
    bool same = a.type == b.type && a.rank == b.rank;
    for (int k = 0; same && k < a.rank; ++k) same = a.size[k] == b.size[k] && a.stride(k) == b.stride(k);
    return same;
  }
  std::multimap<const void*, copy> all_;
};

// Rows between blocks: numbers as the engine keeps them, in its memory.
template <class Engine, dtype Type = Engine::keeps> class engine_rows {
 public:
  // At least so many numbers; what was there is lost where it has to grow.
  status reserve(typename Engine::queue& q, long long n) {
    if (n <= room_) return ok;
    result<typename Engine::block> made = Engine::allocate(q, n * bits_of(Type) / 8);
    if (!made) return made.failure();
    memory_ = std::move(*made), room_ = n;
    return ok;
  }
  long long bytes() const { return room_ * bits_of(Type) / 8; }
  void* data() { return memory_.data(); }
  void* row(long long r, long long width) { return static_cast<char*>(data()) + r * width * bits_of(Type) / 8; }
  view rows(long long n, long long width) { return {data(), Type, {n, width, 1, 1}, 2}; }
  mutable_view into(long long n, long long width) { return {data(), Type, {n, width, 1, 1}, 2}; }

 private:
  typename Engine::block memory_;
  long long room_ = 0;
};

// Floats that the engine works on and callers look at: one memory, or two between which they are copied.
template <class Engine> class mirrored_floats {
 public:
  status reserve(typename Engine::queue& q, long long n) {
    host_.assign(static_cast<std::size_t>(n), 0.0F);
    if constexpr (!Engine::reads_host_memory)
      if (status s = there_.reserve(q, n); !s) return s;
    return send(q);
  }
  float* data() {
    if constexpr (Engine::reads_host_memory)
      return host_.data();
    else
      return static_cast<float*>(there_.data());
  }
  std::span<float> host() { return host_; }
  status fetch(typename Engine::queue& q) {
    if constexpr (Engine::reads_host_memory)
      return ok;
    else
      return Engine::fetch(q, there_.rows(1, static_cast<long long>(host_.size())), host_.data());
  }
  status send(typename Engine::queue& q) {
    if constexpr (Engine::reads_host_memory)
      return ok;
    else
      return Engine::copy(q, there_.data(), host_.data(), static_cast<long long>(host_.size() * sizeof(float)));
  }

 private:
  std::vector<float> host_;
  engine_rows<Engine, dtype::f32> there_;
};

}  // namespace graft
