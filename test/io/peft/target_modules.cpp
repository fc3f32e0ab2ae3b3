// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <graft/io/peft/adapter_config.h>
#include <graft/io/peft/ia3.h>
#include <graft/io/peft/target_modules.h>

using namespace graft;
using namespace graft::io;

namespace {

adapter_config config(const std::string& keys) {
  const auto c = parse_adapter_config("{\"peft_type\":\"LORA\"," + keys + "}", "c");
  REQUIRE_MESSAGE(c, c.message());
  return *c;
}
bool hit(const adapter_config& c, const char* path) {
  const result<bool> r = is_target(c, path);
  REQUIRE_MESSAGE(r, r.message());
  return *r;
}

}  // namespace

TEST_CASE("target: a list matches the whole name, or the words after a dot") {
  const auto c = config(R"("target_modules":["q_proj","self_attn.v_proj"])");
  CHECK(hit(c, "q_proj"));
  CHECK(hit(c, "model.layers.0.self_attn.q_proj"));
  CHECK(hit(c, "m.self_attn.v_proj"));
  CHECK_FALSE(hit(c, "m.v_proj"));
  CHECK_FALSE(hit(c, "m.xq_proj"));
  CHECK_FALSE(hit(c, "q_proj.weight"));
  CHECK_FALSE(hit(c, ""));
}

TEST_CASE("target: a string is a regular expression for the whole path") {
  const auto c = config(R"("target_modules":".*layers\\.1\\..*(q|v)_proj")");
  CHECK(hit(c, "model.layers.1.self_attn.v_proj"));
  CHECK_FALSE(hit(c, "model.layers.0.self_attn.v_proj"));
  CHECK_FALSE(hit(c, "model.layers.1.self_attn.v_proj.x"));
}

TEST_CASE("target: catastrophic and broken expressions") {
  CHECK_FALSE(hit(config(R"("target_modules":"(a+)+$")"), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"));
  CHECK(contains(is_target(config(R"("target_modules":"(a")"), "a").message(), "regular expression '(a'"));
}

TEST_CASE("target: all-linear selects linear layers except the output layer") {
  const auto all = config(R"("target_modules":"all-linear","exclude_modules":["b"])");
  CHECK(*is_target(all, "m.a"));
  CHECK(*is_target(all, "m.a", {.linear = true, .output = false}));
  CHECK_FALSE(*is_target(all, "m.a", {.linear = false, .output = false}));
  CHECK_FALSE(*is_target(all, "lm_head", {.linear = true, .output = true}));
  CHECK_FALSE(*is_target(all, "m.b"));
  CHECK(config(R"("target_modules":"ALL-Linear")").target_modules.kind == name_pattern::form::all_linear);
  CHECK(config(R"("target_modules":["a"],"exclude_modules":"all-linear")").exclude_modules.kind ==
        name_pattern::form::regex);
}

TEST_CASE("target: excluded and saved modules are not adapted") {
  const auto c = config(R"("target_modules":["q","head"],"exclude_modules":["0.q"],"modules_to_save":["head"])");
  CHECK_FALSE(hit(c, "a.0.q"));
  CHECK(hit(c, "a.1.q"));
  CHECK_FALSE(hit(c, "m.head"));
  CHECK_FALSE(hit(c, "m.head.q"));
  CHECK(hit(c, "m.overhead.q"));
  CHECK(is_saved_module(c, "m.head"));
  CHECK(is_saved_module(c, "m.overhead"));
  CHECK_FALSE(is_saved_module(c, "m.head.q"));
  CHECK_FALSE(hit(config(R"("target_modules":["q"],"exclude_modules":".*\\.0\\..*")"), "a.0.q"));
}

TEST_CASE("target: layers_to_transform tests the first layer number, except for an exact name") {
  const auto c = config(R"("target_modules":["q","layers.9.q"],"layers_to_transform":[1,3])");
  CHECK(hit(c, "model.layers.1.q"));
  CHECK_FALSE(hit(c, "model.layers.2.q"));
  CHECK(hit(c, "model.layers.3.experts.7.q"));
  CHECK(hit(c, "layers.9.q"));
  CHECK(hit(c, "q"));
  CHECK_FALSE(hit(c, "layers.1.q"));
  CHECK_FALSE(hit(c, "model.q"));
  const auto p = config(R"("target_modules":["q"],"layers_to_transform":7,"layers_pattern":["h","experts"])");
  CHECK(hit(p, "model.layers.3.experts.7.q"));
  CHECK(hit(p, "model.h.7.q"));
  CHECK_FALSE(hit(p, "model.layers.7.q"));
}

TEST_CASE("target: IA3 tests for feed-forward without a dot") {
  const auto c = parse_adapter_config(
      R"({"peft_type":"IA3","target_modules":["k_proj","proj"],"feedforward_modules":["proj"]})", "c");
  REQUIRE(c);
  CHECK(*peft::is_feedforward(*c, "m.down_proj"));
  CHECK_FALSE(*peft::is_feedforward(*c, "m.proj.x"));
  const auto r = parse_adapter_config(
      R"({"peft_type":"IA3","target_modules":".*(k|down)_proj","feedforward_modules":".*down_proj"})", "c");
  REQUIRE(r);
  CHECK(*peft::is_feedforward(*r, "m.down_proj"));
  CHECK_FALSE(*peft::is_feedforward(*r, "m.k_proj"));
}

TEST_CASE("target: rank and alpha patterns, the first match in file order") {
  const auto c = config(
      R"("target_modules":["q","v"],"r":8,"lora_alpha":16,
         "rank_pattern":{"z.q":3,"q":4,"^m.v":5,"layers\\.\\d+\\.v":6},"alpha_pattern":{"v":2.5})");
  CHECK(*rank_of(c, "a.q") == 4);
  CHECK(*rank_of(c, "a.z.q") == 3);
  CHECK(*rank_of(c, "m.v") == 5);
  CHECK(*rank_of(c, "a.m.v") == 8);
  CHECK(*rank_of(c, "a.layers.12.v") == 6);
  CHECK(*rank_of(c, "a.inq") == 8);
  CHECK(*alpha_of(c, "m.v") == 2.5);
  CHECK(*alpha_of(c, "a.q") == 16);
  const auto bad = config(R"("target_modules":["q"],"rank_pattern":{"(q":3})");
  CHECK(contains(rank_of(bad, "q").message(), "is missing"));
}
