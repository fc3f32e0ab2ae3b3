// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA training: each sequence of a batch names its adapters, and its gradients go to those. The loss of a
// combination of adapters is the mean over the labels of its sequences, so each gets bitwise the gradients that its own
// sequences would give it alone. Each combination runs as a call of its own.
//     auto t = multi_lora_training_run<engine>::make(model, {{"sql"}, {"chat"}, {"sql", "chat"}});
//     auto optimizer = t->optimizer(settings);
//     for (…) { t->clear(); losses = t->add(batch, of_sequences); optimizer->step(rate); t->parameters_changed(); }
#pragma once
#include <graft/model/training_run.h>

namespace graft {

template <class Engine> class multi_lora_training_run {
 public:
  using names = adapter_registry::names;

  // Makes a training run. `combinations`: the lists of adapters that sequences may name.
  static result<multi_lora_training_run> make(causal_lm<Engine>& model, const std::vector<names>& combinations,
                                              const training_settings& settings = {}) {
    multi_lora_training_run all;
    for (const names& which : combinations) {
      if (all.find(which) < all.runs_.size()) return fail("two of the combinations are equal");
      result<training_run<Engine>> run = training_run<Engine>::make(model, which, settings, all.pool_);
      if (!run) return run.failure();
      all.runs_.push_back({which, std::move(*run)});
    }
    if (all.pool_->parameters.empty()) return fail("no adapter is named, so there is nothing to train");
    return result<multi_lora_training_run>(std::move(all));
  }

  std::vector<trained_parameter> parameters() const { return pool_->parameters; }
  // Copies the trained values to the adapters' host memory.
  status fetch() { return runs_.front().run.fetch(); }
  auto optimizer(const adamw_settings& settings = {}) { return runs_.front().run.optimizer(settings); }
  void clear() {
    for (part& p : runs_) p.run.clear();
  }
  status parameters_changed() {
    for (part& p : runs_)
      if (status s = p.run.parameters_changed(); !s) return s;
    return ok;
  }

  // Adds the gradients of a batch and returns the loss of each combination, 0 where no sequence has it.
  result<std::vector<double>> add(std::span<const labeled_sequence> batch, std::span<const names> of_sequences,
                                  double weight = 1) {
    if (of_sequences.size() != batch.size())
      return fail("adapters are named for ", static_cast<long long>(of_sequences.size()), " sequences, and there are ",
                  static_cast<long long>(batch.size()));
    std::vector<std::vector<labeled_sequence>> groups(runs_.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::size_t k = find(of_sequences[i]);
      if (k == runs_.size())
        return fail("sequence ", static_cast<long long>(i), " names adapters that are not trained");
      groups[k].push_back(batch[i]);
    }
    std::vector<double> losses(runs_.size());
    for (std::size_t k = 0; k < runs_.size(); ++k) {
      if (groups[k].empty()) continue;
      const result<double> loss = runs_[k].run.add(groups[k], weight);
      if (!loss) return loss.failure();
      losses[k] = *loss;
    }
    return losses;
  }

 private:
  struct part {
    names of;
    training_run<Engine> run;
  };
  std::size_t find(const names& which) const {
    std::size_t k = 0;
    while (k < runs_.size() && runs_[k].of != which) ++k;
    return k;
  }

  std::shared_ptr<parameter_pool<Engine>> pool_ = std::make_shared<parameter_pool<Engine>>();
  std::vector<part> runs_;
};

}  // namespace graft
