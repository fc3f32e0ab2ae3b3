// SPDX-License-Identifier: Apache-2.0
// Host tensors where an engine reads them: on the CPU they are read in place, on a GPU each is copied once and the copy
// lives as long as the tensor's owner; a tensor-parallel rank copies its shard of a base weight. Also buffers of
// activations (device_rows) and of parameters with a host copy (mirrored_floats).
#pragma once
#include <graft/core/result.h>
#include <graft/core/view.h>
#include <graft/core/view_checks.h>
#include <graft/run/sharding.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace graft {

template <class Engine> class device_tensors {
 public:
  // Returns the tensor as the engine reads it. `as`: the element type of a copy. The copy of a tensor without an owner
  // is never evicted.
  result<view> of(typename Engine::queue& q, const view& host, dtype as, std::shared_ptr<const void> owner) {
    if constexpr (Engine::reads_host_memory)
      return host;
    else
      return copy_of(q, host, as, std::move(owner), {}, -1);
  }
  // Returns this rank's shard of a tensor along an axis, or the whole tensor if the axis is negative.
  result<view> shard_of(typename Engine::queue& q, const view& host, dtype as, std::shared_ptr<const void> owner,
                        const shard_spec& sharding, int axis) {
    return copy_of(q, host, as, std::move(owner), sharding, axis);
  }
  // Refreshes the copies of a tensor whose host memory was written.
  status upload(typename Engine::queue& q, const view& host) {
    for (auto [at, end] = all_.equal_range(host.data); at != end; ++at)
      if (result<view> device_view = Engine::to_device(q, host, at->second.device_view.type, at->second.memory);
          !device_view)
        return device_view.failure();
    return ok;
  }
  status upload_all(typename Engine::queue& q) {
    for (auto& [data, c] : all_)
      if (result<view> device_view = Engine::to_device(q, c.from, c.device_view.type, c.memory); !device_view)
        return device_view.failure();
    return ok;
  }
  // Drops the copies of tensors whose owner nobody else holds.
  void evict_unused() {
    std::erase_if(all_, [](const auto& e) { return e.second.owner.use_count() == 1; });
  }
  // Calls f(host, device_view) for every copy.
  template <class F> void each(F f) const {
    for (const auto& [data, c] : all_) f(c.from, c.device_view);
  }

 private:
  struct copy {
    view from, device_view;
    typename Engine::memory memory;
    std::shared_ptr<const void> owner;
    int axis = -1;
  };
  result<view> copy_of(typename Engine::queue& q, const view& host, dtype as, std::shared_ptr<const void> owner,
                       const shard_spec& sharding, int axis) {
    for (auto [at, end] = all_.equal_range(host.data); at != end; ++at)
      if (at->second.axis == axis && same_layout(at->second.from, host)) return at->second.device_view;
    copy c{host, {}, {}, std::move(owner), axis};
    quantized_shard shard;
    result<view> part = sharding.shard_of(host, axis, shard);
    if (!part) return part;
    result<view> device_view = Engine::to_device(q, *part, as, c.memory);
    if (!device_view) return device_view;
    c.device_view = *device_view;
    all_.emplace(host.data, std::move(c));
    return device_view;
  }
  std::multimap<const void*, copy> all_;
};

// A growing buffer of activations in the engine's memory.
template <class Engine, dtype Type = Engine::storage_type> class device_rows {
 public:
  // Reserves at least n elements; the contents are lost when the buffer grows.
  status reserve(typename Engine::queue& q, long long n) {
    if (n <= capacity_) return ok;
    result<typename Engine::memory> made = Engine::allocate(q, n * bits_of(Type) / 8);
    if (!made) return made.failure();
    memory_ = std::move(*made), capacity_ = n;
    return ok;
  }
  long long bytes() const { return capacity_ * bits_of(Type) / 8; }
  void* data() { return memory_.data(); }
  void* row(long long r, long long width) { return static_cast<char*>(data()) + r * width * bits_of(Type) / 8; }
  view rows(long long n, long long width) { return {data(), Type, {n, width, 1, 1}, 2}; }
  mutable_view into(long long n, long long width) { return {data(), Type, {n, width, 1, 1}, 2}; }

 private:
  typename Engine::memory memory_;
  long long capacity_ = 0;
};

// Numbers that the engine works on and the host reads and writes: one buffer on the CPU, two with explicit copies on a
// GPU.
template <class Engine, class Number> class mirrored_numbers {
 public:
  status reserve(typename Engine::queue& q, long long n) {
    host_.assign(static_cast<std::size_t>(n), Number{});
    if constexpr (!Engine::reads_host_memory)
      if (status s = device_.reserve(q, n); !s) return s;
    return send(q);
  }
  Number* data() {
    if constexpr (Engine::reads_host_memory)
      return host_.data();
    else
      return static_cast<Number*>(device_.data());
  }
  std::span<Number> host() { return host_; }
  status fetch(typename Engine::queue& q) {
    if constexpr (Engine::reads_host_memory)
      return ok;
    else
      return Engine::fetch(q, device_.rows(1, static_cast<long long>(host_.size())), host_.data());
  }
  status send(typename Engine::queue& q) {
    if constexpr (Engine::reads_host_memory)
      return ok;
    else
      return Engine::copy(q, device_.data(), host_.data(), static_cast<long long>(host_.size() * sizeof(Number)));
  }

 private:
  std::vector<Number> host_;
  device_rows<Engine, storage<Number>::type> device_;
};
template <class Engine> using mirrored_floats = mirrored_numbers<Engine, float>;

}  // namespace graft
