// SPDX-License-Identifier: Apache-2.0
// Tensors of a file that a test changes before a reader sees them.
#pragma once
#include <graft/io/safetensors/tensor_view.h>

#include <cstring>
#include <functional>
#include <map>

namespace graft::io::test {

struct changed_tensors {
  struct one {
    safetensors_type type;
    std::vector<std::uint64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, one> all;
  mutable std::map<std::string, tensor_view> views;

  template <class T>
  void put(const std::string& name, safetensors_type type, std::vector<std::uint64_t> shape, const std::vector<T>& v) {
    const auto bytes = std::as_bytes(std::span(v));
    all[name] = {type, std::move(shape), {bytes.begin(), bytes.end()}};
  }
  template <class T> void set(const std::string& name, std::size_t at, T v) {
    std::memcpy(all.at(name).bytes.data() + at * sizeof v, &v, sizeof v);
  }
  // Views of the tensors as they are now, by name.
  std::function<const tensor_view*(const std::string&)> finder() const {
    views.clear();
    for (const auto& [name, t] : all) views[name] = {name, t.type, t.shape, t.bytes};
    return [this](const std::string& name) { return views.contains(name) ? &views.at(name) : nullptr; };
  }
};

}  // namespace graft::io::test
