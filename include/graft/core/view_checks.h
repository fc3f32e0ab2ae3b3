// SPDX-License-Identifier: Apache-2.0
// Validity of tensors that a caller passes (at most four axes, sizes >= 0, at most 2^48 bytes), and whether two tensors
// overlap in memory. The overlap test is exact for contiguous tensors and for column ranges of one matrix; where it
// cannot tell, it answers that they overlap.
#pragma once
#include <graft/core/quant_format.h>
#include <graft/core/result.h>
#include <graft/core/saturate.h>
#include <graft/core/view.h>

#include <cstdint>

namespace graft {

inline constexpr long long max_tensor_bytes = 1LL << 48;  // addressable virtual memory of a process

// How many elements before and after its first one a tensor reaches; the counts saturate.
struct element_range {
  long long before = 0, after = 0;
};
[[gnu::noinline]] constexpr element_range range_of(const view& v) {
  element_range r;
  for (int k = 0; k < v.rank; ++k) {
    if (v.size[k] < 1) return {};
    const long long stride = v.stride(k);
    long long& reach = stride < 0 ? r.before : r.after;
    reach = saturating_add(reach, saturating_multiply(v.size[k] - 1, stride < 0 ? -stride : stride));
  }
  r.after = saturating_add(r.after, 1);
  return r;
}
[[gnu::noinline]] constexpr bool is_valid(const view& v) {
  if (v.rank < 0 || v.rank > 4) return false;
  long long bytes = (bits_of(v.type) + 7) / 8;
  for (int k = 0; k < v.rank; ++k) {
    if (v.size[k] < 0 || v.strides[k] > max_tensor_bytes || v.strides[k] < -max_tensor_bytes) return false;
    bytes = saturating_multiply(
        bytes, v.size[k] > 0 ? v.size[k] : 1);  // a size of zero must not hide that the others are too large
  }
  if (bytes > max_tensor_bytes) return false;
  const element_range r = range_of(v);
  return saturating_add(r.before, r.after) <= max_tensor_bytes / 8;
}
// The error for a tensor that is not valid: "tensor 'x' has 9 axes, expected at most 4".
[[gnu::cold, gnu::noinline]] constexpr error invalid_view(const char* what, const detail::message_part& name,
                                                          const view& v) {
  if (v.rank < 0 || v.rank > 4) return fail(what, "'", name, "' has ", v.rank, " axes, expected at most 4");
  for (int k = 0; k < v.rank; ++k)
    if (v.size[k] < 0)
      return fail(what, "'", name, "' has shape ", shape_of(v), ", expected sizes that are not negative");
  return fail(what, "'", name, "' has shape ", shape_of(v), ", more than any memory holds");
}

// The addresses [from, to) that a tensor spans. It occupies segments of `run` bytes in them, and each segment begins a
// multiple of `step` bytes from `first`.
struct footprint {
  std::uintptr_t from = 0, to = 0, first = 0;
  long long run = 0, step = 0;  // in bytes; step 0: one segment
};
constexpr long long common_divisor(long long a, long long b) {
  while (b != 0) {
    const long long rest = a % b;
    a = b, b = rest;
  }
  return a;
}
// The view must be valid.
[[gnu::noinline]] inline footprint footprint_of(const view& v) {
  if (v.quant != nullptr) {
    footprint f;
    f.from = f.first = reinterpret_cast<std::uintptr_t>(v.data);
    f.run = quantized_bytes(v);
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
  f.to = f.first + static_cast<std::uintptr_t>(r.after * bytes);
  return f;
}
[[gnu::noinline]] constexpr bool overlap(const footprint& a, const footprint& b) {
  if (a.from >= a.to || b.from >= b.to || a.to <= b.from || b.to <= a.from) return false;
  const long long step = common_divisor(a.step, b.step);
  if (step == 0) return true;
  // The distance in bytes from the start of a segment of a to the start of the next segment of b.
  const long long gap = (static_cast<long long>(b.first - a.first) % step + step) % step;
  return gap < a.run || gap + b.run > step;
}
// Returns true if both views have elements of one type at equal offsets from their first one.
[[gnu::noinline]] constexpr bool same_layout(const view& a, const view& b) {
  if (a.type != b.type || a.rank != b.rank) return false;
  for (int k = 0; k < a.rank; ++k)
    if (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)) return false;
  return true;
}
// Returns true if both views name equal addresses in equal order.
template <class A, class B> constexpr bool same_elements(const basic_view<A>& a, const basic_view<B>& b) {
  if (a.data != b.data || a.type != b.type || a.count() != b.count()) return false;
  if (a.contiguous() && b.contiguous()) return true;
  for (int k = 0; k < 4; ++k)
    if (a.rank != b.rank || (k < a.rank && (a.size[k] != b.size[k] || a.stride(k) != b.stride(k)))) return false;
  return true;
}

}  // namespace graft
