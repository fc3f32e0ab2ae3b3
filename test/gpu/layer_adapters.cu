// SPDX-License-Identifier: Apache-2.0
// Named adapters of a single layer on the GPU: none, one, several, disabled, replaced, removed, combined, each compared
// with its formula.
#include <doctest/doctest.h>
#include <graft/io/hf/layer_adapters.h>
#include <graft/model/on_gpu.cuh>

#include <cmath>
#include <cstdio>

#include "../support/gpu_layer.h"

using namespace graft;
namespace hf = graft::io::hf;

namespace {

using engine = gpu::engine<float>;
using names = adapter_registry::names;
constexpr long long out = 32, in = 64, rows = 5;
const std::string folder = GRAFT_GOLDEN_DIR "/models/llama/";

std::vector<float> numbers(std::size_t n, float step) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = std::sin(step * static_cast<float>(i + 1));
  return v;
}
engine::queue with_kernels() {
  engine::queue q;
  q.kernels = gpu::every_kernel_of<float>();
  return q;
}
void good(const status& s) {
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
}
struct gpu_layer {
  std::vector<float> w, x = numbers(rows * in, 0.11F);
  io::base_layer base;
  adapted_layer<engine> is{rules_of<linear_kind>(), false, {"model.layers.0.self_attn.v_proj"}, with_kernels()};
  device_tensors<engine> placed;
  device_rows<engine, dtype::f32> y;

  explicit gpu_layer(std::vector<float> weight) : w(std::move(weight)) {
    base.out = out, base.in = in, base.shape = {out, in}, base.weight = view_of(w.data(), out, in);
    good(is.set("weight", there(base.weight)));
  }
  gpu_layer(const gpu_layer&) = delete;
  gpu_layer& operator=(const gpu_layer&) = delete;
  view there(const view& v) {
    const result<view> made = placed.of(is.layer_executor().queued(), v, dtype::f32, nullptr);
    REQUIRE(bool(made));
    return *made;
  }
  std::vector<float> answer() {
    std::vector<float> here(rows * out);
    good(y.reserve(is.layer_executor().queued(), rows * out));
    good(is.forward(there(view_of(x.data(), rows, in)), y.into(rows, out)));
    good(engine::fetch(is.layer_executor().queued(), y.rows(rows, out), here.data()));
    return here;
  }
  std::vector<float> with(const names& which) {
    good(is.activate(which));
    return answer();
  }
};
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < b.size() && i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = d <= most ? most : d;
  }
  return most;
}
// W + s B A
std::vector<float> merged(std::vector<float> w, const adapter_set& lora) {
  const module_adapter& m = lora.modules[0];
  const std::vector<float>&A = *m.tensors.at("lora_A.weight").data, &B = *m.tensors.at("lora_B.weight").data;
  const std::size_t r = A.size() / in;
  for (std::size_t o = 0; o < out; ++o)
    for (std::size_t i = 0; i < in; ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < r; ++k) sum += static_cast<double>(B[o * r + k]) * static_cast<double>(A[k * in + i]);
      w[o * in + i] += static_cast<float>(m.scalars.at("scaling") * sum);
    }
  return w;
}

}  // namespace

TEST_CASE("gpu: named adapters of a layer") {
  const std::string why = test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  if (!why.empty()) return;
  gpu_layer l(numbers(out * in, 0.37F));
  good(hf::load_adapter(l.is, l.base, "a", folder + "multi/a"));
  good(hf::load_adapter(l.is, l.base, "oft", folder + "oft/adapter_init"));
  good(l.is.bind({.tokens = rows, .rank = 48}));
  good(hf::load_adapter(l.is, l.base, "c", folder + "multi/c"));
  good(hf::combine(l.is, l.base, "both", {"a", "c"}, {0.5, 0.25}, {combination::cat}));
  const std::vector<float> bare = l.answer(), a = l.with({"a"}), c = l.with({"c"});
  CHECK(largest_difference(a, bare) > 1e-3);
  CHECK(largest_difference(c, a) > 1e-3);
  std::vector<float> sum(bare.size()), half(bare.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = a[i] + c[i] - bare[i];
    half[i] = bare[i] + 0.5F * (a[i] - bare[i]) + 0.25F * (c[i] - bare[i]);
  }
  CHECK(largest_difference(l.with({"a", "c"}), sum) < 2e-5);
  CHECK(largest_difference(l.with({"both"}), half) < 2e-5);
  gpu_layer on(merged(l.w, *l.is.find("a")));
  good(hf::load_adapter(on.is, on.base, "oft", folder + "oft/adapter_init"));
  good(on.is.bind({.tokens = rows}));
  CHECK(largest_difference(l.with({"a", "oft"}), on.with({"oft"})) < 2e-5);
  {
    const auto off = l.is.disabled();
    good(off.begun());
    CHECK(l.answer() == bare);
  }
  good(l.is.activate({"both"}));
  good(hf::replace_adapter(l.is, l.base, "both", folder + "multi/a"));
  CHECK(l.answer() == a);
  good(l.is.remove("both"));
  CHECK(l.answer() == bare);
  CHECK(l.is.all_names() == names{"a", "oft", "c"});
}
