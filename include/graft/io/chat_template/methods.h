// SPDX-License-Identifier: Apache-2.0
// Methods of str, dict and list that a template may call, with Python's semantics. Methods that change their object are
// refused, as the sandbox of transformers does; other methods that Python has are refused as not supported.
#pragma once
#include <graft/io/chat_template/python_text.h>
#include <graft/io/tokenizer/unicode.h>

namespace graft::io::jinja {

struct arguments {
  std::vector<value> positional;
  std::vector<std::pair<std::string, value>> named;
};

// Arguments by the names of a signature. Missing ones are null; wrong ones are an error of the state.
class matched {
 public:
  matched(state& s, const std::string& callee, const arguments& in, std::initializer_list<const char*> names,
          std::size_t required)
      : s_(s), callee_(callee) {
    std::vector<std::string_view> all(names.begin(), names.end());
    found_.resize(all.size());
    if (in.positional.size() > all.size()) {
      s.stop(callee + "() takes at most " + std::to_string(all.size()) + " arguments, but " +
             std::to_string(in.positional.size()) + " are given");
      return;
    }
    for (std::size_t i = 0; i < in.positional.size(); ++i) found_[i] = &in.positional[i];
    for (const auto& [name, v] : in.named) {
      const auto at = static_cast<std::size_t>(std::find(all.begin(), all.end(), name) - all.begin());
      if (at == all.size() || found_[at] != nullptr) {
        s.stop(std::string(callee)
                   .append("() takes no argument '")
                   .append(name)
                   .append(at == all.size() ? "'" : "' twice"));
        return;
      }
      found_[at] = &v;
    }
    for (std::size_t i = 0; i < required; ++i)
      if (found_[i] == nullptr) s.stop(callee + "() lacks its argument '" + std::string(all[i]) + "'");
  }
  bool has(std::size_t i) const { return found_[i] != nullptr && !found_[i]->is(kind::none); }
  const value* at(std::size_t i) const { return found_[i]; }
  value get(std::size_t i, const value& otherwise = {}) const { return found_[i] != nullptr ? *found_[i] : otherwise; }
  bool flag(std::size_t i, bool otherwise = false) const {
    return found_[i] != nullptr ? truth(*found_[i]) : otherwise;
  }
  std::int64_t whole(std::size_t i, std::int64_t otherwise) {
    if (found_[i] == nullptr) return otherwise;
    if (!found_[i]->is_unsigned())
      return s_.stop(callee_ + "() expects an int, got " + type_name(*found_[i])), otherwise;
    return found_[i]->whole;
  }
  // The text of a string argument; empty after an error.
  std::string word(std::size_t i, std::string otherwise = {}) {
    if (found_[i] == nullptr) return otherwise;
    if (!found_[i]->is_string()) return s_.stop(callee_ + "() expects a str, got " + type_name(*found_[i])), otherwise;
    return s_.read(found_[i]->text().size()) ? found_[i]->text() : otherwise;
  }

 private:
  state& s_;
  std::string callee_;
  std::vector<const value*> found_;
};

// strip, lstrip, rstrip: characters of `set`, or white space where it is null.
inline std::string_view stripped(std::string_view s, const std::string* set, bool left, bool right) {
  if (set == nullptr) {
    if (left) s = strip_left(s);
    return right ? strip_right(s) : s;
  }
  const auto in_set = [&](std::string_view c) {
    const std::vector<std::uint32_t> all = code_points(*set);
    return std::find(all.begin(), all.end(), hf::first_character(c).code) != all.end();
  };
  while (left && !s.empty() && in_set(s)) s.remove_prefix(hf::first_character(s).bytes);
  while (right && !s.empty() && in_set(s.substr(last_character(s)))) s = s.substr(0, last_character(s));
  return s;
}

// str.replace; count < 0 means all.
inline value replaced(state& s, const std::string& in, const std::string& from, const std::string& to,
                      std::int64_t count) {
  std::string out;
  std::size_t at = 0;
  const auto grow = [&](std::string_view more) {
    out += more;
    return out.size() <= s.limits.output_bytes && s.work();
  };
  if (from.empty()) {
    // An empty text is found before every character and at the end.
    for (; count != 0; --count) {
      if (!grow(to)) break;
      if (at >= in.size()) return s.text(std::move(out));
      const std::size_t n = std::max<std::size_t>(1, utf8_length(std::string_view(in).substr(at)));
      if (!grow(std::string_view(in).substr(at, n))) break;
      at += n;
    }
  } else {
    for (std::size_t i; count != 0 && (i = in.find(from, at)) != in.npos; --count) {
      if (!grow(std::string_view(in).substr(at, i - at)) || !grow(to)) break;
      at = i + from.size();
    }
  }
  out += std::string_view(in).substr(at);
  return s.text(std::move(out));
}

// str.split and rsplit; an absent separator splits at runs of white space. count < 0 means no limit.
inline value split(state& s, const std::string& in, const value* separator, std::int64_t count, bool from_right) {
  std::vector<value> out;
  std::string_view rest = in;
  const bool at_space = separator == nullptr || separator->is(kind::none);
  if (!at_space && !separator->is_string())
    return s.stop("split() expects a str, got " + std::string(type_name(*separator)));
  if (!at_space && separator->text().empty()) return s.stop("split(): empty separator");
  if (!s.read(in.size())) return {};
  const auto take = [&](std::string_view part) {
    out.push_back(s.text(std::string(part)));
    s.text_bytes += 128;
    return s.fits(0);
  };
  if (at_space) rest = from_right ? strip_right(rest) : strip_left(rest);
  while (!s.failed) {
    if (at_space && rest.empty()) break;
    if (count >= 0 && static_cast<std::int64_t>(out.size()) >= count) {
      if (at_space) rest = from_right ? strip_right(rest) : rest;
      take(rest);
      break;
    }
    if (at_space) {
      std::size_t i = 0;
      if (!from_right) {
        while (i < rest.size() && space_length(rest.substr(i)) == 0) ++i;
        take(rest.substr(0, i));
        rest = strip_left(rest.substr(i));
      } else {
        i = rest.size();
        while (i > 0) {
          const std::size_t start = last_character(rest.substr(0, i));
          if (space_length(rest.substr(start)) != 0) break;
          i = start;
        }
        take(rest.substr(i));
        rest = strip_right(rest.substr(0, i));
      }
      continue;
    }
    const std::size_t i = from_right ? rest.rfind(separator->text()) : rest.find(separator->text());
    if (i == rest.npos) {
      take(rest);
      break;
    }
    const std::size_t after = i + separator->text().size();
    take(from_right ? rest.substr(after) : rest.substr(0, i));
    rest = from_right ? rest.substr(0, i) : rest.substr(after);
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return s.list(std::move(out));
}

// str.splitlines without line ends.
inline value lines(state& s, std::string_view in, bool keep) {
  std::vector<value> out;
  std::size_t from = 0;
  for (std::size_t i = 0; i < in.size() && s.work();) {
    const std::string_view rest = in.substr(i);
    std::size_t n = 0;
    if (const char c = rest[0]; (c >= '\n' && c <= '\r') || (c >= '\x1c' && c <= '\x1e'))
      n = rest.starts_with("\r\n") ? 2 : 1;
    for (const std::string_view end : {"\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"})
      if (rest.starts_with(end)) n = end.size();
    if (n == 0) {
      ++i;
      continue;
    }
    out.push_back(s.text(std::string(in.substr(from, i + (keep ? n : 0) - from))));
    i += n, from = i;
  }
  if (from < in.size()) out.push_back(s.text(std::string(in.substr(from))));
  return s.list(std::move(out));
}

// "…".format(…) with fields {}, {0} and {name}, without conversions and format specifications.
inline value formatted(state& s, const std::string& in, const arguments& with) {
  std::string out;
  std::size_t automatic = 0;
  for (std::size_t i = 0; i < in.size() && s.work(); ++i) {
    if (in[i] != '{' && in[i] != '}') {
      out += in[i];
      continue;
    }
    if (i + 1 < in.size() && in[i + 1] == in[i]) {
      out += in[i++];
      continue;
    }
    const std::size_t end = in.find('}', i);
    if (in[i] == '}' || end == in.npos) return s.stop("format(): a single '{' or '}' in the text, expected it doubled");
    const std::string field = in.substr(i + 1, end - i - 1);
    const value* found = nullptr;
    std::size_t n = 0;
    const bool is_number =
        std::from_chars(field.data(), field.data() + field.size(), n).ptr == field.data() + field.size();
    if (field.empty()) n = automatic++;
    if (field.find_first_of(".[!:") != field.npos)
      return s.stop("format(): the field {" + field + "} is not supported, expected {}, {number} or {name}");
    if (field.empty() || is_number) {
      if (n < with.positional.size()) found = &with.positional[n];
    } else {
      s.work(with.named.size() / 16);
      for (const auto& [name, v] : with.named)
        if (name == field) found = &v;
    }
    if (found == nullptr) return s.stop("format(): there is no argument for the field {" + field + "}");
    append_text(s, out, *found);
    i = end;
  }
  return s.text(std::move(out));
}

// "…" % values, with %s, %r, %d, %i, %f and %%; no widths except a precision of %f.
inline value percent(state& s, const std::string& in, const value& with) {
  const bool several = with.is(kind::tuple);
  std::size_t used = 0;
  std::string out;
  for (std::size_t i = 0; i < in.size() && s.work(); ++i) {
    if (in[i] != '%') {
      out += in[i];
      continue;
    }
    if (++i < in.size() && in[i] == '%') {
      out += '%';
      continue;
    }
    int precision = 6;
    if (i + 2 < in.size() && in[i] == '.' && in[i + 1] >= '0' && in[i + 1] <= '9' && in[i + 2] == 'f')
      precision = in[i + 1] - '0', i += 2;
    if (i >= in.size() || std::string_view("srdif").find(in[i]) == std::string_view::npos)
      return s.stop("formatting with %: the conversion is not supported, expected %s, %r, %d or %f");
    if (used >= (several ? with.size() : 1)) return s.stop("not enough arguments for format string");
    const value& v = several ? with.items()[used] : with;
    ++used;
    if (in[i] == 's')
      append_text(s, out, v);
    else if (in[i] == 'r')
      append_repr(s, out, v);
    else if (!v.is_number())
      return s.stop(std::string("%") + in[i] + " expects a number, got " + type_name(v));
    else if (in[i] == 'f') {
      char digits[400];
      const auto end =
          std::to_chars(std::begin(digits), std::end(digits), v.number(), std::chars_format::fixed, precision);
      out.append(std::begin(digits), end.ptr);
    } else if (v.is(kind::real)) {
      if (!(std::abs(v.real) < 9e18)) return s.stop("%d of a float that does not fit 64 bits");
      out += std::to_string(static_cast<std::int64_t>(v.real));
    } else {
      out += std::to_string(v.whole);
    }
  }
  if (several ? used != with.size() : used == 0 && (with.is_number() || with.is(kind::none) || with.is_string()))
    return s.stop("not all arguments converted during string formatting");
  return s.text(std::move(out));
}

inline value joined(state& s, const std::string& with, const std::vector<value>& all, bool only_strings) {
  std::string out;
  for (std::size_t i = 0; i < all.size() && !s.failed; ++i) {
    if (only_strings && !all[i].is_string())
      return s.stop("join(): item " + std::to_string(i) + " is " + type_name(all[i]) + ", expected str");
    if (i > 0) out += with;
    append_text(s, out, all[i]);
    if (out.size() > s.limits.output_bytes) s.fits(out.size());
  }
  return s.text(std::move(out));
}

// Bounds of s[start:end] in Python's sense for a length.
inline std::int64_t bounded(std::int64_t i, std::int64_t n) {
  if (i < 0) i += n;
  return std::clamp<std::int64_t>(i, 0, n);
}

inline constexpr std::string_view string_methods[] = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};
inline constexpr std::string_view dict_methods[] = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                                    "pop",   "popitem", "setdefault", "update", "values"};
inline constexpr std::string_view list_methods[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                                    "insert", "pop",   "remove", "reverse", "sort"};

// Returns true if Python's type of the value has a method of this name.
inline bool has_method(const value& v, std::string_view name) {
  const auto among = [&](const auto& all) { return std::find(std::begin(all), std::end(all), name) != std::end(all); };
  if (v.is_string()) return among(string_methods);
  if (v.is(kind::dict)) return among(dict_methods);
  if (v.is(kind::list)) return among(list_methods);
  return (v.is(kind::tuple) || v.is(kind::range)) && (name == "count" || name == "index");
}

// Returns true if a method changes its object; the sandbox makes these undefined.
inline bool changes(const value& v, std::string_view name) {
  if (!v.is(kind::list) && !v.is(kind::dict)) return false;
  for (const std::string_view unsafe :
       {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove", "popitem", "setdefault", "update"})
    if (name == unsafe) return has_method(v, name);
  return false;
}

inline value string_method(state& s, const value& self, const std::string& name, const arguments& in) {
  const std::string& text = self.text();
  if (!s.read(text.size())) return {};
  const auto none_left = [&] { matched(s, name, in, {}, 0); };
  const auto is_all = [&](auto test) {
    none_left();
    const std::vector<std::uint32_t> all = code_points(text);
    return boolean(!all.empty() && std::all_of(all.begin(), all.end(), test));
  };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    matched m(s, name, in, {"chars"}, 0);
    const std::string set = m.has(0) ? m.word(0) : std::string();
    if (m.has(0) && !s.work((text.size() + 1) * (set.size() / 8 + 1))) return {};
    return s.text(std::string(stripped(text, m.has(0) ? &set : nullptr, name != "rstrip", name != "lstrip")));
  }
  if (name == "split" || name == "rsplit") {
    matched m(s, name, in, {"sep", "maxsplit"}, 0);
    const std::int64_t count = m.whole(1, -1);
    return s.failed ? value{} : split(s, text, m.at(0), count, name == "rsplit");
  }
  if (name == "splitlines") {
    const matched m(s, name, in, {"keepends"}, 0);
    return lines(s, text, m.flag(0));
  }
  if (name == "startswith" || name == "endswith") {
    matched m(s, name, in, {"prefix", "start", "end"}, 1);
    if (s.failed) return {};
    std::string_view part = text;
    if (m.has(1) || m.has(2)) {
      const auto n = static_cast<std::int64_t>(character_count(text));
      const std::int64_t from = bounded(m.has(1) ? m.whole(1, 0) : 0, n), to = bounded(m.has(2) ? m.whole(2, 0) : n, n);
      if (from > to) return boolean(false);
      const std::size_t first = byte_of(text, static_cast<std::size_t>(from));
      part = part.substr(first, byte_of(text, static_cast<std::size_t>(to)) - first);
    }
    const value affix = m.get(0);
    const std::vector<value> one{affix};
    for (const value& v : affix.is(kind::tuple) ? affix.items() : one) {
      if (!v.is_string()) return s.stop(name + "() expects a str or a tuple of str, got " + type_name(v));
      if (name == "startswith" ? part.starts_with(v.text()) : part.ends_with(v.text())) return boolean(true);
    }
    return boolean(false);
  }
  if (name == "upper" || name == "lower") {
    none_left();
    return s.text(changed_case(text, name == "upper" ? letter_case::upper : letter_case::lower));
  }
  if (name == "title") return none_left(), s.text(title_words(text));
  if (name == "capitalize") return none_left(), s.text(capitalized(text));
  if (name == "replace") {
    matched m(s, name, in, {"old", "new", "count"}, 2);
    const std::string from = m.word(0), to = m.word(1);
    const std::int64_t count = m.whole(2, -1);
    return s.failed ? value{} : replaced(s, text, from, to, count);
  }
  if (name == "join") {
    const matched m(s, name, in, {"iterable"}, 1);
    std::vector<value> all;
    if (s.failed || !elements(s, m.get(0), all)) return {};
    return joined(s, text, all, true);
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    matched m(s, name, in, {"sub"}, 1);
    const std::string what = m.word(0);
    if (s.failed) return {};
    if (name == "count") {
      if (what.empty()) return integer(static_cast<std::int64_t>(character_count(text)) + 1);
      std::int64_t n = 0;
      for (std::size_t i = text.find(what); i != text.npos && s.work(); i = text.find(what, i + what.size())) ++n;
      return integer(n);
    }
    const std::size_t i = name[0] == 'r' ? text.rfind(what) : text.find(what);
    if (i == text.npos) return name.ends_with("find") ? integer(-1) : s.stop(name + "(): substring not found");
    return integer(static_cast<std::int64_t>(character_count(std::string_view(text).substr(0, i))));
  }
  if (name == "partition" || name == "rpartition") {
    matched m(s, name, in, {"sep"}, 1);
    const std::string what = m.word(0);
    if (!s.failed && what.empty()) return s.stop(name + "(): empty separator");
    const std::size_t i = name[0] == 'r' ? text.rfind(what) : text.find(what);
    std::vector<value> parts{s.text(text), s.text(""), s.text("")};
    if (i != text.npos)
      parts = {s.text(text.substr(0, i)), s.text(what), s.text(text.substr(i + what.size()))};
    else if (name[0] == 'r')
      std::swap(parts[0], parts[2]);
    return s.collection(kind::tuple, std::move(parts));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    matched m(s, name, in, {"affix"}, 1);
    const std::string affix = m.word(0);
    if (name == "removeprefix") return s.text(text.starts_with(affix) ? text.substr(affix.size()) : text);
    return s.text(text.ends_with(affix) ? text.substr(0, text.size() - affix.size()) : text);
  }
  if (name == "format") return formatted(s, text, in);
  if (name == "zfill" || name == "ljust" || name == "rjust" || name == "center") {
    matched m(s, name, in, {"width", "fillchar"}, 1);
    const std::string fill = name == "zfill" ? "0" : m.word(1, " ");
    if (!s.failed && character_count(fill) != 1) return s.stop(name + "(): expected one character to fill with");
    const std::int64_t missing = m.whole(0, 0) - static_cast<std::int64_t>(character_count(text));
    if (missing <= 0 || s.failed || !s.fits(static_cast<std::uint64_t>(missing) * 4)) return s.text(text);
    const std::int64_t half = missing / 2 + (missing & m.whole(0, 0) & 1);
    const std::int64_t before = name == "center" ? half : name == "ljust" ? 0 : missing;
    std::string left, right;
    for (std::int64_t i = 0; i < missing; ++i) (i < before ? left : right) += fill;
    if (name == "zfill" && (text.starts_with('-') || text.starts_with('+')))
      return s.text(text.substr(0, 1) + left + text.substr(1));
    return s.text(left + text + right);
  }
  if (name == "isspace") {
    none_left();
    return boolean(!text.empty() && strip_left(text).empty());
  }
  if (name == "isascii") {
    none_left();
    return boolean(std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
  }
  if (name == "isdigit" || name == "isdecimal" || name == "isalpha" || name == "isalnum") {
    // Digits above ASCII have several classes in Python, so they are refused instead of guessed.
    static const hf::code_set letters = hf::unicode::category("L"), numbers = hf::unicode::category("N");
    return is_all([&](std::uint32_t c) {
      const bool is_digit = c >= '0' && c <= '9', alpha = letters.has(c);
      if (c >= 0x80 && numbers.has(c)) s.stop(name + "() of digits above ASCII is not supported");
      return name == "isalpha" ? alpha : name == "isalnum" ? alpha || is_digit : is_digit;
    });
  }
  if (name == "islower" || name == "isupper") {
    none_left();
    const letter_case wanted = name == "islower" ? letter_case::lower : letter_case::upper;
    const std::vector<std::uint32_t> all = code_points(text);
    return boolean(std::any_of(all.begin(), all.end(), cased) && changed_case(text, wanted) == text);
  }
  return s.stop("the method str." + name + " is not supported");
}

inline value dict_method(state& s, const value& self, const std::string& name, const arguments& in) {
  if (name == "get") {
    const matched m(s, name, in, {"key", "default"}, 1);
    if (s.failed) return {};
    const value key = m.get(0);
    if (const char* const type = unhashable(s, key)) return s.stop(std::string("unhashable type: '") + type + "'");
    const value* found = key.is_string() ? find(s, self, key.text()) : find(s, self, key);
    return found != nullptr ? *found : m.get(1, none());
  }
  if (name == "copy") return self;
  if (name == "keys" || name == "values" || name == "items") {
    const matched takes_no_arguments(s, name, in, {}, 0);
    std::vector<value> all;
    for (std::size_t i = 0; i < self.size() && !s.failed; ++i) {
      if (name == "items")
        all.push_back(s.collection(kind::tuple, {self.body->keys[i], self.items()[i]}));
      else
        all.push_back(name == "keys" ? self.body->keys[i] : self.items()[i]);
    }
    value v = s.collection(kind::view, std::move(all));
    if (v.body) v.body->text = "dict_" + name;
    return v;
  }
  return s.stop(
      "the method dict." + name +
      (name == "fromkeys" ? " is not supported" : " changes the dict, which the sandbox of templates refuses"));
}

inline value list_method(state& s, const value& self, const std::string& name, const arguments& in) {
  if (name == "copy" && self.is(kind::list)) return self;
  if (name == "count" || name == "index") {
    const matched m(s, name, in, {"value"}, 1);
    if (s.failed) return {};
    std::int64_t n = 0;
    for (std::size_t i = 0; i < self.size() && !s.failed; ++i)
      if (equal(s, self.items()[i], m.get(0))) {
        if (name == "index") return integer(static_cast<std::int64_t>(i));
        ++n;
      }
    return name == "count" ? integer(n) : s.stop("index(): the value is not in the list");
  }
  return s.stop("the method list." + name + " changes the list, which the sandbox of templates refuses");
}

}  // namespace graft::io::jinja
