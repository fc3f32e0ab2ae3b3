// SPDX-License-Identifier: Apache-2.0
// Parameters and their gradients, each shared tensor once; the memory stays where it is, in the engine's memory and in the
// host's. Runs of one batch whose rows have different adapters share one pool.
#pragma once
#include <graft/model/optimizer.h>
#include <graft/model/placed.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace graft {

template <class Engine> struct parameter_pool {
  std::vector<trained_parameter> parameters, on_host;
  std::vector<std::unique_ptr<mirrored_floats<Engine>>> gradients;
  std::map<const void*, std::size_t> by_memory;

  // `original`: where the numbers came from.
  result<std::size_t> add(typename Engine::queue& q, const std::string& name, const view& value, const void* original) {
    if (const auto at = by_memory.find(value.data); at != by_memory.end()) return at->second;
    auto gradient = std::make_unique<mirrored_floats<Engine>>();
    if (status s = gradient->reserve(q, value.count()); !s) return s.failure();
    const auto shaped = [&](void* data, dtype type) {
      mutable_view v{data, type};
      v.rank = value.rank;
      std::copy_n(value.size, 4, v.size);
      return v;
    };
    parameters.push_back(
        {name, shaped(const_cast<void*>(value.data), value.type), shaped(gradient->data(), dtype::f32)});
    on_host.push_back(
        {name, shaped(const_cast<void*>(original), value.type), shaped(gradient->host().data(), dtype::f32)});
    gradients.push_back(std::move(gradient));
    return by_memory[value.data] = parameters.size() - 1;
  }
  // From the engine's memory to the host's and back, where the two differ.
  status fetch(typename Engine::queue& q) {
    if constexpr (!Engine::reads_host_memory)
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        const mutable_view& v = parameters[k].value;
        if (status s = Engine::fetch(q, {v.data, v.type, {v.count()}, 1}, on_host[k].value.data); !s) return s;
        if (status s = gradients[k]->fetch(q); !s) return s;
      }
    return ok;
  }
  status send(typename Engine::queue& q) {
    if constexpr (!Engine::reads_host_memory)
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        const mutable_view& v = on_host[k].value;
        const long long bytes = v.count() * bits_of(v.type) / 8;
        if (status s = Engine::copy(q, parameters[k].value.data, v.data, bytes); !s) return s;
        if (status s = gradients[k]->send(q); !s) return s;
      }
    return ok;
  }
  status clear(typename Engine::queue& q) {
    for (auto& g : gradients)
      if (status s = Engine::clear(q, g->data(), static_cast<long long>(g->host().size() * sizeof(float))); !s)
        return s;
    return ok;
  }
};

}  // namespace graft
