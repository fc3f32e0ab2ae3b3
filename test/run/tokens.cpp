// SPDX-License-Identifier: Apache-2.0
// Numbers of tokens: several chunks and threads, one token, none, and rows that must not affect each other.
#include <doctest/doctest.h>

#include <span>

#include "../support/random_layer.h"

using namespace test;

namespace {

sizes with_tokens(long long n) {
  sizes s = usual_sizes();
  s["tokens"] = n;
  return s;
}
template <class Real> struct results {
  std::vector<Real> y;
  std::map<std::string, std::vector<Real>> gradients;
};
template <class Real>
results<Real> all_of(const random_layer<Real>& l, execution_mode run_mode, const std::string& kind) {
  cpu::executor<Real> e(l.graphs, run_mode);
  REQUIRE(bool(l.bind(e)));
  results<Real> r;
  r.y = l.buffer_for("y", l.graphs.literal);
  const status f = e.forward(l.x(), into(r.y));
  INFO(std::string(f.message()));
  REQUIRE(bool(f));
  if (l.graphs.backward.outs == 0) return r;
  std::vector<gradient> wanted;
  for (const std::string& p : l.parameters()) {
    r.gradients[p] = l.buffer_for(p.c_str(), l.graphs.backward);
    wanted.push_back({p, into(r.gradients[p])});
  }
  mutable_view dx{};
  if (kind != "embedding") {
    r.gradients["dx"] = l.buffer_for("dx", l.graphs.backward);
    dx = into(r.gradients["dx"]);
  }
  const status b = e.backward(l.x(), l.dy(), dx, wanted);
  INFO(std::string(b.message()));
  REQUIRE(bool(b));
  return r;
}

}  // namespace

TEST_CASE("tokens: around the limits of chunks and threads, fused equals eager") {
  for (const long long n : {1LL, 63LL, 64LL, 65LL, 255LL, 256LL, 257LL, 600LL, 1000LL})
    for (const layer_variant& c : every_layer_variant()) {
      if (n < 600 && c.bias) continue;
      const random_layer<float> l(c.graphs, with_tokens(n));
      INFO(c.name, ", ", n, " tokens");
      const results<float> fused = all_of(l, execution_mode::fused, c.kind),
                           eager = all_of(l, execution_mode::eager, c.kind);
      CHECK(difference(fused.y, eager.y) < 2e-5);
      for (const auto& [name, g] : fused.gradients) {
        const std::string of = name;
        INFO("gradient of ", of);
        CHECK(difference(g, eager.gradients.at(of)) < 2e-4);  // sums of up to a thousand floats in another order
      }
    }
}

TEST_CASE("tokens: a call on a subset of the rows gives those rows") {
  constexpr long long given = 300, taken = 11;
  // The first rows of each of `groups` tables: those of a layer on experts have a table for each expert.
  const auto first_rows = [](std::span<const float> from, long long groups) {
    const std::size_t each = from.size() / static_cast<std::size_t>(groups), n = each / given * taken;
    std::vector<float> rows;
    for (std::size_t at = 0; at < from.size(); at += each)
      rows.insert(rows.end(), from.begin() + static_cast<std::ptrdiff_t>(at),
                  from.begin() + static_cast<std::ptrdiff_t>(at + n));
    return rows;
  };
  for (const layer_variant& c : every_layer_variant()) {
    const random_layer<float> l(c.graphs, with_tokens(given));
    INFO(c.name);
    cpu::executor<float> e(c.graphs);
    REQUIRE(bool(l.bind(e)));
    std::vector<float> all = l.buffer_for("y", c.graphs.literal), rows;
    REQUIRE(bool(e.forward(l.x(), into(all))));
    view some = l.x();
    const long long groups = c.kind == "experts" ? some.size[0] : 1;
    if (groups > 1) {
      rows = first_rows({static_cast<const float*>(some.data), static_cast<std::size_t>(some.count())}, groups);
      some = view_of(rows.data(), groups, taken, some.size[2]);
    } else {
      some.size[0] = taken;
    }
    std::vector<float> part(all.size() / given * taken);
    REQUIRE(bool(e.forward(some, into(part))));
    CHECK(difference(part, first_rows(all, groups)) < 2e-5);
  }
}

TEST_CASE("tokens: zero tokens give no outputs and gradients of zero") {
  for (const layer_variant& c : every_layer_variant())
    for (const execution_mode run_mode : {execution_mode::fused, execution_mode::eager}) {
      random_layer<float> l(c.graphs, with_tokens(0));
      // An empty tensor still needs a non-null address.
      static const float nowhere[1]{};
      static const std::int64_t no_ids[1]{};
      l.views["x"].data = c.kind == "embedding" ? static_cast<const void*>(no_ids) : nowhere;
      if (l.views.contains("dy")) l.views["dy"].data = nowhere;
      INFO(c.name, run_mode == execution_mode::fused ? ", fused" : ", eager");
      cpu::executor<float> e(c.graphs, run_mode);
      REQUIRE(bool(l.bind(e)));
      float y[1] = {7};
      const status f = e.forward(l.x(), view_into(y, 0));
      INFO(std::string(f.message()));
      CHECK(bool(f));
      CHECK(y[0] == 7);
      if (c.graphs.backward.outs == 0) continue;
      for (const std::string& p : l.parameters()) {
        std::vector<float> d = l.buffer_for(p.c_str(), c.graphs.backward);
        REQUIRE(bool(e.backward(l.x(), l.dy(), {}, {{p, into(d)}})));
        CHECK(difference(d, std::vector<float>(d.size(), 0.0F)) == 0);
      }
    }
}

TEST_CASE("tokens: a row with NaN changes no other row") {
  for (const layer_variant& c : every_layer_variant()) {
    if (c.kind == "embedding") continue;
    random_layer<float> l(c.graphs, with_tokens(70));
    INFO(c.name);
    cpu::executor<float> e(c.graphs);
    REQUIRE(bool(l.bind(e)));
    std::vector<float> clean = l.buffer_for("y", c.graphs.literal), y = clean;
    REQUIRE(bool(e.forward(l.x(), into(clean))));
    const std::size_t in_row = l.data.at("x").size() / 70, out_row = y.size() / 70;
    l.data.at("x")[33 * in_row + 1] = NAN;
    REQUIRE(bool(e.forward(l.x(), into(y))));
    bool spoiled = false, others = true;
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (i / out_row == 33)
        spoiled = spoiled || std::isnan(y[i]);
      else
        others = others && y[i] == clean[i];
    }
    CHECK(spoiled);
    CHECK(others);
  }
}
