// SPDX-License-Identifier: Apache-2.0
// SmolLM3 (Hugging Face 2025) is Llama with layers that have no RoPE, usually every fourth (NoPE, arXiv 2501.18795).
#pragma once
#include <graft/block/llama.h>

namespace graft {

struct smollm3 : llama {
  static constexpr const char* name = "smollm3";
};

}  // namespace graft
