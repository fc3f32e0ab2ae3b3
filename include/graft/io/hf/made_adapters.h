// SPDX-License-Identifier: Apache-2.0
// An adapter that a program makes instead of reading it: its configuration and its tensors by key go through the reader
// of folders, so that it is what a folder with them would be.
#pragma once
#include <graft/io/hf/load_adapters.h>
#include <graft/io/safetensors_write.h>

#include <deque>

namespace graft::io::hf {

class made_tensors {
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
  std::span<const float> at(std::string_view key) const {  // empty where there is none
    for (std::size_t i = 0; i < views_.size(); ++i)
      if (views_[i].name == key) return values_[i];
    return {};
  }
  // As a file with them would be read; `what` is its name in errors.
  result<safetensors> as_file(const char* what) const {
    result<std::vector<std::byte>> packed = pack_safetensors(views_);
    if (!packed) return packed.failure();
    return parse_safetensors(std::move(*packed), what);
  }

 private:
  std::deque<std::vector<float>> values_;
  std::vector<tensor_view> views_;
};

inline result<loaded_adapters> load_made(const adapter_config& config, const made_tensors& tensors,
                                         const model_config& c, const model_weights& w, const char* what) {
  result<safetensors> weights = tensors.as_file(what);
  if (!weights) return weights.failure();
  return adapters_from({config, std::move(*weights)}, c, w);
}

}  // namespace graft::io::hf
