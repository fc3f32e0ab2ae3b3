// SPDX-License-Identifier: Apache-2.0
// Mixture of experts in blocks: the results are those of the formula for one expert, gradients agree with finite
// differences for every method whose formula exists on experts, for any routing and number of rows.
#include <doctest/doctest.h>
#include <graft/adapter/all.h>
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/block/gpt_oss.h>
#include <graft/block/qwen2_moe.h>
#include <graft/block/qwen3_moe.h>
#include <graft/run/block.h>

#include <thread>

#include "../support/random_block.h"
#include "../support/rank_threads.h"

using namespace test;

namespace {

void equals_formula(random_block& b) {
  const std::vector<double> y = b.forward(), written = b.literal();
  REQUIRE(y.size() == written.size());
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(written[i]).epsilon(1e-9).scale(1));
}

// A block that is a mixture alone, with a router of any kind, experts of one layer and a bias per expert.
template <bool Sigmoid, bool Normalized, bool StoredInOut> struct mixture {
  static constexpr const char* name = "mixture";
  static constexpr ex run(block_scope m, ex h) {
    const ex logits = m.linear("router", h, m.size("experts"), bias::yes);
    const ex scores = Sigmoid ? sigmoid(logits) : softmax(logits);
    const expert_choice by{logits, scores, m.size("experts_per_token"), Normalized};
    return h + m.experts("mlp.experts", h, by, [&](block_scope e, ex rows) {
      const ex y = StoredInOut ? e.conv1d("up_proj", rows, h.cols()) : e.linear("up_proj", rows, h.cols());
      return silu(e.expert_bias("up_proj_bias", y));
    });
  }
};

void prefer_expert_3(random_block& b) {
  std::vector<double>& bias = b.data.at("router.bias");
  for (std::size_t e = 0; e < bias.size(); ++e) bias[e] = e == 3 ? 10 : -static_cast<double>(e);
}

}  // namespace

TEST_CASE("experts: blocks of mixtures with LoRA and DoRA on experts, router and attention") {
  struct example {
    block_formula formula;
    std::vector<const char*> facts;
  };
  const example all[] = {{block_of<mixtral>(), {}},
                         {block_of<qwen2_moe>(), {"sparse_layer", "attention_bias"}},
                         {block_of<qwen2_moe>(), {}},
                         {block_of<qwen3_moe>(), {"sparse_layer", "router_over_chosen"}}};
  for (const example& e : all) {
    INFO(std::string(e.formula.name));
    random_block b({e.formula,
                    {{"*_proj", formula_of<lora<>>()},
                     {"mlp.gate", formula_of<lora<>>()},
                     {"experts.down_proj", formula_of<dora<>>()}},
                    e.facts},
                   11);
    equals_formula(b);
    b.check_slopes();
  }
}

TEST_CASE("experts: PEFT's layout of LoRA on expert parameters") {
  random_block b({block_of<mixtral>(), {{"experts.*_proj", formula_of<lora_on_experts<>>()}}, {}}, 9);
  CHECK(b.block.values.tensors.at("mlp.experts.down_proj.lora_A.weight").size[0] == 15);  // 5 experts of rank 3
  CHECK(b.block.values.tensors.at("mlp.experts.down_proj.lora_B.weight").size[1] == 15);
  equals_formula(b);
  b.check_slopes();
}

TEST_CASE("experts: routers with softmax or sigmoid, normalized or not, and weights that are stored [in, out]") {
  for (const block_formula& f : {block_of<mixture<false, false, false>>(), block_of<mixture<false, true, true>>(),
                                 block_of<mixture<true, false, true>>(), block_of<mixture<true, true, false>>()}) {
    random_block b({f, {{"up_proj", formula_of<lora<>>()}, {"router", formula_of<lora<>>()}}, {}}, 7);
    equals_formula(b);
    b.check_slopes();
  }
}

namespace {
// Experts that give other columns than they read.
struct narrow_experts {
  static constexpr const char* name = "narrow experts";
  static constexpr ex run(block_scope m, ex h) {
    const ex scores = m.linear("router", h, m.size("experts"));
    const expert_choice by{scores, softmax(scores), m.size("experts_per_token"), true};
    const ex y = m.experts("mlp.experts", h, by, [&](block_scope e, ex rows) {
      return silu(e.linear("down_proj", rows, m.size("intermediate")));
    });
    return h + m.linear("out", y, h.cols());
  }
};
}  // namespace

TEST_CASE("experts: what experts give may have another width than what they read") {
  random_block b({block_of<narrow_experts>(), {{"down_proj", formula_of<lora<>>()}}, {}}, 8);
  equals_formula(b);
  b.check_slopes();
}

TEST_CASE("experts: one row, one hot expert, experts without rows, all experts") {
  for (const long long tokens : {1, 2, 3, 40}) {
    random_block b({block_of<mixtral>(), {{"*_proj", formula_of<lora<>>()}}, {}}, tokens);
    equals_formula(b);
  }
  for (const long long k : {1, 5}) {  // of 5 experts
    random_block b({block_of<mixture<false, false, false>>(), {{"up_proj", formula_of<lora<>>()}}, {}}, 12);
    b.block.values.sizes["experts_per_token"] = k;
    prefer_expert_3(b);
    equals_formula(b);
    b.check_slopes();
  }
  random_block b({block_of<mixture<false, false, false>>(), {{"up_proj", formula_of<lora<>>()}}, {}}, 12);
  b.block.values.sizes["experts_per_token"] = 1;
  prefer_expert_3(b);
  const char* const parameter = "mlp.experts.up_proj.lora_B.weight";
  std::vector<double> d(b.data.at(parameter).size(), 1.0);
  for (const pass_kind w : {pass_kind::forward_saved, pass_kind::backward}) b.must(b.block.bind(w, {b.rows}));
  b.must(b.block.bind_gradient(parameter, view_into(d.data(), static_cast<long long>(d.size()))));
  b.must(b.block.run(pass_kind::forward_saved, b.call()));
  b.must(b.block.run(pass_kind::backward, b.call()));
  const std::size_t each = d.size() / 5;  // the experts without rows have the gradient zero
  for (std::size_t i = 0; i < d.size(); ++i) CHECK((d[i] != 0) == (i / each == 3));
}

TEST_CASE("experts: calls of several chunks of rows, whose tables of routing count from the chunk's first row") {
  for (const formula& of : {formula_of<lora_on_experts<>>(), formula_of<dora<>>()}) {
    random_block b({block_of<mixture<false, true, true>>(), {{"up_proj", of}, {"router", formula_of<lora<>>()}}, {}},
                   cpu::chunk_rows * 2 + 77);
    equals_formula(b);
    b.check_slopes();
  }
  random_block b({block_of<qwen2_moe>(), {{"*_proj", formula_of<lora<>>()}}, {"sparse_layer"}}, cpu::chunk_rows + 1);
  equals_formula(b);
  b.check_slopes();
}

TEST_CASE("experts: every method exists on experts, with its gradients, or is refused by name") {
  const char* const on_experts =
      "none lora lora_on_experts dora adalora hra hra_gram_schmidt ia3_feedforward loha vera miss miss_mini delora "
      "hira "
      "psoft_free psoft_free_inputs psoft_free_outputs psoft_free_plain deft deft_removal deft_qr deft_qr_removal "
      "peanut peanut_1 peanut_2 peanut_gelu peanut_gelu_1 peanut_gelu_2 peanut_gelu_tanh peanut_gelu_tanh_1 "
      "peanut_gelu_tanh_2 peanut_silu peanut_silu_1 peanut_silu_2 peanut_tanh peanut_tanh_1 peanut_tanh_2 fourierft "
      "frod_diagonal pvera glora_weight glora_numbers_weight osf trainable_tokens residual_lora residual_dora";
  for_each_adapter([&]<class Adapter>(adapter_type<Adapter>) {
    if (!lists(Adapter::kinds, "linear") && !lists(Adapter::kinds, "experts")) return;
    INFO(std::string(Adapter::method));
    const adapter_rule rule{"up_proj", formula_of<Adapter>()};
    block_options o;
    o.adapters = {&rule, 1};
    const builder g = capture(block_of<mixture<false, true, false>>(), o);
    const bool exists = g.bad.what == formula_error::none;
    CHECK(exists == lists(on_experts, Adapter::method));
    CHECK((exists || g.bad.what == formula_error::not_on_experts));
    if (!exists) return;
    random_block b({block_of<mixture<false, true, false>>(), {rule}, {}}, 6);
    equals_formula(b);
    bool has_constants = false;  // the gradient is not that of the numbers then
    for (id i = 0; i < g.n.size(); ++i) has_constants = has_constants || g.n[i].what == op::detach;
    if (!has_constants) b.check_slopes();
  });
}

namespace {
// The outputs of a graph of a block, computed by one rank with its shards of the tensors.
std::vector<std::vector<double>> outputs_of(random_block& b, const builder& whole, const shard_spec& of,
                                            rank_threads* ranks) {
  const block_options options = block_options_of(b.block.spec(), pass_kind::forward_saved);
  const builder g = of.graph_of(whole, b.block.values, options.adapters);
  const auto shard_of = [&](const std::string&, const view& v, int axis) -> result<view> {
    return of.shard_of(v, axis);
  };
  const result<named_values> mine = of.local_values(g, b.block.values, shard_of);
  const result<bound_leaves> bound = bind_named(g, of.is_sharded() ? *mine : b.block.values, options.adapters);
  if (!bound) return {};
  bound_leaves all = *bound;
  block_call c = b.call();
  for (std::size_t k = 0; k < call_inputs.size(); ++k)
    if (const id i = g.find(call_inputs[k]); i >= 0) {
      if (!layer_state::bind_leaf(g, i, c.in[k], all.sizes)) return {};
      all.leaf[i] = c.in[k];
    }
  const cpu::host_function<double> reduce = [&](const char* operation, cpu::tensor<double> in,
                                                cpu::tensor<double> out) {
    ranks->reduce(of.rank, operation, in, out);
  };
  cpu::values<double> v = cpu::evaluate_all<double>(g, all.sizes, all.leaf, cpu::every_operation<double>(),
                                                    cpu::rotations::blockwise, &reduce);
  std::vector<std::vector<double>> made;
  for (const output& o : g.out) made.emplace_back(v[o.at].p, v[o.at].p + v[o.at].count());
  return made;
}
// Five ranks, each of which has one of the five experts, give what one process gives.
void equals_divided(random_block& b) {
  const int ranks = 5;
  const block_options options = block_options_of(b.block.spec(), pass_kind::forward_saved);
  for (const bool backward : {false, true}) {
    const builder g =
        backward ? capture_backward(b.block.spec().formula, options) : capture_forward(b.block.spec().formula, options);
    const auto whole = outputs_of(b, g, {}, nullptr);
    REQUIRE(!whole.empty());
    rank_threads with(ranks);
    std::vector<std::vector<std::vector<double>>> made(ranks);
    std::vector<std::thread> all;
    for (int r = 0; r < ranks; ++r)
      all.emplace_back([&, r] {
        made[static_cast<std::size_t>(r)] = outputs_of(b, g, {r, ranks, {experts_name}}, &with);
      });
    for (std::thread& t : all) t.join();
    for (const auto& mine : made) {
      REQUIRE(mine.size() == whole.size());
      for (std::size_t k = 0; k < whole.size(); ++k)
        for (std::size_t i = 0; i < whole[k].size(); ++i)
          CHECK(mine[k][i] == doctest::Approx(whole[k][i]).epsilon(1e-9).scale(1));
    }
  }
}
}  // namespace

TEST_CASE("experts: ranks that divide the experts give what one process gives, for every method") {
  for_each_adapter([&]<class Adapter>(adapter_type<Adapter>) {
    if (!lists(Adapter::kinds, "linear") && !lists(Adapter::kinds, "experts")) return;
    INFO(std::string(Adapter::method));
    const adapter_rule rules[] = {{"up_proj", formula_of<Adapter>()}, {"router", formula_of<lora<>>()}};
    block_options o;
    o.adapters = {rules, 2};
    if (capture(block_of<mixture<false, true, false>>(), o).bad.what != formula_error::none) return;
    random_block b({block_of<mixture<false, true, false>>(), {rules[0], rules[1]}, {}}, 9);
    equals_divided(b);
  });
  for (const block_formula& f : {block_of<mixtral>(), block_of<gpt_oss>(), block_of<qwen2_moe>()}) {
    INFO(std::string(f.name));
    random_block b({f, {{"*_proj", formula_of<lora<>>()}}, {"sparse_layer"}}, 7);
    equals_divided(b);
  }
}

TEST_CASE("experts: ranks that divide the experts sum up once in a forward pass") {
  const block_options options;
  random_block b({block_of<mixtral>(), {}, {}}, 7);
  const shard_spec of{1, 5, {experts_name}};
  const builder g = of.graph_of(capture_forward(b.block.spec().formula, options), b.block.values, {});
  int sums = 0;
  for (id i = 0; i < g.n.size(); ++i) sums += g.n[i].what == op::all_reduce_sum ? 1 : 0;
  CHECK(sums == 1);
  CHECK(sharded_axis(g, g.find("mlp.experts.gate_up_proj")) == 1);
  CHECK(sharded_axis(g, g.find("mlp.gate.weight")) == -1);
}

TEST_CASE("experts: a method that does not exist on them is refused by name") {
  random_block b({block_of<mixture<false, true, false>>(), {{"up_proj", formula_of<oft<>>()}}, {}}, 5);
  CHECK(std::string(b.block.bind(pass_kind::forward, {5}).message())
            .starts_with("layer 0: method 'OFT (Cayley)' does not exist on the experts of a mixture"));
  random_block biased({block_of<mixture<false, true, false>>(), {{"up_proj", formula_of<lora_with_bias<>>()}}, {}}, 5);
  CHECK(std::string(biased.block.bind(pass_kind::forward, {5}).message())
            .starts_with("layer 0: method 'LoRA with bias' does not exist on the experts of a mixture"));
}

TEST_CASE("experts: more experts per token than there are is refused") {
  random_block b({block_of<mixtral>(), {}, {}}, 5);
  b.block.values.sizes["experts_per_token"] = 6;
  CHECK(std::string(b.block.bind(pass_kind::forward, {5}).message()).starts_with("layer 0: 6 is more than 5 in "));
}

TEST_CASE("experts: two calls give the same bits") {
  random_block b({block_of<mixtral>(), {{"*_proj", formula_of<lora<>>()}}, {}}, 33);
  const std::vector<double> first = b.forward();
  CHECK(b.forward() == first);
}

TEST_CASE("experts: counts and sums of the auxiliary loss of routers, and its gradient") {
  const long long rows = 9, experts = 5, k = 2;
  random_block b({block_of<mixture<false, true, false>>(),
                  {{"router", formula_of<lora<>>()}, {"up_proj", formula_of<lora<>>()}},
                  {"router_loss"}},
                 rows);
  const std::vector<double> weights{1, 1, 0, 1, 0.5, 1, 1, 1, 2}, factors{0.3, -1.2, 0.7, 2.1, -0.4};
  std::vector<double> counts(experts), sums(experts);
  const auto call = [&] {
    block_call c = b.call();
    c[call_input::row_weights] = view_of(weights.data(), rows, 1);
    c[call_input::router_gradient] = view_of(factors.data(), 1, experts);
    c.router_counts = view_into(counts.data(), 1, experts), c.router_sums = view_into(sums.data(), 1, experts);
    return c;
  };
  for (const pass_kind w : {pass_kind::forward_saved, pass_kind::backward, pass_kind::backward_recompute})
    b.must(b.block.bind(w, {rows}));
  b.must(b.block.run(pass_kind::forward_saved, call()));

  // The scores by plain loops: x (W + s B A)ᵀ + bias.
  const std::vector<double>&W = b.data.at("router.weight"), &A = b.data.at("router.lora_A.weight"),
        &B = b.data.at("router.lora_B.weight"), &bias = b.data.at("router.bias");
  std::vector<double> expected_counts(experts), expected_sums(experts);
  for (std::size_t t = 0; t < rows; ++t) {
    std::vector<double> score(experts);
    double all = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      score[e] = bias[e];
      for (std::size_t i = 0; i < 16; ++i) {
        double w = W[e * 16 + i];
        for (std::size_t r = 0; r < 3; ++r) w += 0.7 * B[e * 3 + r] * A[r * 16 + i];
        score[e] += b.x[t * 16 + i] * w;
      }
      all += std::exp(score[e]);
    }
    for (std::size_t e = 0; e < experts; ++e) {
      expected_sums[e] += weights[t] * std::exp(score[e]) / all;
      const auto larger = std::count_if(score.begin(), score.end(), [&](double other) { return other > score[e]; });
      expected_counts[e] += larger < k ? weights[t] : 0;
    }
  }
  for (std::size_t e = 0; e < experts; ++e) {
    CHECK(counts[e] == doctest::Approx(expected_counts[e]));
    CHECK(sums[e] == doctest::Approx(expected_sums[e]));
  }

  // Σ y dy + Σ sums · factors changes with each number as both backward passes say.
  const char* const names[] = {"router.lora_A.weight", "router.lora_B.weight", "mlp.experts.up_proj.lora_B.weight"};
  std::map<std::string, std::vector<double>> gradients;
  for (const char* name : names) {
    std::vector<double>& d = gradients[name];
    d.resize(b.data.at(name).size());
    b.must(b.block.bind_gradient(name, view_into(d.data(), static_cast<long long>(d.size()))));
  }
  const auto value = [&] {
    b.must(b.block.parameters_changed());
    b.must(b.block.run(pass_kind::forward_saved, call()));
    double all = 0;
    for (std::size_t i = 0; i < b.y.size(); ++i) all += b.y[i] * b.dy[i];
    for (std::size_t e = 0; e < experts; ++e) all += sums[e] * factors[e];
    return all;
  };
  for (const pass_kind w : {pass_kind::backward, pass_kind::backward_recompute}) {
    value();
    b.must(b.block.run(w, call()));
    const std::vector<double> dx = b.dx;
    const auto compare = [&](std::vector<double>& of, const std::vector<double>& d) {
      for (std::size_t i = 0; i < of.size(); i += 1 + of.size() / 6) {
        const double before = of[i], step = 1e-5;
        of[i] = before + step;
        const double up = value();
        of[i] = before - step;
        const double slope = (up - value()) / (2 * step);
        of[i] = before;
        CHECK(d[i] == doctest::Approx(slope).epsilon(1e-5).scale(1));
      }
    };
    for (const char* name : names) {
      INFO(std::string(name));
      compare(b.data.at(name), std::vector<double>(gradients.at(name)));
    }
    compare(b.x, dx);
  }
}
