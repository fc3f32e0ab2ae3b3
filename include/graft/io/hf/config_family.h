// SPDX-License-Identifier: Apache-2.0
// A row of the table of config.json: how the file states the models of one family.
#pragma once
#include <graft/io/json/config_reader.h>
#include <graft/model/model_config.h>

namespace graft::io::hf {

struct config_family {
  const model_family* family = nullptr;
  // Sets what an absent field means.
  void (*set_defaults)(model_config&) = nullptr;
  // Reads all fields but those that every family has: vocab_size, tie_word_embeddings, special tokens, dtype and
  // quantization_config.
  void (*read)(config_reader&, model_config&) = nullptr;
};

}  // namespace graft::io::hf
