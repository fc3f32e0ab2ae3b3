// SPDX-License-Identifier: Apache-2.0
// What users include, and the adapters of a model and of a layer, in a program without run-time type information
// (-fno-rtti). It only has to compile.
#include <graft/blocks.h>
#include <graft/io/hf/layer_adapters.h>
#include <graft/models.h>

using namespace graft;
using engine = cpu::engine<float>;

struct q_proj : linear<64, 64, float, lora<4>> {};

status use(causal_lm<engine>& model, adapted_layer<engine>& layer, const io::base_layer& base) {
  cpu::layer<q_proj> one;
  one.train(true);
  if (status s = io::hf::load_adapter(model, "a", "folder"); !s) return s;
  if (status s = io::hf::replace_adapter(model, "a", "folder"); !s) return s;
  if (status s = io::hf::combine(model, "c", {"a"}, {1.0}); !s) return s;
  if (status s = io::hf::load_adapter(layer, base, "a", "folder"); !s) return s;
  if (status s = io::hf::save_adapter("folder", layer, "a"); !s) return s;
  return io::hf::save_adapter("folder", model, "c");
}
