// SPDX-License-Identifier: Apache-2.0
// Merging a model's adapters: merged weights lie beside the base, or, with merge_and_unload, take its place.
#pragma once
#include <graft/model/causal_lm.h>

namespace graft {

template <class Engine>
result<merged_model> causal_lm<Engine>::merge_of(std::span<const shared_adapter> adapters, merged_as as) {
  const result<shared_adapter> all = together(adapters, named_.how, true);
  if (!all) return all.failure();
  return merge_into<Engine>(programs_->queue, *config_, *weights_, **all, as);
}
template <class Engine> status causal_lm<Engine>::merge(const names& which) {
  return change([&](named_adapters& next) { return next.merge(which); });
}
template <class Engine> status causal_lm<Engine>::unmerge() {
  return change([](named_adapters& next) -> status { return next.unmerge(), ok; });
}
template <class Engine> auto causal_lm<Engine>::merged() const -> names {
  const auto mine = alone();
  return named_.merged();
}
template <class Engine> long long causal_lm<Engine>::merged_bytes() const {
  const auto mine = alone();
  return merged_ != nullptr ? merged_->model.bytes : 0;
}
template <class Engine> std::map<std::string, double> causal_lm<Engine>::merge_rounding() const {
  const auto mine = alone();
  return merged_ != nullptr ? merged_->model.rounding : std::map<std::string, double>();
}
template <class Engine> result<model_weights> causal_lm<Engine>::merged_weights(const names& which, merged_as as) {
  const auto mine = alone();
  if (status s = named_.knows(which); !s) return s.failure();
  result<merged_model> made = merge_of(listed(named_, which), as);
  if (!made) return made.failure();
  return std::move(made->weights);
}
template <class Engine> status causal_lm<Engine>::merge_and_unload(const names& which) {
  const auto mine = alone();
  if (status s = named_.knows(which); !s) return s;
  result<merged_model> made = merge_of(listed(named_, which));
  if (!made) return made.failure();
  auto base = std::exchange(weights_, std::make_unique<model_weights>(std::move(made->weights)));
  const unsigned long long number = std::exchange(weights_number_, ++numbers_);
  named_adapters none = named_;
  none.clear();
  status s = take(std::move(none));
  if (!s) weights_ = std::move(base), weights_number_ = number;
  forget_unused();
  return s;
}

}  // namespace graft
