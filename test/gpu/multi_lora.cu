// SPDX-License-Identifier: Apache-2.0
// Multi-LoRA batches on the GPU: a GEMM by the multi-LoRA kernels against the formula in double, and whole models
// against their rows one by one, also below a captured step. random_adapters.cu has random operations on adapters.
#include <doctest/doctest.h>
#include <graft/backend/gpu/kernels/multi_lora/tile_adapters.h>
#include <graft/io/hf/adapters.h>
#include <graft/io/hf/new_adapter.h>
#include <graft/model/generate.h>
#include <graft/model/on_gpu.cuh>
#include <graft/model/training_batch.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "../support/gpu_layer.h"
#include "../support/random_model.h"

using namespace graft;

namespace {

bool no_gpu() {
  const std::string why = ::test::why_no_gpu();
  if (!why.empty()) std::printf("no GPU: %s\n", why.c_str());
  return !why.empty();
}

template <class T> class device_numbers {
 public:
  device_numbers(std::mt19937& random, std::size_t n, float scale) : host(n) {
    std::uniform_real_distribution<float> draw(-scale, scale);
    std::vector<T> stored(n);
    for (std::size_t i = 0; i < n; ++i) {
      stored[i] = T(draw(random));
      host[i] = static_cast<double>(static_cast<float>(stored[i]));
    }
    const auto bytes = std::max<std::size_t>(16, n * sizeof(T));
    REQUIRE(bool(memory.reserve(static_cast<long long>(bytes))));
    REQUIRE(cudaMemcpy(memory.data(), stored.data(), n * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::vector<double> host;
  gpu::buffer memory;
};

// A GEMM and records of several kinds: LoRA (a branch), DoRA (with factors), IA3 (factors of the output or of the
// input) and a bias.
template <class T> struct multi_lora_case {
  int m, n, k;
  std::mt19937 random{7};
  device_numbers<T> x{random, at(m, k), 1}, w{random, at(n, k), 1.7F / std::sqrt(static_cast<float>(k))},
      residual{random, at(m, n), 1};
  struct kind {
    device_numbers<T> a, b, prologue;
    device_numbers<float> scale, shift;
    int rank;
    bool has_scale, has_shift, has_prologue;
  };
  std::vector<std::unique_ptr<kind>> kinds;
  gpu::buffer table, rows, sums, scaled, y, blocks, workspace, counters;
  std::vector<std::unique_ptr<gpu::buffer>> tiles;
  std::vector<std::int64_t> of_row;
  std::vector<T> got;  // y of the last run

  static std::size_t at(long long a, long long b) { return static_cast<std::size_t>(a * b); }
  multi_lora_case(int tokens, int outputs, int inputs, int adapters, int most_rank) : m(tokens), n(outputs), k(inputs) {
    const std::size_t padded = static_cast<std::size_t>(n) + 512;
    std::vector<gpu::adapter_record> records;
    for (int i = -1; i < adapters; ++i) {
      const int what = i < 0 ? 4 : i % 5, rank = what > 1 ? 0 : std::min(most_rank, 16 << i % 3);
      kinds.push_back(std::make_unique<kind>(kind{{random, at(rank, k), 1.7F / std::sqrt(static_cast<float>(k))},
                                                  {random, at(n, rank), 0.5F},
                                                  {random, static_cast<std::size_t>(k), 2},
                                                  {random, padded, 2},
                                                  {random, padded, 1},
                                                  rank,
                                                  what == 1 || what == 2,
                                                  what == 4 || what == 1,
                                                  what == 3}));
      const kind& r = *kinds.back();
      records.push_back({r.a.memory.data(), r.b.memory.data(),
                         r.has_scale ? r.scale.memory.template as<float>() : nullptr,
                         r.has_shift ? r.shift.memory.template as<float>() : nullptr,
                         r.has_prologue ? r.prologue.memory.data() : nullptr, rank});
      if constexpr (sizeof(T) == 2)
        if (rank > 0) {
          const long long slab = gpu::padded_rows(n), columns = (k + 63) / 64 * 64LL;
          T *const a = scratch_memory(columns * rank), *const b = scratch_memory((slab + gpu::row_padding) * rank);
          REQUIRE(
              bool(gpu::each(nullptr, columns * rank, gpu::tile_a<T>{r.a.memory.template as<T>(), a, rank, k}, "")));
          REQUIRE(bool(gpu::each(nullptr, static_cast<long long>(n) * rank,
                                 gpu::tile_b<T>{r.b.memory.template as<T>(), b, rank, slab}, "")));
          records.back().a_tiles = a, records.back().b_tiles = b;
        }
    }
    REQUIRE(bool(workspace.reserve(gpu::workspace_bound(m, gpu::max_multi_lora_rank))));
    REQUIRE(bool(counters.reserve(gpu::counter_bytes(m))));
    REQUIRE(cudaMemset(counters.data(), 0, static_cast<std::size_t>(counters.bytes())) == cudaSuccess);
    const auto bytes = records.size() * sizeof(gpu::adapter_record);
    REQUIRE(bool(table.reserve(static_cast<long long>(bytes))));
    REQUIRE(cudaMemcpy(table.data(), records.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(bool(sums.reserve(gpu::multi_lora_partials::bytes)));
    REQUIRE(cudaMemset(sums.data(), 0, static_cast<std::size_t>(gpu::multi_lora_partials::bytes)) == cudaSuccess);
    for (auto* b : {&scaled, &y}) REQUIRE(bool(b->reserve(static_cast<long long>(sizeof(T)) * m * std::max(n, k))));
    REQUIRE(bool(rows.reserve(8LL * m)));
    assign_adapters();
  }
  T* scratch_memory(long long n) {
    tiles.push_back(std::make_unique<gpu::buffer>());
    REQUIRE(bool(tiles.back()->reserve(n * static_cast<long long>(sizeof(T)))));
    REQUIRE(cudaMemset(tiles.back()->data(), 0, static_cast<std::size_t>(n) * sizeof(T)) == cudaSuccess);
    return tiles.back()->template as<T>();
  }
  void assign_adapters(std::size_t most = 1000, int segment = 1) {
    of_row.resize(static_cast<std::size_t>(m));
    std::int64_t now = 0;
    for (std::size_t i = 0; i < of_row.size(); ++i) {
      if (i % static_cast<std::size_t>(segment) == 0)
        now = static_cast<std::int64_t>(random() % std::min(kinds.size(), most)) - 1;
      of_row[i] = now;
    }
    const auto bytes = of_row.size() * 8;
    REQUIRE(cudaMemcpy(rows.data(), of_row.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  // The adapters of tiles of many rows; the rank is 0 if they do not fit.
  gpu::multi_lora_tiles tiles_of_rows() {
    const auto of = gpu::tile_adapters::find(of_row);
    REQUIRE(bool(blocks.reserve(static_cast<long long>(of.adapters_of_tile.size() * 4))));
    REQUIRE(cudaMemcpy(blocks.data(), of.adapters_of_tile.data(), of.adapters_of_tile.size() * 4,
                       cudaMemcpyHostToDevice) == cudaSuccess);
    const int rank = of.rank([&](int place) { return kinds[static_cast<std::size_t>(place) + 1]->rank; });
    return {blocks.template as<int>(), sizeof(T) == 2 ? rank : 0, true, workspace.data(),
            counters.template as<std::uint32_t>()};
  }
  std::vector<double> expected(bool finishes) const {
    std::vector<double> all(at(m, n));
    for (int t = 0; t < m; ++t) {
      const kind& r = *kinds[static_cast<std::size_t>(of_row[static_cast<std::size_t>(t)] + 1)];
      std::vector<double> in(static_cast<std::size_t>(k)), shrunk(static_cast<std::size_t>(r.rank));
      for (int c = 0; c < k; ++c)
        in[static_cast<std::size_t>(c)] = x.host[at(t, k) + static_cast<std::size_t>(c)] *
                                          (r.has_prologue ? r.prologue.host[static_cast<std::size_t>(c)] : 1);
      for (int i = 0; i < r.rank; ++i)
        for (int c = 0; c < k; ++c)
          shrunk[static_cast<std::size_t>(i)] +=
              in[static_cast<std::size_t>(c)] * r.a.host[at(i, k) + static_cast<std::size_t>(c)];
      for (int o = 0; o < n; ++o) {
        double v = 0;
        for (int c = 0; c < k; ++c)
          v += in[static_cast<std::size_t>(c)] * w.host[at(o, k) + static_cast<std::size_t>(c)];
        for (int i = 0; i < r.rank; ++i)
          v += shrunk[static_cast<std::size_t>(i)] * r.b.host[at(o, r.rank) + static_cast<std::size_t>(i)];
        if (r.has_scale) v *= r.scale.host[static_cast<std::size_t>(o)];
        if (r.has_shift) v += r.shift.host[static_cast<std::size_t>(o)];
        const std::size_t here = at(t, n) + static_cast<std::size_t>(o);
        all[here] = finishes ? std::max(v, 0.0) + residual.host[here] : v;
      }
    }
    return all;
  }
  gpu::multi_lora_operands operands() {
    REQUIRE(cudaMemset(y.data(), 0xff, at(m, n) * sizeof(T)) == cudaSuccess);
    return {.x = x.memory.data(),
            .w = w.memory.data(),
            .y = y.data(),
            .batch = {table.template as<gpu::adapter_record>() + 1, rows.template as<std::int64_t>()},
            .sums = gpu::multi_lora_partials::at(sums.data()),
            .blocks = tiles_of_rows()};
  }
  double run(gpu::multi_lora_gemm<T>& product, bool finishes, bool scales = true) {
    gpu::multi_lora_operands o = operands();
    if (scales) o.scaled = scaled.data();
    if (finishes) o.residual = residual.memory.data(), o.act = gpu::activation::relu;
    const auto& q = device();
    const status s = product.run(nullptr, q.kernels.gemm, q.kernels.multi_lora, q.where, {dtype_of(), m, n, k}, o);
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    return error(finishes);
  }
  static const typename gpu::engine<T>::queue& device() {
    static const auto opened = [] {
      typename gpu::engine<T>::queue q;
      q.kernels = gpu::every_kernel_of<T>();
      REQUIRE(bool(gpu::engine<T>::open(q)));
      return q;
    }();
    return opened;
  }
  double error(bool finishes) {
    got.resize(at(m, n));
    REQUIRE(cudaMemcpy(got.data(), y.data(), got.size() * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    const std::vector<double> want = expected(finishes);
    double d = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double v = static_cast<double>(static_cast<float>(got[i]));
      d += (v - want[i]) * (v - want[i]), norm += want[i] * want[i];
    }
    return std::isnan(d) ? INFINITY : std::sqrt(d / norm);
  }
  static dtype dtype_of() { return gpu::dtype_of<T>; }
};

template <class T> void check_products(double tolerance) {
  struct sizes {
    int m, n, k, adapters, rank;
  };
  for (const sizes s : {sizes{64, 256, 512, 8, 16}, sizes{64, 4096, 256, 32, 16}, sizes{37, 1000, 264, 9, 64},
                        sizes{5, 6144, 128, 3, 32}, sizes{16, 14336, 192, 5, 64}, sizes{64, 14336, 128, 40, 32},
                        sizes{1, 64, 1024, 2, 16}, sizes{64, 130, 4096, 64, 64}, sizes{33, 63, 96, 4, 16},
                        sizes{64, 128, 14336, 8, 16}, sizes{40, 4100, 256, 9, 16}, sizes{20, 6150, 136, 9, 32},
                        sizes{65, 1000, 264, 9, 64}, sizes{300, 4096, 1024, 5, 16}, sizes{1030, 520, 512, 3, 32}}) {
    INFO(s.m << " x " << s.n << " x " << s.k << ", " << s.adapters << " adapters");
    multi_lora_case<T> c(s.m, s.n, s.k, s.adapters, s.rank);
    gpu::multi_lora_gemm<T> product;
    for (int round = 0; round < 3; ++round) {
      CHECK(c.run(product, round == 2) < tolerance);
      c.assign_adapters(1000, round == 0 ? 40 : 150);
    }
  }
}

using wide = gpu::engine<float>;
using narrow_type = gpu::engine<__nv_bfloat16>;
using names = adapter_registry::names;
using sequences = std::vector<std::vector<std::int64_t>>;
const std::string llama_folder = GRAFT_GOLDEN_DIR "/models/llama/";

template <class Engine> causal_lm<Engine> with_adapters(const names& folders) {
  auto model = io::hf::load_model<Engine>(llama_folder + "base");
  REQUIRE(bool(model));
  for (const std::string& f : folders) {
    const status s =
        io::hf::load_adapter(*model, f, llama_folder + f + (f.starts_with("multi/") ? "" : "/adapter_init"));
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
  }
  return std::move(*model);
}
template <class Engine>
std::vector<float> logits(causal_lm<Engine>& model, const sequences& of, const std::vector<names>& adapters) {
  std::vector<sequence_chunk> runs;
  std::size_t rows = 0;
  for (const auto& s : of) runs.push_back({s}), rows += s.size();
  std::vector<float> out(rows * static_cast<std::size_t>(model.config().vocabulary));
  const status s = model.logits(runs, out, false, adapters);
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  return out;
}
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, n = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double v = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    d += v * v, n += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return a.size() != b.size() || std::isnan(d) ? INFINITY : std::sqrt(d / n);
}
std::size_t lines_with(const std::string& text, const std::string& words) {
  std::size_t lines = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++lines;
  return lines;
}

template <class Engine> constexpr double bound = Engine::storage_type == dtype::f32 ? 1e-5 : 2e-2;

template <class Engine>
sequences generated(generator<Engine>& g, const sequences& prompts, const std::vector<names>& adapters) {
  const auto made = g.run(
      prompts, [](std::size_t, std::int64_t) { return true; }, adapters);
  INFO(std::string(made.message()));
  REQUIRE(bool(made));
  sequences all;
  for (const generated_sequence& s : *made) all.push_back(s.tokens);
  return all;
}
template <class Engine> generator<Engine> steps_of(causal_lm<Engine>& model, step_mode how) {
  generation_settings settings;
  settings.max_new_tokens = 12, settings.eos_tokens = no_eos_tokens;
  auto g = generator<Engine>::make(model, settings, 4, 40, how);
  REQUIRE(bool(g));
  return std::move(*g);
}
const sequences prompts{{5, 9, 200, 31}, {7}, {100, 101, 102, 103, 104}, {3, 1}};

}  // namespace

TEST_CASE("gpu multi-LoRA: every row of a GEMM has its own record, 16 bits") {
  if (!no_gpu()) check_products<__nv_bfloat16>(6e-3), check_products<__half>(1e-3);
}
TEST_CASE("gpu multi-LoRA: every row of a GEMM has its own record, float") {
  if (!no_gpu()) check_products<float>(1e-5);
}
TEST_CASE("gpu multi-LoRA: a skinny GEMM is one launch") {
  if (no_gpu()) return;
  multi_lora_case<__nv_bfloat16> c(64, 4096, 512, 8, 16);
  c.assign_adapters(3);  // LoRA, DoRA, or a base with a bias
  gpu::multi_lora_gemm<__nv_bfloat16> product;
  const long long before = gpu::launch_count();
  CHECK(c.run(product, true, false) < 6e-3);
  CHECK(gpu::launch_count() - before == 1);
}

// Fills shared memory with NaN, because earlier kernels may leave such values there.
__global__ void leave_no_numbers() {
  extern __shared__ volatile unsigned words[];
  for (unsigned i = threadIdx.x; i < gpu::shared_memory_limit / 4; i += blockDim.x) words[i] = ~0U;
}
TEST_CASE("gpu multi-LoRA: many rows of several adapters are one launch") {
  if (no_gpu()) return;
  REQUIRE(cudaFuncSetAttribute(leave_no_numbers, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               gpu::shared_memory_limit) == cudaSuccess);
  struct sizes {
    int m, n, k, adapters, rank, segment;
  };
  for (const sizes s :
       {sizes{2048, 512, 256, 3, 16, 512}, sizes{700, 520, 520, 2, 16, 100}, sizes{600, 1024, 512, 2, 32, 250},
        sizes{300, 2048, 512, 2, 64, 200}, sizes{66, 1000, 512, 2, 16, 30}}) {
    INFO(s.m << " x " << s.n << " x " << s.k << ", segments of " << s.segment);
    multi_lora_case<__nv_bfloat16> c(s.m, s.n, s.k, s.adapters, s.rank);
    gpu::multi_lora_gemm<__nv_bfloat16> product;
    std::vector<__nv_bfloat16> first;
    for (int round = 0; round < 3; ++round) {
      if (round != 2) c.assign_adapters(3, s.segment);  // LoRA, DoRA, or a base with a bias
      REQUIRE(c.tiles_of_rows().rank > 0);
      leave_no_numbers<<<512, 256, gpu::shared_memory_limit>>>();
      const long long before = gpu::launch_count();
      CHECK(c.run(product, round > 0, false) < 6e-3);
      CHECK(gpu::launch_count() - before == 1);
      if (round == 2) CHECK(std::memcmp(c.got.data(), first.data(), first.size() * 2) == 0);
      first = c.got;
    }
  }
}

// The stages of the pipeline hold residuals and columns of B in turn: tiles without adapters follow tiles with
// residuals.
TEST_CASE("gpu multi-LoRA: a NaN in a residual stays in its row") {
  if (no_gpu()) return;
  multi_lora_case<__nv_bfloat16> c(4096, 2048, 64, 2, 64);
  c.assign_adapters(3, 128);
  REQUIRE(c.tiles_of_rows().rank > 0);
  auto* const rows = c.residual.memory.as<__nv_bfloat16>();
  constexpr std::size_t largest_difference = 50;
  for (std::size_t t = 7; t < 4096; t += largest_difference)
    REQUIRE(cudaMemset(rows + t * 2048, 0xff, 2048 * 2) == cudaSuccess);
  gpu::multi_lora_gemm<__nv_bfloat16> product;
  c.run(product, true, false);
  for (std::size_t t = 0; t < 4096; ++t) {
    std::size_t numbers = 0;
    for (std::size_t o = 0; o < 2048; ++o) numbers += std::isfinite(static_cast<float>(c.got[t * 2048 + o])) ? 1 : 0;
    INFO("token " << t);
    CHECK(numbers == (t % largest_difference == 7 ? 0U : 2048U));
  }
}

TEST_CASE("gpu multi-LoRA: GEMMs of one input are segments of one launch") {
  if (no_gpu()) return;
  using one = multi_lora_case<__nv_bfloat16>;
  one q(64, 4096, 512, 8, 16), k(64, 1024, 512, 8, 32), v(64, 1000, 512, 8, 64);
  q.assign_adapters(3);  // LoRA, DoRA, or a base with a bias
  one* const all[] = {&q, &k, &v};
  gpu::multi_lora_operands o[3];
  gemm_problem p[3];
  for (int i = 0; i < 3; ++i) {
    all[i]->x.host = q.x.host, all[i]->of_row = q.of_row;
    o[i] = all[i]->operands();
    o[i].x = q.x.memory.data(), p[i] = {one::dtype_of(), 64, all[i]->n, 512};
  }
  o[0].batch.of_row = q.rows.as<std::int64_t>();
  const auto& on = one::device();
  const gpu::skinny_choice c = gpu::choose_multi_lora(p, 3, on.where);
  REQUIRE(c.rows > 0);
  for (int round = 0; round < 2; ++round) {
    REQUIRE(bool(gpu::run_multi_lora_skinny(nullptr, on.kernels.multi_lora, c, p, o, 3)));
    for (one* each : all) CHECK(each->error(false) < 6e-3);
  }
}
TEST_CASE("gpu multi-LoRA: two runs of a GEMM give the same bits") {
  if (no_gpu()) return;
  for (const int rank : {16, 64}) {
    multi_lora_case<__nv_bfloat16> c(64, 4096, 1024, 32, rank);
    gpu::multi_lora_gemm<__nv_bfloat16> product;
    CHECK(c.run(product, true) < 6e-3);
    const std::vector<__nv_bfloat16> first = c.got;
    for (int i = 0; i < 5; ++i) {
      CHECK(c.run(product, true) < 6e-3);
      CHECK(std::memcmp(c.got.data(), first.data(), first.size() * 2) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("gpu multi-LoRA: rows of a batch have the results of single rows", Engine, wide, narrow_type) {
  if (no_gpu()) return;
  const names records{"lora", "dora", "ia3", "vera", "adalora", "vblora", "hra", "loha"},
      others{"oft", "ln_tuning", "boft"};
  names all = records;
  all.insert(all.end(), others.begin(), others.end());
  auto model = with_adapters<Engine>(all);
  auto check = [&](const std::vector<names>& sets) {
    sequences rows;
    std::vector<std::vector<float>> alone;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      rows.push_back(prompts[i % prompts.size()]);
      REQUIRE(bool(model.activate(sets[i])));
      alone.push_back(logits(model, {rows.back()}, {}));
    }
    const std::vector<float> together = logits(model, rows, sets);
    auto at = together.begin();
    for (std::size_t i = 0; i < sets.size(); ++i) {
      const std::vector<float> mine(at, at + static_cast<std::ptrdiff_t>(alone[i].size()));
      at += static_cast<std::ptrdiff_t>(alone[i].size());
      INFO(sets.size() << " sequences, " << i << ": " << (sets[i].empty() ? "none" : sets[i][0]));
      CHECK(largest_difference(alone[i], alone[i]) == 0);  // no NaN
      CHECK(largest_difference(mine, alone[i]) < bound<Engine>);
    }
  };
  std::vector<names> sets{{}};
  for (const std::string& r : records) sets.push_back({r});
  sets.push_back({"lora", "vera"});
  const auto told = model.explain_multi_lora(sets);
  REQUIRE(bool(told));
  INFO(*told);
  CHECK(lines_with(*told, "fused into the base's launches (multi-LoRA batch)") == sets.size());
  check(sets);
  std::vector<names> many;
  while (many.size() < 70) many.insert(many.end(), sets.begin(), sets.end());
  check(many);
  check({{"lora"}, {"oft"}, {}, {"ln_tuning"}, {"boft"}, {"lora"}});  // OFT, LN tuning and BOFT have other launches
  const auto groups = model.explain_multi_lora(std::vector<names>{{"oft"}, {"ln_tuning"}, {"boft"}});
  REQUIRE(bool(groups));
  INFO(*groups);
  CHECK(lines_with(*groups, "rows with it run as a batch of their own") == 3);
}

TEST_CASE(
    "gpu multi-LoRA: prompts with different adapters need the base's launches only, and have the results of single "
    "prompts") {
  if (no_gpu()) return;
  const model_config c = graft::test::llama_config(2, 1024, 2048, 512, 512);
  auto model = causal_lm<narrow_type>::make(c, graft::test::random_weights(c), {.context = 512});
  REQUIRE(bool(model));
  const auto config = io::make_adapter_config(
      "LORA", {}, {{"target_modules", io::json_string("all-linear")}, {"r", io::json_number(16)}});
  REQUIRE(bool(config));
  std::mt19937 random(3);
  for (const std::string name : {"a", "b"}) {
    auto fresh = io::hf::new_adapter(*model, *config, 5);
    REQUIRE(bool(fresh));
    adapter_set made = std::move(*fresh).with_origin();
    for (module_adapter& m : made.modules)  // a new adapter would change nothing
      for (float& v : *m.tensors.at("lora_B.weight").data)
        v = std::uniform_real_distribution<float>(-0.2F, 0.2F)(random);
    REQUIRE(bool(model->add(name, std::move(made))));
  }
  sequences rows;
  for (const int length : {100, 200, 150, 90}) {
    rows.emplace_back();
    for (int i = 0; i < length; ++i) rows.back().push_back((7 * i + length) % 512);
  }
  const std::vector<names> sets{{"a"}, {}, {"b"}, {"a"}};
  const auto launches_of = [&](const std::vector<names>& of) {
    static_cast<void>(logits(*model, rows, of));
    const long long before = gpu::launch_count();
    static_cast<void>(logits(*model, rows, of));
    return gpu::launch_count() - before;
  };
  const std::vector<float> together = logits(*model, rows, sets);
  REQUIRE(bool(model->activate({})));
  CHECK(launches_of(sets) < launches_of({}) + 2 * 7);  // no further launch for each projection of two layers
  auto at = together.begin();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    REQUIRE(bool(model->activate(sets[i])));
    const std::vector<float> alone = logits(*model, {rows[i]}, {});
    const std::vector<float> mine(at, at + static_cast<std::ptrdiff_t>(alone.size()));
    at += static_cast<std::ptrdiff_t>(alone.size());
    INFO("sequence " << i);
    CHECK(largest_difference(mine, alone) < bound<narrow_type>);
    REQUIRE(bool(model->activate(sets[(i + 1) % sets.size()])));
    if (sets[(i + 1) % sets.size()] != sets[i]) CHECK(largest_difference(logits(*model, {rows[i]}, {}), mine) > 0.1);
  }
}

TEST_CASE("gpu multi-LoRA: a captured step stays valid after activate, enable, replace and remove") {
  if (no_gpu()) return;
  auto model = with_adapters<wide>({"lora", "dora", "oft"});
  auto captured = steps_of(model, step_mode::reduce_overhead);
  const auto same_as_fresh = [&](const names& folders, const names& loaded_from) {
    auto other = with_adapters<wide>({});
    for (std::size_t i = 0; i < folders.size(); ++i)
      REQUIRE(bool(io::hf::load_adapter(other, folders[i], llama_folder + loaded_from[i])));
    REQUIRE(bool(other.activate(folders)));
    auto fresh = steps_of(other, step_mode::standard);
    const sequences want = generated(fresh, prompts, {});
    for (int i = 0; i < 2; ++i) CHECK(generated(captured, prompts, {}) == want);
  };
  const std::string lora = "lora/adapter_init", dora = "dora/adapter_init", oft = "oft/adapter_init";
  const auto acts = [&](const names& which, const names& from) {
    REQUIRE(bool(model.activate(which)));
    same_as_fresh(which, from);
  };
  acts({"lora"}, {lora}), acts({"dora"}, {dora}), acts({"oft"}, {oft}), acts({"lora", "dora"}, {lora, dora});
  model.enable(false), same_as_fresh({}, {});
  model.enable(true), same_as_fresh({"lora", "dora"}, {lora, dora});
  const int steps = captured.captured();
  CHECK(steps > 0);
  acts({"lora"}, {lora}), acts({"oft"}, {oft}), acts({"dora"}, {dora}), acts({"lora", "dora"}, {lora, dora});
  model.enable(false), same_as_fresh({}, {}), model.enable(true);
  CHECK(captured.captured() == steps);  // no step was captured again
  REQUIRE(bool(io::hf::replace_adapter(model, "lora", llama_folder + "multi/a")));
  acts({"lora"}, {"multi/a"});
  REQUIRE(bool(model.remove("dora")));
  acts({"lora"}, {"multi/a"}), acts({}, {}), acts({"oft"}, {oft});
}

TEST_CASE("gpu multi-LoRA: several adapters trained in one batch get the bits of training one by one") {
  if (no_gpu()) return;
  const names all{"lora", "dora", "oft", "ia3"};
  const sequences text{{1, 5, 7, 9}, {2, 4, 6}, {3, 3, 8, 1, 2}, {9, 7, 5}, {4, 4, 1}, {8, 2, 6, 6}};
  const std::vector<names> of{{"lora"}, {"dora"}, {"oft"}, {"ia3"}, {"lora"}, {}};
  std::vector<labeled_sequence> batch;
  for (const auto& t : text) batch.push_back({t});
  const adamw_settings how{5e-3, 0.9, 0.999, 1e-8, 0.01};
  auto model = with_adapters<wide>(all);
  auto multi_lora = multi_lora_training_run<wide>::make(model, {{"lora"}, {"dora"}, {"oft"}, {"ia3"}, {}});
  INFO(std::string(multi_lora.message()));
  REQUIRE(bool(multi_lora));
  auto optimizer = multi_lora->optimizer(how);
  REQUIRE(bool(optimizer));
  for (int step = 0; step < 3; ++step) {
    multi_lora->clear();
    REQUIRE(bool(multi_lora->add(batch, of)));
    REQUIRE(bool(optimizer->step()));
    REQUIRE(bool(multi_lora->parameters_changed()));
  }
  REQUIRE(bool(multi_lora->fetch()));
  for (const std::string& name : all) {
    INFO(name);
    auto other = with_adapters<wide>({name});
    REQUIRE(bool(other.activate({name})));
    auto run = training_run<wide>::make(other);
    REQUIRE(bool(run));
    auto own = run->optimizer(how);
    std::vector<labeled_sequence> mine;
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (of[i] == names{name}) mine.push_back(batch[i]);
    for (int step = 0; step < 3; ++step) {
      run->clear();
      REQUIRE(bool(run->add(mine)));
      REQUIRE(bool(own->step()));
      REQUIRE(bool(run->parameters_changed()));
    }
    REQUIRE(bool(run->fetch()));
    const shared_adapter trained = model.find(name), alone = other.find(name);
    REQUIRE(trained->modules.size() == alone->modules.size());
    for (std::size_t m = 0; m < trained->modules.size(); ++m)
      for (const auto& [tensor, t] : trained->modules[m].tensors) {
        const view a = t.value(), b = alone->modules[m].tensors.at(tensor).value();
        const auto bytes = static_cast<std::size_t>(a.count() * bits_of(a.type) / 8);
        CHECK(std::memcmp(a.data, b.data, bytes) == 0);
      }
  }
}

TEST_CASE("gpu multi-LoRA: a captured step stays valid after other adapters, replace and remove") {
  if (no_gpu()) return;
  auto model = with_adapters<wide>({"lora", "dora", "ia3"});
  auto captured = steps_of(model, step_mode::reduce_overhead);
  auto same = [&](const std::vector<names>& sets) {
    auto fresh = steps_of(model, step_mode::standard);
    const sequences want = generated(fresh, prompts, sets);
    CHECK(generated(captured, prompts, sets) == want);
    CHECK(generated(captured, prompts, sets) == want);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      REQUIRE(bool(model.activate(sets[i])));
      auto alone = steps_of(model, step_mode::standard);
      CHECK(generated(alone, {prompts[i]}, {})[0] == want[i]);
    }
  };
  same({{"lora"}, {"dora"}, {}, {"ia3"}});
  same({{"ia3"}, {}, {"lora"}, {"lora"}});
  REQUIRE(bool(io::hf::replace_adapter(model, "lora", llama_folder + "multi/a")));
  same({{"lora"}, {"dora"}, {}, {"ia3"}});
  REQUIRE(bool(model.remove("dora")));
  same({{"lora"}, {}, {"lora"}, {"ia3"}});
  REQUIRE(bool(model.rename("lora", "other")));
  same({{"other"}, {}, {"ia3"}, {"other"}});
}
