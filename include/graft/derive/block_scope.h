// SPDX-License-Identifier: Apache-2.0
// What the formula of a block is written with: layers by their path, whose weights are adapted where the program or a file
// says so, and the operations of models. Paths and names are those of Hugging Face's files.
//     auto x = m.rms_norm("input_layernorm", h);
//     auto q = m.rope(m.linear("self_attn.q_proj", x, heads * d));
// A call brings x, the rows' positions and spans (graph/rules_model.h), and where it generates, the cache.
#pragma once
#include <graft/derive/adaption.h>
#include <graft/derive/kinds.h>
#include <graft/graph/rules_model.h>

namespace graft {

struct block_options {
  adaptions adapters{};
  const char* const* facts = nullptr;  // fields of the model's configuration that hold: "attention_bias"
  int fact_count = 0;
  bool cached = false;         // keys and values are kept from call to call
  bool dropped = false;        // dropout happens
  op activation = op::detach;  // of the feed-forward part, where it is not the architecture's own
  lowering how = lowering::fast;
};

struct block_scope {
  builder* g;
  const block_options* options;
  int path = 0;

  constexpr scope root() const { return {g, 0}; }
  constexpr scope at(const char* name) const { return scope{g, path}.in(name); }
  constexpr bool has(const char* fact) const {
    for (int i = 0; i < options->fact_count; ++i)
      if (same_text(options->facts[i], fact)) return true;
    return false;
  }
  // A size of the model. The numbers are what costs are compared with while it is only a name.
  constexpr extent size(const char* name) const {
    constexpr named_number usual[] = {{"hidden", 4096},  {"intermediate", 11008}, {"heads", 32},
                                      {"kv_heads", 8},   {"head_dim", 128},       {"vocab", 32000},
                                      {"context", 4096}, {"embedding", 512}};
    for (const named_number& n : usual)
      if (same_text(n.name, name)) return root().size(name, dyn, n.value);
    return root().size(name);
  }

  // ---- layers
  constexpr ex linear(const char* name, ex x, extent out, bias has_bias = bias::no, int line = __builtin_LINE()) const {
    const ex W = at(name).leaf(op::base, {"weight", line}, 2, 1, 1, out, x.cols());
    return project(name, W, x, has_bias, line);
  }
  // The same with the weight stored [in, out], as GPT-2 has it unless a quantizer turned it.
  constexpr ex conv1d(const char* name, ex x, extent out, bias has_bias = bias::yes,
                      int line = __builtin_LINE()) const {
    if (has("stored_out_in")) return linear(name, x, out, has_bias, line);
    const ex W = at(name).leaf(op::base, {"weight", line}, 2, 1, 1, x.cols(), out);
    return project(name, t({W, line}), x, has_bias, line);
  }
  constexpr ex embedding(const char* name, ex ids, extent rows, extent dim, int line = __builtin_LINE()) const {
    const layer l = layer_at(name);
    const ex W = adapted(l, at(name).leaf(op::base, {"weight", line}, 2, 1, 1, rows, dim));
    const bool literal = options->how == lowering::literal;
    return {g, literal ? make::gather(*g, W.i, ids.i, false) : select(*g, W.i, ids.i)};
  }
  // x / √mean(x²) ⊙ w; Gemma stores w - 1.
  constexpr ex rms_norm(const char* name, ex x, double plus = 0, int line = __builtin_LINE()) const {
    const ex w = norm_weight(name, x.cols(), line);
    return mul(unit(x, true, line), {t({plus == 0 ? w : plus + w, line}), line});
  }
  constexpr ex layer_norm(const char* name, ex x, bias has_bias = bias::yes, int line = __builtin_LINE()) const {
    const ex w = norm_weight(name, x.cols(), line);
    const ex scaled = mul(unit(x, false, line), {t({w, line}), line});
    return with_bias(name, scaled, has_bias, line);
  }
  // An RMS norm of each head.
  constexpr ex head_norm(const char* name, ex x, extent head, int line = __builtin_LINE()) const {
    const ex apart = reshape(x, 1, x.rows(), x.cols() / divisor(head, line), head, line);
    return reshape(rms_norm(name, apart, 0, line), 1, 1, x.rows(), x.cols(), line);
  }

  // ---- operations on rows
  // The row's position turns each head. The table of cosines and sines is made at load: it holds every kind of scaling.
  constexpr ex rope(ex x, int line = __builtin_LINE()) const {
    const ex table = root().frozen({"rotary", line}, size("context"), size("head_dim"));
    const id turn = make::gather(*g, table.i, positions().i, false);
    return {g, make::rope(*g, x.i, turn, false, line)};
  }
  constexpr ex attention(ex q, ex k, ex v, int line = __builtin_LINE()) const {
    return attention(concat(concat(q, k, 3, line), v, 3, line), q.cols(), line);
  }
  // Queries, keys and values side by side. Another scale than 1 / √head is a factor of the queries.
  constexpr ex attention(ex qkv, extent queries, int line = __builtin_LINE()) const {
    if (has("attention_factor")) {
      const extent others = qkv.cols() - divisor(queries, line);
      const ex q = slice(qkv, 3, 0, queries, line), kv = slice(qkv, 3, queries, others, line);
      qkv = concat(mul(root().scalar("attention_factor"), {q, line}), kv, 3, line);
    }
    const bool drops = options->dropped && has("attention_dropout");
    const ex span = root().leaf(op::ids, {"span", line}, 2, 1, 1, drops ? 5 : 3, qkv.rows());
    id cache = none_id;
    if (options->cached)
      cache = root()
                  .leaf(op::state, {"cache", line}, 2, 1, 1, root().size("places", dyn, 4096),
                        qkv.cols() - divisor(queries, line))
                  .i;
    return {g, make::attention(*g, qkv.i, span.i, cache, queries.d, size("head_dim").d, line)};
  }
  constexpr ex dropout(const char* name, ex x, int line = __builtin_LINE()) const {
    if (!options->dropped) return x;
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return {g, make::dropout(*g, x.i, seed.i, root().scalar("dropout").i, {salt(path, name)}, line)};
  }
  constexpr ex activated(ex x, op usual, int line = __builtin_LINE()) const {
    return {g, make::unary(*g, options->activation == op::detach ? usual : options->activation, x.i, line)};
  }
  constexpr ex positions() const { return root().leaf(op::ids, "positions", 1, 1, 1, 1, root().tokens()); }
  // log Σ exp - the label's entry, of each row; a negative label counts for nothing.
  constexpr ex cross_entropy(ex logits, int line = __builtin_LINE()) const {
    const ex labels = root().leaf(op::ids, {"labels", line}, 1, 1, 1, 1, root().tokens());
    return {g, make::cross_entropy(*g, logits.i, labels.i, line)};
  }

 private:
  struct named_number {
    const char* name;
    int value;
  };
  struct layer {
    scope here;
    sequence<adaption> by;
    constexpr scope of(const adaption& a) const { return a.name[0] == '\0' ? here : here.in(a.name); }
  };
  // x wᵀ
  struct product {
    bool literal;
    int line;
    constexpr ex operator()(ex w, ex x) const {
      return {x.g, literal ? make::matmul(*x.g, x.i, w.i, false, true, line) : apply(*x.g, w.i, x.i)};
    }
  };
  constexpr layer layer_at(const char* name) const {
    const scope here = at(name);
    text full = g->paths().full(here.path, "");
    full.s[full.n > 0 ? full.n - 1 : 0] = '\0';  // without the last dot
    return {here, options->adapters.at(full.c_str())};
  }
  static constexpr ex adapted(const layer& l, ex base) {
    ex W = base;
    for (const adaption& a : l.by)
      if (a.adapter.weight != nullptr) W = a.adapter.weight_after(l.of(a), W, base);
    return W;
  }
  constexpr ex project(const char* name, ex base, ex x, bias has_bias, int line) const {
    const layer l = layer_at(name);
    const product times{options->how == lowering::literal, line};
    bool drops = false;
    for (const adaption& a : l.by) drops = drops || (options->dropped && a.drops.any());
    if (!drops) return with_bias(name, seen_apart(l, base, x, times), has_bias, line, base);
    // W x + (W' - W) dropped(x), for each adapter on what the ones before it made of W.
    ex W = base, y{};
    bool summed = false;  // y is more than x times W
    for (const adaption& a : l.by) {
      if (a.adapter.weight == nullptr) continue;
      const id first = g->n.size();
      ex next = a.adapter.weight_after(l.of(a), W, base);
      if (a.drops.blocks)
        next = with_kept_blocks(W, next, first, [&](ex zeros) { return kept(l.of(a), "block_dropout", zeros, line); });
      if (summed || a.drops.changes_sum()) {
        if (!summed) y = times(W, x);
        y = y + left_of(a, l.of(a), W, next, x, times, line), summed = true;
      }
      W = next;
    }
    return with_bias(name, summed ? y : times(W, x), has_bias, line, base);
  }
  // x W'ᵀ. Where a formula shows the input another weight on the way back, W' meets a constant, and that weight what is zero
  // but for its gradient.
  constexpr ex seen_apart(const layer& l, ex base, ex x, product times) const {
    const ex W = adapted(l, base);
    bool apart = false;
    for (const adaption& a : l.by) apart = apart || a.adapter.weight_seen_backward != nullptr;
    if (!apart) return times(W, x);
    const ex fixed = detach(x), nothing = x - fixed;
    ex seen = base, back = times(base, nothing);
    for (const adaption& a : l.by) {
      if (a.adapter.weight == nullptr) continue;
      const ex next = a.adapter.weight_seen_backward != nullptr ? a.adapter.weight_seen_backward(l.of(a), seen)
                                                                : a.adapter.weight_after(l.of(a), seen, base);
      const node v = *next;
      const bool adds = v.what == op::add && v.a == seen.i;  // to a weight that may be codes
      back = adds ? back + times(detach(ex{g, v.b}), nothing) : times(detach(next), nothing);
      seen = next;
    }
    return times(W, fixed) + back;
  }
  // x (next - W)ᵀ
  constexpr ex beyond(ex W, ex next, ex x, product times) const {
    const node v = *next;
    if (v.what == op::add && v.a == W.i) return times({g, v.b}, x);
    if (v.what == op::sub && v.a == W.i) return -times({g, v.b}, x);
    return times(next, x) - times(W, x);
  }
  // What an adapter adds to y, but for what is left out of it.
  constexpr ex left_of(const adaption& a, scope p, ex W, ex next, ex x, product times, int line) const {
    const ex seen = a.drops.elements ? dropped(p, x, line) : x;
    ex more{};
    if (a.drops.elements && a.adapter.in_parts != nullptr) {
      const parts_of_weight parts = a.adapter.in_parts(p, W);
      more = beyond(W, parts.whole, x, times) + times(parts.dropped, seen);
    } else {
      more = beyond(W, next, seen, times);
    }
    if (a.drops.rows) {
      const extent n = more.cols();
      ex rows = kept(p, "rank_dropout", {g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, {1}, n.d)}, line);
      if (a.drops.rescaled) rows = mul(p.number(n) / row_dot(rows, {rows, line}), {rows, line});
      more = mul(rows, {more, line});
    }
    if (a.drops.whole)
      more = mul(kept(p, "module_dropout", {g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, {1}, {1})}, line), {more, line});
    return more;
  }
  constexpr ex kept(scope p, const char* rate, ex zeros, int line) const {
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return kept_places(zeros, seed, p.scalar(rate), salt(p.path, rate), line);
  }
  constexpr ex dropped(scope p, ex x, int line) const {
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return {g, make::dropout(*g, x.i, seed.i, p.scalar("dropout").i, {salt(p.path, "dropout")}, line)};
  }
  // y + b', one number for each column.
  constexpr ex with_bias(const char* name, ex y, bias has_bias, int line, ex weight = {}) const {
    const layer l = layer_at(name);
    const extent n = y.cols();
    bool trained = false;
    for (const adaption& a : l.by) trained = trained || a.trains_bias;
    ex b{g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, n.d, {1})};
    if (has_bias == bias::yes) b = l.here.leaf(trained ? op::param : op::base, {"bias", line}, 1, 1, 1, n, 1);
    const base_tensors base{weight, b};
    for (const adaption& a : l.by) b = a.adapter.adapted_bias(l.of(a), b, base);
    return {g, make::add(*g, y.i, make::as_row(*g, b.i), line)};
  }
  constexpr ex norm_weight(const char* name, extent n, int line) const {
    return adapted(layer_at(name), at(name).leaf(op::base, {"weight", line}, 1, 1, 1, n, 1));
  }
  constexpr ex unit(ex x, bool rms, int line) const {
    return {g, make::normalize(*g, x.i, root().scalar("eps").i, rms, line)};
  }
  // A number for the place of a dropout in the block: other places drop other elements.
  constexpr int salt(int where, const char* name) const {
    const text full = g->paths().full(where, name);
    unsigned hash = 2166136261U;
    for (const char* c = full.c_str(); *c != '\0'; ++c) hash = (hash ^ static_cast<unsigned char>(*c)) * 16777619U;
    return static_cast<int>(hash >> 2U);
  }
};

}  // namespace graft
