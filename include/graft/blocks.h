// SPDX-License-Identifier: Apache-2.0
// Umbrella header for transformer blocks (decoder layers) as formulas: the architectures that the library has, and
// compile<> and explain<> for them and for blocks of your own. It includes graft.h.
#pragma once
#include <graft/block/gemma.h>
#include <graft/block/gemma2.h>
#include <graft/block/gemma3.h>
#include <graft/block/gpt2.h>
#include <graft/block/gpt_oss.h>
#include <graft/block/granite.h>
#include <graft/block/llama.h>
#include <graft/block/mixtral.h>
#include <graft/block/olmo2.h>
#include <graft/block/opt.h>
#include <graft/block/phi3.h>
#include <graft/block/qwen2.h>
#include <graft/block/qwen2_moe.h>
#include <graft/block/qwen3.h>
#include <graft/block/qwen3_moe.h>
#include <graft/block/smollm3.h>
#include <graft/graft.h>
#include <graft/plan/block.h>
