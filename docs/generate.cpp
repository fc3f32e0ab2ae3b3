// SPDX-License-Identifier: Apache-2.0
// Writes the pages of the adapters from their formulas: what the printer, the planner and the costs of the library say,
// and the notes of notes.h beside it.
//     generate DOCS             writes DOCS/adapters/*.md
//     generate --check DOCS     compares instead, names the first line that differs, and fails if there is one
#include <graft/graft.h>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "notes.h"

namespace {

using graft::cost;
using graft::graph;
using graft::id;
using graft::op;
using graft::stage;
using graft::text;

// ---- an adapted layer -------------------------------------------------------------------------------------------------

struct layer {
  const notes::adapter& note;
  const char* kind;
  graph forward, folded, backward, merge, unmerge_weight, unmerge_bias, bare_forward, bare_backward;
  graft::unmerge_facts weight_facts, bias_facts;
  long long (*size)(const char*, long long, long long);
};
template <class Kind, class Adapter, bool Bias> layer layer_of(const notes::adapter& note) {
  using d = graft::derived<Kind, Adapter, Bias>;
  using bare = graft::derived<Kind, graft::none, Bias>;
  return {note,
          Kind::name,
          d::forward,
          d::folded,
          d::backward,
          d::merge,
          d::unmerge_weight,
          d::unmerge_bias,
          bare::forward,
          bare::backward,
          d::weight_facts,
          d::bias_facts,
          graft::adapter_size<Adapter>};
}

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
    if (e.what != graft::size_entry::kind::name) continue;
    s.v[i] = graft::same_text(e.name, "tokens") ? tokens : shape.size(e.name);
    for (const notes::number& n : l.note.numbers)
      if (graft::same_text(n.name, e.name) && n.value > 0) s.v[i] = n.value;
    if (s.v[i] == graft::unknown) s.v[i] = l.size(e.name, shape.size("out"), shape.size("in"));
  }
  return s;
}
cost price(const layer& l, const graph& g, const base_shape& shape, long long tokens) {
  return graft::cost_of(g, bind(l, g, shape, tokens), graft::dtype::bf16, graft::dtype::bf16);
}
bool folds(const layer& l, const base_shape& shape, long long tokens) {
  return graft::worth_folding(price(l, l.forward, shape, tokens), price(l, l.folded, shape, tokens));
}
cost forward_price(const layer& l, const base_shape& shape, long long tokens) {
  return price(l, folds(l, shape, tokens) ? l.folded : l.forward, shape, tokens);
}
long long parameters(const layer& l, const base_shape& shape) {
  long long n = 0;
  const graft::size_values s = bind(l, l.merge, shape, 1);
  for (int i = 0; i < l.merge.size; ++i)
    if (l.merge.n[i].what == op::param) n += graft::count(l.merge, static_cast<id>(i), s);
  return n;
}

long long weight_count(const layer& l, const base_shape& shape) {
  const graph& g = l.bare_forward;
  return graft::count(g, g.find("weight"), bind(l, g, shape, 1));
}

// ---- text ---------------------------------------------------------------------------------------------------------------

std::string big(long long n, const char* unit) {
  text t;
  graft::print_big(t, n);
  return std::string(t.c_str()) + (n < 1000 ? " " : "") + unit;
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

// Breaks a long line before an operator, where it binds least, and goes on below the place where the formula began.
constexpr std::size_t page_width = 112;
std::size_t break_of(const std::string& line, std::size_t from) {
  std::size_t best = line.npos;
  int depth = 0, best_score = 0;
  for (std::size_t i = 0; i < line.size() && i <= page_width; ++i) {
    depth += line[i] == '(' || line[i] == '[' ? 1 : line[i] == ')' || line[i] == ']' ? -1 : 0;
    if (line[i] != ' ' || i < from || i + 2 >= line.size()) continue;
    const char next = line[i + 2] == ' ' ? line[i + 1] : ' ';
    const int binds = next == '+' || next == '-' ? 0 : next == '*' || next == '/' ? 1 : next == '@' ? 2 : 3;
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

// ---- what the library prints ----------------------------------------------------------------------------------------------

// A formula with a line for every value that it uses twice, in the order in which they follow from each other.
std::string formula_lines(const graph& g, const std::vector<std::pair<id, std::string>>& results) {
  graft::node_set needed, named;
  for (const auto& [at, name] : results) needed.in[at] = true;
  int uses[graft::max_nodes]{};
  for (int i = g.size - 1; i >= 0; --i)
    for (int k = 0; needed.in[i] && k < 3; ++k)
      if (const id o = g.n[i].operand(k); o >= 0) needed.in[o] = true, ++uses[o];
  auto cheap = [&](const graft::node& v) {
    return is_leaf(v.what) || v.what == op::reshape || v.what == op::transpose;
  };
  std::string out;
  auto line = [&](id i, const std::string& name) {
    text t;
    t << name.c_str();
    graft::print_shape(t, g, i);
    t << " = ";
    graft::print(t, g, i, {named.in, 99});
    out += wrapped(t.c_str());
  };
  for (int i = 0; i < g.size; ++i)
    if (needed.in[i] && uses[i] > 1 && !cheap(g.n[i])) {
      line(static_cast<id>(i), "t" + std::to_string(i));
      named.in[i] = true;
    }
  for (const auto& [at, name] : results) line(at, name);
  return out;
}
std::string all_outputs(const graph& g, const std::string& prefix) {
  std::vector<std::pair<id, std::string>> results;
  for (int k = 0; k < g.outs; ++k) results.emplace_back(g.out[k].at, prefix + g.out[k].name);
  return formula_lines(g, results);
}

// A backward graph names the gradient of a tensor like the tensor; a reader wants to see which is which.
class gradients {
 public:
  explicit gradients(const graph& g) {
    for (int k = 0; k < g.outs; ++k) {
      const std::string name = g.out[k].name;
      names_[k] = name == "dx" ? name : "d " + name;
      out_[k] = {g.out[k].at, names_[k].c_str()};
    }
    for (int k = g.outs; k < graft::max_outputs; ++k) out_[k] = {};
  }
  graph of(const graph& g) const { return {g.n, g.size, g.sizes, g.need, g.needs, out_, g.outs, g.bad}; }

 private:
  std::string names_[graft::max_outputs];
  graft::output out_[graft::max_outputs];
};

std::string block(const std::string& language, const std::string& body) {
  return "```" + language + "\n" + body + "```\n\n";
}
std::string explained(const graph& g, const char* title, const cost& c) {
  std::string body;
  graft::explain_graph(g, title, &c, [&](const text& t) { body += wrapped(std::string(t.c_str()).substr(2)); });
  return block("", body);
}
std::string on_gpu(const layer& l, const base_shape& shape, long long tokens) {
  std::string sentence;
  graft::explain_gpu(l.forward, l.folded, bind(l, l.forward, shape, tokens),
                     [&](const text& t) { sentence = std::string(t.c_str()).substr(2); });
  return std::string(1, static_cast<char>(std::toupper(sentence[0]))) + sentence.substr(1) + ".\n\n";
}
std::string drawn(const graph& g) {
  std::string body;
  graft::draw(g, graft::drawing::mermaid, [&](const text& t) { body += std::string(t.c_str()) + "\n"; });
  return block("mermaid", body);
}

// ---- the sections of a page -------------------------------------------------------------------------------------------------

std::string head(const layer& l) {
  const notes::adapter& n = l.note;
  std::string s = "<!-- Written by docs/generate.cpp from include/graft/adapter/" + std::string(n.header) +
                  ". Edit that, or docs/notes.h, and generate it again. -->\n\n# " + n.title + "\n\n" +
                  code(n.letters) + "\n\n" + n.about + "\n\n";
  s += "| | |\n|---|---|\n| paper | ";
  for (const notes::paper& p : n.papers)
    s += std::string(&p == n.papers.data() ? "" : "; ") + "[" + p.authors + ", arXiv " + p.arxiv +
         "](https://arxiv.org/abs/" + p.arxiv + ")";
  s += " |\n| type | " + code(n.type) + " in [" + n.header + "](../../include/graft/adapter/" + n.header + ") |\n";
  s += "| base layer on this page | " + std::string(l.kind) + " |\n";
  s += "| checked against PEFT | ";
  s += n.cases[0] != '\0' ? std::string(n.cases) + " in [test/golden/layers](../../test/golden/layers)"
                          : "no stored layer; the laws that hold for every formula";
  return s + " |\n\nThe notation is explained in the [index](README.md#notation).\n\n";
}

std::string formula(const layer& l, const std::vector<std::pair<std::string, graph>>& variants) {
  std::string s = "## Formula\n\n" + block("", all_outputs(l.merge, "adapted "));
  for (const auto& [title, g] : variants) s += title + ":\n\n" + block("", all_outputs(g, "adapted "));
  return s;
}

std::string tensors(const layer& l) {
  std::string s =
      "## Tensors and numbers\n\n| name | what it is | shape | key in `adapter_model.safetensors` "
      "|\n|---|---|---|---|\n";
  const graph& g = l.merge;
  for (int i = 0; i < g.size; ++i) {
    const graft::node& v = g.n[i];
    if (v.what != op::base && v.what != op::frozen && v.what != op::param) continue;
    const std::string name = v.name;
    const bool shared = v.what == op::frozen || name == "vblora_vector_bank";
    const char* what = v.what == op::base     ? "of the base layer, frozen"
                       : v.what == op::frozen ? "frozen, shared by all layers"
                       : shared               ? "trained, shared by all layers"
                                              : "trained";
    const std::string key =
        v.what == op::base ? "–" : code((shared ? "base_model." : "base_model.model.<module>.") + name);
    s += "| " + code(name) + " | " + what + " | " + code(shape_text(g, static_cast<id>(i))) + " | " + key + " |\n";
  }
  s += "\n";
  if (l.note.numbers.empty()) return s;
  s += "| number | meaning | from PEFT's `adapter_config.json` | on this page |\n|---|---|---|---|\n";
  for (const notes::number& n : l.note.numbers) {
    std::string value = n.value > 0 ? std::to_string(n.value) : n.value < 0 ? "any" : "";
    if (n.value == 0)
      for (const base_shape& b : facts_of(l).shapes)
        value += (value.empty() ? "" : ", ") + std::to_string(l.size(n.name, b.size("out"), b.size("in"))) + " on " +
                 b.label;
    s += "| " + code(n.name) + " | " + n.meaning + " | " + n.key + " | " + value + " |\n";
  }
  return s + "\n";
}

std::string plans(const layer& l) {
  const kind_facts& k = facts_of(l);
  const base_shape& shape = k.shapes.back();
  const gradients renamed(l.backward);
  const graph backward = renamed.of(l.backward);
  const std::string on = shape.label + ", bf16, " + std::to_string(k.explained) + " " + k.token + "s";
  std::string s = "## Forward\n\nOn " + on + ":\n\n";
  s += explained(l.forward, "forward", price(l, l.forward, shape, k.explained)) + drawn(l.forward);
  s += on_gpu(l, shape, k.explained);
  std::string where;
  const base_shape* first = nullptr;
  bool always = true;
  for (const base_shape& b : k.shapes) {
    std::string tokens;
    bool all = true;
    for (const long long n : k.tokens) {
      all = all && folds(l, b, n);
      if (folds(l, b, n)) tokens += (tokens.empty() ? "" : ", ") + std::to_string(n);
    }
    always = always && all;
    if (tokens.empty()) continue;
    if (first == nullptr) first = &b;
    where += (where.empty() ? "" : "; ") + b.label + (all ? "" : " with " + tokens + " " + k.token + "s");
  }
  if (always) where = "all sizes below", first = &shape;
  if (first != nullptr)
    s += "Where the branch costs more than a quarter of the layer's flops, the executor runs the folded form instead: "
         "W' is computed once per change of the parameters and kept, and a call is that of the bare layer. It does so "
         "for " +
         where + ". On " + first->label + ":\n\n" +
         explained(l.folded, "forward (folded)", price(l, l.folded, *first, k.explained));
  s += "## Backward\n\n" + explained(backward, "backward", price(l, l.backward, shape, k.explained));
  return s + "<details><summary>the backward plan, drawn</summary>\n\n" + drawn(backward) + "</details>\n\n";
}

std::string merging(const layer& l) {
  std::string s = "## Merge and unmerge\n\nMerging evaluates the formula above into a tensor of the base's shape.";
  if (!l.weight_facts.possible)
    return s + " The formula replaces the base tensors, so nothing leads back from the merged ones: keep the base.\n\n";
  s += l.weight_facts.kept == 0 ? " The base comes back from the merged tensor alone:\n\n"
                                : " The base comes back from the merged tensor and one small tensor that the merge "
                                  "keeps, because W occurs in it too:\n\n";
  std::string body;
  std::vector<std::pair<id, std::string>> kept;
  for (int k = 0; k < l.weight_facts.kept; ++k) kept.emplace_back(l.weight_facts.kept_from[k], graft::kept_names[k]);
  if (!kept.empty()) body += "at the merge:\n" + formula_lines(l.merge, kept) + "to unmerge:\n";
  body += all_outputs(l.unmerge_weight, "");
  if (l.bias_facts.possible) body += all_outputs(l.unmerge_bias, "");
  return s + block("", body);
}

std::string once(const layer& l) {
  const kind_facts& k = facts_of(l);
  const base_shape& shape = k.shapes.back();
  const cost f = forward_price(l, shape, k.explained), b = price(l, l.backward, shape, k.explained);
  std::string s = "## Computed once\n\n";
  if (f.load_flops + f.parameter_flops + b.load_flops + b.parameter_flops + f.cached_bytes + b.cached_bytes == 0)
    return s + "Nothing: every value depends on the data.\n\n";
  s += "What does not depend on the data is computed when the tensors are loaded, or after the parameters changed (in "
       "inference: once), and kept. On " +
       shape.label +
       ", bf16; the lines `once per …` above say which values these are:\n\n"
       "| | once per load | once per change of the parameters | kept for the calls |\n|---|---|---|---|\n";
  for (const auto& [name, c] : {std::pair{"forward", f}, std::pair{"backward", b}})
    s += "| " + std::string(name) + " | " + big(c.load_flops, "flop") + " | " + big(c.parameter_flops, "flop") + " | " +
         big(c.cached_bytes, "B") + " |\n";
  return s + "\n";
}

std::string costs(const layer& l) {
  const kind_facts& k = facts_of(l);
  std::string s =
      "## Cost\n\nPer call, in bf16. *extra* is over the bare layer, whose backward pass computes dx only.\n\n"
      "| layer | " +
      std::string(k.token) +
      "s | forward | extra | moved | extra | backward | extra | moved | extra "
      "|\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  for (const base_shape& b : k.shapes)
    for (const long long n : k.tokens) {
      const cost f = forward_price(l, b, n), f0 = price(l, l.bare_forward, b, n), r = price(l, l.backward, b, n),
                 r0 = price(l, l.bare_backward, b, n);
      s += "| " + b.label + (folds(l, b, n) ? " (folded)" : "") + " | " + std::to_string(n);
      for (const auto& [with, without] : {std::pair{f, f0}, std::pair{r, r0}})
        s += " | " + big(with.flops, "flop") + " | " + extra(with.flops, without.flops) + " | " + big(with.bytes, "B") +
             " | " + extra(with.bytes, without.bytes);
      s += " |\n";
    }
  return s +
         "\n*moved* are the bytes that must cross the memory bus when every value between the ends stays on the chip: "
         "inputs, weights and kept values once, outputs once." +
         "\n\n";
}

std::string compatibility(const layer& l) {
  std::string s =
      "## PEFT\n\nWhere PEFT and the paper differ this formula follows PEFT, so that its adapters mean the same "
      "here.\n\n";
  for (const char* trap : l.note.traps) s += "- " + std::string(trap) + "\n";
  return s;
}

// ---- the index -----------------------------------------------------------------------------------------------------------

const char* meaning(op o) {
  switch (o) {
    case op::input:
    case op::ids:
    case op::base:
    case op::frozen:
    case op::param:
    case op::scalar:
    case op::constant:
    case op::zero:
    case op::kept:
    case op::minimum:
    case op::sqrt:
    case op::exp:
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
    case op::eye: return "the identity";
    case op::step: return "1 where the argument is positive, else 0";
    case op::row_dot: return "the sum of a ⊙ b over each row: a column";
    case op::sum_to: return "the sum over the axes that the result does not have";
    case op::swap_inner: return "swaps the two middle axes";
    case op::tile: return "repeats the columns until there are as many as the result has";
    case op::fold: return "the adjoint of tile: adds column i into column i mod the number that the result has";
    case op::upper: return "the part above the diagonal";
    case op::skew: return "each row, a packed upper triangle, as a skew-symmetric matrix";
    case op::unskew: return "the adjoint of skew";
    case op::inverse: return "the inverse of each matrix";
    case op::neumann: return "I + 2Q + 2Q² + … + Q^(K−1), the second argument being K";
    case op::neumann_grad: return "the gradient of neumann";
    case op::rotate: return "x R; `rotate_back` is x Rᵀ. R is given by its blocks [factors, blocks, b, b]";
    case op::rotate_grad: return "the gradient of the blocks of rotate";
    case op::kron: return "the Kronecker product";
    case op::row_kron: return "the Kronecker product of each pair of rows";
    case op::gather: return "the rows x of a table, or its columns: the shape of the result tells";
    case op::scatter: return "the adjoint of gather: adds rows into the places they came from";
    case op::topk_softmax: return "softmax over the k largest entries of each row, zero elsewhere";
    case op::softmax_grad: return "the gradient of topk_softmax";
    case op::normalize: return "(x − mean) / sqrt(variance + eps) of each row; without the mean in an RMSNorm";
    case op::normalize_grad: return "the gradient of normalize";
    case op::patches: return "an image as one row per position of the kernel";
    case op::unpatch: return "the adjoint of patches";
  }
  return nullptr;
}

std::string notation(const std::set<op>& used) {
  std::string s =
      "## Notation\n\nThe pages print formulas as the library does, in `explain` and in its errors.\n\n"
      "| printed | means |\n|---|---|\n"
      "| `A @ B` | the matrix product; beside `*` it is always in parentheses |\n"
      "| `a + b`, `a - b`, `a * b`, `a / b` | element by element; an axis of size 1 is repeated |\n"
      "| `A'` | the transpose |\n"
      "| `const(a)` | a, but a constant in the backward pass |\n"
      "| `t7[out, r] = …` | a value that is used again gets a name, valid in its block of text |\n"
      "| `dx`, `d lora_A.weight` | the gradient of the input, of a tensor |\n";
  for (const op o : used)
    if (const char* m = meaning(o); m != nullptr) s += "| " + code(graft::row(o).name) + " | " + m + " |\n";
  return s +
         "\nReshaping moves nothing and is not printed. A column of n numbers acts on the n rows of a weight and on "
         "the n columns of an activation.\n\n"
         "A kernel is a product with the base weight, a look-up or a normalisation, with everything that lives per "
         "token around it: `pre` happens on the way in, `side` beside it, `post` on the result. A `reduce` kernel sums "
         "over tokens; a `small` one works on the sums.\n";
}

std::string index(const std::vector<layer>& layers) {
  std::set<op> used;
  std::string s =
      "<!-- Written by docs/generate.cpp. -->\n\n# Adapters\n\n"
      "One formula each, in [include/graft/adapter](../../include/graft/adapter); these pages are derived from it by "
      "[generate.cpp](../generate.cpp), and a test compares them with the code.\n\n"
      "*Kernels* are those of the forward and of the backward plan. *Extra* is what the forward pass costs beyond the "
      "bare layer, *parameters* the trained numbers: both on a layer of 4096 × 4096, for embeddings on a table of "
      "32000 × 4096, for convolutions on 512 × 512 × 3 × 3 with images of 32 × 32, for norms on 4096. Every adapter "
      "can be merged. *W' kept* means that the adapted weight is computed once per change of the parameters and kept, "
      "so that a call costs what the bare layer does.\n\n"
      "Sizes are names here, as they are when a layer is read from a file. Where a type states them, as in `lora<16>`, "
      "the numbers are used while the plan is made, and it may come out differently.\n\n"
      "| adapter | formula | kernels | extra flop per token | parameters | back from the merged weight |\n"
      "|---|---|---:|---:|---:|---|\n";
  for (const layer& l : layers) {
    const kind_facts& k = facts_of(l);
    const base_shape& shape = k.shapes.back();
    const long long with = forward_price(l, shape, k.explained).flops,
                    without = price(l, l.bare_forward, shape, k.explained).flops;
    std::string rate = with == without ? "0" : big((with - without) / k.explained, "flop");
    if (with != without && without > 0) rate += " (" + extra(with, without) + ")";
    if (forward_price(l, shape, k.explained).largest_cached >= weight_count(l, shape)) rate += ", W' kept";
    if (std::string(k.token) != "token") rate += ", per " + std::string(k.token);
    const bool merges = l.merge.bad.what == graft::fault::none;
    std::string settings;
    for (const notes::number& n : l.note.numbers)
      if (n.value > 0)
        settings += (settings.empty() ? "" : ", ") + std::string(n.name) + " = " + std::to_string(n.value);
    s += "| [" + std::string(l.note.title) + "](" + l.note.file + ".md) | " + code(l.note.letters) + " | " +
         std::to_string(graft::fuse(l.forward).kernels) + " + " + std::to_string(graft::fuse(l.backward).kernels) +
         " | " + rate + " | " + grouped(parameters(l, shape)) + (settings.empty() ? "" : " (" + settings + ")") +
         " | " +
         (!merges                    ? "not mergeable"
          : !l.weight_facts.possible ? "no: keep the base"
          : l.weight_facts.kept == 0 ? "yes"
                                     : "yes, with one tensor kept at the merge") +
         " |\n";
    for (const graph* g : {&l.merge, &l.forward, &l.backward, &l.unmerge_weight, &l.unmerge_bias})
      for (int i = 0; i < g->size; ++i) used.insert(g->n[i].what);
  }
  return s + "\n" + notation(used);
}

// ---- files -----------------------------------------------------------------------------------------------------------------

struct page {
  std::string name, body;
};

std::string read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream s;
  s << in.rdbuf();
  return s.str();
}
bool same_as_stored(const page& p, const std::filesystem::path& folder) {
  const std::string stored = read(folder / p.name);
  if (stored == p.body) return true;
  std::istringstream was(stored), is(p.body);
  std::string old_line, new_line;
  int line = 0;
  do {
    ++line;
    if (!std::getline(was, old_line)) old_line = "(end of the file)", was.setstate(std::ios::failbit);
    if (!std::getline(is, new_line)) new_line = "(end of the file)", is.setstate(std::ios::failbit);
  } while (old_line == new_line && (was || is));
  std::printf("%s:%d differs from what its formula gives\n  stored  %s\n  now     %s\n", (folder / p.name).c_str(),
              line, old_line.c_str(), new_line.c_str());
  return false;
}
bool check(const std::vector<page>& pages, const std::filesystem::path& folder) {
  bool good = true;
  std::set<std::string> known;
  for (const page& p : pages) {
    known.insert(p.name);
    good &= same_as_stored(p, folder);
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
  for (const page& p : pages) {
    std::ofstream out(folder / p.name, std::ios::binary);
    out << p.body;
    if (!out.flush()) return std::printf("cannot write %s\n", (folder / p.name).c_str()), false;
  }
  return true;
}

std::vector<page> all_pages() {
  using namespace graft;
  const std::vector<layer> layers = {
      layer_of<linear_kind, lora<>, false>(notes::lora),
      layer_of<linear_kind, lora_with_bias<>, true>(notes::lora_with_bias),
      layer_of<linear_kind, dora<>, false>(notes::dora),
      layer_of<linear_kind, adalora<>, false>(notes::adalora),
      layer_of<linear_kind, oft<dyn>, false>(notes::oft),
      layer_of<linear_kind, oft_neumann<dyn, dyn>, false>(notes::oft_neumann),
      layer_of<linear_kind, boft<dyn, dyn>, false>(notes::boft),
      layer_of<linear_kind, hra<>, false>(notes::hra),
      layer_of<linear_kind, hra_gram_schmidt<>, false>(notes::hra_gram_schmidt),
      layer_of<linear_kind, ia3, true>(notes::ia3),
      layer_of<linear_kind, ia3_feedforward, false>(notes::ia3_feedforward),
      layer_of<linear_kind, loha<>, false>(notes::loha),
      layer_of<linear_kind, lokr<>, false>(notes::lokr),
      layer_of<linear_kind, vera<>, false>(notes::vera),
      layer_of<linear_kind, miss<>, false>(notes::miss),
      layer_of<linear_kind, miss_mini<>, false>(notes::miss_mini),
      layer_of<linear_kind, miss_bat<>, false>(notes::miss_bat),
      layer_of<linear_kind, vblora<dyn, dyn>, false>(notes::vblora),
      layer_of<norm_kind<false>, ln_tuning, true>(notes::ln_tuning),
      layer_of<embedding_kind, lora_embedding<>, false>(notes::lora_embedding),
      layer_of<embedding_kind, dora_embedding<>, false>(notes::dora_embedding),
      layer_of<conv2d_kind, lora<>, false>(notes::lora_conv2d),
      layer_of<conv2d_kind, loha_conv<>, false>(notes::loha_conv2d),
  };
  // Other forms of the same adapter: their formulas only. Made by merge alone, which is all that is printed of them.
  using enum oft_blocks;
  using enum oft_constraint;
  using enum lokr_form;
  static constexpr builder oft_shared = capture_merge<linear_kind, oft<dyn, shared>, false>();
  static constexpr builder oft_projected = capture_merge<linear_kind, oft<dyn, own, projected>, false>();
  static constexpr builder lokr_full = capture_merge<linear_kind, lokr<dyn, -1, full, full>, false>();
  static constexpr builder lokr_first = capture_merge<linear_kind, lokr<dyn, -1, low_rank, full>, false>();
  static constexpr builder lokr_both = capture_merge<linear_kind, lokr<dyn, -1, low_rank, low_rank>, false>();
  static constexpr builder rms = capture_merge<norm_kind<true>, ln_tuning_weight, false>();
  static constexpr builder loha_flat = capture_merge<conv2d_kind, loha<>, false>();
  static constexpr builder loha_exact = capture_merge<conv2d_kind, loha_conv<dyn, loha_gradient::exact>, false>();
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
    pages.push_back({std::string(l.note.file) + ".md", head(l) + formula(l, variants(l)) + tensors(l) + plans(l) +
                                                           merging(l) + once(l) + costs(l) + compatibility(l)});
  return pages;
}

}  // namespace

int main(int argc, char** argv) {
  const bool checking = argc == 3 && std::string(argv[1]) == "--check";
  if (argc != 2 && !checking) return std::printf("usage: generate [--check] DOCS\n"), 2;
  const std::filesystem::path folder = std::filesystem::path(argv[argc - 1]) / "adapters";
  const std::vector<page> pages = all_pages();
  return (checking ? check(pages, folder) : write(pages, folder)) ? 0 : 1;
}
