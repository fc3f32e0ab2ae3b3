// SPDX-License-Identifier: Apache-2.0
// What the library makes of each adapter's formula, checked and timed:
//     demo [DIR]      DIR/layers holds layers that PEFT saved and the numbers it computed (test/golden)
// For each adapter: the formula and all that is derived from it; a layer of PEFT against PEFT's numbers; and the time of
// a layer of 1024 x 1024 on 512 tokens, fused against op by op (eager) and against the bare base layer, in one run.
// run: demo
#include <chrono>
#include <cstdio>

#include "../test/golden/case.h"
#include "random_tensors.h"

namespace {

constexpr int width = 118;
constexpr double tolerance = 2e-5;

// Long formulas continue below themselves, indented.
void print_wrapped(const std::string& line) {
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  std::size_t from = 0, room = width;
  while (line.size() - from > room) {
    std::size_t cut = line.rfind(' ', from + room);
    if (cut == line.npos || cut <= from + indent) cut = line.find(' ', from + room);
    if (cut == line.npos) break;
    std::printf("%s%.*s\n", from > 0 ? std::string(indent + 6, ' ').c_str() : "", static_cast<int>(cut - from),
                &line[from]);
    from = cut + 1;
    room = width - indent - 6;
  }
  std::printf("%s%s\n", from > 0 ? std::string(indent + 6, ' ').c_str() : "", &line[from]);
}

struct summary {
  std::string adapter, golden_case;
  double error = INFINITY, fused_to_bare = NAN, eager_to_fused = NAN;
  bool good = false;
};

// The largest error of y, dx, every gradient, the merged and unmerged weight and the disabled layer.
bool against_peft(const std::filesystem::path& folder, summary& s) {
  const auto found = golden::golden_case::run(folder, graft::backend::fused);
  if (!found) return std::printf("  PEFT      %s\n", found.message()), false;
  std::map<std::string, double> worst;
  s.error = 0;
  for (const golden::comparison& c : *found) {
    double& w = worst[c.name.starts_with("grad.") ? "gradients" : c.name];
    w = std::max(w, c.error);
    s.error = std::max(s.error, c.error);
  }
  std::string line = "  PEFT      largest relative error on its layer '" + s.golden_case + "':";
  for (const char* name : {"y", "dx", "gradients", "W_merged", "y_merged", "W_unmerged", "y_disabled"})
    if (worst.contains(name)) {
      char part[64];
      std::snprintf(part, sizeof part, " %s %.1e", name, worst[name]);
      line += part;
    }
  print_wrapped(line);
  return s.error <= tolerance;
}

// The best of several repetitions of each, interleaved, so that a busy machine slows all of them alike.
template <class Layer> bool against_eager(const graft::size_map& sizes, summary& s) {
  const random_tensors<Layer> numbers(sizes);
  graft::cpu::layer<Layer, graft::fullgraph> fused;
  graft::cpu::layer<Layer> eager(graft::backend::eager);
  std::vector<float> y(numbers.outputs());
  for (const graft::status& bound : {numbers.bind(fused), numbers.bind(eager)})
    if (!bound) return std::printf("  time      %s\n", bound.message()), false;

  using clock = std::chrono::steady_clock;
  struct contestant {
    graft::executor<float>& layer;
    bool adapter;
    double best = INFINITY;
  } bare{fused, false}, adapted{fused, true}, literal{eager, true};
  const auto start = clock::now();
  for (int round = 0; round < 6 || (round < 200 && clock::now() - start < std::chrono::milliseconds(300)); ++round)
    for (contestant* c : {&bare, &adapted, &literal}) {
      c->layer.enable(c->adapter);
      const auto before = clock::now();
      const graft::status ran = c->layer.forward(numbers.x(), whole(y));
      const std::chrono::duration<double, std::milli> took = clock::now() - before;
      if (!ran) return std::printf("  time      %s\n", ran.message()), false;
      if (round > 0) c->best = std::min(c->best, took.count());  // the first round computes what is kept
    }
  s.fused_to_bare = adapted.best / bare.best;
  s.eager_to_fused = literal.best / adapted.best;
  std::printf("  time      bare %.3g ms, fused %.3g ms = %.2f x bare, eager %.3g ms = %.2f x fused\n", bare.best,
              adapted.best, s.fused_to_bare, literal.best, s.eager_to_fused);
  return true;
}

template <class Layer>
summary show(const std::filesystem::path& layers, const char* golden_case,
             const graft::size_map& sizes = {{"tokens", 512}}) {
  using derived = graft::derived_of<Layer>;
  summary s{Layer::adapter::name, golden_case};
  std::printf("\n---- %s %s\n", s.adapter.c_str(), std::string(width - 6 - s.adapter.size(), '-').c_str());
  bool heading = true;
  graft::explain<Layer>(
      [&](const graft::text& line) {
        if (!heading) print_wrapped(line.c_str());
        heading = false;  // explain's own first line says what ours says
      },
      sizes.at("tokens"));
  const char* back = graft::unmergeable<Layer>          ? "unmerging needs the adapter alone"
                     : derived::unmerge_weight.possible ? "one small tensor is kept for unmerging"
                                                        : "unmerging puts the base tensors back";
  std::printf("  merge     evaluates the formula into a tensor of the base's shape; %s\n", back);
  const bool same = against_peft(layers / golden_case, s), ran = against_eager<Layer>(sizes, s);
  s.good = same && ran;
  return s;
}

template <class Adapter> using wide = graft::linear<1024, 1024, float, Adapter>;
template <class Adapter> using table = graft::embedding<1024, 1024, float, Adapter>;
template <class Adapter> using image = graft::conv2d<128, 128, 3, float, Adapter>;

}  // namespace

int main(int argc, char** argv) {
  using namespace graft;
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  std::printf(
      "Graft %d.%d.%d: an adapter is one formula; what follows was derived from it while this program compiled.\n",
      GRAFT_VERSION_MAJOR, GRAFT_VERSION_MINOR, GRAFT_VERSION_PATCH);
  std::printf("A' is the transpose of A, A @ B the matrix product, a * b elementwise; t7 names a value used again.\n");

  const std::filesystem::path layers = std::filesystem::path(argc > 1 ? argv[1] : "test/golden") / "layers";
  const size_map bank{{"tokens", 512}, {"num_vectors", 256}, {"vector_length", 256}};
  const size_map pictures{{"tokens", 2}, {"height", 18}, {"width", 18}};  // 2 x 16 x 16 = 512 positions
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
      show<wide<vblora<4>>>(layers, "vblora", bank),
      show<layer_norm<1024, float, ln_tuning>>(layers, "ln_tuning"),
      show<table<lora_embedding<16>>>(layers, "lora_embedding"),
      show<table<dora_embedding<16>>>(layers, "dora_embedding"),
      show<image<lora<16>>>(layers, "lora_conv2d", pictures),
      show<image<loha_conv<4>>>(layers, "loha_conv2d", pictures),
  };

  std::printf("\n---- summary %s\n", std::string(width - 13, '-').c_str());
  std::printf("%-24s %-16s %14s %14s %14s\n", "adapter", "golden case", "largest error", "fused / bare",
              "eager / fused");
  bool good = true;
  for (const summary& s : all) {
    std::printf("%-24s %-16s %14.1e %14.2f %14.2f%s\n", s.adapter.c_str(), s.golden_case.c_str(), s.error,
                s.fused_to_bare, s.eager_to_fused, s.good ? "" : "   WRONG");
    good = good && s.good;
  }
  return good ? 0 : 1;
}
