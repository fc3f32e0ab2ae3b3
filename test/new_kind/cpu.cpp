// SPDX-License-Identifier: Apache-2.0
// A kind of launch is one header of the plan and one folder per backend: this program adds the kind multiply_add by
// exactly these, and plans, explains and runs a graph with it. CMakeLists.txt adds its line to the lists of kinds;
// every other header is the library's.
#include <doctest/doctest.h>
#include <graft/backend/cpu/ops/evaluate.h>
#include <graft/backend/cpu/runtime/program.h>
#include <graft/cpu.h>
#include <graft/plan/draw.h>
#include <graft/plan/explain.h>
#include <graft/plan/fuse_products.h>
#include <graft/plan/launch_cost.h>

#include <string>
#include <vector>

using namespace graft;

namespace {

// silu(x ⊙ y + z)
constexpr builder capture() {
  builder g;
  const scope p{&g};
  const auto leaf = [&](const char* name) {
    return p.leaf(op::input, name, 2, 1, 1, p.tokens(), p.size("n", dyn, 64));
  };
  const ex x = leaf("x"), y = leaf("y"), z = leaf("z");
  g.add_output(silu(mul(x, y) + z).i, "out");
  return g;
}
constexpr target with_kind(bool has_kernel) {
  target to{.name = "cpu with multiply-add", .granularity = target::work::by_products, .fuse_products = &fuse_products};
  to.can<multiply_add>().has_kernel = has_kernel;
  return to;
}
static_assert(fuse(capture(), with_kind(true)).all<multiply_add>().size() == 1);
static_assert(fuse(capture(), with_kind(true)).launches.size() == 2);
static_assert(fuse(capture(), with_kind(false)).launches.size() == 3);

}  // namespace

TEST_CASE("new kind: explain, drawings, kernel counts and costs know it") {
  const builder captured = capture();
  const graph g = captured;
  const launch_plan p = fuse(g, with_kind(true));
  size_values s = with_nominals(g, {});
  g.sizes.set_tokens(s, 16);
  CHECK(kernel_count(g, p, s, dtype::f32) == 2);
  CHECK(estimate_launch(g, p, 0, s, dtype::f32, 0).bytes == 4 * 4 * 16 * 64);
  std::string text;
  const auto line = [&](const graft::text& t) { text += std::string(t.c_str()) + '\n'; };
  explain_graph(g, p, "forward", 2, nullptr, line);
  draw(g, p, drawing::graphviz, line);
  INFO(text);
  CHECK(text.find("launch 0: multiply-add: mul, add") != std::string::npos);
  CHECK(text.find("label=\"launch 0: multiply-add\"") != std::string::npos);
}
TEST_CASE("new kind: the CPU runs it by its own kernel") {
  constexpr long long tokens = 5, n = 64;
  const builder captured = capture();
  const graph g = captured;
  std::vector<float> x(tokens * n), y(tokens * n), z(tokens * n);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = 0.01F * static_cast<float>(i), y[i] = 0.5F - 0.002F * static_cast<float>(i), z[i] = 0.25F;
  size_values s = with_nominals(g, {});
  g.sizes.set_tokens(s, tokens);
  const auto run = [&](bool has_kernel) {
    cpu::program<float> program(g, fuse(g, with_kind(has_kernel)));
    cpu::binding<float> bound;
    const cpu::operations<float> operations = cpu::every_operation<float>();
    program.bind(bound, s, leaf_views(g.size), tokens, operations.dequantize);
    std::vector<float> out(x.size());
    program_call c;
    c.sizes = s, c.data = leaf_views(g.size), c.outputs = sequence<mutable_view>(1);
    c.data[g.find("x")] = view_of(x.data(), tokens, n), c.data[g.find("y")] = view_of(y.data(), tokens, n);
    c.data[g.find("z")] = view_of(z.data(), tokens, n), c.outputs[0] = view_into(out.data(), tokens, n);
    program.run(bound, c, operations.evaluate);
    return out;
  };
  const std::vector<float> plain = run(false);
  CHECK(cpu::launch_on_cpu<multiply_add>::launches == 0);
  CHECK(run(true) == plain);
  CHECK(cpu::launch_on_cpu<multiply_add>::launches == 1);
}
