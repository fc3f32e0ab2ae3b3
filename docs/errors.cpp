// SPDX-License-Identifier: Apache-2.0
// errors ROOT: checks that docs/errors.md has an entry for every message of plan/diagnostic.h, with its sentence and
// its arguments word for word. The page is written by hand, because examples and cures do not follow from the code.
#include "stored.h"

namespace {

// The concatenated string literals of a section of code.
std::string literals(const std::string& code) {
  std::string s;
  bool inside = false;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i] == '\\' && inside)
      s += code[++i];
    else if (code[i] == '"')
      inside = !inside;
    else if (inside)
      s += code[i];
  }
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::printf("usage: errors ROOT\n"), 2;
  const std::filesystem::path root = argv[1];
  const std::string code = stored::read(root / "include/graft/plan/diagnostic.h"),
                    page = stored::read(root / "docs/errors.md");
  const std::string begin = "static_assert(", asks = " : plan_of<", lists = " lists ";
  int messages = 0, missing = 0;
  for (std::size_t at = code.find(begin); at != code.npos; at = code.find(begin, at + 1)) {
    const std::size_t base = code.rfind(asks, at), name_at = code.rfind(' ', base - 1) + 1;
    const std::string name = code.substr(name_at, base - name_at);
    const std::string words = literals(code.substr(at, code.find(");\n", at) - at));
    const std::size_t end = words.rfind(" (" + name + lists);
    const std::string arguments = words.substr(end + name.size() + lists.size() + 2);
    const std::string entry = "### " + name + "\n\n> " + words.substr(0, end) +
                              "\n\nArguments: " + arguments.substr(0, arguments.size() - 1) + ".\n";
    ++messages;
    if (page.find(entry) == page.npos) ++missing, std::printf("docs/errors.md lacks:\n%s", entry.c_str());
  }
  std::printf("%d messages, %d without their entry\n", messages, missing);
  return messages > 0 && missing == 0 ? 0 : 1;
}
