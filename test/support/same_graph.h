// SPDX-License-Identifier: Apache-2.0
// Compares two graphs node by node: returns the first difference in words, or an empty string.
#pragma once
#include <graft/graph/print.h>

#include <string>

namespace test {

using namespace graft;

enum class lines : bool { must_agree, may_differ };

inline std::string first_difference(const graph& a, const graph& b, lines line_rule = lines::must_agree) {
  auto at = [](const char* what, int i) { return std::string(what) + " " + std::to_string(i); };
  auto agree = [&](int p, int q) { return line_rule == lines::may_differ || p == q; };
  if (a.size != b.size) return at("nodes:", a.size) + " and " + std::to_string(b.size);
  if (a.sizes.count != b.sizes.count) return at("sizes:", a.sizes.count) + " and " + std::to_string(b.sizes.count);
  if (a.paths().count != b.paths().count) return "number of paths";
  if (a.needs != b.needs) return at("requirements:", a.needs) + " and " + std::to_string(b.needs);
  if (a.outs != b.outs) return "number of outputs";
  for (int i = 0; i < a.size; ++i) {
    const node &p = a[i], &q = b[i];
    bool same = p.what == q.what && p.a == q.a && p.b == q.b && p.c == q.c && p.ta == q.ta && p.tb == q.tb &&
                p.sum == q.sum && p.orthogonal == q.orthogonal && p.rank == q.rank && p.value == q.value &&
                p.path == q.path && agree(p.line, q.line) && same_text(p.name, q.name) && same_shape(p, q);
    for (int k = 0; k < 4; ++k) same = same && p.k[k] == q.k[k];
    if (!same) return at("node", i) + ": " + expression(a, i).c_str() + " and " + expression(b, i).c_str();
  }
  for (int i = 0; i < a.sizes.count; ++i) {
    const size_entry &p = a.sizes.e[i], &q = b.sizes.e[i];
    if (p.what != q.what || p.a != q.a || p.b != q.b || p.c != q.c || p.d != q.d || p.path != q.path ||
        p.index != q.index || p.nominal != q.nominal || p.tokens != q.tokens || !same_text(p.name, q.name))
      return at("size", i);
  }
  for (int i = 0; i < a.paths().count; ++i)
    if (std::string(a.paths().full(i, "").c_str()) != b.paths().full(i, "").c_str()) return at("path", i);
  for (int i = 0; i < a.needs; ++i) {
    const requirement &p = a.need[i], &q = b.need[i];
    if (p.what != q.what || p.lhs != q.lhs || p.rhs != q.rhs || p.at != q.at || !agree(p.line, q.line))
      return at("requirement", i);
  }
  for (int k = 0; k < a.outs; ++k)
    if (a.out[k].at != b.out[k].at || std::string(a.output_name(k).c_str()) != b.output_name(k).c_str())
      return at("output", k);
  if (a.bad.what != b.bad.what || a.bad.at != b.bad.at || !agree(a.bad.line, b.bad.line)) return "failure";
  return "";
}

}  // namespace test
