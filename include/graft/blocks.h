// SPDX-License-Identifier: Apache-2.0
// The language, and blocks as formulas: those of the known architectures, and compile<> for them and for one's own.
#pragma once
#include <graft/block/gemma.h>
#include <graft/block/gpt2.h>
#include <graft/block/llama.h>
#include <graft/block/opt.h>
#include <graft/block/qwen2.h>
#include <graft/block/qwen3.h>
#include <graft/graft.h>
#include <graft/plan/block_explain.h>
