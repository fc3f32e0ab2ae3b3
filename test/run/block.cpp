// SPDX-License-Identifier: Apache-2.0
// Blocks bound to tensors: the results are those of the formula, gradients agree with finite differences, and equal
// blocks share their programs.
#include <doctest/doctest.h>
#include <graft/adapter/boft.h>
#include <graft/adapter/deft.h>
#include <graft/adapter/dora.h>
#include <graft/adapter/loha.h>
#include <graft/adapter/lokr.h>
#include <graft/adapter/supertuning.h>
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/block/gemma3.h>
#include <graft/block/gpt2.h>
#include <graft/block/granite.h>
#include <graft/block/olmo2.h>
#include <graft/block/opt.h>
#include <graft/block/phi3.h>
#include <graft/block/qwen3.h>
#include <graft/block/smollm3.h>
#include <graft/run/block.h>

#include "../support/random_block.h"

using namespace test;

namespace {

const adapter_rule lora_everywhere[] = {{"*_proj", formula_of<lora<>>()}};
// Attention with a trained sink for each query head.
struct with_sinks : llama {
  static constexpr const char* name = "with sinks";
  static constexpr ex run(block_scope m, ex h) {
    const extent heads = m.size("heads"), d = m.size("head_dim"), kv = m.size("kv_heads") * d;
    auto q = m.rope(m.linear("q_proj", h, heads * d)), k = m.rope(m.linear("k_proj", h, kv));
    auto sinks = m.root().param("sinks", heads);
    return h + m.linear("o_proj", m.attention(q, k, m.linear("v_proj", h, kv), sinks), h.cols());
  }
};

const adapter_rule mixed[] = {{"*_proj", formula_of<lora<>>()}, {"v_proj", formula_of<dora<>>()}};

}  // namespace

TEST_CASE("block: forward equals the eager formula, and backward its finite differences") {
  struct example {
    block_formula formula;
    std::vector<adapter_rule> adapters;
    std::vector<const char*> facts;
    double soft_cap = 0;
  };
  const example all[] = {
      {block_of<llama>(), {mixed[0], mixed[1]}, {"attention_bias"}},
      {block_of<qwen3>(), {lora_everywhere[0]}, {}},
      {block_of<opt>(), {lora_everywhere[0]}, {"attention_bias", "norm_before"}},
      {block_of<opt>(), {}, {}},
      {block_of<gpt2>(), {{"c_attn", formula_of<dora<>>()}, {"c_fc", formula_of<lora<>>()}}, {}},
      {{"embed", &gpt2::embed, true}, {{"wte", formula_of<lora_embedding<>>()}}, {}},
      {with_loss({"head", &llama::head}), {{"lm_head", formula_of<lora<>>()}}, {}},
      {block_of<gemma2>(), {lora_everywhere[0]}, {"attention_factor"}, 0.3},
      {block_of<gemma3>(), {lora_everywhere[0]}, {}},
      {with_loss({"head", &gemma2::head}), {{"lm_head", formula_of<lora<>>()}}, {"logit_soft_cap"}},
      {block_of<granite>(), {lora_everywhere[0]}, {"mlp_bias"}},
      {{"embed", &granite::embed, true}, {{"embed_tokens", formula_of<lora_embedding<>>()}}, {}},
      {with_loss({"head", &granite::head}), {{"lm_head", formula_of<lora<>>()}}, {}},
      {block_of<olmo2>(), {lora_everywhere[0]}, {}},
      {block_of<phi3>(), {lora_everywhere[0]}, {}},
      {block_of<phi3>(), {{"qkv_proj", formula_of<dora<>>()}}, {"partial_rotary"}},
      {block_of<smollm3>(), {lora_everywhere[0]}, {"no_rope"}},
      {block_of<with_sinks>(), {lora_everywhere[0]}, {}},
      {block_of<with_sinks>(), {}, {"attention_factor"}, 0.4},
  };
  for (const example& e : all) {
    INFO(std::string(e.formula.name));
    random_block b({e.formula, e.adapters, e.facts, false, op::detach, e.soft_cap}, 11);
    const std::vector<double> y = b.forward();
    const std::vector<double> written = b.literal();
    REQUIRE(y.size() == written.size());
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(written[i]).epsilon(1e-9).scale(1));
    b.check_slopes();
  }
}

TEST_CASE("block: forward and backward drop the same elements") {
  for (const bool dora_too : {false, true}) {
    block_spec what{block_of<gpt2>(), {{"c_fc", formula_of<lora<>>()}}, {}};
    if (dora_too) what.adapters.push_back({"c_attn", formula_of<dora<>>()});
    for (adapter_rule& a : what.adapters) a.drops.elements = true;
    what.dropped = true;
    random_block b(what, 11);
    for (auto& [name, value] : b.block.values.scalars)
      if (name.ends_with("dropout")) value = 0.3;
    const std::vector<double> all = b.forward();
    b.goes = pass_kind::forward_saved;
    const std::vector<double> some = b.forward();
    CHECK(some != all);
    const std::vector<double> written = b.literal();
    for (std::size_t i = 0; i < some.size(); ++i) CHECK(some[i] == doctest::Approx(written[i]).epsilon(1e-9).scale(1));
    b.goes = pass_kind::forward_checkpointed;
    CHECK(b.forward() == some);
    b.goes = pass_kind::forward_saved;
    b.check_slopes();
    b.seed = {43};
    CHECK(b.forward() != some);
    for (auto& [name, value] : b.block.values.scalars)
      if (name.ends_with("dropout")) value = 0;
    b.must(b.block.parameters_changed());
    const std::vector<double> none = b.forward();
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(none[i] == doctest::Approx(all[i]).epsilon(1e-9).scale(1));
  }
}

TEST_CASE("block: dropout of outputs, of whole adapters and of rotation blocks in both passes") {
  struct example {
    const char* layer;
    formula of;
    dropout_kinds drops;
    bool turns = false;
  };
  const example all[] = {{"q_proj", formula_of<loha<>>(), {.rows = true}},
                         {"o_proj", formula_of<lokr<>>(), {.rows = true, .rescaled = true}},
                         {"gate_proj", formula_of<loha<>>(), {.elements = true, .whole = true}},
                         {"up_proj", formula_of<deft<>>(), {.elements = true}},                  // of the added update
                         {"v_proj", formula_of<supertuning_with_lora<>>(), {.elements = true}},  // of its LoRA
                         {"down_proj", formula_of<boft<4, 2>>(), {.blocks = true}, true}};
  for (const example& e : all) {
    INFO(std::string(e.layer));
    random_block b({block_of<llama>(), {{e.layer, e.of, "", false, e.drops}}, {}, true}, 11);
    const auto rate = [&](double to) {
      for (auto& [name, value] : b.block.values.scalars)
        if (name.ends_with("dropout")) value = to;
      b.must(b.block.parameters_changed());
    };
    const std::vector<double> whole = b.forward();
    b.goes = pass_kind::forward_saved;
    const auto same = [&](const std::vector<double>& y, const std::vector<double>& other) {
      bool equal = y.size() == other.size();
      for (std::size_t i = 0; i < y.size(); ++i)
        equal = equal && std::abs(y[i] - other[i]) < 1e-9 * (1 + std::abs(y[i]));
      return equal;
    };
    rate(0.5);
    bool differs = false;
    for (std::int64_t seed = 1; seed < 9; ++seed) {  // a single draw may drop nothing
      b.seed = {seed};
      const std::vector<double> some = b.forward();
      differs = differs || !same(some, whole);
      CHECK(same(some, b.literal()));
      b.goes = pass_kind::forward_checkpointed;
      CHECK(b.forward() == some);
      b.goes = pass_kind::forward_saved;
    }
    CHECK(differs);
    b.check_slopes();
    rate(0);
    CHECK(same(b.forward(), whole));
    if (e.turns || e.drops.rescaled) continue;
    rate(1);
    const std::vector<double> without = b.forward();
    for (auto& [name, value] : b.block.values.scalars)
      if (name.ends_with("scaling")) value = 0;
    rate(0);
    CHECK(same(b.forward(), without));
  }
}

TEST_CASE("block: many rows on several threads give the results of few rows") {
  random_block few({block_of<llama>(), {mixed[0], mixed[1]}, {}}, 300);
  const std::vector<double> y = few.forward(), written = few.literal();
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(written[i]).epsilon(1e-9).scale(1));
}

TEST_CASE("block: decoding row by row over a KV cache equals one call on all rows") {
  for (const block_formula& f : {block_of<llama>(), block_of<gpt2>(), block_of<phi3>(), block_of<with_sinks>()}) {
    random_block b({f, {lora_everywhere[0]}, {"partial_rotary"}, false, op::detach, 0.5},
                   9);  // two sequences, of 4 and 5 rows
    const std::vector<double> whole = b.forward();
    const long long slots = 20, width = 2 * (same_text(f.name, "gpt2") ? 16 : 8);
    std::vector<double> cache(static_cast<std::size_t>(slots * width));
    b.block.values.tensors["kv_cache"] = view_of(cache.data(), slots, width);
    b.must(b.block.bind(pass_kind::decode, {9}));
    std::vector<double> x, y(32);
    std::vector<std::int64_t> positions, ranges;
    auto step = [&](const std::vector<long long>& rows) {
      const auto n = static_cast<long long>(rows.size());
      x.clear(), positions.clear(), ranges.assign(static_cast<std::size_t>(3 * n), 0);
      for (long long i = 0; i < n; ++i) {
        const long long r = rows[static_cast<std::size_t>(i)], place = r < 4 ? r : 6 + r;  // the second one from 10 on
        x.insert(x.end(), b.x.begin() + r * 16, b.x.begin() + (r + 1) * 16);
        positions.push_back(b.positions[static_cast<std::size_t>(r)]);
        ranges[static_cast<std::size_t>(i)] = r < 4 ? 0 : 10;
        ranges[static_cast<std::size_t>(n + i)] = place + 1, ranges[static_cast<std::size_t>(2 * n + i)] = place;
      }
      y.assign(static_cast<std::size_t>(n * 16), 0.0);
      block_call c;
      c[call_input::x] = view_of(x.data(), n, 16), c[call_input::positions] = view_of(positions.data(), n);
      c[call_input::attention_range] = view_of(ranges.data(), 3, n), c.y = view_into(y.data(), n, 16);
      b.must(b.block.run(pass_kind::decode, c));
      for (long long i = 0; i < n; ++i)
        for (long long k = 0; k < 16; ++k)
          CHECK(y[static_cast<std::size_t>(i * 16 + k)] ==
                doctest::Approx(whole[static_cast<std::size_t>(rows[static_cast<std::size_t>(i)] * 16 + k)])
                    .epsilon(1e-9)
                    .scale(1));
    };
    step({0, 1, 4, 5, 6});
    step({2, 7});
    step({3, 8});
  }
}

namespace {
struct twice : llama {
  static constexpr ex run(block_scope m, ex h) {
    return m.linear("proj", m.linear("proj", h, m.size("intermediate")), h.cols());
  }
};
struct through_host : llama {
  static constexpr ex run(block_scope m, ex h) { return host("f", m.linear("proj", h, h.cols())); }
};
}  // namespace

TEST_CASE("block: binding refuses a formula that cannot run") {
  random_block b({block_of<twice>(), {}, {}}, 5);
  CHECK(std::string(b.block.bind(pass_kind::forward, {5}).message()) ==
        "layer 0: two tensors of the block are named 'weight' and differ");
  random_block h({block_of<through_host>(), {}, {}}, 5);
  CHECK(std::string(h.block.bind(pass_kind::backward_recompute, {5}).message())
            .starts_with("layer 0: no gradient for what stands in line "));
}

TEST_CASE("block: a backward pass without its saved tensors is refused") {
  random_block b({block_of<llama>(), {lora_everywhere[0]}, {}}, 5);
  b.must(b.block.bind(pass_kind::backward, {5}));
  CHECK(std::string(b.block.run(pass_kind::backward, b.call()).message()) ==
        "layer 0: the block is not bound for pass_kind::forward_saved, whose values the backward pass reads");
  CHECK(std::string(b.block.run(pass_kind::decode, b.call()).message()) == "layer 0: the block is not bound for this");
  CHECK(std::string(b.block.bind(pass_kind::forward_saved, {}).message()) ==
        "layer 0: saving values for backward needs a number of rows: state one in the capacity");
  b.must(b.block.bind(pass_kind::forward_saved, {4}));
  CHECK(std::string(b.block.run(pass_kind::backward, b.call()).message()) ==
        "layer 0: this call has 5 rows, the block was bound for 4; bind() it with a larger capacity");
}

TEST_CASE("block: equal blocks share a program, whatever the depth") {
  auto keys = [](int depth, int adapted) {
    block_programs<exact> programs;
    std::vector<std::unique_ptr<random_block>> blocks;
    for (int l = 0; l < depth; ++l) {
      std::vector<adapter_rule> rules;
      if (l < adapted) rules.push_back(lora_everywhere[0]);
      blocks.push_back(std::make_unique<random_block>(block_spec{block_of<llama>(), rules, {}}, 5, &programs, l));
      static_cast<void>(blocks.back()->forward());
    }
    std::vector<unsigned long long> all;
    for (int k = 0; k < programs.count(); ++k) all.push_back(programs[k].key());
    return all;
  };
  CHECK(keys(2, 2) == keys(32, 32));
  CHECK(keys(2, 2).size() == 1);
  CHECK(keys(2, 1) == keys(32, 7));
  CHECK(keys(32, 7).size() == 2);
}

TEST_CASE("block: blocks that share a program have separate tensors") {
  block_programs<exact> programs;
  random_block a({block_of<llama>(), {lora_everywhere[0]}, {}}, 5, &programs, 1),
      b({block_of<llama>(), {lora_everywhere[0]}, {}}, 5, &programs, 2);
  const std::vector<double> first = a.forward(), second = b.forward();
  CHECK(first != second);
  CHECK(a.forward() == first);
  CHECK(b.forward() == second);
  CHECK(programs.count() == 1);
  b.must(b.block.bind(pass_kind::forward, {2}));  // with a smaller capacity than the other block
  CHECK(a.forward() == first);
  CHECK(std::string(b.block.run(pass_kind::forward, b.call()).message()) ==
        "layer 2: this call has 5 rows, the block was bound for 2; bind() it with a larger capacity");
  CHECK(a.forward() == first);
}

TEST_CASE("block: another soft cap is another program, another layer without RoPE too") {
  block_programs<exact> programs;
  std::vector<std::vector<double>> all;
  const auto run = [&](std::vector<const char*> facts, double soft_cap) {
    random_block b({block_of<llama>(), {}, std::move(facts), false, op::detach, soft_cap}, 5, &programs);
    all.push_back(b.forward());
  };
  run({}, 0), run({}, 0.1), run({}, 0.2), run({"no_rope"}, 0), run({}, 0.1);
  CHECK(programs.count() == 4);
  CHECK(all[4] == all[1]);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t k = 0; k < i; ++k) CHECK(all[i] != all[k]);
}

TEST_CASE("block: another rank is another program") {
  block_programs<exact> programs;
  random_block a({block_of<llama>(), {lora_everywhere[0]}, {}}, 5, &programs, 1);
  random_block b({block_of<llama>(), {lora_everywhere[0]}, {}}, 5, &programs, 2, 7);
  static_cast<void>(a.forward()), static_cast<void>(b.forward());
  CHECK(programs.count() == 2);
}

TEST_CASE("block: sizes that follow from an adapter's tensors") {
  random_block b({block_of<llama>(), {{"down_proj", formula_of<lokr<>>()}}, {}}, 6);
  const std::vector<double> y = b.forward(), written = b.literal();
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(written[i]).epsilon(1e-9).scale(1));
}

TEST_CASE("block: an error about a missing or unfitting tensor names its path") {
  random_block b({block_of<llama>(), {lora_everywhere[0]}, {}}, 5);
  static_cast<void>(b.forward());
  auto says = [](const status& s) { return std::string(s.message()); };
  bound_block<exact>& block = b.block;
  block_call c = b.call();
  c[call_input::positions] = {};
  CHECK(says(block.run(pass_kind::forward, c)) == "layer 0: tensor 'positions' is missing in this call");
  c = b.call();
  b.positions[2] = 99;
  CHECK(says(block.run(pass_kind::forward, c)) == "layer 0: id 99 at position 2 is outside the table of 40 rows");
  b.positions[2] = 2, b.ranges[6] = 12;
  CHECK(says(block.run(pass_kind::forward, c)) == "layer 0: row 1 attends to rows 0 to 12, there are 5");
  b.ranges[6] = 2;
  CHECK(bool(block.run(pass_kind::forward, c)));
  block.values.tensors["mlp.down_proj.weight"] = view_of(b.positions.data(), 5);
  CHECK(says(block.bind(pass_kind::forward, {8})) ==
        "layer 0: tensor 'mlp.down_proj.weight' is stored as i64, expected f32, f64, bf16 or f16");
  block.values.tensors.erase("mlp.down_proj.weight");
  CHECK(says(block.bind(pass_kind::forward, {8})) ==
        "layer 0: tensor 'mlp.down_proj.weight' is not set, expected [hidden, intermediate] = [16, 24]");
}
