// SPDX-License-Identifier: Apache-2.0
// Parameters whose rows have a largest length: constrained OFT's. The formula shortens a row that is longer; PEFT also writes
// it back before each call, so that a step of the optimizer begins at the bound.
#pragma once
#include <graft/model/block_stack.h>
#include <graft/model/parameter_pool.h>

#include <cmath>

namespace graft {

template <class Engine> class bounded_rows {
 public:
  void collect(block_stack<Engine>& stack, const parameter_pool<Engine>& pool) {
    for (const bound_block<Engine>& block : stack.blocks())
      for (const auto& [name, value] : block.values.tensors) {
        const std::string rows = "oft_R.weight";
        if (!name.ends_with(rows)) continue;
        const auto limit = block.values.scalars.find(name.substr(0, name.size() - rows.size()) + "coft_limit");
        const auto parameter = pool.by_memory.find(value.data);
        if (limit != block.values.scalars.end() && parameter != pool.by_memory.end())
          all_.push_back({parameter->second, limit->second});
      }
  }
  status shorten(typename Engine::queue& q, parameter_pool<Engine>& pool) const {
    for (const auto& [parameter, limit] : all_) {
      const mutable_view there = pool.parameters[parameter].value, here = pool.on_host[parameter].value;
      const long long columns = there.size[1], bytes = there.count() * bits_of(there.type) / 8;
      if constexpr (!Engine::reads_host_memory)
        if (status s = Engine::fetch(q, {there.data, there.type, {there.count()}, 1}, here.data); !s) return s;
      bool changed = false;
      for (long long row = 0; row < there.size[0]; ++row) {
        float* const v = static_cast<float*>(here.data) + row * columns;
        double squares = 0;
        for (long long i = 0; i < columns; ++i) squares += static_cast<double>(v[i]) * static_cast<double>(v[i]);
        const double factor = limit / std::sqrt(squares);
        if (!(factor < 1)) continue;
        for (long long i = 0; i < columns; ++i) v[i] = static_cast<float>(v[i] * factor);
        changed = true;
      }
      if constexpr (!Engine::reads_host_memory)
        if (changed)
          if (status s = Engine::copy(q, there.data, here.data, bytes); !s) return s;
    }
    return ok;
  }

 private:
  struct bound {
    std::size_t parameter;
    double limit;
  };
  std::vector<bound> all_;
};

}  // namespace graft
