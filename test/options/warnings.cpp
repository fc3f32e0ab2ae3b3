// SPDX-License-Identifier: Apache-2.0
// The headers by plain -I are free of warnings that users have on: -Wconversion, -Wsign-conversion, -Wshadow, -Wpedantic.
// It only has to compile.
#include <graft/models.h>

struct q_proj : graft::linear<64, 64, float, graft::dora<4>> {};
struct rotated : graft::linear<64, 64, float, graft::oft<8>> {};
struct quantized : graft::linear<64, 64, graft::nf4<64>, graft::lora<4>> {};

template <class Layer> graft::status use() {
  graft::cpu::layer<Layer> one;
  one.train(true);
  return one.bind();
}
graft::status use_all() {
  for (const graft::status& s : {use<q_proj>(), use<rotated>(), use<quantized>()})
    if (!s) return s;
  return graft::io::hf::load_model<graft::cpu::engine<float>>("folder") ? graft::status(graft::ok)
                                                                        : graft::fail("there is no folder");
}
