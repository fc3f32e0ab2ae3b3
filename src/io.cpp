// SPDX-License-Identifier: Apache-2.0
// Part of graft::cpu_compiled: the bodies of all functions that headers declare with GRAFT_LIBRARY.
#define GRAFT_DEFINES_LIBRARY
#include <graft/io/gguf_model.h>
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/combine.h>
#include <graft/io/hf/generation_config.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/hf/save_model.h>
#include <graft/io/hf/tokenizer_file.h>
