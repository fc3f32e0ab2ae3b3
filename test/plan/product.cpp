// SPDX-License-Identifier: Apache-2.0
// Plans for a machine whose products have slots: what a product takes in, and what stays a launch of its own.
#include <graft/derive/keep.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "../support/all_layers.h"
#include "../support/both.h"
#include "../support/gpu_target.h"
#include "../support/launches.h"

using namespace test;

namespace {

// The one product of a plan; found is false where there is none, or more.
product_slots only_product(const graph& g, const target& to = gpu) {
  const plan p = fuse(g, to);
  return p.products.size() == 1 ? p.products[0] : product_slots{};
}
template <class Adapter, bias Bias = bias::no> struct of {
  using d = derived_of<linear<1024, 1024, bf16, Adapter, Bias>>;
  static const graph& forward() { return d::forward; }
  static product_slots slots() { return only_product(d::forward); }
  static text forward_launches() { return launches(d::forward, gpu); }
};

// A graph over activations, written down for a test.
template <class F> builder formula_of_x(F f) {
  builder g;
  const scope p{&g};
  const ex W = p.leaf(op::base, "weight", 2, 1, 1, p.size("n", dyn, 4096), p.size("n", dyn, 4096));
  const ex x = p.leaf(op::input, "x", 2, 1, 1, p.tokens(), W.cols());
  g.give(f(p, x, W).i, "y");
  return canonical(g);
}
template <class F> text on_gpu(F f) { return launches(formula_of_x(f), gpu); }
template <class F> text on_cpu(F f) { return launches(formula_of_x(f)); }
ex rms(scope p, ex x) { return {x.g, make::normalize(*x.g, x.i, p.scalar("eps").i, true)}; }

}  // namespace

// ---- the slots

TEST_CASE("product: a low-rank adapter is one side branch") {
  CHECK(of<none>::slots().found);
  CHECK(of<none>::slots().sides.empty());
  CHECK(of<none>::slots().posts.empty());
  const product_slots lora_slots = of<lora<16>>::slots(), hra_slots = of<hra<8>>::slots();
  REQUIRE(lora_slots.sides.size() == 1);
  CHECK(lora_slots.sides[0].rank == dim{16});
  CHECK(lora_slots.sides[0].a_by_rank);
  CHECK(lora_slots.sides[0].b_by_row);
  CHECK_FALSE(lora_slots.sides[0].minus);
  REQUIRE(hra_slots.sides.size() == 1);
  CHECK(hra_slots.sides[0].minus);
  CHECK_FALSE(hra_slots.sides[0].a_by_rank);  // U is stored [in, rank]
  CHECK(of<vera<256>>::slots().sides.size() == 1);
  CHECK(of<adalora<16>>::slots().sides.size() == 1);
}
TEST_CASE("product: what is applied to the whole of it, in its order") {
  REQUIRE(of<ia3>::slots().posts.size() == 1);
  CHECK(of<ia3>::slots().posts[0].what == op::mul);
  CHECK(of<dora<16>>::slots().sides.size() == 1);
  CHECK(of<dora<16>>::slots().posts.size() == 1);
  const product_slots with_bias = of<dora<16>, bias::yes>::slots();
  REQUIRE(with_bias.posts.size() == 2);
  CHECK(with_bias.posts[0].what == op::mul);
  CHECK(with_bias.posts[1].what == op::add);
}
TEST_CASE("product: the input may be computed, or folded") {
  CHECK(of<oft<32>>::forward()[of<oft<32>>::slots().x].what == op::rotate);
  REQUIRE(of<miss<16>>::slots().sides.size() == 1);
  CHECK(of<miss<16>>::slots().sides[0].a == none_id);
}
TEST_CASE("product: a factor of the input is the pre slot, where nothing else reads the input") {
  const product_slots s = of<ia3_feedforward>::slots();
  const graph& g = of<ia3_feedforward>::forward();
  CHECK(s.posts.empty());
  CHECK(g[s.pre].what == op::param);
  CHECK(g[s.x].what == op::input);
  CHECK(g[s.scaled].what == op::mul);
  CHECK(of<ia3>::slots().pre == none_id);
  CHECK(of<lora<16>>::slots().pre == none_id);
  CHECK(of<oft<32>>::slots().pre == none_id);
}

// ---- launches and slots of every adapter

TEST_CASE("product: the launches of every adapter on a linear layer") {
  struct expected {
    const char* name;
    const char* launches;
  };
  const char *const plain = "product: product=matmul",
                    *const side = "product: product=matmul side=matmul,matmul post=add",
                    *const rotated = "rotate: rotate | product: product=matmul",
                    *const kronecker =  // the branch comes first, and is then a residual of the base product
                    "product: matmul | product: matmul | product: product=matmul post=add";
  const expected all[] = {
      {"none", plain},
      {"lora", side},
      {"lora_with_bias", "product: product=matmul side=matmul,matmul post=add,add"},
      {"dora", "product: product=matmul side=matmul,matmul post=add,mul"},
      {"adalora", side},
      {"ia3", "product: product=matmul post=mul"},
      {"ia3_feedforward", "product: pre=mul product=matmul"},
      {"loha", side},
      {"lokr", kronecker},
      {"lokr_both_full", kronecker},
      {"lokr_first_low", kronecker},
      {"lokr_both_low", kronecker},
      {"vera", side},
      {"hra", "product: product=matmul side=matmul,matmul post=sub"},
      {"hra_gram_schmidt", "product: product=matmul side=matmul,matmul post=sub"},
      {"oft", rotated},
      {"oft_shared", rotated},
      {"oft_projected", rotated},
      {"oft_shared_projected", rotated},
      {"oft_neumann", rotated},
      {"oft_neumann_shared", rotated},
      {"oft_neumann_projected", rotated},
      {"oft_neumann_shared_projected", rotated},
      {"boft", "rotate: rotate | product: product=matmul post=mul"},
      {"miss", "product: product=matmul side=fold,matmul post=add"},
      {"miss_mini", "pointwise: fold | product: product=matmul | pointwise: repeat | product: product=matmul post=add"},
      {"miss_bat", plain},
      {"vblora", side},
      {"unilora", side},
      {"adamss", side},
      {"adamss_with_bias", "product: product=matmul side=matmul,matmul post=add,add"},
      {"pvera", side},
      {"tinylora", side},
      {"psoft*", side},
      {"c3a", plain},
      {"randlora*", plain},
      {"beft", "product: product=matmul post=add"},
      {"deft", side},
      {"deft_removal", "product: product=matmul side=matmul,matmul post=sub"},
      {"deft_qr", side},
      {"deft_qr_removal", "product: product=matmul side=matmul,matmul post=sub"},
      {"peanut*", side},
      {"shira", plain},
      {"supertuning", plain},
      {"supertuning_with_lora", side},
      {"fourierft", side},
      {"waveft", plain},
      {"frod*", plain},
      {"glora_weight", side},
      {"glora_numbers_weight", "pointwise: fold | product: product=matmul | product: product=matmul post=mul,add"},
      {"glora_numbers*",
       "pointwise: fold | product: product=matmul | product: product=matmul post=mul,add | pointwise: add"},
      {"glora_bias*", "product: product=matmul post=add"},
      {"glora*", "product: product=matmul side=matmul,matmul post=add,add"},
      {"osf",  // W is not read; each pair of factors is two products
       "product: product=matmul | product: product=matmul | product: product=matmul | product: product=matmul "
       "post=add"},
      {"delora", side},
      {"gralora", side},
      {"gralora_hybrid", side},
      {"road_1", "product: product=matmul | rotate: rotate"},
      {"road_2", "product: product=matmul | rotate: rotate"},
      {"road_4", "product: product=matmul | rotate: rotate"},
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
    const captured_graphs d =
        captured_at_run_time(layer_of<typename Layer::kind, typename Layer::adapter, Layer::has_bias>());
    SAYS_NOW(launches(d.forward, gpu), at->launches);
    // Folded into the weight every one of them is a plain product.
    CHECK(fuse(d.folded, gpu).launches.size() == 1);
    CHECK(only_product(d.folded).sides.empty());
    seen.insert(at);
  });
  CHECK(seen.size() == std::size(all));
}
TEST_CASE("product: look-ups and norms are launches of their own") {
  SAYS_NOW(
      launches(capture_forward(layer_of<embedding_kind, lora_embedding<16>, false>()), gpu),
      "lookup: gather | lookup: gather | product: product=matmul post=add");  // the second look-up is the x of a product
  SAYS_NOW(launches(capture_forward(layer_of<norm_kind<false>, ln_tuning, true>()), gpu),
           "rowwise: normalize | pointwise: mul | pointwise: add");
}

// ---- what else a product takes in

TEST_CASE("product: an activation and a residual go into the launch") {
  SAYS_NOW(on_gpu([](scope, ex x, ex W) { return silu(x * t(W)); }), "product: product=matmul post=silu");
  SAYS_NOW(on_gpu([](scope, ex x, ex W) { return x + x * t(W); }), "product: product=matmul post=add");
  SAYS_NOW(on_gpu([](scope p, ex x, ex W) { return gelu(x * t(W) + t(p.param("b", W.rows()))) + x; }),
           "product: product=matmul post=add,gelu,add");
  SAYS_NOW(on_gpu([](scope, ex x, ex W) { return exp(x * t(W)); }),  // not one of the activations of a kernel
           "product: product=matmul | pointwise: exp");
  const builder g = formula_of_x([](scope, ex x, ex W) { return relu(x * t(W)) + x; });
  const product_slots s = only_product(g);
  CHECK(s.act == op::relu);
  CHECK(s.residual == g.find("x"));
  CHECK(s.posts.empty());
  CHECK(only_product(formula_of_x([](scope, ex x, ex W) { return x * t(W); })).act == op::detach);
}

TEST_CASE("product: a norm before it is a launch of its own, and part of the one launch on the CPU") {
  auto normed = [](scope p, ex x, ex W) { return rms(p, x) * t(W); };
  SAYS_NOW(on_gpu(normed), "rowwise: normalize | product: product=matmul");
  SAYS_NOW(on_cpu(normed), "product: pre=normalize product=matmul");
  // with its weight, which is the pre slot of the product
  auto weighted = [](scope p, ex x, ex W) { return mul(rms(p, x), t(p.param("norm", W.cols()))) * t(W); };
  SAYS_NOW(on_gpu(weighted), "rowwise: normalize | product: pre=mul product=matmul");
  SAYS_NOW(on_cpu(weighted), "product: pre=normalize,mul product=matmul");
}

TEST_CASE("product: a value that is read twice is not swallowed") {
  SAYS_NOW(on_gpu([](scope, ex x, ex W) {
             const ex y = x * t(W);
             return mul(silu(y), y);
           }),
           "product: product=matmul | pointwise: silu | pointwise: mul");
  SAYS_NOW(on_gpu([](scope p, ex x, ex W) {  // the scaled input is x for two products
             const ex scaled = mul(x, t(p.param("l", W.cols())));
             return scaled * t(W) + scaled;
           }),
           "pointwise: mul | product: product=matmul post=add");
  SAYS_NOW(on_gpu([](scope p, ex x, ex W) {  // a side branch whose inner product somebody else reads
             const extent r = p.size("r");
             const ex low = x * t(p.param("A", r, W.cols()));
             return mul(x * t(W) + low * t(p.param("B", W.rows(), r)), low * t(p.param("C", W.rows(), r)));
           }),
           "product: product=matmul | product: product=matmul | product: product=matmul post=add | "
           "product: product=matmul | pointwise: mul");
}

TEST_CASE("product: a chain of two without anything beside it is two products") {
  SAYS_NOW(on_gpu([](scope p, ex x, ex W) {
             const extent r = p.size("r");
             return x * t(p.param("A", r, W.cols())) * t(p.param("B", W.rows(), r));
           }),
           "product: product=matmul | product: product=matmul");
}

TEST_CASE("product: a stored weight in the other orientation, where the machine reads it") {
  auto across = [](scope, ex x, ex W) { return x * W; };
  SAYS_NOW(launches(formula_of_x(across), gpu), "product: matmul");
  SAYS_NOW(launches(formula_of_x(across), either_way_gpu), "product: product=matmul");
  CHECK_FALSE(only_product(formula_of_x(across)).found);
  CHECK(only_product(formula_of_x(across), either_way_gpu).found);
  CHECK_FALSE(only_product(formula_of_x(across), either_way_gpu).weight_by_row);
  // what is computed is laid out as the kernel wants it
  auto computed = [](scope p, ex x, ex W) { return x * (W + p.param("D", W.rows(), W.cols())); };
  SAYS_NOW(launches(formula_of_x(computed), gpu), "product: product=matmul");
}

// ---- folding

TEST_CASE("product: a side branch of a larger rank than the machine takes in is folded") {
  using small = linear<4096, 4096, bf16, lora<64>>;
  using large = linear<4096, 4096, bf16, lora<128>>;
  BOTH((!plan_of<small, gpu>::folded));
  BOTH((plan_of<large, gpu>::folded));
  BOTH((!plan_of<large, cpu_target>::folded));  // a thirtieth of the work: a branch there
  BOTH((plan_of<small, gpu>::kernels == 1));
  BOTH((plan_of<large, gpu>::kernels == 1));
  BOTH((plan_of<large, gpu>::key != plan_of<small, gpu>::key));
  BOTH((plan_of<large, gpu>::key == plan_of<linear<4096, 4096, bf16, none>, gpu>::key));
  // A rotation into W, once for each change of the parameters, instead of over x in every call.
  BOTH((plan_of<linear<1024, 1024, bf16, oft<32>>, gpu>::kernels == 1));
  BOTH((plan_of<linear<1024, 1024, bf16, oft<32>>, gpu>::folded));
  BOTH((plan_of<linear<1024, 1024, bf16, boft<8, 2>>, gpu>::folded));
  // A branch that no product holds is launches beside it: one product with a copy of the weight instead.
  BOTH((plan_of<linear<1024, 1024, bf16, lokr<16>>, gpu>::folded));
  BOTH((plan_of<linear<1024, 1024, bf16, lokr<16>>, gpu>::kernels == 1));
  BOTH((plan_of<linear<1024, 1024, bf16, miss_mini<16, 16>>, gpu>::folded));
  BOTH((!plan_of<linear<1024, 1024, bf16, ia3_feedforward>, gpu>::folded));
  BOTH((!plan_of<embedding<1024, 1024, bf16, lora_embedding<16>>, gpu>::folded));  // a copy of the table is no product
}

namespace {
bool trains_in_copy(const layer_formula& f, long long tokens, long long in, long long r) {
  const kept_pair usual = keep(capture_forward(f), capture_backward(f)),
                  copy = keep(capture_forward_in_weight(f), capture_backward_in_weight(f));
  const graph g = usual.forward;
  size_values s;
  for (const auto& [name, value] : {std::pair{"out", 4096LL}, std::pair{"in", in}, std::pair{"r", r},
                                    std::pair{"tokens", tokens}, std::pair{"num_bases", 128LL}})
    if (const int e = g.sizes.find(name); e >= 0) s.v[e] = value;
  return trains_in_weight(either_way_gpu, {usual.forward, usual.backward}, {copy.forward, copy.backward}, s);
}
}  // namespace
TEST_CASE(
    "product: in training an adapter is in a copy of the weight where its branch is a launch, and rows are many") {
  const layer_formula vera_layer = layer_of<linear_kind, vera<>, false>();
  CHECK(trains_in_copy(vera_layer, 4096, 4096, 256));
  CHECK_FALSE(trains_in_copy(vera_layer, 4095, 4096, 256));
  CHECK_FALSE(trains_in_copy(vera_layer, 4096, 4096, 64));
  CHECK(trains_in_copy(layer_of<linear_kind, loha<>, false>(), 4096, 4096, 16));
  CHECK(trains_in_copy(layer_of<linear_kind, lora<>, false>(), 4096, 4096, 128));
  for (const long long tokens : {512LL, 4096LL, 16384LL})  // the weight is computed in either form
    CHECK(trains_in_copy(layer_of<linear_kind, randlora<>, false>(), tokens, 4096, 32));
  CHECK_FALSE(trains_in_copy(layer_of<linear_kind, hira<>, false>(), 4096, 4096, 32));
  CHECK_FALSE(trains_in_copy(layer_of<linear_kind, oft<>, false>(), 4096, 4096, 32));
  CHECK_FALSE(trains_in_copy(layer_of<linear_kind, dora<>, false>(), 4096, 4096, 128));
}
