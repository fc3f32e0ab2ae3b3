// SPDX-License-Identifier: Apache-2.0
// A block on the GPU: fused launches give the results of single nodes, in as many kernels as the plan states.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/gpu.h>
#include <graft/model/row_batch.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <tuple>

#include "../support/quantized.h"

using namespace graft;

namespace {

using bf = __nv_bfloat16;

bool no_gpu() {
  int devices = 0;
  const bool none = cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
  if (none) std::printf("no GPU: there is no device\n");
  return none;
}

struct tuned : adapted<llama, target_modules<"*_proj", lora<8>>> {};
struct llama_with_sinks : llama {
  static constexpr ex run(block_scope m, ex h) {
    const ex sinks = m.at("self_attn").leaf(op::base, "sinks", 1, 1, 1, m.size("heads"), 1);
    h = h + self_attention(m, m.rms_norm("input_layernorm", h), {.sinks = sinks});
    return h + gated_layer(m.in("mlp"), m.rms_norm("post_attention_layernorm", h), m.size("intermediate"));
  }
};

long long inner = 512, hidden = 256, rank = 8, heads = 4;
long long size_named(const char* name, int head, long long rows) {
  const std::pair<const char*, long long> all[] = {{"hidden", hidden},   {"intermediate", inner}, {"heads", heads},
                                                   {"kv_heads", 2},      {"head_dim", head},      {"context", 512},
                                                   {"cache_slots", 600}, {"tokens", rows}};
  for (const auto& [known, value] : all)
    if (std::strcmp(known, name) == 0) return value;
  return rank;
}

// Tensors for every leaf of a graph, the same for every plan.
struct tensors {
  size_values sizes;
  leaf_views leaves;
  std::deque<gpu::buffer> memory;
  std::deque<double> scalars;
  std::deque<quant_state> states;
  std::vector<bf> cache;  // the contents before a call
  id state = none_id;

  template <class N> const void* on_device(const std::vector<N>& host) {
    memory.emplace_back();
    REQUIRE(bool(memory.back().reserve(static_cast<long long>(host.size() * sizeof(N)))));
    REQUIRE(cudaMemcpy(memory.back().data(), host.data(), host.size() * sizeof(N), cudaMemcpyHostToDevice) ==
            cudaSuccess);
    return memory.back().data();
  }
  // `how` is the quantization format of the weights.
  tensors(const graph& g, int head, row_batch& rows, const quant_format& how = {}) : leaves(g.size) {
    for (int e = 0; e < g.sizes.count; ++e)
      if (g.sizes.e[e].index >= 0) sizes.v[g.sizes.e[e].index] = size_named(g.sizes.e[e].name, head, rows.rows());
    std::mt19937 engine(3);
    std::uniform_real_distribution<float> any(-1, 1);
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      if (!is_leaf(v.what)) continue;
      view& to = leaves[i];
      const long long n = element_count(g, i, sizes), columns = g.sizes.value(v.d[3], sizes);
      const std::string name = g.name(i).c_str();
      to.rank = 0;
      for (int axis = 2; axis < 4; ++axis) to.size[to.rank++] = g.sizes.value(v.d[axis], sizes);
      if (traits_of(v.what).from == source::scalar) {
        const double number = name.ends_with("eps") ? 1e-5 : name.ends_with("dropout") ? 0.3 : 1.0;
        to.data = &scalars.emplace_back(number), to.type = dtype::f64;
      } else if (traits_of(v.what).from == source::integers) {
        static const std::int64_t seed = 77;
        const view from = name == "positions" ? rows.positions() : rows.attention_range_of(0);
        const auto* p = name == "seed" ? &seed : static_cast<const std::int64_t*>(from.data);
        to.data = on_device(std::vector<std::int64_t>(p, p + n)), to.type = dtype::i64;
      } else if (traits_of(v.what).from == source::tensor) {
        const bool norm = name.find("layernorm") != std::string::npos,
                   wide = v.what == op::frozen || v.what == op::param;
        std::vector<float> host(static_cast<std::size_t>(n));
        for (float& x : host) {
          const bool matrix = v.what == op::base || v.what == op::param;
          x = norm ? 1 + 0.2F * any(engine)
                   : any(engine) * (matrix ? 1.7F / std::sqrt(static_cast<float>(columns)) : 1);
        }
        if (v.what == op::base && to.rank == 2 && to.size[0] > 1 && to.size[1] > 1 && !how.plain()) {
          const test::quantized_and_plain both(host, to.size[0], to.size[1], how);
          const auto placed =
              gpu::upload_quantized(nullptr, both.quantized.as_view(), memory.emplace_back(), states.emplace_back());
          REQUIRE(bool(placed));
          to = *placed;
          continue;
        }
        std::vector<bf> narrow;
        for (const float x : host) narrow.push_back(__float2bfloat16(x));
        to.data = wide ? on_device(host) : on_device(narrow), to.type = wide ? dtype::f32 : dtype::bf16;
        if (v.what == op::state) state = i, cache = narrow;
      }
    }
  }
  std::vector<bf> now_cached() const {
    std::vector<bf> now(cache.size());
    if (state >= 0)
      REQUIRE(cudaMemcpy(now.data(), leaves[state].data, now.size() * 2, cudaMemcpyDeviceToHost) == cudaSuccess);
    return now;
  }
  void reset_cache() const {
    if (state >= 0)
      REQUIRE(cudaMemcpy(const_cast<void*>(leaves[state].data), cache.data(), cache.size() * 2,
                         cudaMemcpyHostToDevice) == cudaSuccess);
  }
};

struct ran {
  std::vector<std::vector<float>> outputs;
  std::vector<bf> cache;
  long long kernels = 0;
};
ran run(const graph& g, const tensors& t, const target& to, long long rows) {
  static const gpu::kernel_set kernels = gpu::every_kernel_of<bf>();
  gpu::program<bf> program(g, fuse(g, to));
  gpu::binding<bf> with;
  leaf_views known = t.leaves;
  for (id i = 0; i < g.size; ++i)
    if (is_leaf(g[i].what) && traits_of(g[i].what).known_at == stage::call) known[static_cast<std::size_t>(i)] = {};
  t.reset_cache();
  gpu::dequantized_buffer dequantized_weight;
  gpu::shared_adapter_args<bf> shared;
  const status bound =
      program.bind(nullptr, kernels, t.sizes, known, {rows, 0}, shared, dequantized_weight, nullptr, with);
  INFO(std::string(bound.message()));
  REQUIRE(bool(bound));
  program_call c(g);
  c.begin(t.sizes);
  c.data = t.leaves;
  std::deque<gpu::buffer> out;
  for (int k = 0; k < g.outs; ++k) {
    const long long n = element_count(g, g.out[k].at, t.sizes);
    REQUIRE(bool(out.emplace_back().reserve(n * 4)));
    c.outputs[k] = {out.back().data(), dtype::f32, {n}, 1};
  }
  const long long before = gpu::launch_count();
  const status done = gpu::execution<bf>(program, with, c, nullptr, to, true).run();
  INFO(std::string(done.message()));
  REQUIRE(bool(done));
  ran r;
  r.kernels = gpu::launch_count() - before;
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  for (int k = 0; k < g.outs; ++k) {
    std::vector<float>& y = r.outputs.emplace_back(static_cast<std::size_t>(element_count(g, g.out[k].at, t.sizes)));
    REQUIRE(cudaMemcpy(y.data(), out[static_cast<std::size_t>(k)].data(), y.size() * 4, cudaMemcpyDeviceToHost) ==
            cudaSuccess);
  }
  r.cache = t.now_cached();
  return r;
}
template <class A, class B> double distance(const std::vector<A>& a, const std::vector<B>& b) {
  double d = 0, n = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double x = static_cast<float>(a[i]), y = static_cast<float>(b[i]);
    d += (x - y) * (x - y), n += y * y;
  }
  return std::isnan(d) ? INFINITY : n == 0 ? std::sqrt(d) : std::sqrt(d / n);
}

struct sequence_rows {
  long long tokens, position = 0, slot = 0;
};
row_batch batch(const std::vector<sequence_rows>& runs, int window, bool cached) {
  static const std::vector<std::int64_t> ids(1 << 12);
  std::vector<sequence_chunk> parts;
  for (const sequence_rows& r : runs)
    parts.push_back({{ids.data(), static_cast<std::size_t>(r.tokens)}, r.position, r.slot});
  row_batch made;
  made.set(parts, {&window, 1}, cached);
  return made;
}
void check(const graph& g, int head, row_batch rows, double tolerance, const quant_format& how = {}) {
  const tensors t(g, head, rows, how);
  target eager = sm_90;
  eager.granularity = target::work::by_nodes, eager.can<dropout_gemm>().has_kernel = false;
  const ran fused = run(g, t, sm_90, rows.rows()), single = run(g, t, eager, rows.rows());
  INFO("heads of ", head, ", ", rows.rows(), " rows");
  int copies = 0;  // outputs are requested in float, so results of GEMMs are copied
  const launch_plan p = fuse(g, sm_90);
  for (int k = 0; k < g.outs; ++k) {
    CHECK(distance(fused.outputs[static_cast<std::size_t>(k)], single.outputs[static_cast<std::size_t>(k)]) <
          tolerance);
    copies += p.launch_of[unshaped(g, g.out[k].at)] >= 0 ? 1 : 0;
  }
  CHECK(distance(fused.cache, single.cache) < tolerance);
  CHECK(fused.kernels <= kernel_count(g, p, t.sizes, dtype::bf16, how) + copies);
  CHECK(fused.kernels >= kernel_count(g, p, t.sizes, dtype::bf16, how));
}
builder forward_of(bool cached, const adapter_rules& with = value_of<tuned>().options.adapters) {
  block_value v = value_of<tuned>();
  v.options.cached = cached, v.options.adapters = with;
  return capture_forward(v.formula, v.options);
}

// With dropout, the layer's GEMM reads the shrink result of another launch, and its dgrad makes T = dy B; the second
// size has fused wgrads as well.
struct llama_with_dropout {
  adapter_rule rules[1] = {{"*_proj", formula_of<lora<dyn>>(), "", false, {.elements = true}}};
  block_options options;
  builder forward, backward;
  llama_with_dropout() {
    options.adapters = {rules, 1}, options.dropped = true;
    forward = capture_forward(block_of<llama>(), options), backward = capture_backward(block_of<llama>(), options);
  }
};

}  // namespace

TEST_CASE("gpu block: fused equals node by node, without and with a KV cache, every kind of attention") {
  if (no_gpu()) return;
  const builder plain = forward_of(false), cached = forward_of(true);
  for (const int head : {64, 128, 72}) {  // no attention kernel supports 72
    check(plain, head, batch({{70}, {1}, {33}}, 0, false), 2e-2);
    check(cached, head, batch({{90, 10, 0}, {5, 0, 300}}, 0, true), 2e-2);
    check(cached, head, batch({{1, 100, 0}, {1, 0, 200}, {1, 299, 300}}, 40, true), 2e-2);
  }
}
TEST_CASE("gpu block: gate, up and their elementwise product, in one kernel and in several") {
  if (no_gpu()) return;
  const adapter_rule lists[] = {{"no_layer", formula_of<lora<8>>()}, {"*_proj", formula_of<lora<8>>()},
                                {"*_proj", formula_of<dora<8>>()},   {"*_proj", formula_of<lora<30>>()},
                                {"up_proj", formula_of<lora<8>>()},  {"q_proj", formula_of<lora<8>>()}};
  for (const adapter_rule& with : lists) {
    const builder cached = forward_of(true, {&with, 1});
    // Whole tiles, ragged ones, and fewer tiles than SMs.
    for (const auto& [size, rows] :
         {std::pair{14336LL, 1LL}, {14336, 16}, {14336, 64}, {14340, 5}, {14340, 33}, {14340, 90}, {512, 9}}) {
      inner = size;
      INFO(std::string(with.pattern), " ", size);
      check(cached, 128, batch({{rows, 10, 0}}, 0, true), 2e-2);
    }
  }
  inner = 512;
  const gemm_problem one{dtype::bf16, 1, 14336, 4096, 16}, both[] = {one, one};
  CHECK(sm_90.can<gemm_launch>().gated_kernels(both, sm_90) == 1);
}
TEST_CASE("gpu block: quantized weights, grouped GEMMs") {
  if (no_gpu()) return;
  const adapter_rule lists[] = {{"no_layer", formula_of<lora<8>>()},
                                {"*_proj", formula_of<lora<8>>()},
                                {"*_proj", formula_of<lora<40>>()},
                                {"up_proj", formula_of<lora<8>>()},
                                {"*_proj", formula_of<dora<8>>()}};
  const quant_format nf4_64{dtype::nf4, scale_granularity::flat_block, 64},
      doubled{dtype::nf4, scale_granularity::flat_block, 64, 1, dtype::u8, quant_formats::double_quant_block};
  for (const adapter_rule& with : lists) {
    const builder cached = forward_of(true, {&with, 1});
    for (const quant_format& how : {nf4_64, doubled, quant_format{dtype::int8, scale_granularity::row},
                                    quant_formats::q8_0_format::format(), quant_formats::q4_k_format::format(),
                                    quant_formats::q6_k_format::format(), quant_formats::mxfp4_format::format()})
      for (const auto& [width, size, rows] :
           {std::tuple{256LL, 512LL, 1LL}, {256, 512, 16}, {4096, 512, 3}, {4096, 1024, 16}, {256, 8192, 9}}) {
        if (width == 4096 && how.scales == dtype::u8) continue;  // doubled: whole units only
        if (width == 4096 && how.block == 256) continue;         // minutes of searching scales
        hidden = width, inner = size;
        INFO(std::string(with.pattern), " ", name_of(how), " ", width, " ", size);
        check(cached, 128, batch({{rows, 10, 0}}, 0, true), 2e-2, how);
      }
  }
  hidden = 256, inner = 512;
  gemm_problem one{dtype::bf16, 1, 14336, 4096, 16};
  one.stored = nf4_64;
  const gemm_problem both[] = {one, one};
  CHECK(sm_90.can<gemm_launch>().gated_kernels(both, sm_90) == 1);
}
TEST_CASE("gpu block: gradients") {
  if (no_gpu()) return;
  const block_value v = value_of<tuned>();
  const builder backward = capture_backward(v.formula, v.options);
  for (const int head : {64, 72}) check(backward, head, batch({{70}, {1}, {33}}, 0, false), 4e-2);
}
TEST_CASE("gpu block: soft caps and sinks in the attention kernels, forward, over a KV cache and gradients") {
  if (no_gpu()) return;
  heads = 8;
  block_value v = value_of<tuned>();
  for (const block_formula& formula : {block_of<llama>(), block_of<llama_with_sinks>()})
    for (const double cap : {0.0, 1.5}) {
      v.options.attention_soft_cap = cap, v.options.cached = false;
      const builder plain = capture_forward(formula, v.options), backward = capture_backward(formula, v.options);
      v.options.cached = true;
      const builder cached = capture_forward(formula, v.options);
      for (const int head : {64, 96, 128, 256}) {
        INFO("cap ", cap);
        check(plain, head, batch({{70}, {1}, {33}}, 0, false), 2e-2);
        check(cached, head, batch({{90, 10, 0}, {5, 0, 300}}, 0, true), 2e-2);
        check(cached, head, batch({{1, 100, 0}, {1, 0, 200}, {1, 299, 300}}, 40, true), 2e-2);
        check(backward, head, batch({{70}, {1}, {33}}, 0, false), 4e-2);
      }
    }
  heads = 4;
}
TEST_CASE("gpu block: dropout in the branches of all projections, forward and backward") {
  if (no_gpu()) return;
  const llama_with_dropout of;
  for (const long long r : {4, 8, 16, 30, 64, 80})
    for (const auto& [width, size, rows] : {std::tuple{256LL, 512LL, 33LL}, {1792, 1024, 440}, {264, 520, 2}}) {
      hidden = width, inner = size, rank = r;
      INFO("rank ", r, ", ", width, " ", size);
      check(of.forward, 64, batch({{rows + 1}, {1}, {rows}, {rows + 65}}, 0, false), 2e-2);
      check(of.backward, 64, batch({{rows + 1}, {1}, {rows}, {rows + 65}}, 0, false), 4e-2);
    }
  hidden = 256, inner = 512, rank = 8;
}
TEST_CASE("gpu block: dropout with quantized weights") {
  if (no_gpu()) return;
  const llama_with_dropout of;
  for (const long long r : {4, 16}) {
    rank = r;
    for (const long long rows : {3, 70}) {
      check(of.forward, 64, batch({{rows}, {2}}, 0, false), 2e-2, {dtype::nf4, scale_granularity::flat_block, 64});
      check(of.backward, 64, batch({{rows}, {2}}, 0, false), 4e-2, {dtype::nf4, scale_granularity::flat_block, 64});
    }
  }
  rank = 8;
}
