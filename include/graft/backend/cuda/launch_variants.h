// SPDX-License-Identifier: Apache-2.0
// The ways to launch the same product or the same attention that may be timed against each other, for each family a
// list that is known while compiling. The first one is always what the rules of choose.h and attention_choice.h say;
// the others are what the rules say of fewer kernels. All of them compute the same; sums may be added in another order.
// Knows nothing of CUDA.
#pragma once
#include <graft/backend/cuda/attention_choice.h>
#include <graft/core/few_numbers.h>
#include <graft/core/sequence.h>

#include <string>
#include <utility>

namespace graft::cuda {

template <class Choice> struct named_way {
  const char* name;
  Choice how;
};
template <class Choice> using ways = sequence<named_way<Choice>>;

// What a rule is left with: a bit for each kernel, as in kernel_list.
struct product_variant {
  const char* name;
  kernel_list among;
  int group = 0;  // rows of tiles that are walked together; 0: as the rule says
};
namespace detail {
inline constexpr kernel_list all_of_them{~std::uint64_t{0}, ~std::uint32_t{0}};
constexpr kernel_list with_stream(int shape) {
  kernel_list l{0, ~std::uint32_t{0}};
  for (const int tokens : {8, 16, 64})
    for (const int rank : {0, 16, 32, 64}) l.add_stream(tokens, shape, rank);
  return l;
}
constexpr kernel_list with_tile(int tile_n) {
  constexpr std::uint32_t ten = (1U << gemm_variants) - 1;
  return {~std::uint64_t{0}, ~(tile_n == 128 ? ten << gemm_variants : ten)};
}
constexpr kernel_list after_a_shrink() {  // without those that make S on their way
  kernel_list l = all_of_them;
  for (const int tile : {128, 256})
    for (const int first : {0, first_across})
      for (const int rank : {16, 32, 64}) l.gemms &= ~(1U << kernel_list::gemm_bit(tile, first + rank_index(rank)));
  return l;
}
}  // namespace detail

inline constexpr product_variant product_variants[] = {
    {"rule", detail::all_of_them},
    {"stream shape 0", detail::with_stream(0)},
    {"stream shape 1", detail::with_stream(1)},
    {"stream shape 2", detail::with_stream(2)},
    {"stream shape 3", detail::with_stream(3)},
    {"tiles", {0, ~std::uint32_t{0}}},
    {"tiles of 128", detail::with_tile(128)},
    {"tiles of 256", detail::with_tile(256)},
    {"tiles of 256 by 4", detail::with_tile(256), 4},
    {"tiles of 256 by 16", detail::with_tile(256), 16},
    {"tiles after a shrink", detail::after_a_shrink()},
};

constexpr kernel_list only(const kernel_list& have, const kernel_list& among) {
  return {have.streams & among.streams, have.gemms & among.gemms};
}
template <class Choice> void add_way(ways<Choice>& to, const char* name, const Choice& how) {
  for (const named_way<Choice>& known : to)
    if (known.how == how) return;
  to.push({name, how});
}

// Sums that the rule lets run beside the product do so in all of them: what does not is another launch.
inline ways<linear_choice> ways_of(const product_shape& p, const target& device, const kernel_list& have) {
  const linear_choice rule = choose(p, device, have);
  ways<linear_choice> all;
  const int m_pairs = static_cast<int>((p.m + 255) / 256);
  for (const product_variant& v : product_variants) {
    linear_choice c = choose(p, device, only(have, v.among));
    const bool tiled = c.how == way::gemm || c.how == way::gemm_two;
    if ((c.how != way::stream && !tiled && c.how != rule.how) || c.beside != rule.beside) continue;
    if (v.group > 0) {
      if (!tiled || smaller_of(v.group, m_pairs) == smaller_of(c.group, m_pairs)) continue;
      if (c.owners > 0 && !owners_are_resident(c.owners, v.group, m_pairs, c.pairs)) continue;
      c.group = v.group;
    }
    add_way(all, v.name, c);
  }
  return all;
}
inline ways<stream_choice> ways_together(const product_shape* shapes, int count, const target& device,
                                         const kernel_list& have) {
  ways<stream_choice> all;
  for (const product_variant& v : product_variants)
    if (const stream_choice c = choose_together(shapes, count, device, only(have, v.among)); c.rows > 0)
      add_way(all, v.name, c);
  return all;
}
// Of a token step; prefill has no other way.
inline ways<attention_choice> ways_of(const attention_size& p, const target& device) {
  struct variant {
    const char* name;
    int parts;
    bool long_ring;
  };
  constexpr variant variants[] = {{"1 part", 1, false},
                                  {"2 parts", 2, false},
                                  {"4 parts", 4, false},
                                  {"8 parts", 8, false},
                                  {"1 part, long ring", 1, true},
                                  {"2 parts, long ring", 2, true},
                                  {"4 parts, long ring", 4, true},
                                  {"8 parts, long ring", 8, true}};
  ways<attention_choice> all;
  attention_choice c = choose_attention(p, device);
  add_way(all, "rule", c);
  for (const variant& v : variants) {
    if (c.how != attention_way::decode || c.mma) break;
    c.parts = v.parts, c.long_ring = v.long_ring, c.small = false, c.spread = 0;
    add_way(all, v.name, c);
  }
  if (c.how == attention_way::decode && !c.mma && p.head <= spread_head)
    add_way(all, "equal pieces", choose_spread(p, device));
  return all;
}

// Calls of one class take the same way: few tokens are those of a kernel, many are rows of tiles to three digits.
constexpr long long size_class(long long m) {
  if (m <= max_stream_tokens) return padded_tokens(m);
  long long pairs = (m + 255) / 256, step = 1;
  while (pairs / step >= 8) step *= 2;
  return (pairs + step - 1) / step * step * 256;
}
// What is launched, as a file of choices names it.
inline std::string name_of(const product_shape& p) {
  std::string s = std::string(graft::name_of(p.type)) + " " + std::to_string(p.n) + "x" + std::to_string(p.k) + " r" +
                  std::to_string(p.rank);
  for (const auto& [is, word] :
       {std::pair{p.pre, " pre"}, std::pair{p.posts, " post"}, std::pair{!p.plain, " act"},
        std::pair{p.across, " across"}, std::pair{p.keeps, " keeps"}, std::pair{p.given_side, " given"}})
    if (is) s += word;
  for (const beside_shape& b : p.beside)
    if (b.columns > 0) s += " beside " + std::to_string(b.columns) + (b.waits ? "w" : "");
  return s;
}
inline std::string name_of(const attention_size& p) {
  return std::string(graft::name_of(p.type)) + " " + std::to_string(p.heads) + "/" + std::to_string(p.groups) + " of " +
         std::to_string(p.head) + ", " + std::to_string(p.rows) + " rows";
}

}  // namespace graft::cuda
