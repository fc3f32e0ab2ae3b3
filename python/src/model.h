// SPDX-License-Identifier: Apache-2.0
// A stored model with its adapters as graft_torch.Model sees it: one interface for all engines, without a type of
// Python. Logits are computed into memory that the returned value owns, so that a torch tensor may share it.
#pragma once
#include <graft/core/dtype.h>
#include <graft/model/generation_settings.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace graft::pytorch {

struct logit_rows {
  std::shared_ptr<void> owner;
  void* data = nullptr;
  long long rows = 0, vocabulary = 0;
  dtype type = dtype::f32;
  bool on_gpu = false;
};

class stored_model {
 public:
  using ids = std::vector<std::int64_t>;
  using names = std::vector<std::string>;
  stored_model() = default;
  stored_model(const stored_model&) = delete;
  stored_model& operator=(const stored_model&) = delete;
  virtual ~stored_model() = default;

  virtual void load_adapter(const std::string& name, const std::string& path) = 0;
  virtual void remove_adapter(const std::string& name) = 0;
  virtual void activate(const names& which) = 0;
  virtual names adapters() const = 0;
  virtual names active() const = 0;
  virtual int vocabulary() const = 0;
  virtual int context() const = 0;
  // The settings of the model's generation_config.json.
  virtual generation_settings settings() const = 0;
  // Logits of every token of the sequences, one after the other, or of the last token of each. `which`: the adapters of
  // each sequence; empty: the active ones for all.
  virtual logit_rows logits(const std::vector<ids>& sequences, bool last_only, const std::vector<names>& which) = 0;
  // The sequences with their new tokens. A sequence ends where on_token(sequence, token) returns false.
  virtual std::vector<ids> generate(const std::vector<ids>& prompts, const generation_settings& settings,
                                    const std::vector<names>& which,
                                    const std::function<bool(std::size_t, std::int64_t)>& on_token) = 0;
};

// Loads a Hugging Face folder or a GGUF file; an error of the library is a std::runtime_error with its sentence.
std::unique_ptr<stored_model> load_on_cpu(const std::string& path, int context);
#if defined(GRAFT_TORCH_CUDA)
// The engine computes in bf16, or with `wide` in float. The model stays on the device that is current now.
std::unique_ptr<stored_model> load_on_cuda(const std::string& path, int context, bool wide);
#endif

}  // namespace graft::pytorch
