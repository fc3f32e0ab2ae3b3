// SPDX-License-Identifier: Apache-2.0
// A layer type compiles the operations of its own graphs, more if a call needs more, and reports it if it cannot.
#undef GRAFT_CPU_COMPILED  // the layer instantiates its operations itself
#include <doctest/doctest.h>
#include <graft/backend/cpu/quantized/quantize.h>
#include <graft/cpu.h>

#include <vector>

using namespace graft;

namespace {

constexpr int out = 6, in = 8, rank = 2, tokens = 3;
struct projection : linear<out, in, float, lora<rank>> {};

std::vector<float> counted(int n, float step) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) v[static_cast<std::size_t>(i)] = step * static_cast<float>(i % 7 - 3);
  return v;
}

struct numbers {
  std::vector<float> W = counted(out * in, 0.1F), A = counted(rank * in, 0.2F), B = counted(out * rank, 0.3F);
  std::vector<float> magnitude = std::vector<float>(out, 2.0F), x = counted(tokens * in, 0.5F);
  std::vector<float> y = std::vector<float>(static_cast<std::size_t>(tokens * out));

  template <class Layer> void give(Layer& l, int adapter) const {
    if (adapter == 0) REQUIRE(l.set("weight", view_of(W.data(), out, in)));
    REQUIRE(l.set("lora_A.weight", view_of(A.data(), rank, in), adapter));
    REQUIRE(l.set("lora_B.weight", view_of(B.data(), out, rank), adapter));
    REQUIRE(l.set("scaling", 2.0, adapter));
  }
  template <class Layer> std::vector<float> forward(Layer& l) {
    const status s = l.forward(view_of(x.data(), tokens, in), view_into(y.data(), tokens, out));
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    return y;
  }
};

}  // namespace

TEST_CASE("operations: a layer type has those of its graphs, and all once another adapter is added") {
  numbers n;
  cpu::layer<projection> own;
  cpu::executor<float> all(graphs_of<linear_kind, lora<rank>, false>());
  n.give(own, 0), n.give(all, 0);
  CHECK(own.queued().has.have != every_op);
  CHECK(n.forward(own) == n.forward(all));

  std::vector<float> dx(n.x.size()), other_dx(n.x.size()), dA(n.A.size()), other_dA(n.A.size());
  const view dy = view_of(n.y.data(), tokens, out), x = view_of(n.x.data(), tokens, in);
  REQUIRE(own.backward(x, dy, view_into(dx.data(), tokens, in), {{"lora_A.weight", view_into(dA.data(), rank, in)}}));
  REQUIRE(all.backward(x, dy, view_into(other_dx.data(), tokens, in),
                       {{"lora_A.weight", view_into(other_dA.data(), rank, in)}}));
  CHECK(dx == other_dx);
  CHECK(dA == other_dA);

  const result<int> added = own.add(graphs_of<linear_kind, dora<rank>, false>());
  const result<int> same = all.add(graphs_of<linear_kind, dora<rank>, false>());
  REQUIRE((added && same));
  n.give(own, *added), n.give(all, *same);
  const view magnitude = view_of(n.magnitude.data(), out);
  REQUIRE(own.set("lora_magnitude_vector", magnitude, *added));
  REQUIRE(all.set("lora_magnitude_vector", magnitude, *same));
  REQUIRE((own.activate({*added}) && all.activate({*same})));
  CHECK(n.forward(own) == n.forward(all));
}

TEST_CASE("operations: a missing one is named in the error") {
  numbers n;
  const op_set few = every_op & ~op_bit(op::matmul);
  cpu::executor<float> layer(graphs_of<linear_kind, lora<rank>, false>(), execution_mode::fused,
                             {.has = {cpu::every_operation<float>().evaluate, few}});
  n.give(layer, 0);
  const status s = layer.forward(view_of(n.x.data(), tokens, in), view_into(n.y.data(), tokens, out));
  CHECK(std::string(s.message()) ==
        "the operation matmul is not compiled into this layer type; run the graph with cpu::executor, which has all of "
        "them");
}

TEST_CASE("operations: a layer type of floats copies narrower weights and refuses quantized ones") {
  numbers n;
  std::vector<bf16> narrow_W(n.W.size());
  for (std::size_t i = 0; i < n.W.size(); ++i) narrow_W[i] = narrow(n.W[i]);
  std::vector<float> transposed(n.W.size());
  for (std::size_t o = 0; o < out; ++o)
    for (std::size_t i = 0; i < in; ++i) transposed[i * out + o] = n.W[o * in + i];
  view strided = view_of(n.W.data(), out / 2, in / 2);  // every second row and column, which no GEMM reads in place
  strided.strides[0] = 2 * in, strided.strides[1] = 2;

  cpu::layer<projection> own;
  cpu::layer<linear<out, in, bf16, lora<rank>>> of_bf16;
  cpu::executor<float> every(graphs_of<linear_kind, lora<rank>, false>());
  n.give(own, 0), n.give(of_bf16, 0), n.give(every, 0);
  CHECK(!bool(own.queued().has.dequantize));
  CHECK(bool(of_bf16.queued().has.dequantize));
  for (const view& W : {view_of(narrow_W.data(), out, in), view_of(transposed.data(), in, out).transposed()}) {
    REQUIRE((own.set("weight", W) && of_bf16.set("weight", W) && every.set("weight", W)));
    const std::vector<float> expected = n.forward(every);
    CHECK(n.forward(own) == expected);
    CHECK(n.forward(of_bf16) == expected);
  }

  cpu::layer<linear<out / 2, in / 2, float, none>> bare;
  REQUIRE(bare.set("weight", strided));
  std::vector<float> y(out / 2);
  REQUIRE(bare.forward(view_of(n.x.data(), 1, in / 2), view_into(y.data(), 1, out / 2)));
  for (std::size_t o = 0; o < out / 2; ++o) {
    float sum = 0;
    for (std::size_t i = 0; i < in / 2; ++i) sum += n.x[i] * n.W[2 * o * in + 2 * i];
    CHECK(y[o] == doctest::Approx(sum));
  }

  const auto quantized = cpu::quantize(n.W.data(), out, in, quant_format_of<int8>());
  REQUIRE(bool(quantized));
  cpu::layer<linear<out, in, int8, lora<rank>>> from_quantized;
  n.give(from_quantized, 0);
  REQUIRE((own.set("weight", quantized->as_view()) && from_quantized.set("weight", quantized->as_view()) &&
           every.set("weight", quantized->as_view())));
  CHECK(n.forward(from_quantized) == n.forward(every));
  const status s = own.forward(view_of(n.x.data(), tokens, in), view_into(n.y.data(), tokens, out));
  CHECK(std::string(s.message()) ==
        "a weight is quantized, and this layer has no GEMM for it: name its format in the layer's type, as in "
        "linear<4096, 4096, nf4<64>, lora<16>>, or use cpu::executor");
}
