// SPDX-License-Identifier: Apache-2.0
// Any block filled with random numbers, called on rows of two sequences: its graph lists the tensors it needs.
#pragma once
#include <doctest/doctest.h>
#include <graft/backend/cpu/runtime/engine_plan.h>
#include <graft/run/block.h>
#include <graft/run/synthetic_index.h>

#include <random>

namespace test {

using namespace graft;
using exact = cpu::engine<double>;

struct random_block {
  std::unique_ptr<block_programs<exact>> own;
  bound_block<exact> block;
  std::map<std::string, std::vector<double>> data;
  std::map<std::string, std::vector<std::int64_t>> indices;
  std::vector<std::int64_t> ids, positions, ranges, labels;
  std::vector<double> x, y, dy, dx;
  std::vector<std::int64_t> seed{42};
  long long rows, width_in = 0, width_out = 0;
  pass_kind goes = pass_kind::forward;

  random_block(block_spec what, long long tokens, block_programs<exact>* programs = nullptr, int layer = 0,
               long long rank = 3)
      : own(programs == nullptr ? std::make_unique<block_programs<exact>>() : nullptr),
        block(programs == nullptr ? *own : *programs, what, "layer " + std::to_string(layer)),
        rows(tokens) {
    std::mt19937 random(static_cast<unsigned>(17 + layer));
    std::uniform_real_distribution<double> uniform(-0.5, 0.5);
    auto fill = [&](std::vector<double>& v, long long n) {
      for (long long i = 0; i < n; ++i) v.push_back(uniform(random));
    };
    block.values.sizes = {{"hidden", 16},          {"heads", 4},
                          {"kv_heads", 2},         {"head_dim", 4},
                          {"intermediate", 24},    {"vocab", 13},
                          {"context", 40},         {"rotary_dim", 2},
                          {"experts", 5},          {"experts_per_token", 2},
                          {"moe_intermediate", 6}, {"shared_intermediate", 10}};
    block.values.scalars = {{"eps", 1e-5}};
    const builder g = capture_forward(what.formula, block_options_of(what, pass_kind::forward_saved));
    size_values s;
    auto size = [&](const char* name, long long n) {
      for (const size_entry& e : g.size_list)
        if (e.index >= 0 && same_text(e.name, name)) s.v[e.index] = n;
    };
    for (const auto& [name, n] : block.values.sizes) size(name.c_str(), n);
    size("r", rank), size("num_indices", 19), size("tokens", tokens);
    infer_adapter_sizes(g, block_options_of(what, pass_kind::forward_saved).adapters, s);
    for (const size_entry& e : g.size_list)  // sizes that an adapter's configuration states
      if (e.index >= 0 && s.v[e.index] == unknown)
        s.v[e.index] = block.values.sizes[g.paths().full(e.path, e.name).c_str()] = 4;
    for (id i = 0; i < g.n.size(); ++i) {
      const node& v = g.n[i];
      const std::string name = graph(g).name(i).c_str();
      if (v.what == op::scalar && name != "eps") block.values.scalars[name] = 0.7;
      if (v.what == op::index) {
        indices[name] = synthetic_index(g, i, s);
        block.values.tensors[name] = view_of(indices[name].data(), 2, 19);
      }
      if (traits_of(v.what).from != source::tensor || traits_of(v.what).known_at == stage::call) continue;
      fill(data[name], element_count(g, i, s));
      view t{data[name].data(), dtype::f64};
      const axis_range listed = listed_axes(v);
      for (int k = listed.first; k < listed.last; ++k) t.size[t.rank++] = graph(g).sizes.value(v.d[k], s);
      block.values.tensors[name] = t;
    }
    const long long half = tokens / 2;
    ranges.resize(static_cast<std::size_t>(3 * tokens));
    for (long long r = 0; r < tokens; ++r) {
      const long long first = r < half ? 0 : half;
      positions.push_back((r - first) % 40), ids.push_back(r * 7 % 13), labels.push_back(r == 1 ? -100 : r * 5 % 13);
      ranges[static_cast<std::size_t>(r)] = first, ranges[static_cast<std::size_t>(tokens + r)] = r + 1;
      ranges[static_cast<std::size_t>(2 * tokens + r)] = r;
    }
    width_in = 16, width_out = graph(g).sizes.value(g.n[g.result("y")].d[3], s);
    fill(x, tokens * width_in), fill(dy, tokens * width_out);
    y.resize(dy.size()), dx.resize(x.size());
  }
  block_call call() {
    block_call c;
    c[call_input::x] = block.spec().formula.takes_ids ? view_of(ids.data(), rows) : view_of(x.data(), rows, width_in);
    c[call_input::dy] = view_of(dy.data(), rows, width_out);
    c[call_input::positions] = view_of(positions.data(), rows), c[call_input::labels] = view_of(labels.data(), rows);
    c[call_input::attention_range] = view_of(ranges.data(), 3, rows), c[call_input::seed] = view_of(seed.data(), 1);
    c.y = view_into(y.data(), rows, width_out), c.dx = view_into(dx.data(), rows, width_in);
    return c;
  }
  void must(const status& s) {
    INFO(std::string(s.message()));
    REQUIRE(bool(s));
  }
  std::vector<double> forward() {
    if (block.program(goes) == nullptr) must(block.bind(goes, {rows}));
    must(block.run(goes, call()));
    return y;
  }
  // Computes the block as its formula is written: every W' built, one node after the other.
  std::vector<double> literal() {
    block_options options = block_options_of(block.spec(), goes);
    options.level = lowering::literal;
    const builder g = canonical(capture(block.spec().formula, options));
    result<bound_leaves> b = bind_named(g, block.values, options.adapters);
    must(b ? status(ok) : status(b.failure()));
    block_call c = call();
    for (std::size_t k = 0; k < call_inputs.size(); ++k)
      if (const id i = g.find(call_inputs[k]); i >= 0) {
        must(layer_state::bind_leaf(g, i, c.in[k], b->sizes));
        b->leaf[i] = c.in[k];
      }
    cpu::values<double> v =
        cpu::evaluate_all<double>(g, b->sizes, b->leaf, cpu::every_operation<double>(), cpu::rotations::dense);
    const cpu::tensor<double> t = v[g.result("y")];
    return {t.p, t.p + t.count()};
  }
  // Σ y dy changes with each number as the backward pass says; a sample of the numbers of each tensor is checked.
  void check_slopes() {
    for (const pass_kind w : {pass_kind::forward_saved, pass_kind::backward, pass_kind::backward_recompute})
      must(block.bind(w, {rows}));
    std::map<std::string, std::vector<double>> gradients;
    for (const std::string& name : block.parameters()) {
      std::vector<double>& d = gradients[name];
      d.resize(data.at(name).size());
      must(block.bind_gradient(name.c_str(), view_into(d.data(), static_cast<long long>(d.size()))));
    }
    must(block.run(pass_kind::backward_recompute, call()));
    const auto again = gradients;
    const std::vector<double> dx_again = dx;
    std::fill(y.begin(), y.end(), 0.0), std::fill(dx.begin(), dx.end(), 0.0);
    must(block.run(pass_kind::forward_saved, call()));
    must(block.run(pass_kind::backward, call()));
    auto close = [](const std::vector<double>& a, const std::vector<double>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-9).scale(1));
    };
    close(dx, dx_again);
    for (const auto& [name, d] : again) close(gradients.at(name), d);
    auto compare = [&](std::vector<double>& of, const std::vector<double>& d) {
      for (std::size_t i = 0; i < of.size(); i += 1 + of.size() / 6) {
        const double before = of[i], step = 1e-5;
        double slope = 0;
        for (const double sign : {1.0, -1.0}) {
          of[i] = before + sign * step;
          must(block.parameters_changed());
          const std::vector<double> moved = forward();
          for (std::size_t k = 0; k < moved.size(); ++k) slope += sign * moved[k] * dy[k] / (2 * step);
        }
        of[i] = before;
        CHECK(d[i] == doctest::Approx(slope).epsilon(1e-5).scale(1));
      }
      must(block.parameters_changed());
    };
    for (const auto& each : gradients) {
      const std::string& name = each.first;
      INFO(name);
      const std::string layer = name.substr(0, name.find(".lora_"));
      const bool constant_norm = data.contains(layer + ".lora_magnitude_vector") && !name.ends_with("_vector");
      if (!constant_norm) compare(data.at(name), each.second);  // DoRA's norm is a constant of the backward pass
    }
    if (!block.spec().formula.takes_ids) compare(x, std::vector<double>(dx));
  }
};

}  // namespace test
