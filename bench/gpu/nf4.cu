// SPDX-License-Identifier: Apache-2.0
// A C interface to NF4 layers, so that bench/compare_bitsandbytes.py can run them in its process, on the stream and on
// the quantized weights of bitsandbytes. Functions return 0, or 1 with a message in graft_error().
#include <graft/gpu.h>

#include <memory>
#include <string>

namespace {

using namespace graft;

constexpr int in = 4096;
template <int Out> using with_outputs = gpu::layer<linear<Out, in, nf4<64>>>;

struct nf4_layer {
  quant_state quant;
  std::shared_ptr<gpu::executor<__nv_bfloat16>> runs;
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
// A layer with 4096 outputs or 14336; quantized values and scales are not copied.
void* graft_nf4_layer(const void* codes, const float* scales, long long out) {
  if (out != 4096 && out != 14336) return message = "compiled for 4096 and 14336 outputs", nullptr;
  auto made = std::make_unique<nf4_layer>();
  made->quant.format = quant_format_of<nf4<64>>(), made->quant.scales = scales, made->out = out;
  if (out == 4096)
    made->runs = std::make_shared<with_outputs<4096>>();
  else
    made->runs = std::make_shared<with_outputs<14336>>();
  view weight{codes, dtype::nf4, {out, in, 1, 1}, 2};
  weight.quant = &made->quant;
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
