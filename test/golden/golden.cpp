// SPDX-License-Identifier: Apache-2.0
// golden DIR [--on cpu|eager|gpu|gpu-bf16|gpu-eager]: every case under DIR/layers, DIR/models and DIR/gguf through
// the library, one line a case with the largest relative error of each tensor. A case that cannot be represented is a
// failure. Models and GGUF files run by fused plans only, and gpu-bf16 is of models, whose bounds are computed and
// printed too (bf16_model.h); --keep FOLDER keeps the adapters that models trained and wrote (peft_reads.py).
#include <graft/model/on_cpu.h>

#include <cstdio>
#include <filesystem>

#include "../../examples/arguments.h"
#include "case.h"
#include "gguf_case.h"
#include "gpu_models.h"

namespace {

std::string short_name(const std::string& key) {
  const auto grad = key.starts_with("grad.");
  return grad ? "d" + key.substr(key.find("model.model.") == key.npos ? 5 : key.find("model.model.") + 12) : key;
}

bool report(const std::filesystem::path& folder, const golden::runner& how) {
  const auto r = golden::golden_case::run(folder, how);
  std::printf("%-18s", folder.filename().c_str());
  if (!r) {
    std::printf(" FAILED: %s\n", r.message());
    return false;
  }
  bool good = true;
  for (const auto& c : *r) {
    good = good && c.close;
    std::printf(" %s%s %.1e", c.close ? "" : "WRONG ", short_name(c.name).c_str(), c.error);
  }
  std::printf("\n");
  return good;
}

// Prints the line of a model's case.
bool report_checks(const graft::result<golden::model_checks>& r, bool with_bounds = false) {
  if (!r) {
    std::printf(" FAILED: %s\n", r.message());
    return false;
  }
  bool good = true;
  for (const golden::model_check& c : *r) {
    const bool close = c.error <= c.tolerance;
    good = good && close;
    std::printf(" %s%s %.1e", close ? "" : "WRONG ", c.name.c_str(), c.error);
    if (with_bounds && c.tolerance > 0) std::printf(" of %.1e", c.tolerance);
  }
  std::printf("\n");
  return good;
}

bool report_gguf(const std::filesystem::path& folder, [[maybe_unused]] const golden::runner& how) {
  std::printf("%-18s", folder.filename().c_str());
#ifdef GRAFT_GOLDEN_CUDA
  if (how.gpu) return report_checks(golden::run_gguf_on_gpu(folder));
#endif
  return report_checks(golden::gguf_case<graft::cpu::engine<float>>::run(folder));
}

bool report_model(const std::filesystem::path& folder, const std::filesystem::path& keep,
                  [[maybe_unused]] const golden::runner& how) {
#ifdef GRAFT_GOLDEN_CUDA
  const auto r = how.gpu ? golden::run_model_on_gpu(folder, keep, how.narrow)
                         : golden::run_model<graft::cpu::engine<float>>(folder, keep);
#else
  const auto r = golden::run_model<graft::cpu::engine<float>>(folder, keep);
#endif
  std::printf("%-36s", (folder.parent_path().filename() / folder.filename()).c_str());
  return report_checks(r, how.narrow);
}

// The folders in a folder, in order.
std::vector<std::filesystem::path> folders_in(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> all;
  std::error_code none;
  for (const auto& e : std::filesystem::directory_iterator(dir, none))
    if (e.is_directory()) all.push_back(e.path());
  std::sort(all.begin(), all.end());
  return all;
}
// Below DIR/models/NAME each folder with expected numbers is a case: the base, one adapter, or several.
std::vector<std::filesystem::path> model_cases(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> all;
  for (const auto& model : folders_in(dir / "models"))
    for (const auto& c : folders_in(model))
      if (std::filesystem::exists(c / "expected.safetensors")) all.push_back(c);
  return all;
}

// Below DIR/gguf each folder with a file is a case; DIR may be that folder itself.
std::vector<std::filesystem::path> gguf_cases(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> all;
  for (const auto& folder : {dir / "gguf", dir})
    for (const auto& c : folders_in(folder))
      if (std::filesystem::exists(c / "model.gguf")) all.push_back(c);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  std::string said, on = "cpu", keep;
  golden::runner how;
  arguments in("golden", "Every case below DIR/layers, DIR/models and DIR/gguf against the numbers stored with it.");
  in.word("DIR", said,
          "folder that holds layers/NAME/..., models/NAME/... or gguf/NAME/..., or its folder layers or gguf");
  in.option("--on cpu|eager|gpu|gpu-bf16|gpu-eager", on,
            "what computes: fused or one operation after the other (eager), on the CPU or on a GPU");
  in.option("--keep FOLDER", keep, "saves what was trained here, for PEFT to read");
  if (const auto code = in.read(argc, argv)) return *code;
  if (on.starts_with("cuda")) on = "gpu" + on.substr(4);  // the earlier values work for one more release
  how.gpu = on.starts_with("gpu"), how.narrow = on == "gpu-bf16";
  if (on.ends_with("eager"))
    how.how = graft::execution_mode::eager;
  else if (on != "cpu" && on != "gpu" && !how.narrow)
    return in.mistake("--on takes cpu, eager, gpu, gpu-bf16 or gpu-eager, not '" + on + "'");
  std::filesystem::path dir = said;
#ifdef GRAFT_GOLDEN_CUDA
  if (const std::string why = how.gpu ? test::why_no_gpu() : ""; !why.empty())
    return std::fprintf(stderr, "golden: no GPU to run on: %s\n", why.c_str()), 3;
#else
  if (how.gpu) return std::fprintf(stderr, "golden: built without nvcc; install the CUDA Toolkit and build again\n"), 3;
#endif
  if (!dir.has_filename()) dir = dir.parent_path();
  if (dir.filename() == "layers") dir = dir.parent_path();
  std::vector<std::filesystem::path> layers;
  if (!how.narrow) layers = folders_in(dir / "layers");
  std::vector<std::filesystem::path> models, files;
  if (how.how == graft::execution_mode::fused) models = model_cases(dir);
  if (how.how == graft::execution_mode::fused && !how.narrow) files = gguf_cases(dir);
  if (layers.empty() && models.empty() && files.empty())
    return in.mistake(said + " holds no cases for --on " + on +
                      ", expected layers/NAME/..., models/NAME/... or gguf/NAME/... in it");
  int passed = 0;
  for (const auto& c : layers) passed += report(c, how) ? 1 : 0;
  for (const auto& c : models) passed += report_model(c, keep, how) ? 1 : 0;
  for (const auto& c : files) passed += report_gguf(c, how) ? 1 : 0;
  const int failed = static_cast<int>(layers.size() + models.size() + files.size()) - passed;
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
