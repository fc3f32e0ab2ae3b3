// SPDX-License-Identifier: Apache-2.0
// The launches that a layer type compiles: those of its plans, and no others.
#include <doctest/doctest.h>
#include <graft/gpu.h>

using namespace graft;

namespace {

namespace set = gpu::launches;
template <class Adapter> using own = gpu::type_kernels<linear<1024, 1024, bf16, Adapter>>;

struct wide_lora : linear<dyn, dyn, bf16, dora<dyn>> {};

}  // namespace

TEST_CASE("launchers: a layer type compiles the launches of its plans") {
  CHECK(own<lora<16>>::forward.launches == 0);
  CHECK(own<lora<16>>::base.launches == 0);
  CHECK(own<lora<16>>::backward.launches == 0);
  CHECK(own<dora<16>>::forward.launches == (set::precomputed_expression | set::shrink_bit(16)));
  CHECK(own<dora<32>>::forward.launches == (set::precomputed_expression | set::shrink_bit(32)));
  CHECK((own<dora<16>>::backward.launches & set::columns) != 0);
  CHECK((own<lokr<8>>::backward.launches & set::chain) != 0);
  CHECK((own<ia3>::backward.launches & set::columns) != 0);
}
TEST_CASE("launchers: an unknown rank needs all launches") {
  const gpu::launch_mask all = set::shrink_bit(16) | set::shrink_bit(32) | set::shrink_bit(64);
  CHECK((gpu::type_kernels<wide_lora>::forward.launches & all) == all);
}
TEST_CASE("launchers: only the launches of a set are included") {
  gpu::launchers all, some;
  all.columns = [](cudaStream_t, const target&, const gpu::column_wgrad_args&) { return status(ok); };
  all.chain = [](cudaStream_t, const gpu::chain_args&) { return status(ok); };
  some.add(all, set::chain);
  CHECK((some.chain == all.chain));
  CHECK((some.columns == nullptr));
  some.add({});
  CHECK((some.chain == all.chain));
}
TEST_CASE("launchers: a launch that is not compiled is refused with a sentence") {
  CHECK(std::string(gpu::launch_not_compiled("an expression").message()) ==
        "the kernels of an expression are not compiled into this program; use gpu::executor for this layer");
}
TEST_CASE("launchers: a layer type of a plain weight refuses a quantized one with a sentence, before anything runs") {
  const unsigned char codes[32] = {};
  const view weight{codes, dtype::nf4, {1, 64, 1, 1}, 2};
  const auto decoded = gpu::dequantized_buffer().dequantize(nullptr, weight, dtype::bf16);
  REQUIRE(!decoded);
  CHECK(std::string(decoded.message()) ==
        "a tensor is quantized, and this layer has no kernels for its format: name that format as the element type of "
        "the layer, as in "
        "linear<4096, 4096, nf4<64>, lora<16>>, or use gpu::executor");
}
