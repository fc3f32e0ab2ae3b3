// SPDX-License-Identifier: Apache-2.0
// What must be true of every tensor that a caller hands over, whatever it is for: up to four axes, sizes that are not
// negative, and no more bytes than memory can have. And whether two tensors share memory, exactly for tensors in one piece
// and for parts of the same rows; what cannot be told is taken for sharing.
#pragma once
#include <graft/core/encoding.h>
#include <graft/core/result.h>
#include <graft/core/saturate.h>
#include <graft/core/view.h>

#include <cstdint>

namespace graft {

inline constexpr long long largest_bytes = 1LL << 48;  // what processors can address

// Elements before and behind the first one that a tensor reaches, or more than memory can have.
struct element_range {
  long long before = 0, behind = 0;
};
[[gnu::noinline]] constexpr element_range range_of(const view& v) {
  element_range r;
  for (int k = 0; k < v.rank; ++k) {
    if (v.size[k] < 1) return {};
    const long long stride = v.stride(k);
    long long& side = stride < 0 ? r.before : r.behind;
    side = plus(side, times(v.size[k] - 1, stride < 0 ? -stride : stride));
  }
  r.behind = plus(r.behind, 1);
  return r;
}
[[gnu::noinline]] constexpr bool is_sound(const view& v) {
  if (v.rank < 0 || v.rank > 4) return false;
  long long bytes = (bits_of(v.type) + 7) / 8;
  for (int k = 0; k < v.rank; ++k) {
    if (v.size[k] < 0 || v.apart[k] > largest_bytes || v.apart[k] < -largest_bytes) return false;
    bytes = times(bytes, v.size[k] > 0 ? v.size[k] : 1);  // a size of zero hides no overflow
  }
  if (bytes > largest_bytes) return false;
  const element_range r = range_of(v);
  return plus(r.before, r.behind) <= largest_bytes / 8;
}
// What is wrong with a tensor that is not sound: "tensor 'x' has 9 axes, expected at most 4".
[[gnu::cold, gnu::noinline]] constexpr error wrong_view(const char* what, const detail::sentence_part& name,
                                                        const view& v) {
  if (v.rank < 0 || v.rank > 4) return fail(what, "'", name, "' has ", v.rank, " axes, expected at most 4");
  for (int k = 0; k < v.rank; ++k)
    if (v.size[k] < 0)
      return fail(what, "'", name, "' has shape ", shape_of(v), ", expected sizes that are not negative");
  return fail(what, "'", name, "' has shape ", shape_of(v), ", more than any memory holds");
}

// The bytes from `from` to `to`, in runs of `run` bytes of which each begins a multiple of `step` bytes behind `first`.
struct footprint {
  std::uintptr_t from = 0, to = 0, first = 0;
  long long run = 0, step = 0;  // step 0: one run
};
constexpr long long common_divisor(long long a, long long b) {
  while (b != 0) {
    const long long rest = a % b;
    a = b, b = rest;
  }
  return a;
}
// Of a tensor that is sound.
[[gnu::noinline]] inline footprint footprint_of(const view& v) {
  if (v.beside != nullptr) {
    footprint f;
    f.from = f.first = reinterpret_cast<std::uintptr_t>(v.data);
    f.run = bytes_of_codes(v.beside->how, v.size[0], v.size[1]);
    f.to = f.from + static_cast<std::uintptr_t>(f.run);
    return f;
  }
  const long long bytes = (bits_of(v.type) + 7) / 8;
  footprint f;
  f.first = reinterpret_cast<std::uintptr_t>(v.data);
  long long in_run = 1;
  for (int k = v.rank - 1; k >= 0; --k) {
    if (v.size[k] == 1) continue;
    if (const long long stride = v.stride(k); stride == in_run)
      in_run *= v.size[k];
    else
      f.step = common_divisor(f.step, (stride < 0 ? -stride : stride) * bytes);
  }
  f.run = in_run * bytes;
  const element_range r = range_of(v);
  f.from = f.first - static_cast<std::uintptr_t>(r.before * bytes);
  f.to = f.first + static_cast<std::uintptr_t>(r.behind * bytes);
  return f;
}
[[gnu::noinline]] constexpr bool overlap(const footprint& a, const footprint& b) {
  if (a.from >= a.to || b.from >= b.to || a.to <= b.from || b.to <= a.from) return false;
  const long long step = common_divisor(a.step, b.step);
  if (step == 0) return true;
  const long long apart = (static_cast<long long>(b.first - a.first) % step + step) % step;  // of their runs, mod step
  return apart < a.run || apart + b.run > step;
}
// The same elements in the same order.
template <class A, class B> constexpr bool same_elements(const basic_view<A>& a, const basic_view<B>& b) {
  if (a.data != b.data || a.type != b.type || a.count() != b.count()) return false;
  if (a.contiguous() && b.contiguous()) return true;
  for (int k = 0; k < 4; ++k)
    if (a.rank != b.rank || (k < a.rank && (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)))) return false;
  return true;
}

}  // namespace graft
