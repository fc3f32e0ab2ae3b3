// SPDX-License-Identifier: Apache-2.0
// The bounds of `golden --on gpu-bf16`, which need no GPU: a model whose weights are off by rounding errors of bf16 is
// within them, and one whose adapter is scaled by 1.1 is not.
#include <doctest/doctest.h>
#include <graft/model/on_cpu.h>
#include <unistd.h>

#include <fstream>

#include "../../golden/bf16_model.h"

using namespace graft;

namespace {

using engine = cpu::engine<float>;
namespace fs = std::filesystem;

std::string wrong_of(const result<golden::model_checks>& checks) {
  if (!checks) return checks.message();
  std::string names;
  for (const golden::model_check& c : *checks)
    if (!(c.error <= c.tolerance)) names += c.name + " ";
  return names;
}
// The case with `lora_alpha` in its configuration replaced.
struct other_scaling {
  fs::path model = fs::temp_directory_path() / ("graft-bf16-" + std::to_string(::getpid()));
  other_scaling(const fs::path& from, const std::string& before, const std::string& after) {
    fs::create_directories(model);
    fs::create_symlink(fs::absolute(from.parent_path() / "base"), model / "base");
    fs::copy(from, folder(), fs::copy_options::recursive);
    const fs::path file = folder() / "adapter_init/adapter_config.json";
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    std::string config = text.str();
    const auto at = config.find(before);
    REQUIRE(at != config.npos);
    std::ofstream(file) << config.replace(at, before.size(), after);
  }
  ~other_scaling() {
    std::error_code ignored;
    fs::remove_all(model, ignored);
  }
  fs::path folder() const { return model / "case"; }
};

}  // namespace

TEST_CASE("golden: bounds of bf16 take rounding errors with several adapters") {
  const fs::path folder = fs::path(GRAFT_GOLDEN_DIR) / "models/opt/multi";
  const auto wide = golden::float_results_of<engine>(folder);
  REQUIRE_MESSAGE(bool(wide), std::string(wide.message()));
  golden::model_comparison how = wide->comparison();
  how.move = {0x1p-9, 7};
  CHECK(wrong_of(golden::run_model<engine>(folder, {}, how)) == "");
  how.move = {0x1p-7, 7};
  CHECK(wrong_of(golden::run_model<engine>(folder, {}, how)) != "");
}
TEST_CASE("golden: bounds of bf16 take rounding errors and refuse an adapter scaled by 1.1") {
  for (const char* name : {"llama/lora", "opt/lora"}) {
    CAPTURE(name);
    const fs::path folder = fs::path(GRAFT_GOLDEN_DIR) / "models" / name;
    const auto wide = golden::float_results_of<engine>(folder);
    REQUIRE_MESSAGE(bool(wide), std::string(wide.message()));
    golden::model_comparison how = wide->comparison();
    const auto same = golden::run_model<engine>(folder, {}, how);
    CHECK(wrong_of(same) == "");
    how.move = {0x1p-9, 7};
    CHECK(wrong_of(golden::run_model<engine>(folder, {}, how)) == "");
    how.move = {};
    const other_scaling wrong(folder, "\"lora_alpha\": 16", "\"lora_alpha\": 17.6");
    const std::string names = wrong_of(golden::run_model<engine>(wrong.folder(), {}, how));
    CAPTURE(names);
    CHECK(names.find("grad0_length ") != names.npos);
    if (std::string(name) == "llama/lora") CHECK(names.find("logits ") != names.npos);
  }
}
