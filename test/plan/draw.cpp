// SPDX-License-Identifier: Apache-2.0
// Other programs read the drawings: these tests check the part of their grammar that we use, for every plan.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "../support/all_layers.h"
#include "../support/static_check.h"

using namespace test;

namespace {

std::vector<std::string> drawn(const graph& g, drawing format) {
  std::vector<std::string> lines;
  draw(g, fuse(g), format, [&](const text& t) {
    std::istringstream parts(t.c_str());
    for (std::string line; std::getline(parts, line);) lines.push_back(line);
  });
  return lines;
}
struct picture {
  std::set<std::string> nodes;
  std::vector<std::pair<std::string, std::string>> edges;
  int subgraphs = 0, ends = 0;
  std::string odd;  // the first line that does not match the grammar
};
picture graphviz(const std::vector<std::string>& lines) {
  static const std::regex node(R"(\s+(n\d+) \[(?:shape=ellipse, )?label="[^"]*"\];)"), edge(R"(\s+(n\d+) -> (n\d+);)"),
      out(R"(\s+(n\d+) -> (out_\d+); (out_\d+) \[shape=plaintext, label="[^"]*"\];)"),
      open(R"(\s+subgraph cluster_\d+ \{ label="launch \d+: [\w ]+";)");
  picture p;
  std::smatch m;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& l = lines[i];
    if (i == 0 && l == "digraph plan {") continue;
    if (i == 1 && l.find("rankdir=TB;") != l.npos) continue;
    if (i + 1 == lines.size() && l == "}") continue;
    if (std::regex_match(l, m, node)) {
      p.nodes.insert(m[1]);
    } else if (std::regex_match(l, m, edge)) {
      p.edges.emplace_back(m[1], m[2]);
    } else if (std::regex_match(l, m, out) && m[2] == m[3]) {
      p.nodes.insert(m[2]);
      p.edges.emplace_back(m[1], m[2]);
    } else if (std::regex_match(l, open)) {
      ++p.subgraphs;
    } else if (l == "  }") {
      ++p.ends;
    } else if (p.odd.empty()) {
      p.odd = l;
    }
  }
  return p;
}
picture mermaid(const std::vector<std::string>& lines) {
  static const std::regex leaf(R"X(\s+(n\d+)\(\["[^"]*"\]\))X"), node(R"(\s+(n\d+)\["[^"]*"\])"),
      edge(R"(\s+(n\d+) --> (n\d+))"), out(R"(\s+(n\d+) --> (out_\d+)\[/"[^"]*"/\])"),
      open(R"(\s+subgraph k\d+\["launch \d+: [\w ]+"\])");
  picture p;
  std::smatch m;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& l = lines[i];
    if (i == 0 && l == "flowchart TB") continue;
    if (std::regex_match(l, m, leaf) || std::regex_match(l, m, node)) {
      p.nodes.insert(m[1]);
    } else if (std::regex_match(l, m, edge)) {
      p.edges.emplace_back(m[1], m[2]);
    } else if (std::regex_match(l, m, out)) {
      p.nodes.insert(m[2]);
      p.edges.emplace_back(m[1], m[2]);
    } else if (std::regex_match(l, open)) {
      ++p.subgraphs;
    } else if (l == "  end") {
      ++p.ends;
    } else if (p.odd.empty()) {
      p.odd = l;
    }
  }
  return p;
}
void check(const graph& g, const picture& p) {
  CHECK(p.odd == "");
  CHECK(p.subgraphs == fuse(g).launches.size());
  CHECK(p.ends == p.subgraphs);
  for (const auto& e : p.edges) {
    INFO(e.first, " to ", e.second);
    CHECK(p.nodes.contains(e.first));
    CHECK(p.nodes.contains(e.second));
  }
  for (const std::string& n : p.nodes) {  // every node has an edge, except an input that only belongs to the signature
    const bool joined =
        std::any_of(p.edges.begin(), p.edges.end(), [&](const auto& e) { return e.first == n || e.second == n; });
    const bool input = n[0] == 'n' && g.n[std::stoi(n.substr(1))].what == op::input;
    INFO(n);
    CHECK((joined || input));
  }
}

}  // namespace

TEST_CASE("draw: every plan in both languages") {
  for_all_graphs([](const char* name, const captured_graphs& d) {
    INFO(std::string(name));
    for (const graph& g : {graph(d.forward), graph(d.folded), graph(d.backward)}) {
      check(g, graphviz(drawn(g, drawing::graphviz)));
      check(g, mermaid(drawn(g, drawing::mermaid)));
    }
  });
}

TEST_CASE("draw: braces and quotes are balanced") {
  for_all_graphs([](const char* name, const captured_graphs& d) {
    INFO(std::string(name));
    int braces = 0, quotes = 0;
    for (const std::string& l : drawn(d.backward, drawing::graphviz)) {
      braces += static_cast<int>(std::count(l.begin(), l.end(), '{') - std::count(l.begin(), l.end(), '}'));
      quotes += static_cast<int>(std::count(l.begin(), l.end(), '"'));
      CHECK(braces >= 0);
    }
    CHECK(braces == 0);
    CHECK(quotes % 2 == 0);
  });
}

TEST_CASE("draw: LoRA, node by node") {
  const picture p = graphviz(drawn(capture_forward(layer_of<linear_kind, lora<>, false>()), drawing::graphviz));
  CHECK(p.nodes.size() == 11);  // five leaves, s B, three products, a sum, and y
  CHECK(p.edges.size() == 11);
  CHECK(p.subgraphs == 1);
}
