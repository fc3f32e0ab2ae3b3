// SPDX-License-Identifier: Apache-2.0
// Which launches a layer type compiles: those of its own plans, and no others.
#include <doctest/doctest.h>
#include <graft/cuda.h>

using namespace graft;

namespace {

namespace set = cuda::launches;
template <class Adapter> using own = cuda::kernels_of_type<linear<1024, 1024, bf16, Adapter>>;

struct wide_lora : linear<dyn, dyn, bf16, dora<dyn>> {};

}  // namespace

TEST_CASE("launchers: a layer type compiles the launches of its plans") {
  CHECK(own<lora<16>>::launches == 0);
  CHECK(own<lora<16>>::base_launches == 0);
  CHECK(own<lora<16>>::backward_launches == 0);
  CHECK(own<dora<16>>::launches == (set::known_expression | set::shrink_of(16)));
  CHECK(own<dora<32>>::launches == (set::known_expression | set::shrink_of(32)));
  CHECK((own<dora<16>>::backward_launches & set::columns) != 0);
  CHECK((own<lokr<8>>::backward_launches & set::chain) != 0);
  CHECK((own<ia3>::backward_launches & set::columns) != 0);
}
TEST_CASE("launchers: a rank that is not known wants all of them") {
  const cuda::launch_set all = set::shrink_of(16) | set::shrink_of(32) | set::shrink_of(64);
  CHECK((cuda::kernels_of_type<wide_lora>::launches & all) == all);
}
TEST_CASE("launchers: only what a set names is taken") {
  cuda::launchers all, some;
  all.columns = [](cudaStream_t, const target&, const cuda::dots_args&) { return status(ok); };
  all.chain = [](cudaStream_t, const cuda::chain_args&) { return status(ok); };
  some.add(all, set::chain);
  CHECK((some.chain == all.chain));
  CHECK((some.columns == nullptr));
  some.add({});
  CHECK((some.chain == all.chain));
}
TEST_CASE("launchers: a launch that is not compiled is refused in words") {
  CHECK(std::string(cuda::not_launched("an expression").message()) ==
        "the kernels of an expression are not compiled into this program; use cuda::executor for this layer");
}
TEST_CASE("launchers: a layer type without codes refuses them in words, before anything runs") {
  const unsigned char codes[32] = {};
  const view weight{codes, dtype::nf4, {1, 64, 1, 1}, 2};
  const auto decoded = cuda::code_panel().decode(nullptr, weight, dtype::bf16);
  REQUIRE(!decoded);
  CHECK(std::string(decoded.message()) ==
        "a tensor is codes, and this layer has no kernels for them: name their type as that of the layer, as in "
        "linear<4096, 4096, nf4<64>, lora<16>>, or use cuda::executor");
}
