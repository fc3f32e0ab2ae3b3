// SPDX-License-Identifier: Apache-2.0
// Building blocks of error messages. Names and paths come from files that may be hostile, so they are quoted, escaped
// and shortened in the middle: a name of ten megabytes must not push the reason out of a message of bounded length.
// guarded() turns exceptions of the standard library into errors; no function of io lets one escape.
#pragma once
#include <graft/core/result.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string_view>

namespace graft::io {

inline text number(std::uint64_t v) {
  text digits, out;
  do digits << static_cast<char>('0' + v % 10);
  while ((v /= 10) != 0);
  while (digits.n > 0) out << digits.s[--digits.n];
  return out;
}

inline bool plain(char c) { return c >= 0x20 && c < 0x7f; }

inline text clipped(std::string_view s, std::size_t limit = 160) {
  constexpr char hex[] = "0123456789abcdef";
  const auto fitting = [](auto first, auto last, std::size_t max_width) {
    std::size_t n = 0;
    for (std::size_t used = 0; first != last && (used += plain(*first) ? 1U : 4U) <= max_width; ++first) ++n;
    return n;
  };
  std::size_t head = fitting(s.begin(), s.end(), limit), tail = 0;
  if (head < s.size()) {
    head = fitting(s.begin(), s.end(), limit / 2);
    tail = fitting(s.rbegin(), s.rend(), limit / 2);
  }
  text out;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (i == head) {
      out << "...";
      i = s.size() - tail;
    }
    const unsigned char c = static_cast<unsigned char>(s[i]);
    if (plain(s[i]))
      out << s[i];
    else
      out << "\\x" << hex[c >> 4] << hex[c & 15];
  }
  return out;
}

inline text in_quotes(std::string_view s, std::size_t limit = 120) {
  text out;
  return out << '\'' << clipped(s, limit) << '\'';
}

template <class... Parts> error fail_in(std::string_view file, const Parts&... parts) {
  return fail(clipped(file, 240), ": ", parts...);
}

// Runs f and turns an exception into an error. Without exception support running out of memory ends the program.
template <class F> auto guarded([[maybe_unused]] std::string_view where, F f) -> decltype(f()) {
#if !defined(__cpp_exceptions)
  return f();
#else
  try {
    return f();
  } catch (const std::bad_alloc&) { return fail_in(where, "not enough memory"); } catch (const std::exception& e) {
    return fail_in(where, "unexpected failure: ", clipped(e.what()));
  } catch (...) { return fail_in(where, "unexpected failure"); }
#endif
}

}  // namespace graft::io
