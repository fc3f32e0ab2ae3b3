// SPDX-License-Identifier: Apache-2.0
#include <graft/plan/slots.h>

#include "../support/all_layers.h"
#include "../support/both.h"

using namespace test;

namespace {

template <class Adapter, bias Bias = bias::no> constexpr linear_slots forward_slots() {
  using d = derived_of<linear<1024, 1024, bf16, Adapter, Bias>>;
  return slots_of(d::forward, schedule(d::forward));
}
template <class Adapter> constexpr linear_slots folded_slots() {
  using d = derived_of<linear<1024, 1024, bf16, Adapter>>;
  return slots_of(d::folded, schedule(d::folded));
}

}  // namespace

TEST_CASE("slots: a low-rank adapter is one side branch of the product") {
  BOTH((forward_slots<none>().found && forward_slots<none>().sides == 0 && forward_slots<none>().posts == 0));
  BOTH((forward_slots<lora<16>>().sides == 1 && forward_slots<lora<16>>().side[0].rank == dim{16}));
  BOTH((forward_slots<lora<16>>().side[0].a_by_rank && forward_slots<lora<16>>().side[0].b_by_row));
  BOTH((!forward_slots<lora<16>>().side[0].minus && forward_slots<hra<8>>().side[0].minus));
  BOTH(!forward_slots<hra<8>>().side[0].a_by_rank);  // U is stored [in, rank]
  BOTH((forward_slots<vera<256>>().sides == 1 && forward_slots<adalora<16>>().sides == 1));
}
TEST_CASE("slots: what is applied to the whole product, in its order") {
  BOTH((forward_slots<ia3>().posts == 1 && forward_slots<ia3>().post[0].what == op::mul));
  BOTH((forward_slots<dora<16>>().sides == 1 && forward_slots<dora<16>>().posts == 1));
  constexpr linear_slots with_bias = forward_slots<dora<16>, bias::yes>();
  BOTH((with_bias.posts == 2 && with_bias.post[0].what == op::mul && with_bias.post[1].what == op::add));
}
TEST_CASE("slots: the input may be computed, or folded") {
  constexpr auto input = [](id i) { return derived_of<linear<1024, 1024, bf16, oft<32>>>::forward.n[i].what; };
  BOTH((forward_slots<oft<32>>().found && input(forward_slots<oft<32>>().x) == op::rotate));
  BOTH((forward_slots<miss<16>>().sides == 1 && forward_slots<miss<16>>().side[0].a == none_id));
}
TEST_CASE("slots: a factor of the input is the pre slot, where nothing else reads the input") {
  constexpr auto what = [](id i) { return derived_of<linear<1024, 1024, bf16, ia3_feedforward>>::forward.n[i].what; };
  BOTH((forward_slots<ia3_feedforward>().found && forward_slots<ia3_feedforward>().posts == 0));
  BOTH((what(forward_slots<ia3_feedforward>().pre) == op::param));
  BOTH((what(forward_slots<ia3_feedforward>().unscaled) == op::input));
  BOTH((forward_slots<ia3>().pre == none_id && forward_slots<lora<16>>().pre == none_id));
  BOTH(forward_slots<oft<32>>().pre == none_id);
}
TEST_CASE("slots: a Kronecker product has no rank; folded into the weight it is a plain product") {
  BOTH(!forward_slots<lokr<16>>().found);
  BOTH((folded_slots<lokr<16>>().found && folded_slots<lokr<16>>().sides == 0));
  BOTH(!forward_slots<miss_mini<16, 16>>().found);
}
TEST_CASE("slots: the form in which a layer runs") {
  constexpr auto form = []<class A>(std::type_identity<A>, long long rank) {
    using d = derived_of<linear<1024, 1024, bf16, A>>;
    return form_of(d::forward, forward_slots<A>(), d::folded, folded_slots<A>(), rank);
  };
  BOTH((form(std::type_identity<lora<16>>{}, 16) == slot_form::product));
  BOTH((form(std::type_identity<lora<16>>{}, max_branch_rank + 1) == slot_form::folded));
  BOTH((form(std::type_identity<ia3_feedforward>{}, 0) == slot_form::product));
  BOTH((form(std::type_identity<lokr<16>>{}, 0) == slot_form::folded));
  BOTH((form(std::type_identity<oft<32>>{}, 0) == slot_form::input_first));
}
TEST_CASE("slots: other kinds of layers, and gradients, are not one product") {
  using e = derived_of<embedding<1024, 1024, bf16, lora_embedding<16>>>;
  using n = derived_of<layer_norm<1024, bf16, ln_tuning>>;
  using l = derived_of<linear<1024, 1024, bf16, lora<16>>>;
  BOTH(!slots_of(e::forward, schedule(e::forward)).found);
  BOTH(!slots_of(n::forward, schedule(n::forward)).found);
  BOTH(!slots_of(l::backward, schedule(l::backward)).found);
}
TEST_CASE("slots: every adapter of a linear layer fits, as it is or folded") {
  for_matrix_adapters([](const char* name, auto tag) {
    using d = derived_of<typename decltype(tag)::type>;
    INFO(std::string(name));
    const bool fits =
        slots_of(d::forward, schedule(d::forward)).found || slots_of(d::folded, schedule(d::folded)).found;
    CHECK(fits);
  });
}
