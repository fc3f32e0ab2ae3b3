// SPDX-License-Identifier: Apache-2.0
// What is fuzzed of GGUF files: facts, tensors of every form, chat templates, adapters, the configuration of a model.
#pragma once
#include <graft/backend/cpu/runtime/storage.h>
#include <graft/io/gguf/adapter.h>
#include <graft/io/gguf/chat_template.h>
#include <graft/io/gguf/config.h>

#include "readers.h"

namespace fuzz {

// Reads a GGUF file; accepted tensors must be inside the file and convertible.
inline bool feed_gguf(std::string_view s) {
  const auto f = io::parse_gguf(io::make_owned_bytes(as_bytes(s)), "fuzz.gguf");
  if (!f) return *f.message() != '\0';
  for (const auto& [name, v] : f->tensors) {
    std::vector<float> numbers(static_cast<std::size_t>(v.count()));
    cpu::read(v, 0, v.count(), numbers.data());
  }
  if (const auto chat = io::chat_templates_of(*f); !chat && *chat.message() == '\0') return false;
  if (const auto adapters = io::gguf_adapters_from(*f, model_config(), {}); !adapters && *adapters.message() == '\0')
    return false;
  const auto config = io::config_of(*f);
  return config || *config.message() != '\0';
}

}  // namespace fuzz
