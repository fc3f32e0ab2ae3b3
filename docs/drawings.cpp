// SPDX-License-Identifier: Apache-2.0
// Draws the floors of the library from the includes of its headers, and the way of one call from the plans of a real
// layer, into docs/design.md between its markers; and looks whether the page names every header.
//     drawings ROOT             writes ROOT/docs/design.md
//     drawings --check ROOT     compares instead, and fails where the page is not what the code gives
#include <graft/run/layer_graphs.h>
#include <graft/targets.h>

#include <cstdlib>
#include <set>

#include "stored.h"

namespace {

namespace fs = std::filesystem;

// ---- the floors -----------------------------------------------------------------------------------------------------

struct floor_of_headers {
  const char* folder;  // below include/graft; the longest one that fits counts
  const char* title;
};
// From the bottom up, as test/floors/check.sh has them. Headers in no folder are the umbrellas.
constexpr floor_of_headers floors[] = {
    {"core", "0 core"},       {"graph", "1 graph"},       {"adapter", "2 adapter"},
    {"derive", "3 derive"},   {"block", "3 block"},       {"plan", "4 plan"},
    {"backend", "5 backend"}, {"backend/cpu", "5 cpu"},   {"backend/cuda", "5 cuda"},
    {"run", "6 run"},         {"parallel", "6 parallel"}, {"model", "7 model"},
    {"io", "8 io"},           {"bench", "bench"},         {"", "umbrellas"},
};
constexpr int floor_count = static_cast<int>(std::size(floors));

int floor_of(const std::string& header) {
  int best = floor_count - 1;
  std::size_t length = 0;
  for (int i = 0; i < floor_count; ++i) {
    const std::string folder = floors[i].folder + std::string("/");
    if (folder.size() > 1 && header.starts_with(folder) && folder.size() > length) best = i, length = folder.size();
  }
  return best;
}

struct floors_found {
  int files[floor_count]{};
  bool includes[floor_count][floor_count]{};  // from, to
};
floors_found find_floors(const fs::path& root) {
  floors_found c;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    const int from = floor_of(fs::relative(entry.path(), root).generic_string());
    ++c.files[from];
    std::istringstream lines(stored::read(entry.path()));
    const std::string begin = "#include <graft/";
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(begin))
        c.includes[from][floor_of(line.substr(begin.size(), line.find('>') - begin.size()))] = true;
  }
  return c;
}

std::string node(int floor) { return "f" + std::to_string(floor); }
// An arrow that a longer way says already is left out of the drawing; the table has them all.
std::string draw_floors(const floors_found& c) {
  bool reaches[floor_count][floor_count]{};
  for (int from = 0; from < floor_count; ++from)  // includes go down, so what is below is complete already
    for (int to = 0; to < floor_count; ++to) {
      reaches[from][to] = reaches[from][to] || c.includes[from][to];
      for (int on = 0; on < floor_count; ++on)
        reaches[from][on] = reaches[from][on] || (from != to && c.includes[from][to] && reaches[to][on]);
    }
  std::string s = "```mermaid\nflowchart TB\n";
  for (int i = floor_count - 1; i >= 0; --i)
    s += "  " + node(i) + "[\"" + floors[i].title + "<br/>" + std::to_string(c.files[i]) + " files\"]\n";
  for (int from = floor_count - 1; from >= 0; --from)
    for (int to = from - 1; to >= 0; --to) {
      bool by_another = false;
      for (int on = 0; on < floor_count; ++on)
        by_another = by_another || (on != from && on != to && c.includes[from][on] && reaches[on][to]);
      if (c.includes[from][to] && !by_another) s += "  " + node(from) + " --> " + node(to) + "\n";
    }
  s += "```\n\nA dot: headers of the floor at the beginning of a row include some of the floor at the top of a "
       "column.\n\n| |";
  for (const floor_of_headers& f : floors)
    if (f.folder[0] != '\0') s += std::string(" ") + f.title + " |";
  s += "\n|---|";
  for (int to = 0; to + 1 < floor_count; ++to) s += ":---:|";
  s += "\n";
  for (int from = 0; from < floor_count; ++from) {
    s += std::string("| ") + floors[from].title + " |";
    for (int to = 0; to + 1 < floor_count; ++to) s += c.includes[from][to] ? " • |" : " |";
    s += "\n";
  }
  return s;
}

// The page lists the headers, each with a word about it.
bool names_all(const std::string& page, const fs::path& root) {
  bool good = true;
  for (const auto& entry : fs::recursive_directory_iterator(root))
    if (entry.is_regular_file() && page.find(entry.path().filename().string() + "`") == std::string::npos)
      std::printf("docs/design.md does not name %s\n", entry.path().c_str()), good = false;
  return good;
}

// ---- the way of one call --------------------------------------------------------------------------------------------

// A step, the header it is in, and what stands there: a drawing that the code has left behind is an error.
struct step {
  const char* title;
  const char* header;
  const char* says;
};
constexpr step common[] = {
    {"executor::forward", "run/executor_calls.h", "forward(const view& x, const mutable_view& y)"},
    {"pass::begin: sizes from x, checked", "run/pass.h",
     "status begin(const view& x, const view& dy = {}, const leaf_views& kept = {})"},
    {"pass::want: where y goes", "run/pass.h", "status want(int output, const mutable_view& to)"},
    {"pass::run", "run/pass.h", "status run(queue& q) { return plan_->run(q); }"},
};
constexpr step on_cpu[] = {
    {"cpu::engine::bound::run", "backend/cpu/engine_plan.h", "plan_.run("},
    {"cpu::bound_plan::run", "backend/cpu/bound_plan.h", "for (int k = 0; k < p_.launches.size(); ++k)"},
    {"row_worker::run: all nodes on a few rows", "backend/cpu/row_worker.h", "void run(const frame<Real>& f"},
};
constexpr step on_gpu[] = {
    {"cuda::engine::bound::run", "backend/cuda/engine.cuh", "plan_.run(q.stream"},
    {"cuda::bound_plan::run", "backend/cuda/bound_plan_run.cuh", "for (int k = 0; k < p_.launches.size(); ++k)"},
    {"bound_product::run", "backend/cuda/bound_product.cuh", "calls_.at(m, with.x, with.y, with.residual, with.sums)"},
};

template <std::size_t N>
std::string chain(const fs::path& headers, const step (&steps)[N], const std::string& prefix, std::string from) {
  std::string s;
  for (std::size_t i = 0; i < N; ++i) {
    if (stored::read(headers / steps[i].header).find(steps[i].says) == std::string::npos)
      std::printf("%s no longer says '%s': mend drawings.cpp\n", steps[i].header, steps[i].says), std::exit(1);
    const std::string to = prefix + std::to_string(i);
    s += "  " + from + " --> " + to + "[\"" + steps[i].title + "<br/>" + steps[i].header + "\"]\n";
    from = to;
  }
  return s;
}
// The lines of a plan's launches, as explain prints them.
std::string launches(const graft::graph& g, const graft::target& to, const std::string& name, const std::string& from) {
  std::string s = "  subgraph " + name + "[\"its launches on " + to.name + "\"]\n", arrow;
  const graft::plan p = graft::fuse(g, to);
  int count = 0;
  graft::explain_graph(g, p, "", p.launches.size(), nullptr, [&](const graft::text& t) {
    std::string line = t.c_str();
    const std::size_t begin = line.find_first_not_of(' ');
    line = begin == line.npos ? "" : line.substr(begin);
    if (line.starts_with("launch ")) {
      const std::string at = name + std::to_string(count++);
      s += "    " + at + "[\"" + line + "\"]\n";
      arrow = arrow.empty() ? "  " + from + " --> " + at + "\n" : arrow;
    }
  });
  return s + "  end\n" + arrow;
}
// The families of kernels that a product asks for, by the number of tokens.
std::string families(const graft::graph& g, const std::string& from) {
  const graft::plan p = graft::fuse(g, graft::sm_90);
  std::string s;
  std::set<std::string> seen;
  for (const long long tokens : {16, 512}) {
    graft::size_values sizes = graft::with_nominals(g, {});
    g.sizes.set_tokens(sizes, tokens);
    graft::product_shape shape = graft::shape_of(g, p.products[0], sizes, graft::dtype::bf16);
    shape.rank = graft::cuda::padded_rank(shape.rank);
    const std::string way = graft::cuda::name_of(graft::cuda::choose(shape, graft::sm_90).how);
    if (seen.insert(way).second)
      s += "  " + from + " -->|\"" + std::to_string(tokens) + " tokens\"| way_" + std::to_string(tokens) + "([\"" +
           way + "\"])\n";
  }
  return s;
}
std::string draw_call(const fs::path& headers) {
  const graft::layer_graphs dora = graft::capture_graphs(graft::layer_of<graft::linear_kind, graft::dora<>, false>());
  const graft::graph& g = dora.forward;
  std::string s = "```mermaid\nflowchart TB\n  call([\"q.forward(x, y), q a linear layer with DoRA\"])\n";
  s += chain(headers, common, "pass", "call");
  s += chain(headers, on_cpu, "cpu", "pass3") + launches(g, graft::cpu_target, "on_cpu", "cpu2");
  s += chain(headers, on_gpu, "gpu", "pass3") + launches(g, graft::sm_90, "on_gpu", "gpu2") + families(g, "on_gpu0");
  return s + "```\n";
}

// ---- the page -------------------------------------------------------------------------------------------------------

// False where the page has no such place.
bool put(std::string& page, const std::string& name, const std::string& body) {
  const std::string begin = "<!-- generated: " + name + " -->\n", end = "<!-- end -->";
  const std::size_t from = page.find(begin), to = from == page.npos ? from : page.find(end, from);
  if (to == page.npos) return std::printf("docs/design.md has no place for '%s'\n", name.c_str()), false;
  page.replace(from + begin.size(), to - from - begin.size(), "\n" + body + "\n");
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const bool checking = argc == 3 && std::string(argv[1]) == "--check";
  if (argc != 2 && !checking) return std::printf("usage: drawings [--check] ROOT\n"), 2;
  const fs::path root = argv[argc - 1], file = root / "docs" / "design.md", headers = root / "include" / "graft";
  std::string page = stored::read(file);
  if (!names_all(page, headers)) return 1;
  if (!put(page, "floors", draw_floors(find_floors(headers))) || !put(page, "call", draw_call(headers))) return 1;
  return (checking ? stored::is(file, page) : stored::write(file, page)) ? 0 : 1;
}
