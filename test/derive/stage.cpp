// SPDX-License-Identifier: Apache-2.0
// The stage of a value: computed once per load, once per parameter change, or with every call.
#include "../support/formula_text.h"

using namespace test;

namespace {

// The node whose expression is this text.
constexpr id reading(const graph& g, const char* text_of_it) {
  for (int i = 0; i < g.size; ++i)
    if (same_text(expression(g, static_cast<id>(i), {nullptr, 40}).c_str(), text_of_it)) return static_cast<id>(i);
  return none_id;
}
template <class Adapter, class Kind = linear_kind> constexpr int when(const char* what) {
  const graph g = derived<Kind, Adapter, false>::forward;
  const id i = reading(g, what);
  return i < 0 ? -1 : static_cast<int>(schedule(g).of[i]);
}
template <class Adapter, class Kind = linear_kind> constexpr bool per_token(const char* what) {
  const graph g = derived<Kind, Adapter, false>::backward;
  return schedule(g).has_token_rows[reading(g, what)];
}
constexpr stage known(op leaf) { return traits_of(leaf).known_at; }
constexpr int load = static_cast<int>(stage::load), parameter = static_cast<int>(stage::parameter),
              data = static_cast<int>(stage::call);

}  // namespace

TEST_CASE("stage: leaves") {
  BOTH(known(op::input) == stage::call);
  BOTH(known(op::ids) == stage::call);
  BOTH(known(op::param) == stage::parameter);
  BOTH(known(op::scalar) == stage::parameter);
  BOTH(known(op::saved) == stage::parameter);
  BOTH(known(op::base) == stage::load);
  BOTH(known(op::frozen) == stage::load);
  BOTH(known(op::constant) == stage::load);
  BOTH(known(op::eye) == stage::load);
}

TEST_CASE("stage: a value has the latest stage of its operands") {
  BOTH(when<lora<>>("weight") == load);
  BOTH(when<lora<>>("scaling * lora_B.weight") == parameter);
  BOTH(when<lora<>>("x @ weight'") == data);
  BOTH(when<lora<>>("x @ lora_A.weight'") == data);
  BOTH(when<vera<>>("vera_A") == load);
  BOTH(when<vera<>>("vera_lambda_d * vera_A") == parameter);
  BOTH(when<hra<>>("0.5 * I") == load);
  BOTH(when<oft<dyn>>("inverse(I + skew(oft_R.weight))") == parameter);
  BOTH(when<lora_embedding<>, embedding_kind>("gather(weight, x)") == data);
}

TEST_CASE("stage: the large part of DoRA's norm is computed once per load") {
  BOTH(when<dora<>>("row_dot(weight, weight)") == load);
  BOTH(when<dora<>>("weight @ lora_A.weight'") == parameter);
  BOTH(when<dora<>>("lora_A.weight @ lora_A.weight'") == parameter);
  BOTH(when<dora<>>("weight + scaling * lora_B.weight @ lora_A.weight") == -1);  // V is never computed
  BOTH(when<dora<>>("lora_B.weight @ lora_A.weight") == -1);
}

TEST_CASE("stage: values with a row per token, and sums over tokens") {
  BOTH(per_token<lora<>>("dy @ (scaling * lora_B.weight)"));
  BOTH(per_token<lora<>>("x"));
  BOTH(!per_token<lora<>>("dy' @ (x @ lora_A.weight')"));
  BOTH(!per_token<lora<>>("scaling * lora_B.weight"));
}

TEST_CASE("stage: a derived size depends on the names in it") {
  builder b;
  const scope p{&b};
  const dim tokens = p.tokens().d, in = b.size_named("in", 0, 1);
  const size_table z = (b.times(b.over(tokens, in), b.size_named("c", 0, 1)), b.sizes());
  CHECK(z.has_token_rows(tokens));
  CHECK(z.has_token_rows(b.times(b.over(tokens, in), in)));
  CHECK(z.has_token_rows(b.times(in, tokens)));
  CHECK_FALSE(z.has_token_rows(in));
  CHECK_FALSE(z.has_token_rows(dim{7}));
}

TEST_CASE("stage: names") {
  SAYS(name_of(stage::load), "load");
  SAYS(name_of(stage::parameter), "parameter");
  SAYS(name_of(stage::call), "data");
}
