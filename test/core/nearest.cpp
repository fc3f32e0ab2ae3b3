// SPDX-License-Identifier: Apache-2.0
#include <graft/core/nearest.h>

#include <initializer_list>

#include "../support/both.h"

using namespace graft;

namespace {

constexpr text meant(const char* wanted, std::initializer_list<const char*> names) {
  nearest n(wanted);
  for (const char* name : names) n.offer(name);
  return n.hint();
}
constexpr text of_lora(const char* wanted) {
  return meant(wanted, {"weight", "scaling", "lora_B.weight", "lora_A.weight"});
}

}  // namespace

TEST_CASE("nearest: a few letters") {
  SAYS(of_lora("lora_a.weight"), "; did you mean 'lora_A.weight'?");
  SAYS(of_lora("loraA.weight"), "; did you mean 'lora_A.weight'?");
  SAYS(of_lora("lora_A.wieght"), "; did you mean 'lora_A.weight'?");
  SAYS(of_lora("Weight"), "; did you mean 'weight'?");
  SAYS(of_lora("scalling"), "; did you mean 'scaling'?");
  SAYS(meant("R", {"r", "out"}), "; did you mean 'r'?");
}
TEST_CASE("nearest: an end that is missing, or a path too many") {
  SAYS(of_lora("lora_A"), "; did you mean 'lora_A.weight'?");
  SAYS(of_lora("base_model.model.q_proj.lora_B.weight"), "; did you mean 'lora_B.weight'?");
}
TEST_CASE("nearest: nothing is near") {
  SAYS(meant("base_model.model.other.lora_A.weight", {"base_model.model.lin.lora_A.weight"}), "");
  SAYS(of_lora("lora_C"), "");
  SAYS(of_lora("alpha"), "");
  SAYS(of_lora(""), "");
  SAYS(meant("rank", {"r", "out", "in"}), "");
  SAYS(meant("weight", {"lora_A.weight", "lora_B.weight"}), "");  // the end of both
  SAYS(meant("x", {}), "");
}
TEST_CASE("nearest: names that are too long are not compared letter by letter") {
  static char long_name[2000];
  for (char& c : long_name) c = 'a';
  long_name[1999] = '\0';
  SAYS_NOW(meant(long_name, {"weight", "b"}), "");
}
