// SPDX-License-Identifier: Apache-2.0
// Writes the table of floors into docs/concepts.md between its markers, from the include lines of the headers.
//     floors ROOT             writes ROOT/docs/concepts.md
//     floors --check ROOT     compares instead, and fails if the page differs from the headers
#include <iterator>

#include "stored.h"

namespace {

namespace fs = std::filesystem;

struct floor_of_headers {
  const char* folder;  // below include/graft; headers in no folder are umbrella headers
  const char* level;
  const char* is;
};
// From the bottom up, in the order of test/floors/check.sh.
constexpr floor_of_headers floors[] = {
    {"core", "0", "words: sizes, element types, quantization formats, views, results"},
    {"graph", "1", "the graph as a value, its operations and shape rules"},
    {"adapter", "2", "one formula per method"},
    {"derive", "3", "what follows from a formula: gradients, merge, shards, costs"},
    {"block", "3", "formulas of decoder blocks, one file per architecture"},
    {"plan", "4", "a graph as launches for a target; facts, messages, explain"},
    {"backend", "5", "how a launch runs: engines and kernels, CPU and GPU"},
    {"run", "6", "when it runs: programs, bindings, executors, layers"},
    {"parallel", "6", "several processes: collectives over MPI and NCCL"},
    {"model", "7", "whole models: generation, training, named adapters"},
    {"io", "8", "files: Hugging Face, PEFT, safetensors, GGUF, tokenizers"},
    {"bench", "top", "benchmarks of one's own layers"},
    {"", "top", "umbrella headers"},
};
constexpr int floor_count = static_cast<int>(std::size(floors));

int floor_of(const std::string& header) {
  const std::size_t end = header.find('/');
  const std::string folder = end == header.npos ? "" : header.substr(0, end);
  for (int i = 0; i < floor_count; ++i)
    if (folder == floors[i].folder) return i;
  std::printf("%s is on no floor: add its folder to docs/floors.cpp\n", header.c_str());
  return -1;
}

struct included_floors {
  bool includes[floor_count][floor_count]{};  // from, to
  bool complete = true;                       // every header is on a floor
};
included_floors find_floors(const fs::path& headers) {
  included_floors found;
  const std::string begin = "#include <graft/";
  for (const auto& entry : fs::recursive_directory_iterator(headers)) {
    const std::string name = fs::relative(entry.path(), headers).generic_string();
    if (!entry.is_regular_file() || !(name.ends_with(".h") || name.ends_with(".cuh"))) continue;
    const int from = floor_of(name);
    std::istringstream lines(stored::read(entry.path()));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(begin)) continue;
      const int to = floor_of(line.substr(begin.size(), line.find('>') - begin.size()));
      if (from < 0 || to < 0)
        found.complete = false;
      else
        found.includes[from][to] = true;
    }
  }
  return found;
}

std::string table_of(const included_floors& found) {
  std::string s = "| floor | folder | what it is | includes |\n|---|---|---|---|\n";
  for (int from = floor_count - 1; from >= 0; --from) {
    std::string below;
    for (int to = 0; to < floor_count; ++to)
      if (to != from && found.includes[from][to] && floors[to].folder[0] != '\0')
        below += (below.empty() ? "" : ", ") + std::string(floors[to].folder);
    const std::string folder = floors[from].folder;
    s += "| " + std::string(floors[from].level) + " | " + (folder.empty() ? "" : "`" + folder + "`") + " | " +
         floors[from].is + " | " + below + " |\n";
  }
  return s;
}

// Replaces the text between the markers of a name.
bool put(std::string& page, const std::string& name, const std::string& body) {
  const std::string begin = "<!-- generated: " + name + " -->\n", end = "<!-- end -->";
  const std::size_t from = page.find(begin), to = from == page.npos ? from : page.find(end, from);
  if (to == page.npos) return std::printf("docs/concepts.md has no place for '%s'\n", name.c_str()), false;
  page.replace(from + begin.size(), to - from - begin.size(), "\n" + body + "\n");
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const bool checking = argc == 3 && std::string(argv[1]) == "--check";
  if (argc != 2 && !checking) return std::printf("usage: floors [--check] ROOT\n"), 2;
  const fs::path root = argv[argc - 1], file = root / "docs" / "concepts.md";
  std::string page = stored::read(file);
  const included_floors found = find_floors(root / "include" / "graft");
  if (!found.complete || !put(page, "floors", table_of(found))) return 1;
  return (checking ? stored::is(file, page) : stored::write(file, page)) ? 0 : 1;
}
