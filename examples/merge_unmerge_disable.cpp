// SPDX-License-Identifier: Apache-2.0
// Shows merge, unmerge and disable of an adapted layer:
//     merge      writes W' into a weight of the base's shape; with it the base layer computes what the adapted one does
//     unmerge    solves the formula for W and returns the base weight
//     disable    runs the base layer alone, at no cost
// LoRA's unmerge needs only the adapter. DoRA's formula has W twice, the second time in the norm of each row, so merge
// saves this one vector for unmerge.
#include <cstdio>

#include "random_tensors.h"

constexpr int out = 96, in = 128, tokens = 8;

struct bare : graft::linear<out, in, float> {};
struct with_lora : graft::linear<out, in, float, graft::lora<8>> {};
struct with_dora : graft::linear<out, in, float, graft::dora<8>> {};

static_assert(graft::mergeable<with_lora> && graft::unmergeable<with_lora>);
static_assert(graft::mergeable<with_dora> && !graft::unmergeable<with_dora>);  // not unmergeable from W' alone
static_assert(graft::compile<with_dora>::saved_for_unmerge == 1);

bool close(const char* what, const std::vector<float>& ours, const std::vector<float>& expected) {
  const double error = relative_error(ours, expected);
  std::printf("  %-44s relative error %.1e\n", what, error);
  return error < 1e-5;
}
// Runs the base layer without an adapter on any weight.
graft::status run_base(const std::vector<float>& weight, const graft::view& x, std::vector<float>& y) {
  graft::cpu::layer<bare> base;
  if (graft::status s = base.set("weight", graft::view_of(weight.data(), out, in)); !s) return s;
  return base.forward(x, whole(y));
}

template <class Layer> bool round_trip() {
  std::printf("%s\n", Layer::adapter::name);
  const random_tensors<Layer> numbers({{"tokens", tokens}});
  const std::vector<float>& original = numbers.tensors.at("weight").data;
  std::vector<float> weight = original, y(numbers.outputs()), y_merged = y, y_disabled = y, y_base = y;
  const auto adapted = graft::view_of(weight.data(), out, in);

  graft::cpu::layer<Layer> layer;
  for (const graft::status& s :
       {numbers.bind(layer), layer.forward(numbers.x(), whole(y)),  //
        layer.merge(whole(weight)), run_base(weight, numbers.x(), y_merged),
        layer.unmerge("weight", adapted, whole(weight)), run_base(original, numbers.x(), y_base)})
    if (!s) return std::fprintf(stderr, "%s\n", s.message()), false;

  for (const graft::status& s : {layer.enable(false), layer.forward(numbers.x(), whole(y_disabled))})
    if (!s) return std::fprintf(stderr, "%s\n", s.message()), false;

  const bool changes_something = relative_error(y, y_base) > 1e-3;
  const bool merged = close("merged weight in the base layer = forward", y_merged, y);
  const bool back = close("unmerged weight = original weight", weight, original);
  const bool off = close("disabled layer = base layer", y_disabled, y_base);
  return changes_something && merged && back && off;
}

int main() {
  const bool lora = round_trip<with_lora>(), dora = round_trip<with_dora>();

  // Without a merge there is no saved tensor, and unmerge is an error value, not a wrong weight.
  graft::cpu::layer<with_dora> fresh;
  std::vector<float> weight(out * in);
  const graft::status early = fresh.unmerge("weight", graft::view_of(weight.data(), out, in), whole(weight));
  std::printf("unmerging first: %s\n", early.message());
  return lora && dora && !early ? 0 : 1;
}
