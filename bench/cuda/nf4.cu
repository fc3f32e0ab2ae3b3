// SPDX-License-Identifier: Apache-2.0
// Layers of NF4 behind a few C functions, so that bench/compare_bitsandbytes.py can run them in the process, on the stream
// and on the codes of the opponent. Functions return 0, or 1 with a message in graft_error().
#include <graft/cuda.h>

#include <memory>
#include <string>

namespace {

using namespace graft;

constexpr int in = 4096;
template <int Out> using with_outputs = cuda::layer<linear<Out, in, nf4<64>>>;

struct nf4_layer {
  planes beside;
  std::shared_ptr<cuda::executor<__nv_bfloat16>> runs;
  long long out;
};
nf4_layer& of(void* l) { return *static_cast<nf4_layer*>(l); }

std::string message;

int report(const status& s) {
  if (!s) message = s.message();
  return s ? 0 : 1;
}

}  // namespace

extern "C" {

const char* graft_error() { return message.c_str(); }
// Of 4096 outputs or of 14336; codes and scales stay where they are.
void* graft_nf4_layer(const void* codes, const float* scales, long long out) {
  if (out != 4096 && out != 14336) return message = "compiled for 4096 and 14336 outputs", nullptr;
  auto made = std::make_unique<nf4_layer>();
  made->beside.how = encoding_of<nf4<64>>(), made->beside.scales = scales, made->out = out;
  if (out == 4096)
    made->runs = std::make_shared<with_outputs<4096>>();
  else
    made->runs = std::make_shared<with_outputs<14336>>();
  view weight{codes, dtype::nf4, {out, in, 1, 1}, 2};
  weight.beside = &made->beside;
  if (report(made->runs->set("weight", weight)) != 0) return nullptr;
  return made.release();
}
int graft_bind(void* l, cudaStream_t stream, long long tokens) {
  return report(of(l).runs->on(stream, true).bind({.tokens = tokens}));
}
int graft_forward(void* l, cudaStream_t stream, const void* x, void* y, long long tokens) {
  return report(of(l)
                    .runs->on(stream, true)
                    .forward({x, dtype::bf16, {tokens, in, 1, 1}, 2}, {y, dtype::bf16, {tokens, of(l).out, 1, 1}, 2}));
}
}
