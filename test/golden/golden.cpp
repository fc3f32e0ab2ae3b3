// SPDX-License-Identifier: Apache-2.0
// golden DIR [--on fused|eager]: every case under DIR/layers through the library, one line a case with the largest
// relative error of each tensor. A case that cannot be represented is a failure.
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "case.h"

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

}  // namespace

int main(int argc, char** argv) {
  std::filesystem::path dir;
  golden::runner how;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--on") != 0) {
      dir = argv[i];
      continue;
    }
    const std::string on = i + 1 < argc ? argv[++i] : "";
    how.gpu = on.starts_with("cuda");
    if (on.ends_with("eager"))
      how.how = graft::mode::eager;
    else if (on != "cpu" && on != "cuda")
      return std::fprintf(stderr, "golden: --on takes cpu, eager, cuda or cuda-eager\n"), 2;
  }
#ifdef GRAFT_GOLDEN_CUDA
  if (const std::string why = how.gpu ? test::why_no_gpu() : ""; !why.empty())
    return std::fprintf(stderr, "golden: no GPU to run on: %s\n", why.c_str()), 3;
#else
  if (how.gpu) return std::fprintf(stderr, "golden: built without nvcc; install the CUDA Toolkit and build again\n"), 3;
#endif
  std::error_code ec;
  const bool names_cases =
      dir.filename() == "layers" || (!dir.has_filename() && dir.parent_path().filename() == "layers");
  if (names_cases) dir = dir.has_filename() ? dir.parent_path() : dir.parent_path().parent_path();
  if (!std::filesystem::is_directory(dir / "layers", ec))
    return std::fprintf(stderr, "usage: golden DIR [--on cpu|eager|cuda|cuda-eager]   DIR holds layers/NAME/…\n"), 2;
  std::vector<std::filesystem::path> cases;
  for (const auto& e : std::filesystem::directory_iterator(dir / "layers"))
    if (e.is_directory()) cases.push_back(e.path());
  std::sort(cases.begin(), cases.end());
  int passed = 0;
  for (const auto& c : cases) passed += report(c, how) ? 1 : 0;
  const int failed = static_cast<int>(cases.size()) - passed;
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
