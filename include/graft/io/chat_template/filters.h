// SPDX-License-Identifier: Apache-2.0
// Filters and tests. tojson is the one of transformers (no HTML escapes, ensure_ascii false); the others are Jinja's.
// Filters that Jinja has and chat templates have no use for are refused by name.
#pragma once
#include <graft/io/chat_template/operations.h>

namespace graft::io::jinja {

// Counts nesting while rendering; a filter may call filters (map), so it is counted here too.
struct nested {
  explicit nested(state& s, int& depth) : depth_(depth) {
    if (++depth_ > s.limits.call_depth)
      s.stop("macros and expressions are nested deeper than " + std::to_string(s.limits.call_depth) +
             " while rendering, expected less recursion");
  }
  ~nested() { --depth_; }
  nested(const nested&) = delete;
  nested& operator=(const nested&) = delete;
  int& depth_;
};

inline value apply_filter(state& s, const std::string& name, const value& v, const arguments& in, int& depth);
inline bool apply_test(state& s, const std::string& name, const value& v, const arguments& in);

// Strings in lower case, other values as they are: how sort, unique, min and max compare unless case_sensitive is set.
inline value without_case(state& s, const value& v) {
  return v.is_string() ? s.text(changed_case(v.text(), letter_case::lower)) : v;
}
// A dotted attribute such as "function.name" or "0.role" of an element.
// `otherwise`, where it is given, stands for every part of the path that is undefined.
inline value dotted(state& s, value v, const value& path, const value* otherwise = nullptr) {
  const auto get = [&](const value& key) {
    v = item(s, v, key);
    if (otherwise != nullptr && v.is_undefined()) v = *otherwise;
  };
  if (!path.is_string()) {
    if (!path.is(kind::none)) get(path);
    return v;
  }
  std::string_view rest = path.text();
  for (bool more = true; more && !s.failed;) {
    const std::size_t dot = rest.find('.');
    const std::string part(rest.substr(0, dot));
    more = dot != rest.npos;
    if (more) rest.remove_prefix(dot + 1);
    std::int64_t n = 0;
    const bool is_number = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == part.npos;
    if (is_number) std::from_chars(part.data(), part.data() + part.size(), n);
    get(is_number ? integer(n) : s.text(part));
  }
  return v;
}
inline value iterator(state& s, std::vector<value> items) { return s.collection(kind::iterator, std::move(items)); }

inline value length(state& s, const value& v) {
  if (v.is_undefined()) return s.failed ? value{} : integer(0);
  if (v.is_string())
    return s.read(v.text().size()) ? integer(static_cast<std::int64_t>(character_count(v.text()))) : value{};
  if (v.is_sequence() || v.is(kind::dict) || v.is(kind::view)) return integer(static_cast<std::int64_t>(v.size()));
  return s.stop("object of type '" + std::string(type_name(v)) + "' has no length" +
                (v.is(kind::iterator) ? ", expected the filter list before it" : ""));
}
inline value to_integer(state& s, const value& v, const value& otherwise, std::int64_t base) {
  if (v.is_undefined()) return use_of_undefined(s, v);
  if (v.is_unsigned()) return integer(v.whole);
  double d = 0;
  if (v.is_string()) {
    if (!s.read(v.text().size())) return {};
    std::string digits(stripped(v.text(), nullptr, true, true));
    std::erase(digits, '_');
    const char *first = digits.data() + (digits.starts_with('+') ? 1 : 0), *last = digits.data() + digits.size();
    std::int64_t n = 0;
    const auto read = std::from_chars(first, last, n, static_cast<int>(base));
    if (read.ec == std::errc{} && read.ptr == last) return integer(n);
    if (read.ec == std::errc::result_out_of_range) return s.stop("int: the number does not fit 64 bits");
    const auto as_real = std::from_chars(first, last, d);
    if (as_real.ec != std::errc{} || as_real.ptr != last) return otherwise;
  } else if (v.is(kind::real)) {
    d = v.real;
  } else {
    return otherwise;
  }
  if (!std::isfinite(d)) return otherwise;
  if (!(std::abs(d) < 9.2e18)) return s.stop("int: the number does not fit 64 bits");
  return integer(static_cast<std::int64_t>(d));
}
inline value to_real(state& s, const value& v, const value& otherwise) {
  if (v.is_undefined()) return use_of_undefined(s, v);
  if (v.is_number()) return real(v.number());
  if (!v.is_string() || !s.read(v.text().size())) return otherwise;
  std::string digits(stripped(v.text(), nullptr, true, true));
  std::erase(digits, '_');
  double d = 0;
  const char *first = digits.data() + (digits.starts_with('+') ? 1 : 0), *last = digits.data() + digits.size();
  const auto read = std::from_chars(first, last, d);
  return read.ec == std::errc{} && read.ptr == last ? real(d) : otherwise;
}
inline value rounded(state& s, const value& v, std::int64_t precision, const std::string& method) {
  if (!v.is_number()) return v.is_undefined() ? use_of_undefined(s, v) : s.stop("round expects a number");
  if (method != "common" && method != "ceil" && method != "floor")
    return s.stop("round: method must be common, ceil or floor");
  if (precision < 0 || precision > 300) return s.stop("round: precision must be from 0 to 300");
  if (method == "common") {
    if (v.is_unsigned() || !std::isfinite(v.real)) return v.is_unsigned() ? integer(v.whole) : v;
    char digits[700];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), v.real, std::chars_format::fixed,
                                   static_cast<int>(precision));
    double d = 0;
    std::from_chars(std::begin(digits), end.ptr, d);
    return real(d);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double d = v.number() * scale;
  if (!std::isfinite(d)) return s.stop("round: the number is not finite");
  // Python's ceil and floor give integers, which have no negative zero.
  return real(((method == "ceil" ? std::ceil(d) : std::floor(d)) + 0.0) / scale);
}
inline value indented(state& s, const std::string& in, const value& width, bool first, bool blank) {
  std::string by;
  if (width.is_string()) {
    by = width.text();
  } else if (width.is_unsigned()) {
    if (width.whole > 10'000) return s.stop("indent: the width must be at most 10000");
    by.assign(static_cast<std::size_t>(std::max<std::int64_t>(width.whole, 0)), ' ');
  } else {
    return s.stop("indent: the width must be an int or a str");
  }
  const value all = lines(s, in + "\n", false);
  if (s.failed) return {};
  std::string out = first ? by : "";
  for (std::size_t i = 0; i < all.size() && s.read(by.size()); ++i) {
    const std::string& line = all.items()[i].text();
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !line.empty())) out += by;
    out += line;
    if (out.size() > s.limits.output_bytes) s.fits(out.size());
  }
  return s.text(std::move(out));
}
// Jinja's title: words are split at white space and - ( { [ <.
inline std::string title_filter(std::string_view in) {
  std::string out;
  bool inside = false;
  for (const std::uint32_t c : code_points(in)) {
    std::string one;
    append_utf8(one, c);
    const bool between = space_length(one) != 0 ||
                         (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
    append_cased(out, c, inside ? letter_case::lower : letter_case::upper);
    inside = !between;
  }
  return out;
}
inline value sorted(state& s, std::vector<value> all, const value& path, bool case_sensitive, bool reverse) {
  std::vector<std::pair<value, value>> keyed;
  for (value& v : all) {
    // Several attributes may be named, with commas; keys are lists, so that equal elements need no order.
    std::vector<value> key;
    std::string_view rest = path.is_string() ? path.text() : std::string_view();
    for (bool more = true; more && s.work();) {
      const std::size_t comma = rest.find(',');
      key.push_back(dotted(s, v, path.is_string() ? s.text(std::string(rest.substr(0, comma))) : path));
      if (!case_sensitive) key.back() = without_case(s, key.back());
      more = comma != rest.npos;
      if (more) rest.remove_prefix(comma + 1);
    }
    if (s.failed) return {};
    keyed.emplace_back(s.list(std::move(key)), std::move(v));
  }
  if (s.failed) return {};
  // Reverse order keeps equal elements in place too, as Python's sort does.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return !s.failed && (reverse ? less(s, b.first, a.first) : less(s, a.first, b.first));
  });
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::move(keyed[i].second);
  return s.list(std::move(all));
}
inline value extreme(state& s, const std::vector<value>& all, const value& path, bool case_sensitive, bool largest) {
  if (all.empty()) return s.undefined("no aggregated item, the sequence is empty");
  std::size_t best = 0;
  value best_key;
  for (std::size_t i = 0; i < all.size() && !s.failed; ++i) {
    value key = dotted(s, all[i], path);
    if (!case_sensitive) key = without_case(s, key);
    if (i == 0 || (largest ? less(s, best_key, key) : less(s, key, best_key))) best = i, best_key = key;
  }
  return all[best];
}
inline value to_json(state& s, const value& v, const arguments& in) {
  matched m(s, "tojson", in, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  if (s.failed) return {};
  json_style style;
  style.ascii = m.flag(0), style.sort_keys = m.flag(3);
  if (m.has(1)) {
    const value width = m.get(1);
    if (!width.is_string() && !(width.is_unsigned() && width.whole <= 1000))
      return s.stop("tojson: indent must be a str or an int up to 1000");
    style.indent = width.is_string()
                       ? width.text()
                       : std::string(static_cast<std::size_t>(std::max<std::int64_t>(width.whole, 0)), ' ');
    style.comma = ",";
  }
  if (m.has(2)) {
    const value pair = m.get(2);
    if (!pair.is_sequence() || pair.size() != 2 || !pair.items()[0].is_string() || !pair.items()[1].is_string())
      return s.stop("tojson: separators must be two strings");
    style.comma = pair.items()[0].text(), style.colon = pair.items()[1].text();
  }
  std::string out;
  append_json(s, out, v, style);
  return s.text(std::move(out));
}

// map, select, reject, selectattr and rejectattr, which name an attribute, a filter or a test.
inline value mapped(state& s, const value& v, const arguments& in, int& depth) {
  std::vector<value> all, out;
  if (!truth(v)) return iterator(s, {});
  if (!elements(s, v, all)) return {};
  if (in.positional.empty() && !in.named.empty()) {
    const matched m(s, "map", in, {"attribute", "default"}, 1);
    if (s.failed) return {};
    for (const value& one : all) {
      if (s.failed) return {};
      out.push_back(dotted(s, one, m.get(0), m.has(1) ? m.at(1) : nullptr));
    }
    return iterator(s, std::move(out));
  }
  if (in.positional.empty() || !in.positional[0].is_string())
    return s.stop("map expects the name of a filter, or attribute=");
  arguments rest = in;
  rest.positional.erase(rest.positional.begin());
  for (const value& one : all) {
    if (s.failed) return {};
    out.push_back(apply_filter(s, in.positional[0].text(), one, rest, depth));
  }
  return iterator(s, std::move(out));
}
inline value selected(state& s, const std::string& name, const value& v, const arguments& in) {
  std::vector<value> all, out;
  if (!truth(v)) return iterator(s, {});
  if (!elements(s, v, all)) return {};
  const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
  arguments rest = in;
  value path = none();
  const auto take = [&] {
    value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  if (by_attribute) {
    if (rest.positional.empty()) return s.stop(name + " lacks the name of an attribute");
    path = take();
  }
  std::optional<std::string> test;
  if (!rest.positional.empty()) {
    const value first = take();
    if (!first.is_string()) return s.stop(name + " expects the name of a test");
    test = first.text();
  }
  for (value& one : all) {
    if (s.failed) return {};
    const value what = dotted(s, one, path);
    if ((test ? apply_test(s, *test, what, rest) : truth(what)) == wanted) out.push_back(std::move(one));
  }
  return iterator(s, std::move(out));
}

inline value text_filter(state& s, const std::string& name, const value& v, const arguments& in) {
  const std::string text = to_text(s, v);
  if (s.failed) return {};
  if (name == "trim") {
    matched m(s, name, in, {"chars"}, 0);
    const std::string set = m.has(0) ? m.word(0) : std::string();
    if (m.has(0) && !s.work((text.size() + 1) * (set.size() / 8 + 1))) return {};
    return s.text(std::string(stripped(text, m.has(0) ? &set : nullptr, true, true)));
  }
  if (name == "replace") {
    matched m(s, name, in, {"old", "new", "count"}, 2);
    if (s.failed) return {};
    const std::string from = to_text(s, m.get(0)), to = to_text(s, m.get(1));
    const std::int64_t count = m.has(2) ? m.whole(2, -1) : -1;
    return s.failed ? value{} : replaced(s, text, from, to, count);
  }
  if (name == "indent") {
    if (v.is_undefined()) return use_of_undefined(s, v);
    if (!v.is_string()) return s.stop("indent expects a str, got " + std::string(type_name(v)));
    const matched m(s, name, in, {"width", "first", "blank"}, 0);
    return s.failed ? value{} : indented(s, text, m.get(0, integer(4)), m.flag(1), m.flag(2));
  }
  if (name == "center") {
    const matched m(s, name, in, {"width"}, 0);
    return s.failed ? value{} : string_method(s, string(text), name, {{m.get(0, integer(80))}, {}});
  }
  if (name == "format") {
    if (!in.named.empty()) return s.stop("format with named arguments is not supported");
    return percent(s, text, s.collection(kind::tuple, in.positional));
  }
  const matched m(s, name, in, {}, 0);
  if (name == "upper") return s.text(changed_case(text, letter_case::upper));
  if (name == "lower") return s.text(changed_case(text, letter_case::lower));
  if (name == "capitalize") return s.text(capitalized(text));
  if (name == "title") return s.text(title_filter(text));
  value made = s.text(name == "escape" || name == "e" || name == "forceescape"
                          ? (v.markup && name != "forceescape" ? text : escaped(text))
                          : text);
  made.markup = name != "string" || v.markup;
  return made;
}
inline value sequence_filter(state& s, const std::string& name, const value& v, const arguments& in) {
  std::vector<value> all;
  if (name == "last" || name == "reverse") {
    if (v.is_string() && name == "reverse") return slice(s, v, none(), none(), integer(-1));
    if (v.is(kind::iterator) && name == "last")
      return s.stop("last of a generator is not possible, expected the filter list before it");
  }
  if (name == "first" && v.is(kind::iterator)) {
    const std::size_t at = v.body->taken;
    if (at >= v.size()) return s.undefined("no first item, the sequence is empty");
    return ++v.body->taken, v.items()[at];
  }
  if (!elements(s, v, all)) return {};
  if (name == "join") {
    matched m(s, name, in, {"d", "attribute"}, 0);
    if (s.failed) return {};
    if (m.has(1))
      for (value& one : all) one = dotted(s, one, m.get(1));
    return joined(s, to_text(s, m.get(0, string(""))), all, false);
  }
  if (name == "sort") {
    const matched m(s, name, in, {"reverse", "case_sensitive", "attribute"}, 0);
    return s.failed ? value{} : sorted(s, std::move(all), m.get(2, none()), m.flag(1), m.flag(0));
  }
  if (name == "min" || name == "max") {
    const matched m(s, name, in, {"case_sensitive", "attribute"}, 0);
    return s.failed ? value{} : extreme(s, all, m.get(1, none()), m.flag(0), name == "max");
  }
  if (name == "sum") {
    const matched m(s, name, in, {"attribute", "start"}, 0);
    value total = m.get(1, integer(0));
    for (const value& one : all) {
      if (s.failed) return {};
      total = arithmetic(s, "+", total, dotted(s, one, m.get(0, none())));
    }
    return total;
  }
  if (name == "unique") {
    const matched m(s, name, in, {"case_sensitive", "attribute"}, 0);
    std::vector<value> out, seen;
    for (value& one : all) {
      value key = dotted(s, one, m.get(1, none()));
      if (!m.flag(0)) key = without_case(s, key);
      if (s.failed) return {};
      if (std::any_of(seen.begin(), seen.end(), [&](const value& k) { return equal(s, k, key); })) continue;
      seen.push_back(std::move(key)), out.push_back(std::move(one));
    }
    return iterator(s, std::move(out));
  }
  if (name == "batch") {
    matched m(s, name, in, {"linecount", "fill_with"}, 1);
    const std::int64_t n = m.whole(0, 1);
    if (n < 1 || n > 100'000) return s.stop("batch: linecount must be from 1 to 100000");
    std::vector<value> out;
    for (std::size_t i = 0; i < all.size() && s.work(); i += static_cast<std::size_t>(n)) {
      const std::size_t end = std::min(all.size(), i + static_cast<std::size_t>(n));
      std::vector<value> row(all.begin() + static_cast<std::ptrdiff_t>(i),
                             all.begin() + static_cast<std::ptrdiff_t>(end));
      while (m.has(1) && static_cast<std::int64_t>(row.size()) < n && s.work()) row.push_back(m.get(1));
      out.push_back(s.list(std::move(row)));
    }
    return iterator(s, std::move(out));
  }
  const matched m(s, name, in, {}, 0);
  if (name == "list") return s.list(std::move(all));
  if (name == "first") return all.empty() ? s.undefined("no first item, the sequence is empty") : all.front();
  if (name == "last") return all.empty() ? s.undefined("no last item, the sequence is empty") : all.back();
  std::reverse(all.begin(), all.end());
  return iterator(s, std::move(all));
}

inline constexpr std::string_view text_filters[] = {"trim",  "replace", "indent",      "center", "format",
                                                    "upper", "lower",   "capitalize",  "title",  "escape",
                                                    "e",     "safe",    "forceescape", "string"};
inline constexpr std::string_view sequence_filters[] = {"join",  "sort", "min",   "max",  "sum",    "unique",
                                                        "batch", "list", "first", "last", "reverse"};
inline constexpr std::string_view other_filters[] = {
    "length", "count",      "default",    "d",   "tojson", "items", "dictsort", "map", "select",
    "reject", "selectattr", "rejectattr", "int", "float",  "abs",   "round",    "attr"};
inline constexpr std::string_view refused_filters[] = {"filesizeformat", "groupby",   "pprint",   "random",
                                                       "slice",          "striptags", "truncate", "urlencode",
                                                       "urlize",         "wordcount", "wordwrap", "xmlattr"};
template <std::size_t N> bool listed(const std::string_view (&all)[N], std::string_view name) {
  return std::find(std::begin(all), std::end(all), name) != std::end(all);
}

inline value apply_filter(state& s, const std::string& name, const value& v, const arguments& in, int& depth) {
  const nested counted(s, depth);
  if (!s.work()) return {};
  if (listed(text_filters, name)) return text_filter(s, name, v, in);
  if (listed(sequence_filters, name)) return sequence_filter(s, name, v, in);
  if (name == "length" || name == "count") return matched(s, name, in, {}, 0), length(s, v);
  if (name == "default" || name == "d") {
    const matched m(s, name, in, {"default_value", "boolean"}, 0);
    return s.failed || !(v.is_undefined() || (m.flag(1) && !truth(v))) ? v : m.get(0, string(""));
  }
  if (name == "tojson") return to_json(s, v, in);
  if (name == "map") return mapped(s, v, in, depth);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return selected(s, name, v, in);
  if (name == "items") {
    if (v.is_undefined()) return iterator(s, {});
    if (!v.is(kind::dict)) return s.stop("items expects a mapping, got " + std::string(type_name(v)));
    const value view = dict_method(s, v, "items", {});
    return s.failed ? value{} : iterator(s, view.items());
  }
  if (name == "dictsort") {
    matched m(s, name, in, {"case_sensitive", "by", "reverse"}, 0);
    const std::string by = m.word(1, "key");
    if (!s.failed && by != "key" && by != "value") return s.stop("dictsort: by must be key or value");
    if (v.is_undefined()) return use_of_undefined(s, v);
    if (!v.is(kind::dict)) return s.stop("dictsort expects a mapping, got " + std::string(type_name(v)));
    const value view = dict_method(s, v, "items", {});
    return s.failed ? value{} : sorted(s, view.items(), integer(by == "key" ? 0 : 1), m.flag(0), m.flag(2));
  }
  if (name == "int") {
    matched m(s, name, in, {"default", "base"}, 0);
    const std::int64_t base = m.whole(1, 10);
    if (base < 2 || base > 36) return s.stop("int: base must be from 2 to 36");
    return to_integer(s, v, m.get(0, integer(0)), base);
  }
  if (name == "float") {
    const matched m(s, name, in, {"default"}, 0);
    return to_real(s, v, m.get(0, real(0)));
  }
  if (name == "round") {
    matched m(s, name, in, {"precision", "method"}, 0);
    const std::int64_t precision = m.whole(0, 0);
    const std::string method = m.word(1, "common");
    return s.failed ? value{} : rounded(s, v, precision, method);
  }
  if (name == "abs") {
    if (v.is(kind::real)) return real(std::abs(v.real));
    if (v.is_undefined()) return use_of_undefined(s, v);
    if (!v.is_unsigned()) return s.stop("abs expects a number, got " + std::string(type_name(v)));
    return v.whole < 0 ? whole_arithmetic(s, "-", 0, v.whole) : integer(v.whole);
  }
  if (name == "attr") {
    matched m(s, name, in, {"name"}, 1);
    const std::string attribute_name = m.word(0);
    if (v.is_undefined()) return use_of_undefined(s, v);
    if (v.is(kind::dict) && !has_method(v, attribute_name)) return no_attribute(s, v, attribute_name);
    return s.failed ? value{} : attribute(s, v, attribute_name);
  }
  if (listed(refused_filters, name)) return s.stop("the filter '" + name + "' is not supported in chat templates");
  return s.stop("there is no filter named " + std::string(in_quotes(name, 60).c_str()));
}

inline constexpr std::string_view known_tests[] = {
    "odd",     "even",   "divisibleby", "defined",  "undefined", "filter", "test",    "none",
    "boolean", "false",  "true",        "integer",  "float",     "lower",  "upper",   "string",
    "mapping", "number", "sequence",    "iterable", "callable",  "sameas", "escaped", "in",
    "==",      "eq",     "equalto",     "!=",       "ne",        ">",      "gt",      "greaterthan",
    "ge",      ">=",     "<",           "lt",       "lessthan",  "<=",     "le"};

inline bool type_test(state& s, const std::string& name, const value& v) {
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is(kind::none);
  if (name == "boolean") return v.is(kind::boolean);
  if (name == "true" || name == "false") return v.is(kind::boolean) && (v.whole != 0) == (name == "true");
  if (name == "integer") return v.is(kind::integer);
  if (name == "float") return v.is(kind::real);
  if (name == "number") return v.is_number();
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.is(kind::dict);
  if (name == "escaped") return v.is_string() && v.markup;
  if (name == "callable")
    return v.is(kind::function) || v.is(kind::macro) || v.is(kind::method) || v.is(kind::loop) || v.is_undefined();
  // An undefined value has a length and elements, namely none.
  if (name == "sequence") return v.is_string() || v.is_sequence() || v.is(kind::dict) || v.is_undefined();
  if (name == "iterable")
    return v.is_string() || v.is_sequence() || v.is(kind::dict) || v.is(kind::view) || v.is(kind::iterator) ||
           v.is(kind::loop) || v.is_undefined();
  const std::string text = to_text(s, v);
  return !s.failed && truth(string_method(s, string(text), name == "lower" ? "islower" : "isupper", {}));
}
inline bool apply_test(state& s, const std::string& name, const value& v, const arguments& in) {
  if (!s.work()) return false;
  if (!listed(known_tests, name))
    return s.stop("there is no test named " + std::string(in_quotes(name, 60).c_str())), false;
  static constexpr std::string_view binary[] = {"divisibleby", "sameas", "in", "==",       "eq",          "equalto",
                                                "!=",          "ne",     ">",  "gt",       "greaterthan", "ge",
                                                ">=",          "<",      "lt", "lessthan", "<=",          "le"};
  const bool takes_one = listed(binary, name);
  if (in.positional.size() != (takes_one ? 1 : 0) || !in.named.empty())
    return s.stop("the test '" + name + "' takes " + (takes_one ? "one argument" : "no arguments")), false;
  if (!takes_one) {
    if (name == "odd" || name == "even")
      return compared(s, "==", v.is_string() ? s.stop(name + " expects a number") : arithmetic(s, "%", v, integer(2)),
                      integer(name == "odd" ? 1 : 0));
    if (name == "test") return v.is_string() && listed(known_tests, v.text());
    if (name == "filter")
      return v.is_string() && (listed(text_filters, v.text()) || listed(sequence_filters, v.text()) ||
                               listed(other_filters, v.text()) || listed(refused_filters, v.text()));
    return type_test(s, name, v);
  }
  const value& other = in.positional[0];
  if (name == "divisibleby")
    return compared(s, "==", v.is_string() ? s.stop(name + " expects a number") : arithmetic(s, "%", v, other),
                    integer(0));
  if (name == "sameas") return v.what == other.what && (v.body ? v.body == other.body : equal(s, v, other));
  if (name == "in") return contains(s, other, v);
  const std::string sign = name == "eq" || name == "equalto"       ? "=="
                           : name == "ne"                          ? "!="
                           : name == "gt" || name == "greaterthan" ? ">"
                           : name == "ge"                          ? ">="
                           : name == "lt" || name == "lessthan"    ? "<"
                           : name == "le"                          ? "<="
                                                                   : name;
  return compared(s, sign, v, other);
}

}  // namespace graft::io::jinja
