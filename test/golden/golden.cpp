// SPDX-License-Identifier: Apache-2.0
// golden DIR [--on fused|eager]: every case under DIR/layers through the library, one line a case with the largest
// relative error of each tensor. A case that cannot be represented is a failure.
#include <cstdio>
#include <cstring>

#include "case.h"

namespace {

constexpr double tolerance = 2e-5;

std::string short_name(const std::string& key) {
  const auto grad = key.starts_with("grad.");
  return grad ? "d" + key.substr(key.find("model.model.") == key.npos ? 5 : key.find("model.model.") + 12) : key;
}

bool report(const std::filesystem::path& folder, graft::backend how) {
  const auto r = golden::golden_case::run(folder, how);
  std::printf("%-18s", folder.filename().c_str());
  if (!r) {
    std::printf(" FAILED: %s\n", r.message());
    return false;
  }
  bool good = true;
  for (const auto& c : *r) {
    const bool close = c.error <= tolerance;
    good = good && close;
    std::printf(" %s%s %.1e", close ? "" : "WRONG ", short_name(c.name).c_str(), c.error);
  }
  std::printf("\n");
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  std::filesystem::path dir;
  auto how = graft::backend::fused;
  for (int i = 1; i < argc; ++i) {
    const bool on = std::strcmp(argv[i], "--on") == 0;
    if (on && i + 1 < argc && std::strcmp(argv[i + 1], "eager") == 0)
      how = graft::backend::eager, ++i;
    else if (on && i + 1 < argc && (std::strcmp(argv[i + 1], "cpu") == 0 || std::strcmp(argv[i + 1], "fused") == 0))
      ++i;
    else if (on)
      return std::fprintf(stderr, "golden: --on takes cpu, fused or eager; the GPU backend is not there yet\n"), 2;
    else
      dir = argv[i];
  }
  std::error_code ec;
  if (!std::filesystem::is_directory(dir / "layers", ec))
    return std::fprintf(stderr, "usage: golden DIR [--on cpu|eager]   DIR holds layers/NAME/…\n"), 2;
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
