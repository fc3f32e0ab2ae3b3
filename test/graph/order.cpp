// SPDX-License-Identifier: Apache-2.0
// C++ leaves open which operand of an expression is evaluated first. A graph must not show it: here the same expressions
// are stated with their leaves and sizes made in different orders.
#include <graft/graph/formula.h>
#include <graft/graph/print.h>

#include "../support/both.h"
#include "../support/same_graph.h"

using namespace graft;
using test::first_difference;

namespace {

template <class F> builder made(F f) {
  builder g;
  const scope p{&g};
  const ex W = p.leaf(op::base, "weight", 2, 1, 1, p.size("out"), p.size("in"));
  g.give(f(p, W).i, "weight");
  return canonical(g);
}

}  // namespace

TEST_CASE("order: leaves made first or last, left or right, are one graph") {
  const builder a = made([](scope p, ex W) {
    const extent r = p.size("r");
    const ex A = p.param("A", r, W.cols());
    const ex B = p.param("B", W.rows(), r);
    const ex s = p.scalar("scaling");
    return W + s * (B * A);
  });
  const builder b = made([](scope p, ex W) {
    const ex s = p.scalar("scaling");
    const ex I = p.eye(W.cols());  // made, and not used
    const ex B = p.param("B", W.rows(), p.size("r"));
    const extent unused = p.size("unused");
    const ex A = p.param("A", p.size("r"), I.cols());
    const ex product = (static_cast<void>(unused), B * A);
    const ex scaled = s * product;
    return W + scaled;
  });
  CHECK(first_difference(a, b, test::lines::may_differ) == "");
  CHECK(a.n.size() == 7);
  CHECK(a.size_list.size() == 3);  // out, in, r: what nobody needs is gone
  SAYS_NOW(expression(b, b.result("weight")), "weight + scaling * (B @ A)");
}

TEST_CASE("order: the comparison sees what differs") {
  auto sum = [](bool swapped) {
    return made([&](scope p, ex W) {
      const ex a = p.param("a", W.rows(), W.cols());
      return swapped ? a + W : W + a;
    });
  };
  CHECK(first_difference(sum(true), sum(false)) != "");
  CHECK(first_difference(sum(true), sum(true)) == "");
  auto sized = [](const char* name) {
    return made([&](scope p, ex W) { return W * p.param("a", W.cols(), p.size(name)); });
  };
  CHECK(first_difference(sized("r"), sized("s")) != "");
}

TEST_CASE("order: products and sums of sizes read the same whichever factor was made first") {
  auto shape = [](bool in_first, auto of) {
    builder g;
    const scope p{&g};
    extent in(1), b(1);
    if (in_first) in = p.size("in"), b = p.size("b");
    if (!in_first) b = p.size("b"), in = p.size("in");
    const ex A = p.param("A", of(in, b), of(b, in));
    text t;
    print_shape(t, g, A.i);
    return std::string(t.c_str());
  };
  auto product = [](extent a, extent b) { return a * b; };
  auto sum = [](extent a, extent b) { return a + b; };
  CHECK(shape(true, product) == "[b in, b in]");
  CHECK(shape(false, product) == "[b in, b in]");
  CHECK(shape(true, sum) == "[b + in, b + in]");
  CHECK(shape(false, sum) == "[b + in, b + in]");
  auto nested = [](extent a, extent b) { return (a * b) * extent(3) + a; };
  CHECK(shape(true, nested) == shape(false, nested));
}

TEST_CASE("order: requirements come in the order of what they are about, the first line of each") {
  auto made_in = [](bool inverse_first) {
    builder g;
    const scope p{&g};
    const ex a = p.param("a", p.size("n"), p.size("m")), b = p.param("b", p.size("k"), p.size("m"));
    const id left = inverse_first ? none_id : make::add(g, a.i, b.i, 20);
    const id right = make::inverse(g, b.i, 30);
    const id again = inverse_first ? make::add(g, a.i, b.i, 25) : make::add(g, a.i, b.i, 22);
    make::add(g, a.i, b.i, 20);
    static_cast<void>(left);
    g.give(make::matmul(g, again, right, false, false, 40), "y");
    return canonical(g);
  };
  CHECK(first_difference(made_in(true), made_in(false)) == "");
  const builder g = made_in(true);
  REQUIRE(g.need.size() == 3);
  CHECK(g.need[0].what == requirement::kind::square);  // about b, which the sum reads
  CHECK(g.need[1].what == requirement::kind::same);
  CHECK(g.need[1].line == 20);
  CHECK(g.need[2].what == requirement::kind::inner);
}

TEST_CASE("order: a nominal size that several places state") {
  auto nominal = [](bool stated_first) {
    builder g;
    const scope p{&g};
    const extent a = stated_first ? p.size("n", dyn, 4096) : p.size("n");
    const extent b = stated_first ? p.size("n") : p.size("n", dyn, 4096);
    CHECK(a.d == b.d);
    return g.sizes().nominal(a.d);
  };
  CHECK(nominal(true) == 4096);
  CHECK(nominal(false) == 4096);
  builder g;
  const scope p{&g};
  const extent r = p.size("r");
  CHECK(g.sizes().nominal(r.d) == 16);  // nobody said
  const extent named = p.size("tokens"), counted = p.tokens();
  CHECK(named.d == counted.d);
  CHECK(g.sizes().by_token(named.d));
}

TEST_CASE("order: inputs that nothing reads stay, by name") {
  auto made_in = [](bool x_first) {
    builder g;
    const scope p{&g};
    auto input = [&](const char* name) { return p.leaf(op::input, name, 2, 1, 1, p.tokens(), p.size("n")); };
    const ex first = input(x_first ? "x" : "dy"), second = input(x_first ? "dy" : "x");
    static_cast<void>(first), static_cast<void>(second);
    g.give(p.param("a", p.size("n")).i, "y");
    return canonical(g);
  };
  CHECK(first_difference(made_in(true), made_in(false)) == "");
  CHECK(made_in(true).n.size() == 3);
  CHECK(std::string(made_in(true).n[1].name) == "dy");
}
