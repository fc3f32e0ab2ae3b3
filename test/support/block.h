// SPDX-License-Identifier: Apache-2.0
// A whole decoder block as one formula over activations, in the manner of Llama: two norms, attention with one head, a
// gated feed-forward part, and an adapter on each of the seven projections.
//     h = x + o(softmax(q(n) k(n)ᵀ / √d) v(n)),  n = norm(x)          y = h + down(silu(gate(m)) ⊙ up(m)),  m = norm(h)
#pragma once
#include <graft/graft.h>

namespace test {

using namespace graft;

template <class Adapter> struct block {
  // x W'ᵀ, where W' is the weight at `path` with its adapter applied.
  static constexpr ex project(scope p, const char* path, extent out, ex x) {
    const scope here = p.in(path);
    const ex W = here.leaf(op::base, "weight", 2, 1, 1, out, x.cols());
    const ex adapted = Adapter::weight(here, W);
    return {p.g, apply(*p.g, adapted.i, x.i)};
  }
  static constexpr ex norm(scope p, const char* path, ex x) {
    const ex w = p.in(path).leaf(op::base, "weight", 1, 1, 1, x.cols(), 1);
    const ex unit{p.g, make_node::normalize(*p.g, x.i, p.scalar("eps").i, true)};
    return mul(unit, t(w));
  }
  static constexpr ex attention(scope p, ex x) {
    const extent n = x.cols();
    const ex q = project(p, "q_proj", n, x), k = project(p, "k_proj", n, x), v = project(p, "v_proj", n, x);
    const ex scores = (q * t(k)) / sqrt(p.number(n));
    return project(p, "o_proj", n, softmax(scores) * v);
  }
  static constexpr ex feed_forward(scope p, ex x) {
    const extent wide = p.size("intermediate", dyn, 11008);
    const ex gate = project(p, "gate_proj", wide, x), up = project(p, "up_proj", wide, x);
    return project(p, "down_proj", x.cols(), mul(silu(gate), up));
  }
  static constexpr builder capture() {
    builder g;
    const scope p{&g};
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), p.size("hidden", dyn, 4096));
    const ex h = x + attention(p.in("self_attn"), norm(p, "input_layernorm", x));
    g.add_output((h + feed_forward(p.in("mlp"), norm(p, "post_attention_layernorm", h))).i, "y");
    return g;
  }
  static constexpr builder forward() { return simplify(rewrite(capture(), value_rule)); }
  static constexpr builder backward() { return simplify(rewrite(grad(simplify(capture())), value_rule)); }
};

}  // namespace test
