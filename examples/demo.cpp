// SPDX-License-Identifier: Apache-2.0
// Shows, checks and times what the library derives from the formula of each adapter:
//     demo [DIR]      DIR/layers holds layers that PEFT saved and the numbers it computed (test/golden)
// For each adapter it prints the formula and everything derived from it, compares a layer that PEFT saved with PEFT's
// numbers, and times a 1024 x 1024 layer on 512 tokens: fused, op by op (eager) and the bare base layer.
// run: demo
#include <chrono>
#include <cstdio>
#include <cstring>

#include "../test/golden/case.h"
#include "arguments.h"
#include "random_tensors.h"

namespace {

constexpr int page = 118;
constexpr double tolerance = 2e-5;

// Wraps a long line; its continuation is indented to the column where the formula begins.
void print_wrapped(const std::string& line) {
  const std::size_t first = std::min(line.find_first_not_of(' '), line.size()), gap = line.find("  ", first);
  const std::size_t below = gap == line.npos ? first + 4 : line.find_first_not_of(' ', gap);
  std::size_t from = 0, indent = 0;
  while (line.size() - from > page - indent) {
    const std::size_t cut = line.rfind(' ', from + page - indent);
    if (cut == line.npos || cut <= from + below) break;  // one word wider than the page
    std::printf("%*s%.*s\n", static_cast<int>(indent), "", static_cast<int>(cut - from), &line[from]);
    from = cut + 1;
    indent = below;
  }
  std::printf("%*s%s\n", static_cast<int>(indent), "", &line[from]);
}
void print_heading(const std::string& title) {
  std::printf("\n==== %s %s\n", title.c_str(),
              std::string(page - std::min<std::size_t>(page, title.size() + 6), '=').c_str());
}

struct summary {
  std::string adapter, layer, golden_case;
  double error = INFINITY, fused_to_bare = NAN, eager_to_fused = NAN;
  bool good = false;
};

std::string aspect(const std::string& tensor) {  // groups tensors: W_merged and y_merged both test merging
  if (tensor.starts_with("grad.")) return "gradients";
  for (const char* what : {"unmerged", "merged", "disabled"})
    if (tensor.ends_with(what)) return what;
  return tensor == "y_eval" ? "y" : tensor;
}
// Compares one layer that PEFT saved with the numbers that PEFT computed.
bool against_peft(const std::filesystem::path& folder, summary& s) {
  const auto found = golden::golden_case::run(folder, {});
  if (!found) return std::printf("  PEFT      %s\n", found.message()), false;
  std::map<std::string, double> worst;
  for (const golden::comparison& c : *found) worst[aspect(c.name)] = std::max(worst[aspect(c.name)], c.error);
  s.error = 0;
  std::printf("  PEFT      errors");
  for (const char* name : {"y", "dx", "gradients", "merged", "unmerged", "disabled"}) {
    if (!worst.contains(name)) continue;  // an embedding has no dx
    std::printf("  %s %.1e", name, worst[name]);
    s.error = std::max(s.error, worst[name]);
  }
  std::printf("\n");
  return s.error <= tolerance;
}

// Takes the best of several repetitions, interleaved and in changing order, so that a busy machine slows all equally.
bool against_eager(graft::cpu::executor<float>& fused, graft::cpu::executor<float>& eager, const graft::view& x,
                   std::size_t outputs, summary& s) {
  using clock = std::chrono::steady_clock;
  struct contestant {
    graft::cpu::executor<float>& layer;
    bool adapter;
    double best = INFINITY;
  } bare{fused, false}, adapted{fused, true}, literal{eager, true};
  std::vector<float> y(outputs);
  const auto time = [&](contestant& c) {
    if (const graft::status on = c.layer.enable(c.adapter); !on)
      return std::printf("  time      %s\n", on.message()), false;
    const auto before = clock::now();
    const graft::status ran = c.layer.forward(x, whole(y));
    const std::chrono::duration<double, std::milli> took = clock::now() - before;
    if (!ran) std::printf("  time      %s\n", ran.message());
    c.best = std::min(c.best, took.count());
    return static_cast<bool>(ran);
  };
  const auto start = clock::now();
  for (int round = 0; round < 10 || (round < 300 && clock::now() - start < std::chrono::milliseconds(500)); ++round) {
    if (!time(round % 2 == 0 ? bare : adapted) || !time(round % 2 == 0 ? adapted : bare)) return false;
    if (round % 3 == 0 && !time(literal)) return false;  // slower, so less often
  }
  s.fused_to_bare = adapted.best / bare.best;
  s.eager_to_fused = literal.best / adapted.best;
  std::printf("  time      bare %.3g ms, fused %.3g ms (%.2f x bare), eager %.3g ms (%.2f x fused)\n", bare.best,
              adapted.best, s.fused_to_bare, literal.best, s.eager_to_fused);
  return true;
}

// A sink for explain() that adds a line about merging before the one about unmerging. It is one type for all layers, so
// that explain's functions are compiled once.
struct explanation {
  graft::text merge;
  bool heading = true;
  void operator()(const graft::text& line) {
    if (std::strncmp(line.c_str(), "  unmerge", 9) == 0) std::printf("%s\n", merge.c_str());
    heading ? print_heading(line.c_str()) : print_wrapped(line.c_str());
    heading = false;
  }
};
void print_cost(graft::text& t, const graft::cost& c) {
  graft::print_si(t, c.flops), t << "flop, ", graft::print_si(t, c.bytes), t << "B";
}

template <class Layer>
summary show(const std::filesystem::path& layers, const char* golden_case,
             const graft::size_map& sizes = {{"tokens", 512}}) {
  using derived = graft::derived_of<Layer>;
  const random_tensors<Layer> numbers(sizes);
  graft::cpu::layer<Layer, graft::fullgraph, graft::training> fused, eager(graft::execution_mode::eager);
  const auto price = [&](const graft::graph& g) {
    return graft::cost_of(g, numbers.sizes_in(g), {graft::dtype::f32}, graft::dtype::f32);
  };

  graft::text merge("  merge     evaluates the formula, ");
  const graft::cost once = price(derived::merge);
  graft::print_si(merge, once.load_flops + once.parameter_flops), merge << "flop";
  if (fused.saved_for_unmerge > 0) merge << ", and saves a small tensor for unmerge";
  graft::explain<Layer>(explanation{merge}, sizes.at("tokens"));
  if (!graft::static_sizes_known<Layer>()) {  // explain() needs sizes of the type; some come from the tensors here
    graft::text t("  cost      forward ");
    print_cost(t, price(derived::forward)), t << "; backward ", print_cost(t, price(derived::backward));
    std::printf("%s\n", t.c_str());
  }

  summary s{Layer::adapter::name, Layer::kind::name, golden_case};
  const bool same = against_peft(layers / golden_case, s);
  for (const graft::status& bound : {numbers.bind(fused), numbers.bind(eager)})
    if (!bound) return std::printf("  time      %s\n", bound.message()), s;
  s.good = against_eager(fused, eager, numbers.x(), numbers.outputs(), s) && same;
  return s;
}

template <class Adapter> using wide = graft::linear<1024, 1024, float, Adapter>;
template <class Adapter> using table = graft::embedding<1024, 1024, float, Adapter>;
template <class Adapter> using image = graft::conv2d<128, 128, 3, float, Adapter>;

}  // namespace

int main(int argc, char** argv) {
  using namespace graft;
  std::string golden;
  arguments in("demo", "What the library makes of each adapter's formula, checked against PEFT's numbers and timed.");
  in.optional_word("DIR", golden, "DIR/layers holds layers and the numbers that PEFT computed; not given: test/golden");
  if (const auto code = in.read(argc, argv)) return *code;
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  std::printf(
      "Graft %d.%d.%d: an adapter is one formula; what follows was derived from it while this program compiled.\n",
      GRAFT_VERSION_MAJOR, GRAFT_VERSION_MINOR, GRAFT_VERSION_PATCH);
  std::printf("A' is the transpose of A, A @ B the matrix product, a * b elementwise; t7 names a value used again.\n");
  std::printf("An error is the largest difference to the numbers PEFT computed, relative to the largest of them.\n");

  const std::filesystem::path layers = std::filesystem::path(golden.empty() ? "test/golden" : golden) / "layers";
  const size_map vector_bank{{"tokens", 512}, {"num_vectors", 256}, {"vector_length", 256}};
  const size_map pictures{{"tokens", 128}, {"height", 4}, {"width", 4}};  // 128 images of 2 x 2 patches: 512 rows
  const summary all[] = {
      show<wide<lora<16>>>(layers, "lora"),
      show<wide<dora<16>>>(layers, "dora"),
      show<wide<adalora<16>>>(layers, "adalora"),
      show<wide<oft<32>>>(layers, "oft_cayley"),
      show<wide<oft_neumann<32>>>(layers, "oft_neumann"),
      show<wide<boft<8, 2>>>(layers, "boft_2"),
      show<wide<hra<8>>>(layers, "hra"),
      show<wide<hra_gram_schmidt<8>>>(layers, "hra_gs"),
      show<wide<ia3>>(layers, "ia3"),
      show<wide<ia3_feedforward>>(layers, "ia3_ff"),
      show<wide<loha<8>>>(layers, "loha"),
      show<wide<lokr<8>>>(layers, "lokr"),
      show<wide<vera<64>>>(layers, "vera"),
      show<wide<miss<64>>>(layers, "miss"),
      show<wide<vblora<4>>>(layers, "vblora", vector_bank),
      show<layer_norm<1024, float, ln_tuning>>(layers, "ln_tuning"),
      show<table<lora_embedding<16>>>(layers, "lora_embedding"),
      show<table<dora_embedding<16>>>(layers, "dora_embedding"),
      show<image<lora<16>>>(layers, "lora_conv2d", pictures),
      show<image<loha_conv<4>>>(layers, "loha_conv2d", pictures),
  };

  print_heading("summary");
  std::printf("%-22s %-11s %-15s %14s %13s %14s\n", "adapter", "layer", "golden case", "largest error", "fused / bare",
              "eager / fused");
  bool good = true;
  for (const summary& s : all) {
    std::printf("%-22s %-11s %-15s %14.1e %13.2f %14.2f%s\n", s.adapter.c_str(), s.layer.c_str(), s.golden_case.c_str(),
                s.error, s.fused_to_bare, s.eager_to_fused, s.good ? "" : "   WRONG");
    good = good && s.good;
  }
  return good ? 0 : 1;
}
