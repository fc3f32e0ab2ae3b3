// SPDX-License-Identifier: Apache-2.0
// Operators and access of the template language with Python's semantics: arithmetic, order, `in`, attributes, items and
// slices. Integers have 64 bits; a result that does not fit is an error.
#pragma once
#include <graft/io/chat_template/methods.h>

namespace graft::io::jinja {

// The error of using an undefined value.
inline value use_of_undefined(state& s, const value& v) {
  return s.stop(v.body && !v.body->text.empty() ? v.body->text : "an undefined value is used");
}

inline std::string escaped(std::string_view s) {
  std::string out;
  for (const char c : s) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  return out;
}

inline value no_operator(state& s, const std::string& sign, const value& a, const value& b) {
  return s.stop("unsupported operand types for " + sign + ": '" + type_name(a) + "' and '" + type_name(b) + "'");
}
inline value real_arithmetic(state& s, const std::string& sign, double a, double b) {
  if (sign == "+") return real(a + b);
  if (sign == "-") return real(a - b);
  if (sign == "*") return real(a * b);
  if (sign == "**") {
    const double p = std::pow(a, b);
    return (a == 0 && b < 0) || (a < 0 && std::isnan(p)) ? s.stop("the power has no real value") : real(p);
  }
  if (b == 0) return s.stop("division by zero");
  if (sign == "/") return real(a / b);
  // This follows float.__floordiv__ and __mod__ of CPython.
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (b < 0) != (rest < 0)) rest += b, quotient -= 1;
  return real(sign == "%"     ? (rest == 0 ? std::copysign(0.0, b) : rest)
              : quotient == 0 ? std::copysign(0.0, a / b)
                              : std::round(quotient));
}
inline value whole_arithmetic(state& s, const std::string& sign, std::int64_t a, std::int64_t b) {
  std::int64_t n = 0;
  bool overflow = false;
  if (sign == "+")
    overflow = __builtin_add_overflow(a, b, &n);
  else if (sign == "-")
    overflow = __builtin_sub_overflow(a, b, &n);
  else if (sign == "*")
    overflow = __builtin_mul_overflow(a, b, &n);
  else if (sign == "**") {
    if (b < 0) return real_arithmetic(s, sign, static_cast<double>(a), static_cast<double>(b));
    std::int64_t base = a;
    for (n = 1; b > 0 && !overflow; b >>= 1) {
      if ((b & 1) != 0) overflow = __builtin_mul_overflow(n, base, &n);
      if (b > 1 && !overflow) overflow = __builtin_mul_overflow(base, base, &base);
    }
  } else if (sign == "/") {
    return real_arithmetic(s, sign, static_cast<double>(a), static_cast<double>(b));
  } else {
    if (b == 0) return s.stop("division by zero");
    if (b == -1) {
      overflow = sign == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &n);
    } else {
      const std::int64_t rest = a % b;
      const bool lower = rest != 0 && (rest < 0) != (b < 0);
      n = sign == "%" ? (lower ? rest + b : rest) : a / b - (lower ? 1 : 0);
    }
  }
  return overflow ? s.stop("the result of " + sign + " does not fit 64 bits") : integer(n);
}
inline value repeated(state& s, const value& v, std::int64_t times) {
  const auto n = static_cast<std::uint64_t>(std::max<std::int64_t>(times, 0));
  const std::uint64_t size = v.is_string() ? v.text().size() : v.size();
  if (size != 0 && n > s.limits.output_bytes / size) return s.stop("a repeated value is too long");
  if (!s.fits(v.is_string() ? n * size : 64 * n * size)) return {};
  if (v.is_string()) {
    std::string out;
    out.reserve(n * size);
    for (std::uint64_t i = 0; i < n && size != 0; ++i) out += v.text();
    return string(std::move(out));
  }
  std::vector<value> all;
  for (std::uint64_t i = 0; i < n && size != 0; ++i) all.insert(all.end(), v.items().begin(), v.items().end());
  return s.collection(v.what, std::move(all));
}
inline value arithmetic(state& s, const std::string& sign, const value& a, const value& b) {
  if (sign == "%" && a.is_string()) return percent(s, a.text(), b);
  for (const value* v : {&a, &b})
    if (v->is_undefined()) return use_of_undefined(s, *v);
  if (a.is_number() && b.is_number())
    return a.is_unsigned() && b.is_unsigned() ? whole_arithmetic(s, sign, a.whole, b.whole)
                                              : real_arithmetic(s, sign, a.number(), b.number());
  if (sign == "+" && a.is_string() && b.is_string()) {
    if (!s.fits(a.text().size() + b.text().size())) return {};
    if (!a.markup && !b.markup) return string(a.text() + b.text());
    value v = s.text((a.markup ? a.text() : escaped(a.text())) + (b.markup ? b.text() : escaped(b.text())));
    v.markup = true;
    return v;
  }
  if (sign == "+" && a.what == b.what && (a.is(kind::list) || a.is(kind::tuple))) {
    if (!s.fits(64 * (a.size() + b.size()))) return {};
    std::vector<value> all = a.items();
    all.insert(all.end(), b.items().begin(), b.items().end());
    return s.collection(a.what, std::move(all));
  }
  const auto repeats = [](const value& v) { return v.is_string() || v.is(kind::list) || v.is(kind::tuple); };
  if (sign == "*" && repeats(a) && b.is_unsigned()) return repeated(s, a, b.whole);
  if (sign == "*" && repeats(b) && a.is_unsigned()) return repeated(s, b, a.whole);
  return no_operator(s, sign, a, b);
}

// a < b, for values that Python orders.
inline bool less(state& s, const value& a, const value& b) {
  if (!s.work()) return false;
  if (a.is_number() && b.is_number())
    return a.is_unsigned() && b.is_unsigned() ? a.whole < b.whole : a.number() < b.number();
  if (a.is_string() && b.is_string()) return s.read(std::min(a.text().size(), b.text().size())) && a.text() < b.text();
  if (a.what == b.what && (a.is(kind::list) || a.is(kind::tuple))) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()) && !s.failed; ++i)
      if (!equal(s, a.items()[i], b.items()[i])) return less(s, a.items()[i], b.items()[i]);
    return a.size() < b.size();
  }
  for (const value* v : {&a, &b})
    if (v->is_undefined()) return use_of_undefined(s, *v), false;
  s.stop("'<' not supported between instances of '" + std::string(type_name(a)) + "' and '" + type_name(b) + "'");
  return false;
}
inline bool contains(state& s, const value& in, const value& what) {
  if (in.is_string()) {
    if (!what.is_string())
      return s.stop("'in <string>' requires a string on its left, got " + std::string(type_name(what))), false;
    return s.read(in.text().size()) && in.text().find(what.text()) != std::string::npos;
  }
  if (in.is(kind::dict)) {
    if (const char* const type = unhashable(s, what))
      return s.stop(std::string("unhashable type: '") + type + "'"), false;
    return (what.is_string() ? find(s, in, what.text()) : find(s, in, what)) != nullptr;
  }
  if (in.is(kind::iterator)) {
    // An iterator is consumed up to what was looked for.
    while (in.body->taken < in.size() && !s.failed)
      if (equal(s, in.items()[in.body->taken++], what)) return true;
    return false;
  }
  std::vector<value> all;
  if (!elements(s, in, all)) return false;
  for (const value& v : all)
    if (equal(s, v, what)) return true;
  return false;
}
inline bool compared(state& s, const std::string& sign, const value& a, const value& b) {
  if (sign == "==") return equal(s, a, b);
  if (sign == "!=") return !equal(s, a, b);
  if (sign == "in") return contains(s, b, a);
  if (sign == "not in") return !contains(s, b, a);
  if (sign == "<") return less(s, a, b);
  if (sign == ">") return less(s, b, a);
  // With a NaN neither holds, so <= is not the negation of >.
  return (sign == "<=" ? less(s, a, b) : less(s, b, a)) || equal(s, a, b);
}

inline value bound_method(state& s, const value& self, std::string name) {
  // What a method holds is counted as its own depth, so that lists of methods of lists are bounded too.
  value v = s.counted(kind::method, std::move(name));
  if (s.failed) return {};
  v.body->depth = self.body->depth;
  v.body->items.push_back(self);
  return v;
}
inline value no_attribute(state& s, const value& of, const std::string& name) {
  return s.undefined("'" + object_name(of) + "' has no attribute '" + name + "'");
}
inline value loop_attribute(state& s, const value& loop, const std::string& name) {
  const auto i = static_cast<std::int64_t>(loop.body->position), n = static_cast<std::int64_t>(loop.size());
  const auto at = [&](std::int64_t k) { return loop.items()[static_cast<std::size_t>(k)]; };
  if (name == "index") return integer(i + 1);
  if (name == "index0") return integer(i);
  if (name == "first") return boolean(i == 0);
  if (name == "last") return boolean(i + 1 == n);
  if (name == "length") return integer(n);
  if (name == "revindex") return integer(n - i);
  if (name == "revindex0") return integer(n - i - 1);
  if (name == "depth") return integer(1);
  if (name == "depth0") return integer(0);
  if (name == "previtem") return i > 0 ? at(i - 1) : s.undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? at(i + 1) : s.undefined("there is no next item");
  if (name == "cycle") return bound_method(s, loop, name);
  if (name == "changed") return s.stop("loop.changed is not supported, expected loop.previtem");
  return no_attribute(s, loop, name);
}
// object.name: an attribute of the Python object first, an item second.
inline value attribute(state& s, const value& of, const std::string& name) {
  if (of.is_undefined()) return use_of_undefined(s, of);
  if (of.is(kind::loop)) return loop_attribute(s, of, name);
  if (changes(of, name))
    return s.undefined("access to attribute '" + name + "' of '" + type_name(of) + "' object is unsafe");
  if (has_method(of, name)) return bound_method(s, of, name);
  if (of.is(kind::dict) || of.is(kind::space))
    if (const value* v = find(s, of, std::string_view(name))) return *v;
  return no_attribute(s, of, name);
}
// object[key]: an item first, an attribute second.
inline value item(state& s, const value& of, const value& key) {
  if (of.is_undefined()) return use_of_undefined(s, of);
  if (of.is(kind::dict) && !key.is(kind::list) && !key.is(kind::dict))
    if (const value* v = key.is_string() ? find(s, of, std::string_view(key.text())) : find(s, of, key)) return *v;
  if ((of.is_sequence() || of.is_string()) && key.is_unsigned()) {
    const auto n = static_cast<std::int64_t>(of.is_string() ? character_count(of.text()) : of.size());
    if (of.is_string() && !s.read(of.text().size())) return {};
    const std::int64_t i = key.whole < 0 ? key.whole + n : key.whole;
    if (i < 0 || i >= n) return s.undefined(object_name(of) + " has no element " + std::to_string(key.whole));
    if (!of.is_string()) return of.items()[static_cast<std::size_t>(i)];
    const std::size_t at = byte_of(of.text(), static_cast<std::size_t>(i));
    return s.text(of.text().substr(at, utf8_length(std::string_view(of.text()).substr(at))));
  }
  if (key.is_string()) { return attribute(s, of, key.text()); }
  if (key.is_undefined()) return s.undefined(object_name(of) + " has no element Undefined");
  std::string written;
  append_repr(s, written, key);
  return s.undefined(object_name(of) + " has no element " + written.substr(0, 100));
}
// object[start:stop:step]; absent bounds are none.
inline value slice(state& s, const value& of, const value& start, const value& stop, const value& step) {
  if (of.is_undefined()) return use_of_undefined(s, of);
  if (!of.is_string() && !of.is_sequence())
    return s.stop("'" + std::string(type_name(of)) + "' object cannot be sliced, expected a str or list");
  for (const value* v : {&start, &stop, &step})
    if (!v->is(kind::none) && !v->is_unsigned())
      return s.stop("slice indices must be integers or None, got " + std::string(type_name(*v)));
  std::vector<std::uint32_t> letters;
  if (of.is_string()) {
    if (!s.read(4 * of.text().size())) return {};
    letters = code_points(of.text());
  }
  const auto n = static_cast<std::int64_t>(of.is_string() ? letters.size() : of.size());
  const std::int64_t by = step.is(kind::none) ? 1 : std::clamp<std::int64_t>(step.whole, -n - 1, n + 1);
  if (!step.is(kind::none) && step.whole == 0) return s.stop("slice step cannot be zero");
  const std::int64_t low = by < 0 ? -1 : 0, high = by < 0 ? n - 1 : n;
  const auto bound = [&](const value& v, std::int64_t otherwise) {
    if (v.is(kind::none)) return otherwise;
    return std::clamp(v.whole < 0 ? std::max<std::int64_t>(v.whole, -n - 1) + n : v.whole, low, high);
  };
  const std::int64_t from = bound(start, by < 0 ? high : low), to = bound(stop, by < 0 ? low : high);
  std::string text;
  std::vector<value> items;
  for (std::int64_t i = from; by < 0 ? i > to : i < to; i += by) {
    if (of.is_string())
      append_utf8(text, letters[static_cast<std::size_t>(i)]);
    else
      items.push_back(of.items()[static_cast<std::size_t>(i)]);
  }
  if (of.is_string()) return s.text(std::move(text));
  return s.collection(of.is(kind::tuple) ? kind::tuple : kind::list, std::move(items));
}

}  // namespace graft::io::jinja
