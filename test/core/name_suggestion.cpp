// SPDX-License-Identifier: Apache-2.0
#include <graft/core/name_suggestion.h>

#include <initializer_list>

#include "../support/static_check.h"

using namespace graft;

namespace {

constexpr text meant(const char* wanted, std::initializer_list<const char*> names) {
  name_suggester n(wanted);
  for (const char* name : names) n.offer(name);
  return n.hint();
}
constexpr text of_lora(const char* wanted) {
  return meant(wanted, {"weight", "scaling", "lora_B.weight", "lora_A.weight"});
}

}  // namespace

TEST_CASE("name_suggestion: names that differ by up to three letters") {
  SAYS(of_lora("lora_a.weight"), "; did you mean 'lora_A.weight'?");
  SAYS(of_lora("loraA.weight"), "; did you mean 'lora_A.weight'?");
  SAYS(of_lora("lora_A.wieght"), "; did you mean 'lora_A.weight'?");
  SAYS(of_lora("Weight"), "; did you mean 'weight'?");
  SAYS(of_lora("scalling"), "; did you mean 'scaling'?");
  SAYS(meant("R", {"r", "out"}), "; did you mean 'r'?");
}
TEST_CASE("name_suggestion: a missing suffix or an extra path") {
  SAYS(of_lora("lora_A"), "; did you mean 'lora_A.weight'?");
  SAYS(of_lora("base_model.model.q_proj.lora_B.weight"), "; did you mean 'lora_B.weight'?");
}
TEST_CASE("name_suggestion: no name is similar") {
  SAYS(meant("base_model.model.other.lora_A.weight", {"base_model.model.lin.lora_A.weight"}), "");
  SAYS(of_lora("lora_C"), "");
  SAYS(of_lora("alpha"), "");
  SAYS(of_lora(""), "");
  SAYS(meant("rank", {"r", "out", "in"}), "");
  SAYS(meant("weight", {"lora_A.weight", "lora_B.weight"}), "");  // the suffix of both, so neither is suggested
  SAYS(meant("x", {}), "");
}
TEST_CASE("name_suggestion: very long names are not compared letter by letter") {
  static char long_name[2000];
  for (char& c : long_name) c = 'a';
  long_name[1999] = '\0';
  SAYS_NOW(meant(long_name, {"weight", "b"}), "");
}
