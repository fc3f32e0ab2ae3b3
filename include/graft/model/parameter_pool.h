// SPDX-License-Identifier: Apache-2.0
// Trained parameters and their gradients, each shared tensor once, in the engine's memory and in host memory; addresses
// do not change. The gradients of a run are one tensor in the order that its buckets need. The runs of a multi-LoRA
// training share one pool.
#pragma once
#include <graft/model/device_tensors.h>
#include <graft/model/optimizer.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace graft {

template <class Engine> struct parameter_pool {
  std::vector<trained_parameter> parameters, on_host;
  std::deque<mirrored_floats<Engine>> gradients;
  std::map<const void*, std::size_t> by_memory;

  // Adds a parameter once. `original`: the host memory that the value was copied from. make_gradients() allocates the
  // gradient.
  std::size_t add(const std::string& name, const view& value, const void* original) {
    const auto [at, made] = by_memory.emplace(value.data, parameters.size());
    if (!made) return at->second;
    mutable_view gradient{nullptr, dtype::f32};
    gradient.rank = value.rank;
    std::copy_n(value.size, 4, gradient.size);
    mutable_view numbers = gradient;
    numbers.type = value.type, numbers.data = const_cast<void*>(value.data);
    parameters.push_back({name, numbers, gradient});
    numbers.data = const_cast<void*>(original);
    on_host.push_back({name, numbers, gradient});
    return parameters.size() - 1;
  }
  // Allocates the gradients of those of these parameters that have none, contiguously in this order.
  status make_gradients(typename Engine::queue& q, std::vector<std::size_t> of) {
    std::erase_if(of, [&](std::size_t p) { return parameters[p].gradient.data != nullptr; });
    long long all = 0;
    for (const std::size_t p : of) all += padded_count(p);
    mirrored_floats<Engine>& memory = gradients.emplace_back();
    if (status s = memory.reserve(q, all); !s) return s;
    all = 0;
    for (const std::size_t p : of) {
      parameters[p].gradient.data = memory.data() + all, on_host[p].gradient.data = memory.host().data() + all;
      all += padded_count(p);
    }
    return ok;
  }
  // Returns the gradients of these parameters as tensors in which adjacent gradients are merged.
  std::vector<mutable_view> merge_neighbors(const std::vector<std::size_t>& of) const {
    std::vector<mutable_view> all;
    for (const std::size_t p : of) {
      float* const at = static_cast<float*>(parameters[p].gradient.data);
      const bool adjacent = !all.empty() && static_cast<float*>(all.back().data) + all.back().size[0] == at;
      if (!adjacent) all.push_back({at, dtype::f32, {0, 1, 1, 1}, 1});
      all.back().size[0] += padded_count(p);
    }
    return all;
  }
  // fetch() copies from the engine's memory to the host, send() from the host to the engine, where the two differ.
  status fetch(typename Engine::queue& q) {
    if constexpr (!Engine::reads_host_memory) {
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        const mutable_view& v = parameters[k].value;
        if (status s = Engine::fetch(q, {v.data, v.type, {v.count()}, 1}, on_host[k].value.data); !s) return s;
      }
      for (mirrored_floats<Engine>& g : gradients)
        if (status s = g.fetch(q); !s) return s;
    }
    return ok;
  }
  status send(typename Engine::queue& q) {
    if constexpr (!Engine::reads_host_memory) {
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        const mutable_view& v = on_host[k].value;
        const long long bytes = v.count() * bits_of(v.type) / 8;
        if (status s = Engine::copy(q, parameters[k].value.data, v.data, bytes); !s) return s;
      }
      for (mirrored_floats<Engine>& g : gradients)
        if (status s = g.send(q); !s) return s;
    }
    return ok;
  }
  status clear(typename Engine::queue& q) {
    for (mirrored_floats<Engine>& g : gradients)
      if (status s = Engine::clear(q, g.data(), static_cast<long long>(g.host().size() * sizeof(float))); !s) return s;
    return ok;
  }

 private:
  // Each gradient begins at a multiple of 256 bytes, as if it had an allocation of its own.
  long long padded_count(std::size_t p) const { return (parameters[p].gradient.count() + 63) / 64 * 64; }
};

}  // namespace graft
