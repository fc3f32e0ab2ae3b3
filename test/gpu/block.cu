// SPDX-License-Identifier: Apache-2.0
// A block on the GPU: what its plan launches together gives what single nodes give, in as many kernels as the plan says.
#include <doctest/doctest.h>
#include <graft/blocks.h>
#include <graft/cuda.h>
#include <graft/model/rows.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <tuple>

#include "../support/coded.h"

using namespace graft;

namespace {

using bf = __nv_bfloat16;

bool no_gpu() {
  int devices = 0;
  const bool none = cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
  if (none) std::printf("no GPU: there is no device\n");
  return none;
}

struct tuned : adapted<llama, on<"*_proj", lora<8>>> {};

long long inner = 512, hidden = 256, rank = 8;
long long size_named(const char* name, int head, long long rows) {
  const std::pair<const char*, long long> all[] = {{"hidden", hidden}, {"intermediate", inner}, {"heads", 4},
                                                   {"kv_heads", 2},    {"head_dim", head},      {"context", 512},
                                                   {"places", 600},    {"tokens", rows}};
  for (const auto& [known, value] : all)
    if (std::strcmp(known, name) == 0) return value;
  return rank;
}

// Tensors for every leaf of a graph, the same for every plan of it.
struct tensors {
  size_values sizes;
  leaf_views leaves;
  std::deque<cuda::buffer> memory;
  std::deque<double> scalars;
  std::deque<planes> beside;
  std::vector<bf> cache;  // as it is before a call
  id state = none_id;

  template <class N> const void* on_device(const std::vector<N>& host) {
    memory.emplace_back();
    REQUIRE(bool(memory.back().reserve(static_cast<long long>(host.size() * sizeof(N)))));
    REQUIRE(cudaMemcpy(memory.back().data(), host.data(), host.size() * sizeof(N), cudaMemcpyHostToDevice) ==
            cudaSuccess);
    return memory.back().data();
  }
  // `how`: of the weights.
  tensors(const graph& g, int head, row_batch& rows, const encoding& how = {}) : leaves(g.size) {
    for (int e = 0; e < g.sizes.count; ++e)
      if (g.sizes.e[e].index >= 0) sizes.v[g.sizes.e[e].index] = size_named(g.sizes.e[e].name, head, rows.rows());
    std::mt19937 engine(3);
    std::uniform_real_distribution<float> any(-1, 1);
    for (id i = 0; i < g.size; ++i) {
      const node& v = g[i];
      if (!is_leaf(v.what)) continue;
      view& to = leaves[i];
      const long long n = count(g, i, sizes), columns = g.sizes.value(v.d[3], sizes);
      const std::string name = g.name(i).c_str();
      to.rank = 0;
      for (int axis = 2; axis < 4; ++axis) to.size[to.rank++] = g.sizes.value(v.d[axis], sizes);
      if (row(v.what).from == source::scalar) {
        const double number = name.ends_with("eps") ? 1e-5 : name.ends_with("dropout") ? 0.3 : 1.0;
        to.data = &scalars.emplace_back(number), to.type = dtype::f64;
      } else if (row(v.what).from == source::integers) {
        static const std::int64_t seed = 77;
        const view from = name == "positions" ? rows.positions() : rows.span_of(0);
        const auto* p = name == "seed" ? &seed : static_cast<const std::int64_t*>(from.data);
        to.data = on_device(std::vector<std::int64_t>(p, p + n)), to.type = dtype::i64;
      } else if (row(v.what).from == source::tensor) {
        const bool norm = name.find("layernorm") != std::string::npos,
                   wide = v.what == op::frozen || v.what == op::param;
        std::vector<float> host(static_cast<std::size_t>(n));
        for (float& x : host) {
          const bool matrix = v.what == op::base || v.what == op::param;
          x = norm ? 1 + 0.2F * any(engine)
                   : any(engine) * (matrix ? 1.7F / std::sqrt(static_cast<float>(columns)) : 1);
        }
        if (v.what == op::base && to.rank == 2 && to.size[0] > 1 && to.size[1] > 1 && !how.plain()) {
          const test::coded_and_plain codes(host, to.size[0], to.size[1], how);
          const auto placed =
              cuda::place_codes(nullptr, codes.codes.as_view(), memory.emplace_back(), beside.emplace_back());
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
  static const cuda::kernel_set kernels = cuda::every_kernel_of<bf>();
  cuda::bound_plan<bf> plan(g, to);
  leaf_views known = t.leaves;
  for (id i = 0; i < g.size; ++i)
    if (is_leaf(g[i].what) && row(g[i].what).known == stage::data) known[static_cast<std::size_t>(i)] = {};
  t.reset_cache();
  cuda::code_panel panel;
  cuda::shared_slots<bf> shared;
  const status bound = plan.bind(nullptr, kernels, t.sizes, known, {rows, 0}, shared, panel, nullptr);
  INFO(std::string(bound.message()));
  REQUIRE(bool(bound));
  call& c = plan.next_call();
  c.data = t.leaves;
  std::deque<cuda::buffer> out;
  for (int k = 0; k < g.outs; ++k) {
    const long long n = count(g, g.out[k].at, t.sizes);
    REQUIRE(bool(out.emplace_back().reserve(n * 4)));
    c.outputs[k] = {out.back().data(), dtype::f32, {n}, 1};
  }
  const long long before = cuda::launch_count();
  const status done = plan.run(nullptr, to, true);
  INFO(std::string(done.message()));
  REQUIRE(bool(done));
  ran r;
  r.kernels = cuda::launch_count() - before;
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  for (int k = 0; k < g.outs; ++k) {
    std::vector<float>& y = r.outputs.emplace_back(static_cast<std::size_t>(count(g, g.out[k].at, t.sizes)));
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

struct run_of_rows {
  long long tokens, position = 0, place = 0;
};
row_batch batch(const std::vector<run_of_rows>& runs, int window, bool cached) {
  static const std::vector<std::int64_t> ids(1 << 12);
  std::vector<row_run> parts;
  for (const run_of_rows& r : runs)
    parts.push_back({{ids.data(), static_cast<std::size_t>(r.tokens)}, r.position, r.place});
  row_batch made;
  made.set(parts, {&window, 1}, cached);
  return made;
}
void check(const graph& g, int head, row_batch rows, double tolerance, const encoding& how = {}) {
  const tensors t(g, head, rows, how);
  target eager = sm_90;
  eager.gathers = target::work::by_nodes, eager.takes_dropout = false;
  const ran fused = run(g, t, sm_90, rows.rows()), single = run(g, t, eager, rows.rows());
  INFO("heads of ", head, ", ", rows.rows(), " rows");
  int copies = 0;  // outputs are asked for in float: what products write is copied there
  const plan p = fuse(g, sm_90);
  for (int k = 0; k < g.outs; ++k) {
    CHECK(distance(fused.outputs[static_cast<std::size_t>(k)], single.outputs[static_cast<std::size_t>(k)]) <
          tolerance);
    copies += p.launch_of[unshaped(g, g.out[k].at)] >= 0 ? 1 : 0;
  }
  CHECK(distance(fused.cache, single.cache) < tolerance);
  CHECK(fused.kernels <= kernels_of(g, p, t.sizes, dtype::bf16, how) + copies);
  CHECK(fused.kernels >= kernels_of(g, p, t.sizes, dtype::bf16, how));
}
builder forward_of(bool cached, const adaptions& with = value_of<tuned>().how.adapters) {
  block_value v = value_of<tuned>();
  v.how.cached = cached, v.how.adapters = with;
  return capture_forward(v.formula, v.how);
}

// S of a branch with dropout is given to the product of its layer, and T is made by its data gradient; in the second size
// with sums over the tokens beside it.
struct dropped_llama {
  adaption rules[1] = {{"*_proj", formula_of<lora<dyn>>(), "", false, {.elements = true}}};
  block_options how;
  builder forward, backward;
  dropped_llama() {
    how.adapters = {rules, 1}, how.dropped = true;
    forward = capture_forward(block_of<llama>(), how), backward = capture_backward(block_of<llama>(), how);
  }
};

}  // namespace

TEST_CASE("gpu block: launched together as node by node, without and with a cache, every kind of attention") {
  if (no_gpu()) return;
  const builder plain = forward_of(false), cached = forward_of(true);
  for (const int head : {64, 128, 72}) {  // of 72 no kernel for whole models takes
    check(plain, head, batch({{70}, {1}, {33}}, 0, false), 2e-2);
    check(cached, head, batch({{90, 10, 0}, {5, 0, 300}}, 0, true), 2e-2);
    check(cached, head, batch({{1, 100, 0}, {1, 0, 200}, {1, 299, 300}}, 40, true), 2e-2);
  }
}
TEST_CASE("gpu block: gate and up with their product, where one kernel has them and where not") {
  if (no_gpu()) return;
  const adaption lists[] = {{"no_layer", formula_of<lora<8>>()}, {"*_proj", formula_of<lora<8>>()},
                            {"*_proj", formula_of<dora<8>>()},   {"*_proj", formula_of<lora<30>>()},
                            {"up_proj", formula_of<lora<8>>()},  {"q_proj", formula_of<lora<8>>()}};
  for (const adaption& with : lists) {
    const builder cached = forward_of(true, {&with, 1});
    // Whole tiles, a ragged one, and too few for all processors.
    for (const auto& [size, rows] :
         {std::pair{14336LL, 1LL}, {14336, 16}, {14336, 64}, {14340, 5}, {14340, 33}, {14340, 90}, {512, 9}}) {
      inner = size;
      INFO(std::string(with.pattern), " ", size);
      check(cached, 128, batch({{rows, 10, 0}}, 0, true), 2e-2);
    }
  }
  inner = 512;
  const product_shape one{dtype::bf16, 1, 14336, 4096, 16}, both[] = {one, one};
  CHECK(sm_90.run_gated(both, sm_90) == 1);
}
TEST_CASE(
    "gpu block: weights that are codes, in one launch what reads the same input, with the norms around it inside") {
  if (no_gpu()) return;
  const adaption lists[] = {{"no_layer", formula_of<lora<8>>()},
                            {"*_proj", formula_of<lora<8>>()},
                            {"*_proj", formula_of<lora<40>>()},
                            {"up_proj", formula_of<lora<8>>()},
                            {"*_proj", formula_of<dora<8>>()}};
  const encoding nf4_64{dtype::nf4, scaled_by::run, 64},
      doubled{dtype::nf4, scaled_by::run, 64, 1, dtype::u8, encodings::nested_block};
  for (const adaption& with : lists) {
    const builder cached = forward_of(true, {&with, 1});
    for (const encoding& how : {nf4_64, doubled, encoding{dtype::int8, scaled_by::row}, encodings::q8_0_codes::how()})
      for (const auto& [width, size, rows] :
           {std::tuple{256LL, 512LL, 1LL}, {256, 512, 16}, {4096, 512, 3}, {4096, 1024, 16}, {256, 8192, 9}}) {
        if (width == 4096 && how.scales == dtype::u8) continue;  // only whole units have kernels of their own
        hidden = width, inner = size;
        INFO(std::string(with.pattern), " ", name_of(how), " ", width, " ", size);
        check(cached, 128, batch({{rows, 10, 0}}, 0, true), 2e-2, how);
      }
  }
  hidden = 256, inner = 512;
  product_shape one{dtype::bf16, 1, 14336, 4096, 16};
  one.stored = nf4_64;
  const product_shape both[] = {one, one};
  CHECK(sm_90.run_gated(both, sm_90) == 1);
  CHECK(sm_90.run_normed(one, both, 2, sm_90));
}
TEST_CASE("gpu block: gradients") {
  if (no_gpu()) return;
  const block_value v = value_of<tuned>();
  const builder backward = capture_backward(v.formula, v.how);
  for (const int head : {64, 72}) check(backward, head, batch({{70}, {1}, {33}}, 0, false), 4e-2);
}
TEST_CASE("gpu block: dropout in the branches of all projections, forward and backward") {
  if (no_gpu()) return;
  const dropped_llama of;
  for (const long long r : {4, 8, 16, 30, 64, 80})
    for (const auto& [width, size, rows] : {std::tuple{256LL, 512LL, 33LL}, {1792, 1024, 440}, {264, 520, 2}}) {
      hidden = width, inner = size, rank = r;
      INFO("rank ", r, ", ", width, " ", size);
      check(of.forward, 64, batch({{rows + 1}, {1}, {rows}, {rows + 65}}, 0, false), 2e-2);
      check(of.backward, 64, batch({{rows + 1}, {1}, {rows}, {rows + 65}}, 0, false), 4e-2);
    }
  hidden = 256, inner = 512, rank = 8;
}
TEST_CASE("gpu block: dropout beside weights that are codes") {
  if (no_gpu()) return;
  const dropped_llama of;
  for (const long long r : {4, 16}) {
    rank = r;
    for (const long long rows : {3, 70}) {
      check(of.forward, 64, batch({{rows}, {2}}, 0, false), 2e-2, {dtype::nf4, scaled_by::run, 64});
      check(of.backward, 64, batch({{rows}, {2}}, 0, false), 4e-2, {dtype::nf4, scaled_by::run, 64});
    }
  }
  rank = 8;
}
