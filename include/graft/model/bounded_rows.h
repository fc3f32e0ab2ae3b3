// SPDX-License-Identifier: Apache-2.0
// Parameters whose rows have a largest length: constrained OFT's. The formula shortens a row that is longer; PEFT also writes
// it back before each call, so that a step of the optimizer begins at the bound.
#pragma once
#include <graft/backend/cpu/storage.h>
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
      const view kept{here.data, here.type, {here.count(), 1, 1, 1}, 1};
      std::vector<float> row(static_cast<std::size_t>(columns));
      bool changed = false;
      for (long long first = 0; first < here.count(); first += columns) {
        cpu::read(kept, first, columns, row.data());
        double squares = 0;
        for (const float v : row) squares += static_cast<double>(v) * static_cast<double>(v);
        const double factor = limit / std::sqrt(squares);
        if (!(factor < 1)) continue;
        for (float& v : row) v = static_cast<float>(v * factor);
        cpu::write(row.data(), first, columns, here);
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
