// SPDX-License-Identifier: Apache-2.0
// Makes the note of an adapter that notes.h does not have from the first lines of its header:
//     // NAME: what it is (Authors year, arXiv number).
//     //     the formula
//     // further lines
#pragma once
#include <graft/run/layer_graphs.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "notes.h"

namespace described {

// Owns the texts that notes point to.
inline const char* kept(std::string s) {
  static std::deque<std::string> all;
  return all.emplace_back(std::move(s)).c_str();
}

// The header of a method is the longest prefix of its name that names a file: road_1 is in road.h.
inline std::string header_of(const std::filesystem::path& root, std::string method) {
  while (!std::filesystem::exists(root / "include/graft/adapter" / (method + ".h"))) {
    const std::size_t cut = method.rfind('_');
    if (cut == method.npos) return "";
    method.resize(cut);
  }
  return method;
}

inline std::string golden_cases(const std::filesystem::path& root, const std::string& stem) {
  std::set<std::string> names;
  for (const auto& e : std::filesystem::directory_iterator(root / "test/golden/layers"))
    if (const std::string name = e.path().filename(); name == stem || name.starts_with(stem + "_")) names.insert(name);
  std::string s;
  for (const std::string& n : names) s += (s.empty() ? "`" : ", `") + n + "`";
  return s;
}

template <class Adapter> notes::adapter note(const std::filesystem::path& root, const graft::layer_graphs& graphs) {
  const std::string stem = header_of(root, Adapter::method);
  std::ifstream file(root / "include/graft/adapter" / (stem + ".h"));
  std::string line, letters, about;
  std::getline(file, line);  // the license
  while (std::getline(file, line) && line.starts_with("//")) {
    const std::string text = line.size() > 3 ? line.substr(3) : "";
    if (text.starts_with("    "))
      letters += (letters.empty() ? "" : ";  ") + text.substr(4);
    else
      about += (about.empty() ? "" : " ") + text;
  }
  notes::adapter n{};
  const std::size_t open = about.find(" ("), comma = about.find(", arXiv ", open), close = about.find(')', open);
  if (comma < close)
    n.papers.push_back(
        {kept(about.substr(open + 2, comma - open - 2)), kept(about.substr(comma + 8, close - comma - 8))});
  n.file = Adapter::method, n.title = Adapter::name;
  n.type = kept("graft::" + stem), n.header = kept(stem + ".h");
  n.letters = kept(letters), n.about = kept(about), n.cases = kept(golden_cases(root, stem));
  const graft::graph& g = graphs.merge;
  for (int i = 0; i < g.sizes.count; ++i)
    if (const graft::size_entry& e = g.sizes.e[i];
        e.index >= 0 && !e.tokens && graphs.base_forward.sizes.find(e.name) < 0)
      n.numbers.push_back({e.name, "size", kept("`" + std::string(e.name) + "`"), e.nominal > 0 ? e.nominal : 16});
  for (graft::id i = 0; i < g.size; ++i)
    if (g[i].what == graft::op::scalar) n.numbers.push_back({g[i].name, "number", "", -1});
  return n;
}

}  // namespace described
