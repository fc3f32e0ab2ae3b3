// SPDX-License-Identifier: Apache-2.0
// C++ leaves open which operand of an expression is evaluated first, and a graph must not depend on it: these tests
// write the same expressions with their leaves and sizes created in different orders.
#include <graft/graph/formula.h>
#include <graft/graph/print.h>

#include "../support/same_graph.h"
#include "../support/static_check.h"

using namespace graft;
using test::first_difference;

namespace {

template <class F> builder made(F f) {
  builder g;
  const scope p{&g};
  const ex W = p.leaf(op::base, "weight", 2, 1, 1, p.size("out"), p.size("in"));
  g.add_output(f(p, W).i, "weight");
  return canonical(g);
}

}  // namespace

TEST_CASE("order: the order in which leaves are created does not change the graph") {
  const builder a = made([](scope p, ex W) {
    const extent r = p.size("r");
    const ex A = p.param("A", r, W.cols());
    const ex B = p.param("B", W.rows(), r);
    const ex s = p.scalar("scaling");
    return W + s * (B * A);
  });
  const builder b = made([](scope p, ex W) {
    const ex s = p.scalar("scaling");
    const ex I = p.eye(W.cols());  // created and unused
    const ex B = p.param("B", W.rows(), p.size("r"));
    const extent unused = p.size("unused");
    const ex A = p.param("A", p.size("r"), I.cols());
    const ex product = (static_cast<void>(unused), B * A);
    const ex scaled = s * product;
    return W + scaled;
  });
  CHECK(first_difference(a, b, test::lines::may_differ) == "");
  CHECK(a.n.size() == 7);
  CHECK(a.size_list.size() == 3);  // out, in, r: unused sizes are dropped
  SAYS_NOW(expression(b, b.result("weight")), "weight + scaling * (B @ A)");
}

TEST_CASE("order: the comparison of the tests detects a difference") {
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

TEST_CASE("order: products and sums of sizes are the same in every order of creation") {
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

TEST_CASE("order: requirements are ordered by the nodes they are about") {
  auto made_in = [](bool inverse_first) {
    builder g;
    const scope p{&g};
    const ex a = p.param("a", p.size("n"), p.size("m")), b = p.param("b", p.size("k"), p.size("m"));
    const id left = inverse_first ? none_id : make_node::add(g, a.i, b.i, 20);
    const id right = make_node::inverse(g, b.i, 30);
    const id again = inverse_first ? make_node::add(g, a.i, b.i, 25) : make_node::add(g, a.i, b.i, 22);
    make_node::add(g, a.i, b.i, 20);
    static_cast<void>(left);
    g.add_output(make_node::matmul(g, again, right, false, false, 40), "y");
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

TEST_CASE("order: a nominal size that is stated several times") {
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
  CHECK(g.sizes().nominal(r.d) == 16);  // the default
  const extent named = p.size("tokens"), counted = p.tokens();
  CHECK(named.d == counted.d);
  CHECK(g.sizes().has_token_rows(named.d));
}

TEST_CASE("order: unused inputs remain, ordered by name") {
  auto made_in = [](bool x_first) {
    builder g;
    const scope p{&g};
    auto input = [&](const char* name) { return p.leaf(op::input, name, 2, 1, 1, p.tokens(), p.size("n")); };
    const ex first = input(x_first ? "x" : "dy"), second = input(x_first ? "dy" : "x");
    static_cast<void>(first), static_cast<void>(second);
    g.add_output(p.param("a", p.size("n")).i, "y");
    return canonical(g);
  };
  CHECK(first_difference(made_in(true), made_in(false)) == "");
  CHECK(made_in(true).n.size() == 3);
  CHECK(std::string(made_in(true).n[1].name) == "dy");
}
