// SPDX-License-Identifier: Apache-2.0
// Batches whose rows have adapters of their own on the GPU: a product by the kernels that mix, against the formula in
// double; and whole models, against their rows one by one, below a captured step too.
#include <doctest/doctest.h>
#include <graft/io/hf/adapters.h>
#include <graft/model/generate.h>
#include <graft/model/on_cuda.h>

#include <cmath>
#include <cstdio>
#include <random>

#include "../support/gpu_layer.h"

using namespace graft;

namespace {

bool no_gpu() {
  const std::string why = test::why_no_gpu();
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
  cuda::buffer memory;
};

// A product, and records of several kinds: LoRA (a branch), DoRA (with factors), IA3 (factors, of the output or of the
// input) and a bias.
template <class T> struct mixed_case {
  int m, n, k;
  std::mt19937 random{7};
  device_numbers<T> x{random, at(m, k), 1}, w{random, at(n, k), 1.7F / std::sqrt(static_cast<float>(k))},
      residual{random, at(m, n), 1};
  struct kind {
    device_numbers<T> a, b, pre;
    device_numbers<float> scale, shift;
    int rank;
    bool has_scale, has_shift, has_pre;
  };
  std::vector<std::unique_ptr<kind>> kinds;
  cuda::buffer table, rows, sums, scaled, y;
  std::vector<std::int64_t> of_row;

  static std::size_t at(long long a, long long b) { return static_cast<std::size_t>(a * b); }
  mixed_case(int tokens, int outputs, int inputs, int adapters, int most_rank) : m(tokens), n(outputs), k(inputs) {
    const std::size_t padded = static_cast<std::size_t>(n) + 512;
    std::vector<cuda::mixed_record> records;
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
                         r.has_pre ? r.pre.memory.data() : nullptr, rank});
    }
    const auto bytes = records.size() * sizeof(cuda::mixed_record);
    REQUIRE(bool(table.reserve(static_cast<long long>(bytes))));
    REQUIRE(cudaMemcpy(table.data(), records.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(bool(sums.reserve(cuda::mixed_sums::bytes)));
    REQUIRE(cudaMemset(sums.data(), 0, static_cast<std::size_t>(cuda::mixed_sums::bytes)) == cudaSuccess);
    for (auto* b : {&scaled, &y}) REQUIRE(bool(b->reserve(static_cast<long long>(sizeof(T)) * m * std::max(n, k))));
    REQUIRE(bool(rows.reserve(8LL * m)));
    mix();
  }
  void mix(std::size_t most = 1000) {
    of_row.resize(static_cast<std::size_t>(m));
    for (std::int64_t& r : of_row) r = static_cast<std::int64_t>(random() % std::min(kinds.size(), most)) - 1;
    const auto bytes = of_row.size() * 8;
    REQUIRE(cudaMemcpy(rows.data(), of_row.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::vector<double> expected(bool finishes) const {
    std::vector<double> all(at(m, n));
    for (int t = 0; t < m; ++t) {
      const kind& r = *kinds[static_cast<std::size_t>(of_row[static_cast<std::size_t>(t)] + 1)];
      std::vector<double> in(static_cast<std::size_t>(k)), side(static_cast<std::size_t>(r.rank));
      for (int c = 0; c < k; ++c)
        in[static_cast<std::size_t>(c)] =
            x.host[at(t, k) + static_cast<std::size_t>(c)] * (r.has_pre ? r.pre.host[static_cast<std::size_t>(c)] : 1);
      for (int i = 0; i < r.rank; ++i)
        for (int c = 0; c < k; ++c)
          side[static_cast<std::size_t>(i)] +=
              in[static_cast<std::size_t>(c)] * r.a.host[at(i, k) + static_cast<std::size_t>(c)];
      for (int o = 0; o < n; ++o) {
        double v = 0;
        for (int c = 0; c < k; ++c)
          v += in[static_cast<std::size_t>(c)] * w.host[at(o, k) + static_cast<std::size_t>(c)];
        for (int i = 0; i < r.rank; ++i)
          v += side[static_cast<std::size_t>(i)] * r.b.host[at(o, r.rank) + static_cast<std::size_t>(i)];
        if (r.has_scale) v *= r.scale.host[static_cast<std::size_t>(o)];
        if (r.has_shift) v += r.shift.host[static_cast<std::size_t>(o)];
        const std::size_t here = at(t, n) + static_cast<std::size_t>(o);
        all[here] = finishes ? std::max(v, 0.0) + residual.host[here] : v;
      }
    }
    return all;
  }
  double run(cuda::mixed_linear<T>& product, bool finishes, bool scales = true) {
    static const cuda::kernel_set kernels = cuda::every_kernel_of<T>();
    typename cuda::engine<T>::queue q;
    q.kernels = kernels;
    REQUIRE(bool(cuda::engine<T>::open(q)));
    REQUIRE(cudaMemset(y.data(), 0xff, at(m, n) * sizeof(T)) == cudaSuccess);
    cuda::mixed_operands o{.x = x.memory.data(),
                           .w = w.memory.data(),
                           .y = y.data(),
                           .batch = {table.template as<cuda::mixed_record>() + 1, rows.template as<std::int64_t>()},
                           .sums = cuda::mixed_sums::at(sums.data()),
                           .scaled = scales ? scaled.data() : nullptr};
    if (finishes) o.residual = residual.memory.data(), o.act = cuda::activation::relu;
    const product_shape p{dtype_of(), m, n, k};
    const status s = product.run(nullptr, q.kernels.linear, q.kernels.mixed, q.where, p, o);
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
    std::vector<T> got(at(m, n));
    REQUIRE(cudaMemcpy(got.data(), y.data(), got.size() * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    const std::vector<double> want = expected(finishes);
    double d = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double v = static_cast<double>(static_cast<float>(got[i]));
      d += (v - want[i]) * (v - want[i]), norm += want[i] * want[i];
    }
    return std::isnan(d) ? INFINITY : std::sqrt(d / norm);
  }
  static dtype dtype_of() { return cuda::dtype_of<T>; }
};

template <class T> void check_products(double tolerance) {
  struct sizes {
    int m, n, k, adapters, rank;
  };
  for (const sizes s : {sizes{64, 256, 512, 8, 16}, sizes{64, 4096, 256, 32, 16}, sizes{37, 1000, 264, 9, 64},
                        sizes{5, 6144, 128, 3, 32}, sizes{16, 14336, 192, 5, 64}, sizes{64, 14336, 128, 40, 32},
                        sizes{1, 64, 1024, 2, 16}, sizes{64, 130, 4096, 64, 64}, sizes{33, 63, 96, 4, 16}}) {
    INFO(s.m << " x " << s.n << " x " << s.k << ", " << s.adapters << " adapters");
    mixed_case<T> c(s.m, s.n, s.k, s.adapters, s.rank);
    cuda::mixed_linear<T> product;
    for (int round = 0; round < 3; ++round) {
      CHECK(c.run(product, round == 2) < tolerance);
      c.mix();
    }
  }
}

using wide = cuda::engine<float>;
using narrow_type = cuda::engine<__nv_bfloat16>;
using names = named_adapters::names;
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
  std::vector<row_run> runs;
  std::size_t rows = 0;
  for (const auto& s : of) runs.push_back({s}), rows += s.size();
  std::vector<float> out(rows * static_cast<std::size_t>(model.config().vocabulary));
  const status s = model.logits(runs, out, false, adapters);
  INFO(std::string(s.message()));
  REQUIRE(bool(s));
  return out;
}
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, n = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double v = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    d += v * v, n += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return a.size() != b.size() || std::isnan(d) ? INFINITY : std::sqrt(d / n);
}
template <class Engine> constexpr double bound = Engine::keeps == dtype::f32 ? 1e-5 : 2e-2;

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
  settings.new_tokens = 12;
  auto g = generator<Engine>::make(model, settings, 4, 40, how);
  REQUIRE(bool(g));
  return std::move(*g);
}
const sequences prompts{{5, 9, 200, 31}, {7}, {100, 101, 102, 103, 104}, {3, 1}};

}  // namespace

TEST_CASE("gpu mixed: every row of a product has its own record, 16 bits") {
  if (!no_gpu()) check_products<__nv_bfloat16>(6e-3), check_products<__half>(1e-3);
}
TEST_CASE("gpu mixed: every row of a product has its own record, float") {
  if (!no_gpu()) check_products<float>(1e-5);
}
TEST_CASE("gpu mixed: a product that a stream kernel takes is one launch") {
  if (no_gpu()) return;
  mixed_case<__nv_bfloat16> c(64, 4096, 512, 8, 16);
  c.mix(3);  // LoRA, DoRA or none, which has a bias
  cuda::mixed_linear<__nv_bfloat16> product;
  const long long before = cuda::launch_count();
  CHECK(c.run(product, true, false) < 6e-3);
  CHECK(cuda::launch_count() - before == 1);
}

TEST_CASE_TEMPLATE("gpu mixed: rows of a batch are what they are alone", Engine, wide, narrow_type) {
  if (no_gpu()) return;
  const names records{"lora", "dora", "ia3", "vera", "adalora", "vblora", "hra", "loha"},
      others{"oft", "ln_tuning", "boft"};
  names all = records;
  all.insert(all.end(), others.begin(), others.end());
  auto model = with_adapters<Engine>(all);
  auto check = [&](const std::vector<names>& sets) {
    sequences rows;
    std::vector<float> alone;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      rows.push_back(prompts[i % prompts.size()]);
      REQUIRE(bool(model.activate(sets[i])));
      const auto one = logits(model, {rows.back()}, {});
      alone.insert(alone.end(), one.begin(), one.end());
    }
    CHECK(apart(logits(model, rows, sets), alone) < bound<Engine>);
  };
  std::vector<names> sets{{}};
  for (const std::string& r : records) sets.push_back({r});
  sets.push_back({"lora", "vera"});
  const auto told = model.explain_rows(sets);
  REQUIRE(bool(told));
  INFO(*told);
  CHECK(told->find("group") == std::string::npos);
  check(sets);
  check({{"lora"}, {"oft"}, {}, {"ln_tuning"}, {"boft"}, {"lora"}});  // by groups
  const auto groups = model.explain_rows(std::vector<names>{{"oft"}, {"ln_tuning"}, {"boft"}});
  REQUIRE(bool(groups));
  INFO(*groups);
  std::size_t lines = 0;
  for (std::size_t at = groups->find("group"); at != std::string::npos; at = groups->find("group", at + 1)) ++lines;
  CHECK(lines == 3);
}

TEST_CASE("gpu mixed: a captured step goes on after other adapters, replace and remove") {
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
