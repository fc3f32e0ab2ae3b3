// SPDX-License-Identifier: Apache-2.0
// block_scope: what the formula of a block is written with. It offers layers by their path, whose weights are adapted
// where a program or a file says so, and the operations of models: RMSNorm and LayerNorm, RoPE, attention over a KV
// cache, dropout, cross entropy. Paths and names are those of Hugging Face's files.
//     auto x = m.rms_norm("input_layernorm", h);
//     auto q = m.rope(m.linear("self_attn.q_proj", x, heads * d));
// A call supplies x, each row's position and attention range (graph/rules_model.h), and in decode the KV cache.
#pragma once
#include <graft/derive/adapter_rules.h>
#include <graft/derive/apply_experts.h>
#include <graft/derive/layer_kinds.h>
#include <graft/graph/rules_model.h>

namespace graft {

// How a block is captured. The library fills in these options.
struct block_options {
  adapter_rules adapters{};
  const char* const* facts = nullptr;  // switches that are on in the model's configuration: "attention_bias"
  int fact_count = 0;
  bool cached = false;            // attention reads and writes a KV cache (decode)
  bool dropped = false;           // dropout is active (training)
  op activation = op::detach;     // activation of the feed-forward layers; detach: the architecture's own
  double attention_soft_cap = 0;  // soft cap of attention scores; 0: none
  lowering level = lowering::fast;
};

// How rows choose their experts: the k experts with the largest scores take a row, and the weights [rows, experts]
// multiply what they give. Where `normalized`, the weights of a row's experts are divided by their sum.
struct expert_choice {
  ex scores, weights;
  extent k;
  bool normalized = false;
};

// The formula of a block declares its layers and calls operations through this scope. `name` is the path below the
// block that the tensors have in Hugging Face's files ("self_attn.q_proj"); an adapter acts on the weight of a layer
// where adapted<Block, target_modules<"*_proj", lora<16>>> or an adapter's folder names that path. `x` has a row for
// every token.
//     struct mlp {
//       static constexpr const char* name = "mlp";
//       static constexpr ex run(block_scope m, ex h) {
//         auto x = m.rms_norm("norm", h);
//         return h + m.linear("down", silu(m.linear("up", x, m.size("intermediate"))), h.cols());
//       }
//     };
struct block_scope {
  builder* g;
  const block_options* options;
  int path = 0;
  // In the formula of an expert: which rows each expert has, and how many experts there are (graph/rules_experts.h).
  id routing = none_id;
  dim expert_count{};

  // Scopes in which a formula declares tensors of its own: those of the model, and those below a path of the block.
  constexpr scope root() const { return {g, 0}; }
  constexpr scope at(const char* name) const { return scope{g, path}.in(name); }
  // The scope of the layers below a path of the block.
  constexpr block_scope in(const char* name) const {
    block_scope below = *this;
    below.path = at(name).path;
    return below;
  }
  // Returns true if a switch is on in the model's configuration:  m.has("attention_bias")
  constexpr bool has(const char* fact) const {
    for (int i = 0; i < options->fact_count; ++i)
      if (same_text(options->facts[i], fact)) return true;
    return false;
  }
  // A size of the model by its name: hidden, intermediate, heads, kv_heads, head_dim, vocab, context, embedding; of
  // experts: experts, experts_per_token, moe_intermediate, shared_intermediate; or one that the formula introduces. The
  // numbers below are nominal: costs are compared with them before sizes are known.
  constexpr extent size(const char* name) const {
    constexpr named_number usual[] = {{"hidden", 4096},
                                      {"intermediate", 11008},
                                      {"heads", 32},
                                      {"kv_heads", 8},
                                      {"head_dim", 128},
                                      {"vocab", 32000},
                                      {"context", 4096},
                                      {"embedding", 512},
                                      {"rotary_dim", 64},
                                      {"experts", 64},
                                      {"experts_per_token", 4},
                                      {"moe_intermediate", 1408},
                                      {"shared_intermediate", 5632}};
    for (const named_number& n : usual)
      if (same_text(n.name, name)) return root().size(name, dyn, n.value);
    return root().size(name);
  }

  // ---- layers
  // x Wᵀ + b with "NAME.weight" [out, in] and, where has_bias is yes, "NAME.bias" [out]. Adapters change both.
  // In the formula of an expert the weight is "NAME" [experts, out, in], as transformers stores it.
  constexpr ex linear(const char* name, ex x, extent out, bias has_bias = bias::no, int line = __builtin_LINE()) const {
    if (routing >= 0) return project(name, expert_weight({name, line}, out, x.cols()), x, has_bias, line);
    const ex W = at(name).leaf(op::base, {"weight", line}, 2, 1, 1, out, x.cols());
    return project(name, W, x, has_bias, line);
  }
  // A linear layer whose weight is stored [in, out], as in GPT-2's files; a quantizer may have transposed it.
  constexpr ex conv1d(const char* name, ex x, extent out, bias has_bias = bias::yes,
                      int line = __builtin_LINE()) const {
    if (routing >= 0 && has("experts_out_in")) return linear(name, x, out, has_bias, line);
    if (routing >= 0) return project(name, t({expert_weight({name, line}, x.cols(), out), line}), x, has_bias, line);
    if (has("stored_out_in")) return linear(name, x, out, has_bias, line);
    const ex W = at(name).leaf(op::base, {"weight", line}, 2, 1, 1, x.cols(), out);
    return project(name, t({W, line}), x, has_bias, line);
  }
  // Looks up the rows of the table "NAME.weight" [rows, dim] that the ids name.
  constexpr ex embedding(const char* name, ex ids, extent rows, extent dim, int line = __builtin_LINE()) const {
    const layer l = layer_at(name);
    const ex W = adapted(l, at(name).leaf(op::base, {"weight", line}, 2, 1, 1, rows, dim));
    const bool literal = options->level == lowering::literal;
    return {g, literal ? make_node::gather(*g, W.i, ids.i, false) : select(*g, W.i, ids.i)};
  }
  // RMSNorm: x / √(mean(x²) + eps) ⊙ w of each row, with "NAME.weight". `plus` is added to w, as Gemma stores w - 1.
  constexpr ex rms_norm(const char* name, ex x, double plus = 0, int line = __builtin_LINE()) const {
    const ex w = norm_weight(name, x.cols(), line);
    return mul(normalized_rows(x, true, line), {t({plus == 0 ? w : plus + w, line}), line});
  }
  // LayerNorm: (x - mean) / √(variance + eps) ⊙ w + b of each row, with "NAME.weight" and "NAME.bias".
  constexpr ex layer_norm(const char* name, ex x, bias has_bias = bias::yes, int line = __builtin_LINE()) const {
    const ex w = norm_weight(name, x.cols(), line);
    const ex scaled = mul(normalized_rows(x, false, line), {t({w, line}), line});
    return with_bias(name, scaled, has_bias, line);
  }
  // Normalizes each head, which is `head` adjacent columns of a row, by RMSNorm.
  constexpr ex head_norm(const char* name, ex x, extent head, double plus = 0, int line = __builtin_LINE()) const {
    const ex per_head = reshape(x, 1, x.rows(), x.cols() / divisor(head, line), head, line);
    return reshape(rms_norm(name, per_head, plus, line), 1, 1, x.rows(), x.cols(), line);
  }

  // ---- mixture of experts
  // The sum over the experts that each row chooses of weight · one(rows). `one` is the formula of one expert, written
  // with a scope below `name` and the expert's rows: its linears are adapted by name like any other, and each expert
  // has a weight and an adapter of its own.
  //     auto scores = m.linear("mlp.gate", x, m.size("experts"));
  //     m.experts("mlp.experts", x, {scores, softmax(scores), m.size("experts_per_token")}, [&](block_scope e, ex x) {
  //       return e.linear("down_proj", relu(e.linear("up_proj", x, m.size("intermediate"))), hidden);
  //     });
  template <class One>
  constexpr ex experts(const char* name, ex x, const expert_choice& by, One one, int line = __builtin_LINE()) const {
    const id table = make_node::route(*g, by.scores.i, by.k.d, line);
    if (has("router_loss")) measure_balance(by.scores, table, line);
    block_scope e{g, options, at(name).path, table, by.scores.cols().d};
    const ex y = one(e, ex{g, make_node::dispatch(*g, x.i, table, routed_by::token, line)});
    ex weight{g, make_node::dispatch(*g, by.weights.i, table, routed_by::both, line)};
    if (by.normalized) {
      const id sums = make_node::combine(*g, weight.i, table, routed_by::token, rows_of(x, 1).i, line);
      weight = weight / at_line({g, make_node::dispatch(*g, sums, table, routed_by::token, line)}, line);
    }
    const ex like = rows_of(x, y.cols());
    return {g, make_node::combine(*g, mul(weight, at_line(y, line)).i, table, routed_by::token, like.i, line)};
  }
  // In the formula of an expert: adds "NAME" [experts, columns of y] of the expert of each row.
  constexpr ex expert_bias(const char* name, ex y, int line = __builtin_LINE()) const {
    const ex b = scope{g, path}.leaf(op::base, {name, line}, 2, 1, 1, extent{g, expert_count}, y.cols());
    const id each = make_node::reshape(*g, b.i, {1}, expert_count, {1}, y.cols().d, line);
    return {g, make_node::add(*g, y.i, make_node::dispatch(*g, each, routing, routed_by::expert, line), line)};
  }

  // ---- operations on rows
  // RoPE: rotates each head by the angles of the row's position. The table of cosines and sines is computed at load, so
  // that every kind of RoPE scaling is in its numbers. The model's configuration may say that a layer has none (the
  // fact no_rope), or that only the first rotary_dim elements of each head are rotated (partial_rotary).
  constexpr ex rope(ex x, int line = __builtin_LINE()) const {
    if (has("no_rope")) return x;
    const bool partial = has("partial_rotary");
    const ex table = root().frozen({"rotary", line}, size("context"), size(partial ? "rotary_dim" : "head_dim"));
    const id angles = make_node::gather(*g, table.i, positions().i, false);
    if (!partial) return {g, make_node::rope(*g, x.i, angles, false, line)};
    const extent head = size("head_dim"), rotary = size("rotary_dim"), heads = x.cols() / divisor(head, line);
    const ex per_head = reshape(x, 1, x.rows(), heads, head, line);
    const ex first = reshape(slice(per_head, 3, 0, rotary, line), 1, 1, x.rows(), heads * rotary, line);
    const ex rotated =
        reshape({g, make_node::rope(*g, first.i, angles, false, line)}, 1, x.rows(), heads, rotary, line);
    const ex rest = slice(per_head, 3, rotary, head - divisor(rotary, line), line);
    return reshape(concat(rotated, rest, 3, line), 1, 1, x.rows(), x.cols(), line);
  }
  // softmax(q kᵀ / √head_dim) v of each head. Several query heads may share a head of keys and values (GQA). The call
  // supplies the attention range of each row, in its own rows or in the KV cache.
  constexpr ex attention(ex q, ex k, ex v, ex sinks = {}, int line = __builtin_LINE()) const {
    return attention(concat(concat(q, k, 3, line), v, 3, line), q.cols(), sinks, line);
  }
  // Attention on a matrix [tokens, q + 2 kv] whose columns are queries, keys and values. A model whose scale is not
  // 1 / √head_dim has the configuration's attention_factor, which multiplies the queries; scores s of a model with a
  // soft cap c become c tanh(s / c). `sinks`, if given, is a column with a number for each query head, whose
  // exponential joins the denominator of the softmax (attention_options).
  constexpr ex attention(ex qkv, extent queries, ex sinks = {}, int line = __builtin_LINE()) const {
    if (has("attention_factor")) {
      const extent others = qkv.cols() - divisor(queries, line);
      const ex q = slice(qkv, 3, 0, queries, line), kv = slice(qkv, 3, queries, others, line);
      qkv = concat(mul(root().scalar("attention_factor"), {q, line}), kv, 3, line);
    }
    const bool drops = options->dropped && has("attention_dropout");
    const ex ranges = root().leaf(op::ids, {"attention_range", line}, 2, 1, 1, drops ? 5 : 3, qkv.rows());
    id cache = none_id;
    if (options->cached)
      cache = root()
                  .leaf(op::state, {"kv_cache", line}, 2, 1, 1, root().size("cache_slots", dyn, 4096),
                        qkv.cols() - divisor(queries, line))
                  .i;
    const bool has_sinks = sinks.g != nullptr;
    if (has_sinks) {  // every row has the sinks as further columns, so that their gradient is a sum over rows
      const dim width = (*qkv).cols(), whole = g->plus(width, (*sinks).rows());
      const id right = make_node::pad(*g, make_node::as_row(*g, sinks.i), 3, width, whole, line);
      qkv = {g, make_node::add(*g, make_node::pad(*g, qkv.i, 3, {0}, whole, line), right, line)};
    }
    return {g, make_node::attention(*g, qkv.i, ranges.i, cache, queries.d, size("head_dim").d, line,
                                    {options->attention_soft_cap, has_sinks})};
  }
  // In training each element of x is zero with the model's rate. `name` distinguishes this dropout from the block's
  // others, so that they draw different numbers.
  constexpr ex dropout(const char* name, ex x, int line = __builtin_LINE()) const {
    if (!options->dropped) return x;
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return {g, make_node::dropout(*g, x.i, seed.i, root().scalar("dropout").i, {salt(path, name)}, line)};
  }
  // Applies the activation that the model's configuration names, or else the architecture's:  m.activated(x, op::silu)
  constexpr ex activated(ex x, op usual, int line = __builtin_LINE()) const {
    return {g, make_node::unary(*g, options->activation == op::detach ? usual : options->activation, x.i, line)};
  }
  // c tanh(x / c) with the configuration's number c, where the model has this soft cap; else x.
  constexpr ex soft_capped(ex x, const char* cap, int line = __builtin_LINE()) const {
    if (!has(cap)) return x;
    const ex c = root().scalar({cap, line});
    return mul(c, {tanh({x / graft::operand{c, line}, line}), line});
  }
  // The call supplies the position of each row in its sequence.
  constexpr ex positions() const { return root().leaf(op::ids, "positions", 1, 1, 1, 1, root().tokens()); }
  // The loss of each row is log Σ exp(logits) - logits[label], and zero where the label is negative.
  constexpr ex cross_entropy(ex logits, int line = __builtin_LINE()) const {
    const ex labels = root().leaf(op::ids, {"labels", line}, 1, 1, 1, 1, root().tokens());
    return {g, make_node::cross_entropy(*g, logits.i, labels.i, line)};
  }

 private:
  struct named_number {
    const char* name;
    int value;
  };
  struct layer {
    scope here;
    sequence<adapter_rule> by;
    constexpr scope of(const adapter_rule& a) const { return a.name[0] == '\0' ? here : here.in(a.name); }
  };
  // Computes x wᵀ: through apply(), unless the formula is followed literally.
  struct product {
    bool literal;
    int line;
    id routing = none_id;
    constexpr ex operator()(ex w, ex x) const {
      if (routing >= 0)
        return {x.g, literal ? make_node::grouped_matmul(*x.g, x.i, w.i, routing, true, line)
                             : apply_experts(*x.g, w.i, x.i, routing)};
      return {x.g, literal ? make_node::matmul(*x.g, x.i, w.i, false, true, line) : apply(*x.g, w.i, x.i)};
    }
  };
  constexpr layer layer_at(const char* name) const {
    const scope here = at(name);
    text full = g->paths().full(here.path, "");
    full.s[full.n > 0 ? full.n - 1 : 0] = '\0';  // removes the last dot
    return {here, options->adapters.at(full.c_str())};
  }
  static constexpr ex adapted(const layer& l, ex base) {
    ex W = base;
    for (const adapter_rule& a : l.by)
      if (a.adapter.weight != nullptr) W = a.adapter.compose_weight(l.of(a), W, base);
    return W;
  }
  constexpr ex project(const char* name, ex base, ex x, bias has_bias, int line) const {
    const layer l = layer_at(name);
    const product times{options->level == lowering::literal, line, routing};
    bool drops = false;
    for (const adapter_rule& a : l.by) drops = drops || (options->dropped && a.drops.any());
    if (!drops) return with_bias(name, apply_with_input_gradient_weight(l, base, x, times), has_bias, line, base);
    // y = W x + (W' - W) dropout(x): each adapter adds such a branch to the weight W that the adapters before it made.
    ex W = base, y{};
    bool summed = false;  // y holds the product with W and the branch of an adapter
    for (const adapter_rule& a : l.by) {
      if (a.adapter.weight == nullptr) continue;
      const id first = g->n.size();
      ex next = a.adapter.compose_weight(l.of(a), W, base);
      if (a.drops.blocks)
        next = mask_rotation_blocks(W, next, first,
                                    [&](ex zeros) { return keep_mask(l.of(a), "block_dropout", zeros, line); });
      if (summed || a.drops.changes_sum()) {
        if (!summed) y = times(W, x);
        y = y + branch_with_dropout(a, l.of(a), W, next, x, times, line), summed = true;
      }
      W = next;
    }
    return with_bias(name, summed ? y : times(W, x), has_bias, line, base);
  }
  // x W'ᵀ. Where a formula states another weight for dx (input_gradient_weight), W' multiplies detach(x), and the other
  // weight multiplies x - detach(x), whose value is zero and whose gradient is that of x.
  constexpr ex apply_with_input_gradient_weight(const layer& l, ex base, ex x, product times) const {
    const ex W = adapted(l, base);
    bool has_input_gradient_weight = false;
    for (const adapter_rule& a : l.by)
      has_input_gradient_weight = has_input_gradient_weight || a.adapter.input_gradient_weight != nullptr;
    if (!has_input_gradient_weight) return times(W, x);
    const ex fixed = detach(x), zero_with_gradient = x - fixed;
    ex seen = base, back = times(base, zero_with_gradient);
    for (const adapter_rule& a : l.by) {
      if (a.adapter.weight == nullptr) continue;
      const ex next = a.adapter.input_gradient_weight != nullptr ? a.adapter.input_gradient_weight(l.of(a), seen)
                                                                 : a.adapter.compose_weight(l.of(a), seen, base);
      const node v = *next;
      // then W + update is never formed, and W may stay quantized
      const bool adds = v.what == op::add && v.a == seen.i;
      back = adds ? back + times(detach(ex{g, v.b}), zero_with_gradient) : times(detach(next), zero_with_gradient);
      seen = next;
    }
    return times(W, fixed) + back;
  }
  // Computes x (next - W)ᵀ. Where `next` is W plus or minus an update, only the update multiplies x.
  constexpr ex apply_delta(ex W, ex next, ex x, product times) const {
    const node v = *next;
    if (v.what == op::add && v.a == W.i) return times({g, v.b}, x);
    if (v.what == op::sub && v.a == W.i) return -times({g, v.b}, x);
    return times(next, x) - times(W, x);
  }
  // Computes the branch that an adapter adds to y, with the dropout of its rule.
  constexpr ex branch_with_dropout(const adapter_rule& a, scope p, ex W, ex next, ex x, product times, int line) const {
    const ex seen = a.drops.elements ? dropped(p, x, line) : x;
    ex more{};
    if (a.drops.elements && a.adapter.dropout_parts != nullptr) {
      const dropout_weight_parts parts = a.adapter.dropout_parts(p, W);
      more = apply_delta(W, parts.whole, x, times) + times(parts.dropped, seen);
    } else {
      more = apply_delta(W, next, seen, times);
    }
    if (a.drops.rows) {
      const extent n = more.cols();
      ex rows = keep_mask(p, "rank_dropout", {g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, {1}, n.d)}, line);
      if (a.drops.rescaled) rows = mul(p.number(n) / row_dot(rows, {rows, line}), {rows, line});
      more = mul(rows, {more, line});
    }
    if (a.drops.whole)
      more = mul(keep_mask(p, "module_dropout", {g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, {1}, {1})}, line),
                 {more, line});
    return more;
  }
  constexpr ex keep_mask(scope p, const char* rate, ex zeros, int line) const {
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return keep_mask_of(zeros, seed, p.scalar(rate), salt(p.path, rate), line);
  }
  constexpr ex dropped(scope p, ex x, int line) const {
    const ex seed = root().leaf(op::ids, "seed", 1, 1, 1, 1, 1);
    return {g, make_node::dropout(*g, x.i, seed.i, p.scalar("dropout").i, {salt(p.path, "dropout")}, line)};
  }
  constexpr ex expert_weight(leaf_name name, extent rows, extent cols) const {
    return scope{g, path}.leaf(op::base, name, 3, 1, extent{g, expert_count}, rows, cols);
  }
  static constexpr graft::operand at_line(ex a, int line) { return {a, line}; }
  // Adds what the auxiliary loss of routers is made of to the outputs (model/router_loss.h): of each expert the number
  // of rows that chose it and the sum of its softmax over all rows. A row counts as often as the call says.
  constexpr void measure_balance(ex scores, id table, int line) const {
    const id weights = root().leaf(op::state, {router_loss_names::row_weights, line}, 2, 1, 1, root().tokens(), 1).i;
    const dim experts = scores.cols().d;
    const id chosen = make_node::dispatch(*g, weights, table, routed_by::token, line);
    const id like = g->leaf(op::zero, "0", 0, 3, {1}, experts, {1}, {1});
    const id counts = make_node::combine(*g, chosen, table, routed_by::expert, like, line);
    const id sums = make_node::matmul(*g, weights, softmax(scores).i, true, false, line);
    g->add_output(make_node::reshape(*g, counts, {1}, {1}, {1}, experts, line), router_loss_names::counts);
    g->add_output(sums, router_loss_names::sums);
  }
  // Zeros, whose shape is a row for each row of x.
  constexpr ex rows_of(ex x, extent cols) const {
    return {g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, x.rows().d, cols.d)};
  }
  // Adds the adapted bias b' to y, one number per column.
  constexpr ex with_bias(const char* name, ex y, bias has_bias, int line, ex weight = {}) const {
    const layer l = layer_at(name);
    if (routing >= 0) {  // biases of experts are not adapted (expert_bias)
      for (const adapter_rule& a : l.by)
        if (a.adapter.bias != nullptr || a.trains_bias)
          g->stop({formula_error::not_on_experts, none_id, line, a.adapter.name});
      return y;
    }
    const extent n = y.cols();
    bool trained = false;
    for (const adapter_rule& a : l.by) trained = trained || a.trains_bias;
    ex b{g, g->leaf(op::zero, "0", 0, 2, {1}, {1}, n.d, {1})};
    if (has_bias == bias::yes) b = l.here.leaf(trained ? op::param : op::base, {"bias", line}, 1, 1, 1, n, 1);
    const base_tensors base{weight, b};
    for (const adapter_rule& a : l.by) b = a.adapter.adapted_bias(l.of(a), b, base);
    return {g, make_node::add(*g, y.i, make_node::as_row(*g, b.i), line)};
  }
  constexpr ex norm_weight(const char* name, extent n, int line) const {
    return adapted(layer_at(name), at(name).leaf(op::base, {"weight", line}, 1, 1, 1, n, 1));
  }
  constexpr ex normalized_rows(ex x, bool rms, int line) const {
    return {g, make_node::normalize(*g, x.i, root().scalar("eps").i, rms, line)};
  }
  // Hashes the path of a dropout (FNV-1a), so that each dropout of a block draws different numbers.
  constexpr int salt(int where, const char* name) const {
    const text full = g->paths().full(where, name);
    unsigned hash = 2166136261U;
    for (const char* c = full.c_str(); *c != '\0'; ++c) hash = (hash ^ static_cast<unsigned char>(*c)) * 16777619U;
    return static_cast<int>(hash >> 2U);
  }
};

}  // namespace graft
