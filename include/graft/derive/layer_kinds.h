// SPDX-License-Identifier: Apache-2.0
// The kinds of base layer: linear, conv2d, embedding, norms and experts. A kind declares its leaves and says how an
// adapted weight and bias act on an input; the adapter says what the weight and bias become. As a value a kind is its
// functions. A lowering says how W' is applied: `literal` builds W' as the formula says, `fast` uses apply() and
// select(), `by_rows` applies every factor to the rows, for parameters that change before every call of few rows.
#pragma once
#include <graft/adapter/adapter.h>
#include <graft/derive/apply_by_rows.h>

namespace graft {

enum class lowering : unsigned char { literal, fast, by_rows };
enum class bias : bool { no, yes };

constexpr id product_with(builder& g, id matrix, id x, lowering level) {
  switch (level) {
    case lowering::literal: break;
    case lowering::fast: return apply(g, matrix, x);
    case lowering::by_rows: return apply_by_rows(g, matrix, x);
  }
  return make_node::matmul(g, x, matrix, false, true);
}

struct linear_kind {  // y = x W'ᵀ + b'
  static constexpr const char* name = "linear";
  static constexpr extent outputs(scope p) { return p.size("out", dyn, 4096); }
  static constexpr ex weight(scope p) {
    return p.leaf(op::base, "weight", 2, 1, 1, outputs(p), p.size("in", dyn, 4096));
  }
  static constexpr ex matrix(scope, ex W) { return W; }
  static constexpr ex stored(scope, ex M) { return M; }
  static constexpr ex input(scope p, ex M) { return p.leaf(op::input, "x", 2, 1, 1, p.tokens(), M.cols()); }
  static constexpr ex run(scope p, ex M, ex b, ex x, lowering level) {
    builder& g = *p.g;
    return {&g, make_node::add(g, product_with(g, M.i, x.i, level), make_node::as_row(g, b.i))};
  }
};

struct conv2d_kind {  // y = im2col(x) W'ᵀ + b' (im2col); `tokens` counts images
  static constexpr const char* name = "conv2d";
  static constexpr extent outputs(scope p) { return p.size("out", dyn, 256); }
  static constexpr ex weight(scope p) {
    return p.leaf(op::base, "weight", 4, outputs(p), p.size("channels", dyn, 256), p.size("kernel_h", dyn, 3),
                  p.size("kernel_w", dyn, 3));
  }
  static constexpr ex matrix(scope p, ex W) {
    const node v = *W;
    return {p.g, make_node::reshape(*p.g, W.i, {1}, {1}, v.d[0], p.g->times(v.d[1], p.g->times(v.d[2], v.d[3])))};
  }
  static constexpr ex stored(scope p, ex M) { return {p.g, make_node::reshape_like(*p.g, M.i, weight(p).i)}; }
  static constexpr ex input(scope p, ex) {
    const node w = *weight(p);
    const extent height = p.size("height", dyn, 32), width = p.size("width", dyn, 32);
    return p.leaf(op::input, "x", 4, p.tokens(8), {p.g, w.d[1]}, height, width);
  }
  static constexpr ex run(scope p, ex M, ex b, ex x, lowering level) {
    builder& g = *p.g;
    const node w = *weight(p);
    const make_node::patch_geometry s{w.d[2], w.d[3], p.size("stride", dyn, 1).d, p.size("padding", dyn, 1).d};
    const id rows = make_node::im2col(g, x.i, s);
    const id product = product_with(g, M.i, rows, level);
    const id planes = make_node::transpose(g, make_node::add(g, product, make_node::as_row(g, b.i)));
    const node v = *x;
    return {&g, make_node::reshape(g, planes, v.d[0], w.d[0], g.window(v.d[2], s.kernel_h, s.stride, s.pad),
                                   g.window(v.d[3], s.kernel_w, s.stride, s.pad))};
  }
};

struct embedding_kind {  // y = W'[ids]
  static constexpr const char* name = "embedding";
  static constexpr extent outputs(scope p) { return p.size("dim", dyn, 4096); }
  static constexpr ex weight(scope p) {
    return p.leaf(op::base, "weight", 2, 1, 1, p.size("vocab", dyn, 4096), outputs(p));
  }
  static constexpr ex matrix(scope, ex W) { return W; }
  static constexpr ex stored(scope, ex M) { return M; }
  static constexpr ex input(scope p, ex) { return p.leaf(op::ids, "x", 1, 1, 1, 1, p.tokens()); }
  static constexpr ex run(scope p, ex M, ex, ex ids, lowering level) {
    builder& g = *p.g;
    return {&g, level == lowering::literal ? make_node::gather(g, M.i, ids.i, false) : select(g, M.i, ids.i)};
  }
};

template <bool Rms> struct norm_kind {  // y = normalize(x) ⊙ w' + b'
  static constexpr const char* name = Rms ? "rms_norm" : "layer_norm";
  static constexpr extent outputs(scope p) { return p.size("n", dyn, 4096); }
  static constexpr ex weight(scope p) { return p.leaf(op::base, "weight", 1, 1, 1, outputs(p), 1); }
  static constexpr ex matrix(scope, ex w) { return w; }
  static constexpr ex stored(scope, ex w) { return w; }
  static constexpr ex input(scope p, ex) { return p.leaf(op::input, "x", 2, 1, 1, p.tokens(), outputs(p)); }
  static constexpr ex run(scope p, ex w, ex b, ex x, lowering) {
    builder& g = *p.g;
    const id unit = make_node::normalize(g, x.i, p.scalar("eps").i, Rms);
    return {&g, make_node::add(g, make_node::mul(g, unit, make_node::as_row(g, w.i)), make_node::as_row(g, b.i))};
  }
};

// The experts of a mixture, each with a weight of its own: y = x W'ᵀ for each of them, where x [experts, tokens, in]
// has as many rows for one as for the other. In a model rows choose their experts (block_scope::experts). The weight is
// stored [experts, out, in], or [experts, in, out].
template <bool StoredInOut> struct experts_kind {
  static constexpr const char* name = "experts";
  static constexpr extent outputs(scope p) { return p.size("out", dyn, 4096); }
  static constexpr ex weight(scope p) {
    const extent out = outputs(p), in = p.size("in", dyn, 4096), count = p.size("experts", dyn, 8);
    return p.leaf(op::base, "weight", 3, 1, count, StoredInOut ? in : out, StoredInOut ? out : in);
  }
  static constexpr ex matrix(scope, ex W) { return StoredInOut ? t(W) : W; }
  static constexpr ex stored(scope, ex M) { return StoredInOut ? t(M) : M; }
  static constexpr ex input(scope p, ex M) {
    return p.leaf(op::input, "x", 3, 1, p.size("experts"), p.tokens(), M.cols());
  }
  static constexpr ex run(scope p, ex M, ex, ex x, lowering level) {
    return {p.g, product_with(*p.g, M.i, x.i, level)};
  }
};

struct kind_rules {
  const char* name = "";
  extent (*outputs)(scope) = nullptr;
  ex (*weight)(scope) = nullptr;      // the weight as it is stored
  ex (*matrix)(scope, ex) = nullptr;  // the stored weight in the shape that formulas see
  ex (*stored)(scope, ex) = nullptr;  // a weight of that shape in the stored one
  ex (*input)(scope, ex) = nullptr;   // the leaf that a call supplies
  ex (*run)(scope, ex matrix, ex bias, ex x, lowering) = nullptr;
};
template <class Kind> constexpr kind_rules rules_of() {
  return {Kind::name, &Kind::outputs, &Kind::weight, &Kind::matrix, &Kind::stored, &Kind::input, &Kind::run};
}

}  // namespace graft
