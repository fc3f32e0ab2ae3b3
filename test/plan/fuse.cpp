// SPDX-License-Identifier: Apache-2.0
#include "../support/all_layers.h"
#include "../support/formula_text.h"

using namespace test;

namespace {

// "gemm: pre=rotate product=matmul | reduce: …": what explain() says of the kernels, and nothing else.
constexpr text kernels(const graph& g) {
  const plan p = fuse(g);
  text t;
  for (int kernel = 0; kernel < p.kernels; ++kernel) {
    t << (kernel > 0 ? " | " : "") << name_of(p.what[kernel]) << ':';
    for (int s = 1; s <= static_cast<int>(slot::small); ++s) {
      bool first = true;
      for (int k = 0; k < g.size; ++k) {
        if (p.kernel_of[k] != kernel || p.place[k] != static_cast<slot>(s) || g.n[k].what == op::reshape) continue;
        t << (first ? " " : ",");
        if (first) t << name_of(static_cast<slot>(s)) << '=';
        t << row(g.n[k].what).name;
        first = false;
      }
    }
  }
  return t;
}
template <class Adapter, class Kind = linear_kind, bool Bias = false> constexpr text forward() {
  return kernels(derived<Kind, Adapter, Bias>::forward);
}
template <class Adapter, class Kind = linear_kind, bool Bias = false> constexpr text backward() {
  return kernels(derived<Kind, Adapter, Bias>::backward);
}

}  // namespace

TEST_CASE("fuse: the forward of every layer is one kernel") {
  for_all_layers([](const char* name, auto tag) {
    using layer = typename decltype(tag)::type;
    static_assert(fuse(derived_of<layer>::forward).kernels == 1);
    static_assert(fuse(derived_of<layer>::folded).kernels == 1);
    INFO(name);
    CHECK(fuse(derived_of<layer>::forward).kernels == 1);
    CHECK(fuse(derived_of<layer>::forward).breaks == 0);
  });
}

TEST_CASE("fuse: the slots of the forward kernels") {
  SAYS(forward<none>(), "gemm: product=matmul");
  SAYS((forward<none, linear_kind, true>()), "gemm: product=matmul post=add");
  SAYS(forward<lora<>>(), "gemm: product=matmul side=matmul,matmul post=add");
  SAYS((forward<lora<>, linear_kind, true>()), "gemm: product=matmul side=matmul,matmul post=add,add");
  SAYS((forward<dora<>, linear_kind, true>()), "gemm: product=matmul side=matmul,matmul post=add,mul,add");
  SAYS(forward<loha<>>(), "gemm: product=matmul side=matmul,matmul post=add");
  SAYS(forward<lokr<>>(), "gemm: product=matmul side=matmul,matmul,mul post=add");
  SAYS(forward<hra<>>(), "gemm: product=matmul side=matmul,matmul post=sub");
  SAYS(forward<oft<dyn>>(), "gemm: pre=rotate product=matmul");
  SAYS((forward<boft<dyn, dyn>, linear_kind, true>()), "gemm: pre=rotate product=matmul post=mul,add");
  SAYS((forward<ia3, linear_kind, true>()), "gemm: product=matmul post=mul,add");
  SAYS(forward<ia3_feedforward>(), "gemm: pre=mul product=matmul");
  SAYS(forward<miss<>>(), "gemm: product=matmul side=fold,matmul post=add");
  SAYS((forward<lora_embedding<>, embedding_kind>()), "lookup: product=gather side=gather,matmul post=add");
  SAYS((forward<lora<>, conv2d_kind>()), "gemm: pre=patches product=matmul side=matmul,matmul post=add,transpose");
  SAYS((forward<ln_tuning, norm_kind<false>, true>()), "rowwise: product=normalize post=mul,add");
}

TEST_CASE("fuse: the backward kernels") {
  SAYS(backward<none>(), "gemm: product=matmul");
  SAYS(backward<lora<>>(),
       "reduce: pre=matmul post=mul reduce=matmul | reduce: pre=matmul reduce=matmul | "
       "gemm: product=matmul side=matmul post=add");
  SAYS(backward<miss<>>(), "reduce: pre=fold reduce=matmul | gemm: product=matmul side=matmul,tile post=add");
  SAYS((backward<oft_neumann<dyn, dyn>>()),
       "gemm: product=matmul post=rotate | reduce: reduce=rotate_grad | small: post=unskew small=neumann_grad");
  SAYS((backward<ln_tuning, norm_kind<false>, true>()),
       "rowwise: product=normalize post=mul | reduce: reduce=sum_to | reduce: reduce=sum_to | "
       "rowwise: pre=mul product=normalize_grad");
}

TEST_CASE("fuse: every data-time value is in exactly one kernel, everything else in none") {
  for_all_layers([](const char* name, auto tag) {
    using d = derived_of<typename decltype(tag)::type>;
    for (const graph& g : {graph(d::forward), graph(d::folded), graph(d::backward)}) {
      const plan p = fuse(g);
      const node_set live = reachable(g);
      for (int i = 0; i < g.size; ++i) {
        const bool member = live.in[i] && p.when.of[i] == stage::data && !is_leaf(g.n[i].what);
        INFO(name, ", ", expression(g, static_cast<id>(i), {nullptr, 2}).c_str());
        CHECK((p.kernel_of[i] >= 0) == member);
        CHECK(p.kernel_of[i] < p.kernels);
        if (member && g.n[i].what != op::host) CHECK(p.place[i] != slot::none);
      }
    }
  });
}

TEST_CASE("fuse: a kernel's anchor is its product") {
  static constexpr plan p = fuse(derived<linear_kind, lora<>, false>::forward);
  static constexpr node anchor = derived<linear_kind, lora<>, false>::forward[p.anchor[0]];
  BOTH(anchor.what == op::matmul);
  BOTH(same_text((derived<linear_kind, lora<>, false>::forward[anchor.b].name), "weight"));
}

TEST_CASE("fuse: a host function is a break, and is found") {
  static constexpr graph g = derived<linear_kind, erased, false>::forward;
  static constexpr plan p = fuse(g);
  BOTH(p.breaks == 1);
  BOTH(g[p.first_break].what == op::host);
  BOTH((fuse(derived<linear_kind, lora<>, false>::forward).first_break == none_id));
}

namespace {

struct on_data {  // a host function between two products of a call
  static constexpr id put(builder& g, id a) {
    node v = g.shaped(op::host, a, a);
    v.name = "f";
    return g.emit(v);
  }
};

}  // namespace

TEST_CASE("fuse: a host function on data is a kernel of its own between two others") {
  static constexpr builder g = [] {
    builder b{};
    const scope p{&b};
    const ex w = linear_kind::weight(p), x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens", dyn, 4096), w.cols());
    const id y = make::matmul(b, x.i, w.i, false, true);
    b.give(make::unary(b, op::exp, on_data::put(b, y)), "y");
    return b;
  }();
  SAYS(kernels(g), "gemm: product=matmul | host: post=exp");
  BOTH(fuse(g).breaks == 1);
}

TEST_CASE("fuse: a graph without a weight is pointwise work") {
  static constexpr builder g = [] {
    builder b{};
    const scope p{&b};
    const ex x = p.leaf(op::input, "x", 2, 1, 1, p.size("tokens"), p.size("in"));
    b.give(exp(x + x).i, "y");
    return b;
  }();
  SAYS(kernels(g), "pointwise: side=add post=exp");
}
