// SPDX-License-Identifier: Apache-2.0
// JSON writer with the output of Python's json.dumps(value, indent=2, sort_keys=True), which is how PEFT and
// transformers write configurations. A number is written with the characters it was read from.
#pragma once
#include <graft/io/json/json.h>

namespace graft::io {

inline json json_string(std::string_view s) {
  json v;
  v.what = json::kind::word, v.word = s;
  return v;
}
inline json json_bool(bool b) {
  json v;
  v.what = json::kind::boolean, v.flag = b;
  return v;
}
GRAFT_LIBRARY json json_number(double n);
GRAFT_LIBRARY std::string json_file(const json& v);

}  // namespace graft::io

#if GRAFT_BODIES
#include <algorithm>
#include <charconv>
#include <cmath>

namespace graft::io {

GRAFT_LIBRARY json json_number(double n) {
  char digits[40];
  const bool integer = n >= 0 && n < 9e15 && n == std::floor(n);
  json v;
  if (integer) v.whole = static_cast<std::uint64_t>(n);
  // An integer is written without an exponent: 100000, not 1e+05.
  const auto written = integer ? std::to_chars(std::begin(digits), std::end(digits), v.whole)
                               : std::to_chars(std::begin(digits), std::end(digits), n);
  v.word.assign(std::begin(digits), written.ptr);
  v.real = n;
  v.what = integer ? json::kind::whole : n < 0 ? json::kind::negative : json::kind::real;
  return v;
}

inline void write_json(std::string& out, const json& v, std::size_t indent) {
  const auto line = [&](std::size_t depth) { out += '\n' + std::string(depth, ' '); };
  switch (v.what) {
    case json::kind::null: out += "null"; return;
    case json::kind::boolean: out += v.flag ? "true" : "false"; return;
    case json::kind::whole:
    case json::kind::negative:
    case json::kind::real: out += v.word; return;
    case json::kind::word: out += json_text(v.word); return;
    case json::kind::list:
    case json::kind::object: break;
  }
  const bool list = v.what == json::kind::list;
  std::vector<std::size_t> order(v.items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (!list) std::sort(order.begin(), order.end(), [&](auto a, auto b) { return v.keys[a] < v.keys[b]; });
  out += list ? '[' : '{';
  for (const std::size_t i : order) {
    out += out.back() == '[' || out.back() == '{' ? "" : ",";
    line(indent + 2);
    if (!list) out += json_text(v.keys[i]) + ": ";
    write_json(out, v.items[i], indent + 2);
  }
  if (!order.empty()) line(indent);
  out += list ? ']' : '}';
}
GRAFT_LIBRARY std::string json_file(const json& v) {
  std::string out;
  write_json(out, v, 0);
  return out;
}

}  // namespace graft::io
#endif
