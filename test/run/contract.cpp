// SPDX-License-Identifier: Apache-2.0
#include "contract.h"

#include <cstring>

using namespace test;

namespace {

struct host_memory {
  static void* allocate(std::size_t bytes) {
    static std::vector<std::unique_ptr<std::byte[]>> all;
    return all.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
  }
  static void copy_in(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void copy_out(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
};
using on_the_cpu = contract<cpu::executor<float>, host_memory>;

}  // namespace

TEST_CASE("contract: forward and backward") { on_the_cpu().forward_and_backward(); }
TEST_CASE("contract: a capacity is respected") { on_the_cpu().capacity_is_kept(); }
TEST_CASE("contract: parameters_changed() makes written parameters take effect") {
  on_the_cpu().parameters_are_read_again();
}
TEST_CASE("contract: merging and unmerging") { on_the_cpu().merges(); }
TEST_CASE("contract: several adapters") { on_the_cpu().several_adapters(); }
TEST_CASE("contract: replacing an adapter is atomic") { on_the_cpu().replaced_whole_or_not_at_all(); }
TEST_CASE("contract: one of several active adapters is replaced") { on_the_cpu().replaced_while_several_are_active(); }

TEST_CASE("contract: without a capacity a layer grows with its calls") {
  on_the_cpu c;
  for (const long long rows : {3LL, 40LL, 1LL, 20LL}) c.computes(c.with(c.one), rows);
}
