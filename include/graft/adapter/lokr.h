// SPDX-License-Identifier: Apache-2.0
// LoKr: a Kronecker product as the update (Edalati et al. 2022, arXiv 2212.10650; LyCORIS, arXiv 2309.14859).
//     W' = W + s (w1 ⊗ w2)            w1 [a, c], w2 [b, d] with out = a b, in = c d
// Either factor may itself be a product of rank r. derive/apply.h uses (w1 ⊗ w2) x = vec(w1 X w2ᵀ): ΔW is never built.
#pragma once
#include <graft/adapter/adapter.h>

namespace graft {

// Divides a size into factors (m, n) as PEFT does: (f, size / f), unsorted, where f divides it; else the pair of
// divisors nearest to the square root whose smaller one does not exceed f (-1: no limit).
struct kronecker_factors {
  long long m, n;
};
constexpr kronecker_factors factorize(long long size, long long f) {
  if (f > 0 && size % f == 0) return {f, size / f};
  const long long limit = f < 0 ? size : f;
  kronecker_factors best{1, size};
  while (best.m < best.n) {
    long long next = best.m + 1;
    while (size % next != 0) ++next;
    if (next > limit || next + size / next > best.m + best.n) break;
    best = {next, size / next};
  }
  return best.m > best.n ? kronecker_factors{best.n, best.m} : best;
}

enum class lokr_form : unsigned char { full, low_rank };

template <int Rank = dyn, int Factor = -1, lokr_form First = lokr_form::full, lokr_form Second = lokr_form::low_rank>
struct lokr {
  static constexpr bool low1 = First == lokr_form::low_rank, low2 = Second == lokr_form::low_rank;
  static constexpr const char *name = "LoKr", *kinds = "linear";
  static constexpr const char* method =
      low1 ? (low2 ? "lokr_both_low" : "lokr_first_low") : (low2 ? "lokr" : "lokr_both_full");
  using sample = lokr<16, Factor, First, Second>;
  static constexpr ex weight(scope p, ex W) {
    auto a = p.size("a"), c = p.size("c"), b = W.rows() / a, d = W.cols() / c;
    auto low = [&](const char* left, extent rows, const char* right, extent cols) {
      auto r = p.size("r", Rank);
      return p.param(left, rows, r) * p.param(right, r, cols);
    };
    auto w1 = !low1 ? p.param("lokr_w1", a, c) : low("lokr_w1_a", a, "lokr_w1_b", c);
    auto w2 = !low2 ? p.param("lokr_w2", b, d) : low("lokr_w2_a", b, "lokr_w2_b", d);
    return W + p.scalar("scaling") * kron(w1, w2);
  }
  static constexpr long long size(const char* what, long long out, long long in) {
    if (same_text(what, "a")) return factorize(out, Factor).m;
    return same_text(what, "c") ? factorize(in, Factor).m : unknown;
  }
};

using lokr_forms = adapter_list<lokr<>, lokr<dyn, -1, lokr_form::full, lokr_form::full>,
                                lokr<dyn, -1, lokr_form::low_rank, lokr_form::full>,
                                lokr<dyn, -1, lokr_form::low_rank, lokr_form::low_rank>>;

}  // namespace graft
