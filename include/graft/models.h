// SPDX-License-Identifier: Apache-2.0
// Umbrella header for causal language models on the CPU: Hugging Face checkpoints and PEFT adapters are loaded and
// saved, text is generated, adapters are trained.
//     auto model = io::hf::load_model<cpu::engine<float>>("folder");
//     io::hf::load_adapter(*model, "sql", "adapter");
//     model->activate({"sql"});
#pragma once
#include <graft/cpu.h>
#include <graft/io/hf/checkpoint.h>
#include <graft/io/hf/combine_adapters.h>
#include <graft/io/hf/generation_config.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/io/hf/save_model.h>
#include <graft/io/tokenizer/tokenizer_file.h>
#include <graft/model/generate.h>
#include <graft/model/multi_lora_training.h>
#include <graft/model/on_cpu.h>
#include <graft/model/trainer.h>
