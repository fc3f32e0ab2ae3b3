// SPDX-License-Identifier: Apache-2.0
// Gradients on their way to other ranks: a communicator looks at what it is given, and when.
#include <doctest/doctest.h>
#include <graft/io/hf/load_adapters.h>
#include <graft/model/on_cpu.h>
#include <graft/model/trainer.h>

using namespace graft;
using engine = cpu::engine<float>;

namespace {

class watching final : public communicator {
 public:
  std::vector<trained_parameter> all;
  std::vector<std::vector<std::string>> pieces;  // names of the gradients in each sum that was begun
  std::vector<bool> first_layer_was_zero;        // then

  int rank() const override { return 0; }
  int size() const override { return 1; }
  status all_reduce(const mutable_view&, reduction) override { return ok; }
  status begin_all_reduce(const mutable_view& v) override {
    if (v.type == dtype::f64) return ok;  // the loss
    const auto* const first = static_cast<const float*>(v.data);
    pieces.emplace_back(), first_layer_was_zero.push_back(true);
    for (const trained_parameter& p : all) {
      const auto* const g = static_cast<const float*>(p.gradient.data);
      if (g >= first && g + p.gradient.count() <= first + v.count()) pieces.back().push_back(p.name);
      if (p.name.find("layers.0.") == std::string::npos) continue;
      for (long long i = 0; i < p.gradient.count(); ++i)
        if (g[i] != 0) first_layer_was_zero.back() = false;
    }
    return ok;
  }
  status wait() override { return ok; }
  status all_gather(const view&, const mutable_view&) override { return ok; }
  status reduce_scatter(const view&, const mutable_view&) override { return ok; }
  status broadcast(const mutable_view&, int) override { return ok; }
  status barrier() override { return ok; }
};

void one_step(const std::string& adapter, int accumulate, long long bytes, watching& seen) {
  const std::string folder = GRAFT_GOLDEN_DIR "/models/llama";
  auto model = io::hf::load_model<engine>(folder + "/base");
  REQUIRE(model);
  auto loaded = io::hf::load_adapters(folder + "/" + adapter + "/adapter_init", *model);
  REQUIRE(loaded);
  REQUIRE(model->set_adapters(loaded->set));
  const trainer<engine>::sequences data(4, {5, 9, 2, 7, 7, 1});
  trainer_settings settings;
  settings.steps = 1, settings.batch = 2, settings.accumulate = accumulate, settings.bucket_bytes = bytes;
  settings.ranks = std::shared_ptr<communicator>(std::shared_ptr<void>(), &seen);
  auto t = trainer<engine>::make(*model, data, settings);
  REQUIRE(t);
  seen.all = t->optimizer().parameters();
  REQUIRE(t->step());
}

}  // namespace

TEST_CASE("gradients are summed over ranks while earlier blocks still compute, each once") {
  for (const char* adapter : {"lora", "lora_modules_to_save", "vera"})
    for (const int accumulate : {1, 2}) {
      CAPTURE(adapter);
      CAPTURE(accumulate);
      watching seen;
      one_step(adapter, accumulate, 1, seen);
      REQUIRE(seen.pieces.size() >= 2);
      if (accumulate == 1) CHECK(seen.first_layer_was_zero.front());
      CHECK(!seen.first_layer_was_zero.back());
      std::vector<std::string> names, summed;
      for (const trained_parameter& p : seen.all) names.push_back(p.name);
      for (const auto& piece : seen.pieces) summed.insert(summed.end(), piece.begin(), piece.end());
      std::sort(names.begin(), names.end()), std::sort(summed.begin(), summed.end());
      CHECK(names == summed);
      for (const std::string& name : seen.pieces.front()) CHECK(name.find("layers.0.") == std::string::npos);
    }
}

TEST_CASE("gradients that are small travel together") {
  watching seen;
  one_step("lora", 1, 1 << 30, seen);
  REQUIRE(seen.pieces.size() == 1);
  CHECK(seen.pieces[0].size() == seen.all.size());
}
