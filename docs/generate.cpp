// SPDX-License-Identifier: Apache-2.0
// Writes the adapters' pages: formulas, plans and costs as the library prints them, for the CPU and for a GPU, and the
// notes of notes.h.
//     generate DOCS             writes DOCS/adapters/*.md
//     generate --check DOCS     compares instead, names the first line that differs, and fails if there is one
#include <graft/run/layer_graphs.h>
#include <graft/targets.h>

#include <cctype>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <set>
#include <string>

#include "described.h"
#include "stored.h"

namespace {

using graft::cost;
using graft::graph;
using graft::id;
using graft::op;
using graft::stage;
using graft::text;

// ---- an adapted layer -----------------------------------------------------------------------------------------------

// The graphs are captured while this program runs, by the functions that the compiler evaluates for a layer type.
struct layer {
  const notes::adapter& note;
  const char* kind;
  graft::layer_graphs graphs;
};
struct described_target {
  const graft::target& to;
  const char* name;
};
constexpr described_target described_targets[] = {{graft::cpu_target, "the CPU"}, {graft::sm_90, "sm_90"}};
constexpr graft::dtype stored_as = graft::dtype::bf16;

struct base_shape {
  std::string label;
  std::vector<std::pair<const char*, long long>> sizes;
  long long size(const char* name) const {
    for (const auto& [n, value] : sizes)
      if (graft::same_text(n, name)) return value;
    return graft::unknown;
  }
};
struct kind_facts {
  std::vector<base_shape> shapes;  // the last one is the one that a page explains
  std::vector<long long> tokens;
  const char* token;  // what one of them is called
  long long explained;
};
const kind_facts& facts_of(const layer& l) {
  static const kind_facts linear{
      {{"1024 × 1024", {{"out", 1024}, {"in", 1024}}}, {"4096 × 4096", {{"out", 4096}, {"in", 4096}}}},
      {1, 16, 512, 4096},
      "token",
      512};
  static const kind_facts embedding{
      {{"32000 × 1024", {{"vocab", 32000}, {"dim", 1024}}}, {"32000 × 4096", {{"vocab", 32000}, {"dim", 4096}}}},
      {1, 16, 512, 4096},
      "token",
      512};
  static const kind_facts norm{{{"1024", {{"n", 1024}}}, {"4096", {{"n", 4096}}}}, {1, 16, 512, 4096}, "token", 512};
  auto image = [](const char* label, long long channels) {
    return base_shape{label,
                      {{"out", channels},
                       {"channels", channels},
                       {"kernel_h", 3},
                       {"kernel_w", 3},
                       {"stride", 1},
                       {"padding", 1},
                       {"height", 32},
                       {"width", 32}}};
  };
  static const kind_facts conv2d{
      {image("128 × 128 × 3 × 3", 128), image("512 × 512 × 3 × 3", 512)}, {1, 4, 16, 64}, "image", 16};
  const std::string kind = l.kind;
  return kind == "linear" ? linear : kind == "embedding" ? embedding : kind == "conv2d" ? conv2d : norm;
}

graft::size_values bind(const layer& l, const graph& g, const base_shape& shape, long long tokens) {
  graft::size_values s;
  for (int i = 0; i < g.sizes.count; ++i) {
    const graft::size_entry& e = g.sizes.e[i];
    if (e.index < 0) continue;
    long long& v = s.v[e.index];
    v = e.tokens ? tokens : shape.size(e.name);
    for (const notes::number& n : l.note.numbers)
      if (graft::same_text(n.name, e.name) && n.value > 0) v = n.value;
    if (v == graft::unknown) v = l.graphs.from.adapter.adapter_size(e.name, shape.size("out"), shape.size("in"));
  }
  return s;
}
cost price(const layer& l, const graph& g, const base_shape& shape, long long tokens) {
  return graft::cost_of(g, bind(l, g, shape, tokens), {stored_as}, stored_as);
}
// True if the layer is folded, which is decided once per layer, before a call determines the number of tokens.
bool folds(const layer& l, const graft::target& to, const base_shape& shape) {
  return graft::folds(to, l.graphs.forward, l.graphs.folded, bind(l, l.graphs.forward, shape, graft::unknown));
}
const graph& forward_of(const layer& l, const graft::target& to, const base_shape& shape) {
  return folds(l, to, shape) ? l.graphs.folded : l.graphs.forward;
}
int kernels(const layer& l, const graft::target& to, const graph& g, const base_shape& shape, long long tokens) {
  return graft::kernel_count(g, graft::fuse(g, to), bind(l, g, shape, tokens), stored_as);
}
long long parameters(const layer& l, const base_shape& shape) {
  long long n = 0;
  const graph& g = l.graphs.merge;
  const graft::size_values s = bind(l, g, shape, 1);
  for (id i = 0; i < g.size; ++i)
    if (g[i].what == op::param) n += graft::element_count(g, i, s);
  return n;
}

// ---- text -----------------------------------------------------------------------------------------------------------

std::string big(long long n, const char* unit) {
  text t;
  graft::print_si(t, n);
  return std::string(t.c_str()) + unit;
}
std::string grouped(long long n) {
  std::string s = std::to_string(n);
  for (auto at = static_cast<int>(s.size()) - 3; at > 0; at -= 3) s.insert(static_cast<std::size_t>(at), " ");
  return s;
}
std::string extra(long long with, long long without) {
  if (with == without) return "0";
  if (without == 0) return "–";
  const double percent = 100.0 * static_cast<double>(with - without) / static_cast<double>(without);
  char s[32];
  if (percent > 0 && percent < 0.005) return "< 0.01 %";
  std::snprintf(s, sizeof s, percent < 1 ? "%.2f %%" : percent < 100 ? "%.1f %%" : "%.0f %%", percent);
  return s;
}
std::string code(const std::string& s) { return "`" + s + "`"; }
std::string shape_text(const graph& g, id i) {
  text t;
  graft::print_shape(t, g, i);
  return t.c_str();
}

// Breaks a long line before the operator that binds least, and indents the next line to the start of the formula.
constexpr std::size_t page_width = 112;
std::size_t break_of(const std::string& line, std::size_t from) {
  std::size_t best = line.npos;
  int depth = 0, best_score = 0;
  for (std::size_t i = 0; i < line.size() && i <= page_width; ++i) {
    depth += line[i] == '(' || line[i] == '[' ? 1 : line[i] == ')' || line[i] == ']' ? -1 : 0;
    const char before = i > 0 ? line[i - 1] : ' ';
    if (line[i] != ' ' || i + 2 >= line.size() || (i < from && before != ';')) continue;
    const char next = line[i + 2] == ' ' ? line[i + 1] : ' ';
    const bool sum = next == '+' || next == '-' || before == ';';
    const int binds = sum ? 0 : next == '*' || next == '/' ? 1 : next == '@' || before == ',' ? 2 : 3;
    const int score = 4 * depth + binds;
    if (best == line.npos || score <= best_score) best = i, best_score = score;
  }
  return best;
}
std::string wrapped(const std::string& line) {
  const std::size_t equals = line.rfind(" = ", 60), first = line.find_first_not_of(' ');
  const std::size_t below = equals == line.npos || equals > 44 ? first + 4 : equals + 3;
  std::string out, rest = line;
  while (rest.size() > page_width) {
    const std::size_t cut = break_of(rest, page_width / 2);
    if (cut == rest.npos) break;
    out += rest.substr(0, cut) + "\n";
    rest = std::string(below, ' ') + rest.substr(cut + 1);
  }
  return out + rest + "\n";
}

// ---- what the library prints ----------------------------------------------------------------------------------------

// A formula with a line for every value that it uses twice, in topological order.
std::string formula_lines(const graph& g, const std::vector<std::pair<id, std::string>>& results) {
  graft::node_set needed(g.size), named(g.size);
  for (const auto& [at, name] : results) needed.add(at);
  std::vector<int> uses(static_cast<std::size_t>(g.size), 0);
  for (id i = g.size - 1; i >= 0; --i)
    for (int k = 0; needed[i] && k < 3; ++k)
      if (const id o = g[i].operand(k); o >= 0) needed.add(o), ++uses[static_cast<std::size_t>(o)];
  auto cheap = [&](const graft::node& v) {
    return is_leaf(v.what) || v.what == op::reshape || v.what == op::transpose;
  };
  std::string out;
  auto line = [&](id i, const std::string& name) {
    text t;
    t << name.c_str();
    graft::print_shape(t, g, i);
    t << " = ";
    graft::print(t, g, i, {named.in.data(), 99});
    out += wrapped(t.c_str());
  };
  for (id i = 0; i < g.size; ++i)
    if (needed[i] && uses[static_cast<std::size_t>(i)] > 1 && !cheap(g[i])) {
      line(i, "t" + std::to_string(i));
      named.add(i);
    }
  for (const auto& [at, name] : results) line(at, name);
  return out;
}
bool is_kept(const graft::output& o) { return graft::same_text(o.name, "saved"); }
std::string all_outputs(const graph& g, const std::string& prefix) {
  std::vector<std::pair<id, std::string>> results;
  for (int k = 0; k < g.outs; ++k)
    if (!is_kept(g.out[k])) results.emplace_back(g.out[k].at, prefix + g.output_name(k).c_str());
  return formula_lines(g, results);
}

// A backward graph names the gradient of a tensor like the tensor; this class adds a d, so that readers can tell them
// apart.
class gradients {
 public:
  explicit gradients(const graph& g) : g_(g) {
    names_.reserve(static_cast<std::size_t>(g.outs));
    for (int k = 0; k < g.outs; ++k) {
      graft::output o = g.out[k];
      if (!o.of_input) o.name = names_.emplace_back(std::string("d ") + o.name).c_str();
      out_.push_back(o);
    }
    g_.out = out_.data();
  }
  gradients(const gradients&) = delete;
  gradients& operator=(const gradients&) = delete;
  const graph& renamed() const { return g_; }

 private:
  graph g_;
  std::vector<std::string> names_;
  std::vector<graft::output> out_;
};

std::string block(const std::string& language, const std::string& body) {
  return "```" + language + "\n" + body + "```\n\n";
}
std::string explained(const layer& l, const graph& g, const graft::target& to, const char* title,
                      const base_shape& shape, long long tokens) {
  std::string body;
  const cost c = price(l, g, shape, tokens);
  graft::explain_graph(g, graft::fuse(g, to), title, kernels(l, to, g, shape, tokens), &c,
                       [&](const text& t) { body += wrapped(std::string(t.c_str()).substr(2)); });
  return block("", body);
}
std::string drawn(const graph& g, const graft::target& to) {
  std::string body;
  graft::draw(g, graft::fuse(g, to), graft::drawing::mermaid,
              [&](const text& t) { body += std::string(t.c_str()) + "\n"; });
  return block("mermaid", body);
}
std::string hidden(const std::string& title, const std::string& body) {
  return "<details><summary>" + title + "</summary>\n\n" + body + "</details>\n\n";
}

// ---- the sections of a page -----------------------------------------------------------------------------------------

std::string head(const layer& l) {
  const notes::adapter& n = l.note;
  std::string s = "<!-- Written by docs/generate.cpp from include/graft/adapter/" + std::string(n.header) +
                  ". Edit that, or docs/notes.h, and generate it again. -->\n\n# " + n.title + "\n\n" +
                  code(n.letters) + "\n\n" + n.about + "\n\n";
  s += "| | |\n|---|---|\n";
  if (!n.papers.empty()) s += "| paper | ";
  for (const notes::paper& p : n.papers)
    s += std::string(&p == n.papers.data() ? "" : "; ") + "[" + p.authors + ", arXiv " + p.arxiv +
         "](https://arxiv.org/abs/" + p.arxiv + ")";
  s += std::string(n.papers.empty() ? "" : " |\n") + "| type | " + code(n.type) + " in [" + n.header +
       "](../../include/graft/adapter/" + n.header + ") |\n";
  s += "| base layer on this page | " + std::string(l.kind) + " |\n";
  s += "| checked against PEFT | ";
  s += n.cases[0] != '\0' ? std::string(n.cases) + " in [test/golden/layers](../../test/golden/layers)"
                          : "no stored layer; the laws that hold for every formula";
  return s + " |\n\nThe notation is explained in the [index](README.md#notation).\n\n";
}

std::string formula(const layer& l, const std::vector<std::pair<std::string, graph>>& variants) {
  std::string s = "## Formula\n\n" + block("", all_outputs(l.graphs.merge, "adapted "));
  for (const auto& [title, g] : variants) s += title + ":\n\n" + block("", all_outputs(g, "adapted "));
  return s;
}

std::string tensors(const layer& l) {
  std::string s =
      "## Tensors and numbers\n\n| name | what it is | shape | key in `adapter_model.safetensors` "
      "|\n|---|---|---|---|\n";
  const graph& g = l.graphs.merge;
  for (id i = 0; i < g.size; ++i) {
    const graft::node& v = g[i];
    if (v.what != op::base && v.what != op::frozen && v.what != op::param && v.what != op::index) continue;
    const std::string name = v.name;
    const bool shared = graft::lists(
        "vera_A vera_B vblora_vector_bank randlora_A randlora_B unilora_theta_d pvera_A pvera_B", name.c_str());
    const char* what = v.what == op::base     ? "of the base layer, frozen"
                       : v.what == op::index  ? "rows and columns of places, frozen"
                       : v.what == op::frozen ? (shared ? "frozen, shared by all layers" : "frozen")
                       : shared               ? "trained, shared by all layers"
                                              : "trained";
    const bool factored = graft::lists(
        "psoft_A psoft_B frod_U adamss_places osf_U_high osf_S_high osf_V_high initial_A initial_B", name.c_str());
    const bool computed = graft::lists("fourierft_rows fourierft_columns waveft_taps waveft_places", name.c_str());
    const bool of_kind = graft::lists("frod_V frod_s_indices", name.c_str());
    const bool of_group = name == "tinylora_v";
    const std::string key = v.what == op::base ? "–"
                            : factored         ? "in no file: from the base weight"
                            : computed         ? "in no file: from the configuration"
                            : of_kind          ? code("base_model." + name + ".<kind of layer>")
                            : of_group         ? code("base_model." + name + ".<group of layers>")
                                               : code((shared ? "base_model." : "base_model.model.<module>.") + name);
    s += "| " + code(name) + " | " + what + " | " + code(shape_text(g, i)) + " | " + key + " |\n";
  }
  s += "\n";
  if (l.note.numbers.empty()) return s;
  s += "| number | meaning | from PEFT's `adapter_config.json` | on this page |\n|---|---|---|---|\n";
  for (const notes::number& n : l.note.numbers) {
    std::string value = n.value > 0 ? std::to_string(n.value) : n.value < 0 ? "any" : "";
    if (n.value == 0)
      for (const base_shape& b : facts_of(l).shapes)
        value += (value.empty() ? "" : ", ") +
                 std::to_string(l.graphs.from.adapter.adapter_size(n.name, b.size("out"), b.size("in"))) + " on " +
                 b.label;
    s += "| " + code(n.name) + " | " + n.meaning + " | " + n.key + " | " + value + " |\n";
  }
  return s + "\n";
}

// The family of kernels that runs the GEMM of a forward plan on a GPU.
std::string product_family(const layer& l, const graft::target& to, const base_shape& shape, long long tokens) {
  const graph& g = forward_of(l, to, shape);
  const graft::launch_plan p = graft::fuse(g, to);
  if (p.products.empty()) return "–";
  graft::gemm_problem wanted = graft::shape_of(g, p.products[0], bind(l, g, shape, tokens), stored_as);
  wanted.rank = graft::gpu::padded_rank(wanted.rank);
  return graft::gpu::name_of(graft::gpu::choose(wanted, to).path);
}

std::string forward(const layer& l) {
  const kind_facts& k = facts_of(l);
  const base_shape& shape = k.shapes.back();
  std::string s = "## Forward\n\nOn " + shape.label + ", bf16, " + std::to_string(k.explained) + " " + k.token +
                  "s. One call runs, on each target, the launches of its plan:\n\n";
  for (const described_target& on : described_targets) {
    const bool folded = folds(l, on.to, shape);
    if (folded)
      s += "On " + std::string(on.name) +
           " the adapter is folded: W' is computed once per change of the parameters and kept, and a call is that of "
           "the bare layer.\n\n";
    s += explained(l, forward_of(l, on.to, shape), on.to, folded ? "forward (folded)" : "forward", shape, k.explained);
  }
  const graph& shown = forward_of(l, graft::cpu_target, shape);
  s += drawn(shown, graft::cpu_target);
  s += "Kernels of a call, and the family of kernels that runs the product with its slots:\n\n| layer | " +
       std::string(k.token) + "s | on the CPU | on sm_90 | its product |\n|---|---:|---|---|---|\n";
  for (const base_shape& b : k.shapes)
    for (const long long n : k.tokens) {
      s += "| " + b.label + " | " + std::to_string(n);
      for (const described_target& on : described_targets)
        s += " | " + std::to_string(kernels(l, on.to, forward_of(l, on.to, b), b, n)) +
             (folds(l, on.to, b) ? ", folded" : "");
      s += " | " + product_family(l, graft::sm_90, b, n) + " |\n";
    }
  return s + "\n";
}

std::string backward(const layer& l) {
  const kind_facts& k = facts_of(l);
  const base_shape& shape = k.shapes.back();
  const gradients named(l.graphs.backward);
  const graph& g = named.renamed();
  std::string s = "## Backward\n\n" + explained(l, g, graft::cpu_target, "backward", shape, k.explained);
  s += hidden("the same on sm_90: " + std::to_string(kernels(l, graft::sm_90, g, shape, k.explained)) + " kernels",
              explained(l, g, graft::sm_90, "backward", shape, k.explained));
  return s + hidden("the backward plan of the CPU, drawn", drawn(g, graft::cpu_target));
}

std::string merging(const layer& l) {
  const graft::unmerge_facts& facts = l.graphs.unmerging;
  const graph& merge = l.graphs.merge;
  std::string s = "## Merge and unmerge\n\nMerging evaluates the formula above into a tensor of the base's shape.";
  if (!facts.weight)
    return s + " The formula replaces the base tensors, so nothing leads back from the merged ones: keep the base.\n\n";
  s += facts.saved == 0 ? " The base comes back from the merged tensor alone:\n\n"
                        : " The base comes back from the merged tensor and one small tensor that the merge keeps, "
                          "because W occurs in it too:\n\n";
  std::string body;
  std::vector<std::pair<id, std::string>> kept;
  for (int k = 0; k < merge.outs; ++k)
    if (is_kept(merge.out[k])) kept.emplace_back(merge.out[k].at, "saved" + std::to_string(kept.size()));
  if (!kept.empty()) body += "at the merge:\n" + formula_lines(merge, kept) + "to unmerge:\n";
  body += all_outputs(l.graphs.unmerge_weight, "");
  if (facts.bias) body += all_outputs(l.graphs.unmerge_bias, "");
  return s + block("", body);
}

std::string once(const layer& l) {
  const kind_facts& k = facts_of(l);
  const base_shape& shape = k.shapes.back();
  std::vector<std::pair<std::string, cost>> rows;
  for (const described_target& on : described_targets) {
    const bool folded = folds(l, on.to, shape), differs = folded != folds(l, graft::cpu_target, shape);
    if (on.to.is_cpu() || differs)
      rows.emplace_back(std::string(folded ? "forward (folded)" : "forward") + (differs ? " on sm_90" : ""),
                        price(l, forward_of(l, on.to, shape), shape, k.explained));
  }
  rows.emplace_back("backward", price(l, l.graphs.backward, shape, k.explained));
  long long any = 0;
  for (const auto& [name, c] : rows) any += c.load_flops + c.parameter_flops + c.precomputed_bytes;
  std::string s = "## Computed once\n\n";
  if (any == 0) return s + "Nothing: every value depends on the data.\n\n";
  s += "What does not depend on the data is computed when the tensors are loaded, or after the parameters changed (in "
       "inference: once), and kept. On " +
       shape.label +
       ", bf16; the lines `once per …` above say which values these are:\n\n"
       "| | once per load | once per change of the parameters | kept for the calls |\n|---|---|---|---|\n";
  for (const auto& [name, c] : rows)
    s += "| " + name + " | " + big(c.load_flops, "flop") + " | " + big(c.parameter_flops, "flop") + " | " +
         big(c.precomputed_bytes, "B") + " |\n";
  return s + "\n";
}

std::string costs(const layer& l) {
  const kind_facts& k = facts_of(l);
  const graft::layer_graphs& g = l.graphs;
  std::string s =
      "## Cost\n\nPer call, in bf16. *extra* is over the bare layer, whose backward pass computes dx only.\n\n"
      "| layer | " +
      std::string(k.token) +
      "s | forward | extra | moved | extra | backward | extra | moved | extra "
      "|\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  for (const base_shape& b : k.shapes)
    for (const described_target& on : described_targets) {
      const bool folded = folds(l, on.to, b), differs = folded != folds(l, graft::cpu_target, b);
      if (!on.to.is_cpu() && !differs) continue;
      for (const long long n : k.tokens) {
        s += "| " + b.label + (differs ? " on sm_90" : "") + (folded ? " (folded)" : "") + " | " + std::to_string(n);
        const graph& run = folded ? g.folded : g.forward;
        for (const auto& [with, without] :
             {std::pair{&run, &g.base_forward}, std::pair{&g.backward, &g.base_backward}}) {
          const cost a = price(l, *with, b, n), z = price(l, *without, b, n);
          s += " | " + big(a.flops, "flop") + " | " + extra(a.flops, z.flops) + " | " + big(a.bytes, "B") + " | " +
               extra(a.bytes, z.bytes);
        }
        s += " |\n";
      }
    }
  return s +
         "\n*moved* are the bytes that must cross the memory bus when every value between the ends stays on the chip: "
         "inputs, weights and kept values once, outputs once." +
         "\n\n";
}

std::string compatibility(const layer& l) {
  if (l.note.traps.empty()) return "";
  std::string s =
      "## PEFT\n\nWhere PEFT and the paper differ this formula follows PEFT, so that its adapters mean the same "
      "here.\n\n";
  for (const char* trap : l.note.traps) s += "- " + std::string(trap) + "\n";
  return s;
}

// ---- the index ------------------------------------------------------------------------------------------------------

const char* meaning(op o) {
  switch (o) {
    case op::input:
    case op::ids:
    case op::state:
    case op::base:
    case op::frozen:
    case op::param:
    case op::scalar:
    case op::constant:
    case op::zero:
    case op::saved:
    case op::index:
    case op::number:
    case op::minimum:
    case op::maximum:
    case op::sqrt:
    case op::exp:
    case op::log:
    case op::sin:
    case op::cos:
    case op::erf:
    case op::silu:
    case op::gelu:
    case op::gelu_tanh:
    case op::tanh:
    case op::sigmoid:
    case op::relu:
    case op::transpose:
    case op::reshape:
    case op::add:
    case op::sub:
    case op::mul:
    case op::div:
    case op::matmul:
    case op::detach:
    case op::host: return nullptr;  // explained in words, or printed as its name
    case op::all_reduce_sum: return "the sum over all processes that share the work";
    case op::all_reduce_max: return "the largest over all processes that share the work";
    case op::eye: return "the identity";
    case op::heaviside: return "1 where the argument is positive, else 0";
    case op::row_dot: return "the sum of a ⊙ b over each row: a column";
    case op::sum_to: return "the sum over the axes that the result does not have";
    case op::permute: return "the axes in another order";
    case op::slice: return "part of an axis";
    case op::pad: return "the adjoint of slice: zeros around it";
    case op::concat: return "one after the other along an axis";
    case op::repeat: return "repeats the columns until there are as many as the result has";
    case op::fold_columns: return "the adjoint of tile: adds column i into column i mod the number that the result has";
    case op::strict_upper: return "the part above the diagonal";
    case op::skew: return "each row, a packed upper triangle, as a skew-symmetric matrix";
    case op::unskew: return "the adjoint of skew";
    case op::circulant:
      return "each row of b numbers as a square of b rows, each the row before it moved by one (`mirrored`: the other "
             "way); "
             "`sum` is the adjoint";
    case op::inverse: return "the inverse of each matrix";
    case op::orthonormal: return "an orthonormal basis of the columns of each matrix: the Q of LAPACK's Q R";
    case op::neumann: return "I + 2Q + 2Q² + … + Q^(K−1), the second argument being K";
    case op::neumann_grad: return "the gradient of neumann";
    case op::rotate: return "x R; `rotate_back` is x Rᵀ. R is given by its blocks [factors, blocks, b, b]";
    case op::rotate_grad: return "the gradient of the blocks of rotate";
    case op::kron: return "the Kronecker product";
    case op::row_kron: return "the Kronecker product of each pair of rows";
    case op::gather: return "the rows x of a table, or its columns: the shape of the result tells";
    case op::scatter: return "the adjoint of gather: adds rows to those that they came from";
    case op::scatter_elements: return "scatters values into a zero matrix, at the elements that an index names";
    case op::gather_elements: return "the adjoint of scatter_elements: the values at these elements";
    case op::softmax: return "softmax over each row";
    case op::topk_softmax: return "softmax over the k largest entries of each row, zero elsewhere";
    case op::softmax_grad: return "the gradient of topk_softmax";
    case op::normalize: return "(x − mean) / sqrt(variance + eps) of each row; without the mean in an RMSNorm";
    case op::normalize_grad: return "the gradient of normalize";
    case op::im2col: return "an image as one row per position of the kernel";
    case op::rope: return "each head of a row rotated by the angles of the row's position";
    case op::dropout: return "each element dropped with a probability, the others scaled up";
    case op::cross_entropy: return "log Σ exp of each row less its entry at the label: a column";
    case op::cross_entropy_grad: return "the adjoint of cross_entropy";
    case op::attention: return "softmax(Q Kᵀ / √head) V for every head, each row on its span of rows";
    case op::attention_grad: return "the adjoint of attention";
    case op::cached_attention:
      return "the same on keys and values in a cache, to which those of the call are written first";
    case op::route:
      return "which k of the experts each row chooses: of the rows sorted by expert the token, the expert, and the "
             "place of each choice";
    case op::dispatch:
      return "rows in the order of the experts: each takes that of its token, of its expert, or of both";
    case op::combine: return "the adjoint of dispatch: adds rows to those that they came from";
    case op::grouped_matmul: return "each expert's rows times its own matrix";
    case op::grouped_wgrad: return "the gradient of the experts' matrices";
    case op::col2im: return "the adjoint of patches";
  }
  return nullptr;
}

std::string notation(const std::set<op>& used) {
  std::string s =
      "## Notation\n\nThe pages print formulas as the library does, in `explain` and in its errors.\n\n"
      "| printed | means |\n|---|---|\n"
      "| `A @ B` | the matrix product; in a product with `*` it is always in parentheses |\n"
      "| `a + b`, `a - b`, `a * b`, `a / b` | element by element; an axis of size 1 is repeated |\n"
      "| `A'` | the transpose |\n"
      "| `const(a)` | a, but a constant in the backward pass |\n"
      "| `t7[out, r] = …` | a value that is used again gets a name, valid in its block of text |\n"
      "| `dx`, `d lora_A.weight` | the gradient of the input, of a tensor |\n";
  for (const op o : used)
    if (const char* m = meaning(o); m != nullptr) s += "| " + code(graft::traits_of(o).name) + " | " + m + " |\n";
  return s +
         "\nReshaping moves nothing and is not printed. A column of n numbers acts on the n rows of a weight and on "
         "the n columns of an activation.\n\n"
         "A launch is named after the work it is built around. On the CPU everything that follows row by row is one "
         "launch, which goes through the tokens a few at a time. On a GPU a GEMM takes in what its kernels can fuse: a "
         "`prologue` on its input, a `low-rank branch` that is added to its product, an `epilogue` on the "
         "accumulators, "
         "and `fused wgrads`; every other operation is a launch of its own. A `reduce` sums over tokens (a wgrad), and "
         "`small matrices` are stacks of small products and inverses.\n";
}

// The flops that the forward pass adds to the bare layer; for both targets if they run different forms.
std::string extra_per_token(const layer& l) {
  const kind_facts& k = facts_of(l);
  const base_shape& shape = k.shapes.back();
  const long long without = price(l, l.graphs.base_forward, shape, k.explained).flops;
  std::string all;
  for (const described_target& on : described_targets) {
    const long long with = price(l, forward_of(l, on.to, shape), shape, k.explained).flops;
    const bool differs = folds(l, on.to, shape) != folds(l, graft::cpu_target, shape);
    if (!on.to.is_cpu() && !differs) continue;
    std::string rate = with == without ? "0" : big((with - without) / k.explained, "flop");
    if (with != without && without > 0) rate += " (" + extra(with, without) + ")";
    all += (differs ? "; on sm_90 " : "") + rate;
  }
  return all + (std::string(k.token) == "token" ? "" : ", per " + std::string(k.token));
}

std::string index(const std::vector<layer>& layers) {
  std::set<op> used;
  std::string s =
      "<!-- Written by docs/generate.cpp. -->\n\n# Adapters\n\n"
      "One formula each, in [include/graft/adapter](../../include/graft/adapter); these pages are derived from it by "
      "[generate.cpp](../generate.cpp), and a test compares them with the code.\n\n"
      "*Kernels* are those of a forward and of a backward call, on each target with 512 tokens (16 images). *Extra* is "
      "what the forward pass costs beyond the bare layer, *parameters* the trained numbers: both on a layer of 4096 × "
      "4096, for embeddings on a table of 32000 × 4096, for convolutions on 512 × 512 × 3 × 3 with images of 32 × 32, "
      "for norms on 4096. Every adapter can be merged. *Folded* means that the adapted weight is computed once per "
      "change of the parameters and kept, so that a call costs what the bare layer does.\n\n"
      "Sizes are names here, as they are when a layer is read from a file. Where a type states them, as in `lora<16>`, "
      "the numbers are used while the plan is made, and it may come out differently.\n\n"
      "| adapter | formula | kernels on the CPU | kernels on sm_90 | extra flop per token | parameters | back from the "
      "merged weight |\n|---|---|---:|---:|---:|---:|---|\n";
  for (const layer& l : layers) {
    const kind_facts& k = facts_of(l);
    const base_shape& shape = k.shapes.back();
    std::string settings;
    for (const notes::number& n : l.note.numbers)
      if (n.value > 0)
        settings += (settings.empty() ? "" : ", ") + std::string(n.name) + " = " + std::to_string(n.value);
    s += "| [" + std::string(l.note.title) + "](" + l.note.file + ".md) | " + code(l.note.letters) + " | ";
    for (const described_target& on : described_targets)
      s += std::to_string(kernels(l, on.to, forward_of(l, on.to, shape), shape, k.explained)) + " + " +
           std::to_string(kernels(l, on.to, l.graphs.backward, shape, k.explained)) +
           (folds(l, on.to, shape) ? ", folded" : "") + " | ";
    s += extra_per_token(l) + " | " + grouped(parameters(l, shape)) + (settings.empty() ? "" : " (" + settings + ")");
    s += std::string(" | ") +
         (!l.graphs.unmerging.weight      ? "no: keep the base"
          : l.graphs.unmerging.saved == 0 ? "yes"
                                          : "yes, with one tensor kept at the merge") +
         " |\n";
    for (const graph* g : {&l.graphs.merge, &l.graphs.forward, &l.graphs.folded, &l.graphs.backward,
                           &l.graphs.unmerge_weight, &l.graphs.unmerge_bias})
      for (id i = 0; i < g->size; ++i) used.insert((*g)[i].what);
  }
  return s + "\n" + notation(used);
}

// ---- files ----------------------------------------------------------------------------------------------------------

struct page {
  std::string name, body;
};

bool check(const std::vector<page>& pages, const std::filesystem::path& folder) {
  bool good = true;
  std::set<std::string> known;
  for (const page& p : pages) {
    known.insert(p.name);
    good &= stored::is(folder / p.name, p.body);
  }
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    if (!known.contains(entry.path().filename().string()))
      std::printf("%s belongs to no adapter\n", entry.path().c_str()), good = false;
  std::printf(good ? "%zu pages are what their formulas give\n" : "write them again: generate docs\n", pages.size());
  return good;
}
bool write(const std::vector<page>& pages, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  bool good = true;
  for (const page& p : pages) good &= stored::write(folder / p.name, p.body);
  return good;
}

// A page for every form with notes, and for the first of the forms without notes.
std::vector<layer> all_layers(const std::filesystem::path& root) {
  static std::deque<notes::adapter> described_notes;
  std::vector<layer> layers;
  graft::for_each_adapter([&]<class A>(graft::adapter_type<A>) {
    bool noted = false;
    const auto add = [&]<class Kind>(Kind) {
      if (!graft::lists(A::kinds, Kind::name)) return;
      for (const notes::page& p : notes::pages)
        if (graft::same_text(p.method, A::method) && graft::same_text(p.kind, Kind::name)) {
          const graft::layer_formula f{graft::rules_of<Kind>(), graft::formula_of<A>(), p.bias};
          layers.push_back({p.note, Kind::name, graft::capture_graphs(f)});
          noted = true;
        }
      if (noted || graft::same_text(A::method, "none") || !graft::is_main_form<A>()) return;
      const bool bias = graft::changes_bias<A>();
      const graft::layer_formula f{graft::rules_of<Kind>(), graft::formula_of<A>(), bias};
      graft::layer_graphs graphs = graft::capture_graphs(f);
      layers.push_back({described_notes.emplace_back(described::note<A>(root, graphs)), Kind::name, graphs});
      noted = true;
    };
    add(graft::linear_kind{}), add(graft::embedding_kind{}), add(graft::conv2d_kind{});
    add(graft::norm_kind<false>{});
  });
  return layers;
}

std::vector<page> all_pages(const std::filesystem::path& root) {
  using namespace graft;
  const std::vector<layer> layers = all_layers(root);
  // Other forms of an adapter, shown by their merge formulas only.
  using enum oft_blocks;
  using enum oft_constraint;
  using enum lokr_form;
  const builder oft_shared = capture_merge(layer_of<linear_kind, oft<dyn, shared>, false>());
  const builder oft_projected = capture_merge(layer_of<linear_kind, oft<dyn, separate, projected>, false>());
  const builder lokr_full = capture_merge(layer_of<linear_kind, lokr<dyn, -1, full, full>, false>());
  const builder lokr_first = capture_merge(layer_of<linear_kind, lokr<dyn, -1, low_rank, full>, false>());
  const builder lokr_both = capture_merge(layer_of<linear_kind, lokr<dyn, -1, low_rank, low_rank>, false>());
  const builder rms = capture_merge(layer_of<norm_kind<true>, ln_tuning_weight, false>());
  const builder loha_flat = capture_merge(layer_of<conv2d_kind, loha<>, false>());
  const builder loha_exact = capture_merge(layer_of<conv2d_kind, loha_conv<dyn, loha_gradient::exact>, false>());
  auto variants = [&](const layer& l) -> std::vector<std::pair<std::string, graph>> {
    const std::string file = l.note.file;
    if (file == "oft_cayley")
      return {{"With `oft_blocks::shared` (`block_share`) one block serves all", oft_shared},
              {"With `oft_constraint::projected` (`coft`); `coft_limit` is `eps` / sqrt(2 blocks)", oft_projected}};
    if (file == "lokr")
      return {{"With both factors stored in full (`lokr_form::full` twice)", lokr_full},
              {"With the first factor of rank r (`decompose_both`)", lokr_first},
              {"With both factors of rank r", lokr_both}};
    if (file == "ln_tuning") return {{"On an RMSNorm, which has no bias: `graft::ln_tuning_weight`", rms}};
    if (file == "loha_conv2d")
      return {{"With `loha_gradient::exact`", loha_exact},
              {"Without `use_effective_conv2d`: `graft::loha` on the flattened weight", loha_flat}};
    return {};
  };

  std::vector<page> pages{{"README.md", index(layers)}};
  for (const layer& l : layers)
    pages.push_back({std::string(l.note.file) + ".md", head(l) + formula(l, variants(l)) + tensors(l) + forward(l) +
                                                           backward(l) + merging(l) + once(l) + costs(l) +
                                                           compatibility(l)});
  return pages;
}

}  // namespace

int main(int argc, char** argv) {
  const bool checking = argc == 3 && std::string(argv[1]) == "--check";
  if (argc != 2 && !checking) return std::printf("usage: generate [--check] DOCS\n"), 2;
  const std::filesystem::path folder = std::filesystem::path(argv[argc - 1]) / "adapters";
  const std::vector<page> pages = all_pages(std::filesystem::path(argv[argc - 1]).parent_path());
  return (checking ? check(pages, folder) : write(pages, folder)) ? 0 : 1;
}
