// SPDX-License-Identifier: Apache-2.0
// Projection of constrained OFT (COFT): the rows of oft_R.weight have a largest norm. The formula shortens a longer row
// when it reads it; PEFT also writes the shortened row back before each call, so that the optimizer steps from the
// bound.
#pragma once
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/model/block_stack.h>
#include <graft/model/parameter_pool.h>

#include <cmath>

namespace graft {

template <class Engine> class coft_projection {
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
  status project(typename Engine::queue& q, parameter_pool<Engine>& pool) const {
    for (const auto& [parameter, limit] : all_) {
      const mutable_view device_value = pool.parameters[parameter].value, host_value = pool.on_host[parameter].value;
      const long long columns = device_value.size[1], bytes = device_value.count() * bits_of(device_value.type) / 8;
      if constexpr (!Engine::reads_host_memory)
        if (status s =
                Engine::fetch(q, {device_value.data, device_value.type, {device_value.count()}, 1}, host_value.data);
            !s)
          return s;
      const view host_view{host_value.data, host_value.type, {host_value.count(), 1, 1, 1}, 1};
      std::vector<float> row(static_cast<std::size_t>(columns));
      bool changed = false;
      for (long long first = 0; first < host_value.count(); first += columns) {
        cpu::read(host_view, first, columns, row.data());
        double squares = 0;
        for (const float v : row) squares += static_cast<double>(v) * static_cast<double>(v);
        const double factor = limit / std::sqrt(squares);
        if (!(factor < 1)) continue;
        for (float& v : row) v = static_cast<float>(v * factor);
        cpu::write(row.data(), first, columns, host_value);
        changed = true;
      }
      if constexpr (!Engine::reads_host_memory)
        if (changed)
          if (status s = Engine::copy(q, device_value.data, host_value.data, bytes); !s) return s;
    }
    return ok;
  }

 private:
  struct row_bound {
    std::size_t parameter;
    double limit;
  };
  std::vector<row_bound> all_;
};

}  // namespace graft
