// SPDX-License-Identifier: Apache-2.0
// Plans for a target whose GEMMs have slots: what a GEMM includes, and what remains a launch.
#include <graft/derive/saved_tensors.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "../support/all_layers.h"
#include "../support/gpu_target.h"
#include "../support/launches.h"
#include "../support/static_check.h"

using namespace test;

namespace {

// The only GEMM of a plan; found is false if there is none, or more than one.
gemm_slots only_product(const graph& g, const target& to = gpu_target) {
  const launch_plan p = fuse(g, to);
  return p.products.size() == 1 ? p.products[0] : gemm_slots{};
}
template <class Adapter, bias Bias = bias::no> struct of {
  using d = derived_of<linear<1024, 1024, bf16, Adapter, Bias>>;
  static const graph& forward() { return d::forward; }
  static gemm_slots slots() { return only_product(d::forward); }
  static text forward_launches() { return launches(d::forward, gpu_target); }
};

// Captures a graph over activations that a test writes as a lambda.
template <class F> builder formula_of_x(F f) {
  builder g;
  const scope p{&g};
  const ex W = p.leaf(op::base, "weight", 2, 1, 1, p.size("n", dyn, 4096), p.size("n", dyn, 4096));
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), W.cols());
  g.add_output(f(p, x, W).i, "y");
  return canonical(g);
}
template <class F> text on_gpu(F f) { return launches(formula_of_x(f), gpu_target); }
template <class F> text on_cpu(F f) { return launches(formula_of_x(f)); }
ex rms(scope p, ex x) { return {x.g, make_node::normalize(*x.g, x.i, p.scalar("eps").i, true)}; }

}  // namespace

// ---- the slots

TEST_CASE("GEMM: a low-rank adapter is one low-rank branch") {
  CHECK(of<none>::slots().found);
  CHECK(of<none>::slots().branches.empty());
  CHECK(of<none>::slots().epilogue_steps.empty());
  const gemm_slots lora_slots = of<lora<16>>::slots(), hra_slots = of<hra<8>>::slots();
  REQUIRE(lora_slots.branches.size() == 1);
  CHECK(lora_slots.branches[0].rank == dim{16});
  CHECK(lora_slots.branches[0].a_rank_major);
  CHECK(lora_slots.branches[0].b_out_major);
  CHECK_FALSE(lora_slots.branches[0].minus);
  REQUIRE(hra_slots.branches.size() == 1);
  CHECK(hra_slots.branches[0].minus);
  CHECK_FALSE(hra_slots.branches[0].a_rank_major);  // U is stored [in, rank]
  CHECK(of<vera<256>>::slots().branches.size() == 1);
  CHECK(of<adalora<16>>::slots().branches.size() == 1);
}
TEST_CASE("GEMM: the epilogue has its operations in order") {
  REQUIRE(of<ia3>::slots().epilogue_steps.size() == 1);
  CHECK(of<ia3>::slots().epilogue_steps[0].what == op::mul);
  CHECK(of<dora<16>>::slots().branches.size() == 1);
  CHECK(of<dora<16>>::slots().epilogue_steps.size() == 1);
  const gemm_slots with_bias = of<dora<16>, bias::yes>::slots();
  REQUIRE(with_bias.epilogue_steps.size() == 2);
  CHECK(with_bias.epilogue_steps[0].what == op::mul);
  CHECK(with_bias.epilogue_steps[1].what == op::add);
}
TEST_CASE("GEMM: the input may be a computed value, and a branch may fold it") {
  CHECK(of<oft<32>>::forward()[of<oft<32>>::slots().x].what == op::rotate);
  REQUIRE(of<miss<16>>::slots().branches.size() == 1);
  CHECK(of<miss<16>>::slots().branches[0].a == none_id);
}
TEST_CASE("GEMM: a factor of the input is the prologue, if nothing else reads the scaled input") {
  const gemm_slots s = of<ia3_feedforward>::slots();
  const graph& g = of<ia3_feedforward>::forward();
  CHECK(s.epilogue_steps.empty());
  CHECK(g[s.prologue].what == op::param);
  CHECK(g[s.x].what == op::input);
  CHECK(g[s.scaled].what == op::mul);
  CHECK(of<ia3>::slots().prologue == none_id);
  CHECK(of<lora<16>>::slots().prologue == none_id);
  CHECK(of<oft<32>>::slots().prologue == none_id);
}

// ---- launches and slots of every adapter

TEST_CASE("GEMM: the launches of every adapter on a linear layer") {
  struct expected {
    const char* name;
    const char* launches;
  };
  const char *const plain = "GEMM", *const side = "GEMM, low-rank branch, epilogue add",
                    *const rotated = "rotation, rotate | GEMM",
                    *const kronecker =  // the branch comes first, and is then a residual of the base product
                    "GEMM, matmul | GEMM, matmul | GEMM, epilogue add";
  const expected all[] = {
      {"none", plain},
      {"lora", side},
      {"lora_with_bias", "GEMM, low-rank branch, epilogue add+add"},
      {"dora", "GEMM, low-rank branch, epilogue add+mul"},
      {"residual_lora", "GEMM, low-rank branch, epilogue sub+add"},
      {"residual_dora", "GEMM, low-rank branch, epilogue sub+add+mul"},
      {"adalora", side},
      {"ia3", "GEMM, epilogue mul"},
      {"ia3_feedforward", "GEMM, prologue mul"},
      {"loha", side},
      {"lokr", kronecker},
      {"lokr_both_full", kronecker},
      {"lokr_first_low", kronecker},
      {"lokr_both_low", kronecker},
      {"vera", side},
      {"hra", "GEMM, low-rank branch, epilogue sub"},
      {"hra_gram_schmidt", "GEMM, low-rank branch, epilogue sub"},
      {"oft", rotated},
      {"oft_shared", rotated},
      {"oft_projected", rotated},
      {"oft_shared_projected", rotated},
      {"oft_neumann", rotated},
      {"oft_neumann_shared", rotated},
      {"oft_neumann_projected", rotated},
      {"oft_neumann_shared_projected", rotated},
      {"boft", "rotation, rotate | GEMM, epilogue mul"},
      {"miss", "GEMM, low-rank branch+fold_columns, epilogue add"},
      {"miss_mini", "elementwise, fold_columns | GEMM | elementwise, repeat | GEMM, epilogue add"},
      {"miss_bat", plain},
      {"vblora", side},
      {"unilora", side},
      {"adamss", side},
      {"adamss_with_bias", "GEMM, low-rank branch, epilogue add+add"},
      {"pvera", side},
      {"tinylora", side},
      {"psoft*", side},
      {"c3a", plain},
      {"randlora*", plain},
      {"beft", "GEMM, epilogue add"},
      {"deft", side},
      {"deft_removal", "GEMM, low-rank branch, epilogue sub"},
      {"deft_qr", side},
      {"deft_qr_removal", "GEMM, low-rank branch, epilogue sub"},
      {"peanut*", side},
      {"shira", plain},
      {"supertuning", plain},
      {"supertuning_with_lora", side},
      {"fourierft", side},
      {"waveft", plain},
      {"frod*", plain},
      {"glora_weight", side},
      {"glora_numbers_weight", "elementwise, fold_columns | GEMM | GEMM, epilogue mul+add"},
      {"glora_numbers*", "elementwise, fold_columns | GEMM | GEMM, epilogue mul+add | elementwise, add"},
      {"glora_bias*", "GEMM, epilogue add"},
      {"glora*", "GEMM, low-rank branch, epilogue add+add"},
      {"osf",  // W is not read; each pair of factors is two GEMMs
       "GEMM | GEMM | GEMM | GEMM, epilogue add"},
      {"delora", side},
      {"gralora", side},
      {"gralora_hybrid", side},
      {"road_1", "GEMM | rotation, rotate"},
      {"road_2", "GEMM | rotation, rotate"},
      {"road_4", "GEMM | rotation, rotate"},
      {"hira", plain},
      {"trainable_tokens", side},
  };
  const auto means = [](std::string_view entry, std::string_view name) {
    return entry.ends_with('*') ? name.starts_with(entry.substr(0, entry.size() - 1)) : name == entry;
  };
  std::set<const expected*> seen;
  for_matrix_adapters([&]<class Layer>(const char* name, layer_tag<Layer>) {
    const auto* at =
        std::find_if(std::begin(all), std::end(all), [&](const expected& e) { return means(e.name, name); });
    INFO(std::string(name));
    REQUIRE(at != std::end(all));
    const captured_graphs d = captured_at_run_time(formula_at_run_time<Layer>());
    SAYS_NOW(launches(d.forward, gpu_target), at->launches);
    // Folded into the weight, every adapter is a plain GEMM.
    CHECK(fuse(d.folded, gpu_target).launches.size() == 1);
    CHECK(only_product(d.folded).branches.empty());
    seen.insert(at);
  });
  CHECK(seen.size() == std::size(all));
}
TEST_CASE("GEMM: gathers and norms are separate launches") {
  SAYS_NOW(launches(capture_forward(layer_of<embedding_kind, lora_embedding<16>, false>()), gpu_target),
           "gather, gather | gather, gather | GEMM, epilogue add");  // the second gather is the x of a GEMM
  SAYS_NOW(launches(capture_forward(layer_of<norm_kind<false>, ln_tuning, true>()), gpu_target),
           "rowwise, normalize | elementwise, mul | elementwise, add");
}

// ---- epilogue and prologue beyond adapters

TEST_CASE("GEMM: an activation and a residual are part of the epilogue") {
  SAYS_NOW(on_gpu([](scope, ex x, ex W) { return silu(x * t(W)); }), "GEMM, epilogue silu");
  SAYS_NOW(on_gpu([](scope, ex x, ex W) { return x + x * t(W); }), "GEMM, epilogue add");
  SAYS_NOW(on_gpu([](scope p, ex x, ex W) { return gelu(x * t(W) + t(p.param("b", W.rows()))) + x; }),
           "GEMM, epilogue add+gelu+add");
  SAYS_NOW(on_gpu([](scope, ex x, ex W) { return exp(x * t(W)); }),  // no kernel has this activation
           "GEMM | elementwise, exp");
  const builder g = formula_of_x([](scope, ex x, ex W) { return relu(x * t(W)) + x; });
  const gemm_slots s = only_product(g);
  CHECK(s.act == op::relu);
  CHECK(s.residual == g.find("x"));
  CHECK(s.epilogue_steps.empty());
  CHECK(only_product(formula_of_x([](scope, ex x, ex W) { return x * t(W); })).act == op::detach);
}

TEST_CASE("GEMM: a norm of the input is a launch on the GPU, and part of the single launch on the CPU") {
  auto normed = [](scope p, ex x, ex W) { return rms(p, x) * t(W); };
  SAYS_NOW(on_gpu(normed), "rowwise, normalize | GEMM");
  SAYS_NOW(on_cpu(normed), "GEMM, prologue normalize");
  // The norm's weight is the prologue of the GEMM.
  auto weighted = [](scope p, ex x, ex W) { return mul(rms(p, x), t(p.param("norm", W.cols()))) * t(W); };
  SAYS_NOW(on_gpu(weighted), "rowwise, normalize | GEMM, prologue mul");
  SAYS_NOW(on_cpu(weighted), "GEMM, prologue normalize+mul");
}

TEST_CASE("GEMM: a value with two readers is stored") {
  SAYS_NOW(on_gpu([](scope, ex x, ex W) {
             const ex y = x * t(W);
             return mul(silu(y), y);
           }),
           "GEMM | elementwise, silu | elementwise, mul");
  SAYS_NOW(on_gpu([](scope p, ex x, ex W) {  // the scaled input has two readers
             const ex scaled = mul(x, t(p.param("l", W.cols())));
             return scaled * t(W) + scaled;
           }),
           "elementwise, mul | GEMM, epilogue add");
  SAYS_NOW(on_gpu([](scope p, ex x, ex W) {  // another GEMM reads the shrink result of the branch
             const extent r = p.size("r");
             const ex low = x * t(p.param("A", r, W.cols()));
             return mul(x * t(W) + low * t(p.param("B", W.rows(), r)), low * t(p.param("C", W.rows(), r)));
           }),
           "GEMM | GEMM | GEMM, epilogue add | "
           "GEMM | elementwise, mul");
}

TEST_CASE("GEMM: a low-rank chain without a base product is two GEMMs") {
  SAYS_NOW(on_gpu([](scope p, ex x, ex W) {
             const extent r = p.size("r");
             return x * t(p.param("A", r, W.cols())) * t(p.param("B", W.rows(), r));
           }),
           "GEMM | GEMM");
}

TEST_CASE("GEMM: a stored weight in NN layout, on targets that read it") {
  auto nn = [](scope, ex x, ex W) { return x * W; };
  SAYS_NOW(launches(formula_of_x(nn), gpu_target), "GEMM, matmul");
  SAYS_NOW(launches(formula_of_x(nn), gpu_target_nn), "GEMM");
  CHECK_FALSE(only_product(formula_of_x(nn)).found);
  CHECK(only_product(formula_of_x(nn), gpu_target_nn).found);
  CHECK_FALSE(only_product(formula_of_x(nn), gpu_target_nn).weight_is_nt);
  // A computed weight is laid out as the kernel needs it.
  auto computed = [](scope p, ex x, ex W) { return x * (W + p.param("D", W.rows(), W.cols())); };
  SAYS_NOW(launches(formula_of_x(computed), gpu_target), "GEMM");
}

// ---- folding

TEST_CASE("GEMM: a branch of a larger rank than the target supports is folded") {
  using small = linear<4096, 4096, bf16, lora<64>>;
  using large = linear<4096, 4096, bf16, lora<128>>;
  BOTH((!plan_of<small, gpu_target>::folded));
  BOTH((plan_of<large, gpu_target>::folded));
  BOTH((!plan_of<large, cpu_target>::folded));  // on the CPU the branch is a thirtieth of the work
  BOTH((plan_of<small, gpu_target>::kernels == 1));
  BOTH((plan_of<large, gpu_target>::kernels == 1));
  BOTH((plan_of<large, gpu_target>::key != plan_of<small, gpu_target>::key));
  BOTH((plan_of<large, gpu_target>::key == plan_of<linear<4096, 4096, bf16, none>, gpu_target>::key));
  // Folding rotates W once per parameter change instead of x in every call.
  BOTH((plan_of<linear<1024, 1024, bf16, oft<32>>, gpu_target>::kernels == 1));
  BOTH((plan_of<linear<1024, 1024, bf16, oft<32>>, gpu_target>::folded));
  BOTH((plan_of<linear<1024, 1024, bf16, boft<8, 2>>, gpu_target>::folded));
  // A branch that no GEMM can hold would be separate launches: the copy of the weight needs one GEMM.
  BOTH((plan_of<linear<1024, 1024, bf16, lokr<16>>, gpu_target>::folded));
  BOTH((plan_of<linear<1024, 1024, bf16, lokr<16>>, gpu_target>::kernels == 1));
  BOTH((plan_of<linear<1024, 1024, bf16, miss_mini<16, 16>>, gpu_target>::folded));
  BOTH((!plan_of<linear<1024, 1024, bf16, ia3_feedforward>, gpu_target>::folded));
  BOTH((!plan_of<embedding<1024, 1024, bf16, lora_embedding<16>>,
                 gpu_target>::folded));  // folding saves nothing, because a gather is no GEMM
}

namespace {
bool trains_in_copy(const layer_formula& f, long long tokens, long long in, long long r) {
  const saved_pair usual = select_saved_tensors(capture_forward(f), capture_backward(f)),
                   copy = select_saved_tensors(capture_forward_folded(f), capture_backward_folded(f));
  const graph g = usual.forward;
  size_values s;
  for (const auto& [name, value] : {std::pair{"out", 4096LL}, std::pair{"in", in}, std::pair{"r", r},
                                    std::pair{"tokens", tokens}, std::pair{"num_bases", 128LL}})
    if (const int e = g.sizes.find(name); e >= 0) s.v[e] = value;
  return trains_folded(gpu_target_nn, {usual.forward, usual.backward}, {copy.forward, copy.backward}, s);
}
}  // namespace
TEST_CASE("GEMM: training folds the adapter if its branch is a launch and there are many rows") {
  const layer_formula vera_layer = layer_of<linear_kind, vera<>, false>();
  CHECK(trains_in_copy(vera_layer, 4096, 4096, 256));
  CHECK_FALSE(trains_in_copy(vera_layer, 4095, 4096, 256));
  CHECK_FALSE(trains_in_copy(vera_layer, 4096, 4096, 64));
  CHECK(trains_in_copy(layer_of<linear_kind, loha<>, false>(), 4096, 4096, 16));
  CHECK(trains_in_copy(layer_of<linear_kind, lora<>, false>(), 4096, 4096, 128));
  for (const long long tokens : {512LL, 4096LL, 16384LL})  // both forms compute the weight
    CHECK(trains_in_copy(layer_of<linear_kind, randlora<>, false>(), tokens, 4096, 32));
  CHECK_FALSE(trains_in_copy(layer_of<linear_kind, hira<>, false>(), 4096, 4096, 32));
  CHECK_FALSE(trains_in_copy(layer_of<linear_kind, oft<>, false>(), 4096, 4096, 32));
  CHECK_FALSE(trains_in_copy(layer_of<linear_kind, dora<>, false>(), 4096, 4096, 128));
}
