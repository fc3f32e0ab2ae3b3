// SPDX-License-Identifier: Apache-2.0
// Compiles the bodies of all functions that headers declare with GRAFT_LIBRARY; part of graft::cpu_compiled.
#define GRAFT_DEFINES_LIBRARY
#include <graft/io/chat_template/chat_template.h>
#include <graft/io/gguf/save_model.h>
#include <graft/io/gguf/tokenizer.h>
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/combine_adapters.h>
#include <graft/io/hf/generation_config.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/hf/save_model.h>
#include <graft/io/load_model.h>
#include <graft/io/tokenizer/tokenizer_file.h>
