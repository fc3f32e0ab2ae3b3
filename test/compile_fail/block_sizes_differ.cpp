// SPDX-License-Identifier: Apache-2.0
// Two sizes in a block differ: the residual has the width of the model, and this projection has another one. The error
// names the layer by its path, the line of the formula and the sizes.
// expected: graft: these operands do not fit: make the two sizes equal
// expected: sizes_differ<
// expected: self_attn.o_proj.weight|'o', '_', 'p', 'r', 'o', 'j'
// expected: tuned
// expected-gcc: >, 26, 512, 256>'
// expected-clang: >, 26, 512, 256>'
// expected-nvcc: formula_line=26, left=512LL, right=256LL
#include <graft/blocks.h>
using namespace graft;

struct attention_only {
  static constexpr const char* name = "attention only";
  static constexpr ex run(block_scope m, ex h) {
    const extent width = m.size("heads") * m.size("head_dim");
    auto x = m.rms_norm("norm", h);
    auto q = m.linear("self_attn.q_proj", x, width), k = m.linear("self_attn.k_proj", x, width);
    auto v = m.linear("self_attn.v_proj", x, width);
#ifdef GRAFT_SHOULD_FAIL
    const extent out = width;
#else
    const extent out = h.cols();
#endif
    return h + m.linear("self_attn.o_proj", m.attention(q, k, v), out);
  }
};
struct tuned : adapted<attention_only, target_modules<"q_proj", lora<8>>> {
  static constexpr named_size sizes[] = {{"hidden", 512}, {"heads", 4}, {"head_dim", 64}};
};
static_assert(compile<tuned, fullgraph>::kernels == 3);
