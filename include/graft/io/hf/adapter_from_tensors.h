// SPDX-License-Identifier: Apache-2.0
// Adapters that a program builds in memory: configuration and tensors go through the reader of PEFT folders, so the
// result is what loading a folder with the same content would give.
#pragma once
#include <graft/io/hf/load_adapters.h>
#include <graft/io/safetensors/writer.h>

#include <deque>

namespace graft::io::hf {

// Owns float tensors by key, as adapter_model.safetensors would hold them.
class owned_tensors {
 public:
  std::vector<float>& put(const std::string& key, const std::vector<long long>& shape) {
    std::size_t count = 1;
    for (const long long n : shape) count *= static_cast<std::size_t>(n);
    std::vector<float>& v = values_.emplace_back(count);
    views_.push_back({key, safetensors_type::f32, {shape.begin(), shape.end()}, std::as_bytes(std::span(v))});
    return v;
  }
  bool has(std::string_view key) const {
    return std::any_of(views_.begin(), views_.end(), [&](const tensor_view& t) { return t.name == key; });
  }
  std::span<const float> at(std::string_view key) const {  // empty if there is no such tensor
    for (std::size_t i = 0; i < views_.size(); ++i)
      if (views_[i].name == key) return values_[i];
    return {};
  }
  // The tensors as a parsed safetensors file; `what` is the file name in error messages.
  result<safetensors> as_file(const char* what) const {
    result<std::vector<std::byte>> packed = pack_safetensors(views_);
    if (!packed) return packed.failure();
    return parse_safetensors(std::move(*packed), what);
  }

 private:
  std::deque<std::vector<float>> values_;
  std::vector<tensor_view> views_;
};

inline result<loaded_adapters> load_from_tensors(const adapter_config& config, const owned_tensors& tensors,
                                                 const model_config& c, const model_weights& w, const char* what) {
  result<safetensors> weights = tensors.as_file(what);
  if (!weights) return weights.failure();
  return adapters_from({config, std::move(*weights)}, c, w);
}

}  // namespace graft::io::hf
