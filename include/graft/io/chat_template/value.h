// SPDX-License-Identifier: Apache-2.0
// Values of a chat template: what Python objects are to Jinja. All values except namespaces are immutable, because the
// sandbox of transformers refuses methods that change a list or dict; so values are shared and never form cycles.
//     undefined   a name or attribute that does not exist; its text is the error that using it gives
//     iterator    what map, select and similar filters return: always true, without a length, and consumed once
//     view        dict.items(), keys() and values(): has a length, but no elements by index
#pragma once
#include <graft/io/json/json.h>
#include <graft/io/utf8.h>

#include <algorithm>
#include <charconv>
#include <memory>

namespace graft::io::jinja {

// Limits of parsing and rendering; each is enforced with an error that names it.
struct template_limits {
  std::size_t source_bytes = 1U << 20U;       // largest template, in bytes
  int syntax_depth = 200;                     // nesting of statements and expressions
  int call_depth = 800;                       // nesting of statements and expressions while rendering, through macros
  int value_depth = 128;                      // nesting of lists and dicts
  std::uint64_t steps = 30'000'000;           // expressions evaluated, loop iterations, and 32 bytes of text read
  std::uint64_t text_bytes = 1ULL << 30U;     // bytes of all strings that a rendering makes
  std::uint64_t output_bytes = 64ULL << 20U;  // bytes of one string, and of the output
};

enum class kind : unsigned char {
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  list,
  tuple,
  range,
  dict,
  view,
  iterator,
  macro,
  function,
  method,
  space,
  loop
};

struct value;
struct scope;

// What a value refers to. One struct serves all kinds: text is a string, the name of a function or method, or the error
// of an undefined value; keys belong to a dict or namespace.
struct payload {
  std::string text;
  std::vector<value> keys, items;
  int depth = 0;                     // nesting of items and keys
  std::uint32_t node = 0;            // macro: its node in the tree
  std::shared_ptr<scope> home;       // the scope that a macro was defined in
  mutable std::size_t taken = 0;     // elements that an iterator has given
  mutable std::size_t position = 0;  // loop: number of the current element
};

struct value {
  kind what = kind::undefined;
  bool markup = false;  // a string that went through the filter safe or escape: adding to it escapes the other operand
  union {
    std::int64_t whole = 0;  // an integer or boolean
    double real;
  };
  std::shared_ptr<payload> body;

  bool is(kind k) const { return what == k; }
  bool is_string() const { return what == kind::string; }
  bool is_undefined() const { return what == kind::undefined; }
  bool is_number() const { return what == kind::integer || what == kind::boolean || what == kind::real; }
  bool is_unsigned() const { return what == kind::integer || what == kind::boolean; }
  bool is_sequence() const { return what == kind::list || what == kind::tuple || what == kind::range; }
  double number() const { return what == kind::real ? real : static_cast<double>(whole); }
  const std::string& text() const { return body->text; }
  const std::vector<value>& items() const { return body->items; }
  std::size_t size() const { return body->items.size(); }
};

inline value none() {
  value v;
  v.what = kind::none;
  return v;
}
inline value boolean(bool b) {
  value v;
  v.what = kind::boolean, v.whole = b ? 1 : 0;
  return v;
}
inline value integer(std::int64_t n) {
  value v;
  v.what = kind::integer, v.whole = n;
  return v;
}
inline value real(double d) {
  value v;
  v.what = kind::real, v.real = d;
  return v;
}
inline value named(kind k, std::string text) {
  value v;
  v.what = k, v.body = std::make_shared<payload>();
  v.body->text = std::move(text);
  return v;
}
inline value string(std::string s) { return named(kind::string, std::move(s)); }

// The budget and the first error of one rendering. An error is sticky: after it values are undefined, loops end, and
// only the first one is reported. So that no function has to hand errors on, they take this state and call stop().
struct state {
  template_limits limits{};
  std::string problem{};
  bool failed = false, raised = false;  // raised: the text is that of raise_exception
  int line = 1;
  std::uint64_t steps = 0, text_bytes = 0;

  value stop(std::string why) {
    if (!failed) failed = true, problem = std::move(why);
    return {};
  }
  // Counts n units of work, and is false when the rendering has to end.
  bool work(std::uint64_t n = 1) {
    steps += n;
    if (steps > limits.steps && !failed)
      stop("the template takes more than " + std::to_string(limits.steps) + " steps, expected fewer loop iterations");
    return !failed;
  }
  bool read(std::size_t bytes) { return work(1 + bytes / 32); }
  // Counts a string before it is made.
  bool fits(std::uint64_t bytes) {
    text_bytes += bytes;
    if (bytes > limits.output_bytes)
      stop("a string has more than " + std::to_string(limits.output_bytes) + " bytes, expected shorter text");
    else if (text_bytes > limits.text_bytes)
      stop("the strings of the template have more than " + std::to_string(limits.text_bytes) +
           " bytes together, expected shorter messages");
    return read(bytes);
  }
  value text(std::string s) { return fits(s.size()) ? string(std::move(s)) : value{}; }
  value undefined(std::string why) { return counted(kind::undefined, std::move(why)); }
  // Makes a value of a name, such as a function, and counts its memory: a list may hold millions of them.
  value counted(kind k, std::string name) {
    text_bytes += sizeof(payload) + name.size();
    return fits(0) ? named(k, std::move(name)) : value{};
  }
  // Makes a list, tuple, range, dict, view or iterator.
  value collection(kind k, std::vector<value> items, std::vector<value> keys = {}) {
    if (!work(items.size() / 4 + 1)) return {};
    text_bytes += 32 * items.size();
    if (!fits(0)) return {};
    int depth = 0;
    for (const std::vector<value>* all : {&items, &keys})
      for (const value& v : *all)
        if (v.body) depth = std::max(depth, v.body->depth);
    if (depth >= limits.value_depth)
      return stop("a list or dict is nested deeper than " + std::to_string(limits.value_depth) +
                  ", expected flatter values");
    value v = named(k, {});
    v.body->items = std::move(items), v.body->keys = std::move(keys), v.body->depth = depth + 1;
    return v;
  }
  value list(std::vector<value> items) { return collection(kind::list, std::move(items)); }
};

// Names of types as Python prints them.
inline const char* type_name(const value& v) {
  switch (v.what) {
    case kind::undefined: return "Undefined";
    case kind::none: return "NoneType";
    case kind::boolean: return "bool";
    case kind::integer: return "int";
    case kind::real: return "float";
    case kind::string: return "str";
    case kind::list: return "list";
    case kind::tuple: return "tuple";
    case kind::range: return "range";
    case kind::dict: return "dict";
    case kind::view: return "dict view";
    case kind::iterator: return "generator";
    case kind::macro: return "Macro";
    case kind::function: return "function";
    case kind::method: return "method";
    case kind::space: return "Namespace";
    case kind::loop: return "LoopContext";
  }
  return "object";
}
inline std::string object_name(const value& v) {
  return v.is(kind::none) ? "None" : std::string(type_name(v)) + " object";
}

inline bool truth(const value& v) {
  switch (v.what) {
    case kind::undefined:
    case kind::none: return false;
    case kind::boolean:
    case kind::integer: return v.whole != 0;
    case kind::real: return v.real != 0;
    case kind::string: return !v.text().empty();
    case kind::list:
    case kind::tuple:
    case kind::range:
    case kind::dict:
    case kind::view: return v.size() != 0;
    default: return true;
  }
}

// Python's ==. The cost of comparing is charged to the state.
inline bool equal(state& s, const value& a, const value& b) {
  if (!s.work()) return false;
  if (a.is_number() && b.is_number())
    return a.is_unsigned() && b.is_unsigned() ? a.whole == b.whole : a.number() == b.number();
  if (a.what != b.what) return false;
  if (a.is(kind::undefined) || a.is(kind::none)) return true;
  if (a.body == b.body) return true;
  if (a.is_string()) return s.read(a.text().size()) && a.text() == b.text();
  if (a.is_sequence()) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!equal(s, a.items()[i], b.items()[i])) return false;
    return true;
  }
  if (!a.is(kind::dict) || a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    bool found = false;
    for (std::size_t k = 0; k < b.size() && !found; ++k)
      found = equal(s, a.body->keys[i], b.body->keys[k]) && equal(s, a.items()[i], b.items()[k]);
    if (!found) return false;
  }
  return true;
}

// The type that keeps a value from being a key, because Python gives it no hash: that of a list or dict, also inside
// tuples. Null where the value has a hash.
inline const char* unhashable(state& s, const value& v) {
  if (v.is(kind::list) || v.is(kind::dict)) return type_name(v);
  if (v.is(kind::tuple))
    for (const value& one : v.items()) {
      if (!s.work()) return nullptr;
      if (const char* const type = unhashable(s, one)) return type;
    }
  return nullptr;
}
// The value of a key of a dict or namespace; null where there is none.
inline const value* find(state& s, const value& dict, const value& key) {
  const std::vector<value>& keys = dict.body->keys;
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (equal(s, keys[i], key)) return &dict.body->items[i];
  return nullptr;
}
inline const value* find(state& s, const value& dict, std::string_view key) {
  const std::vector<value>& keys = dict.body->keys;
  s.work(1 + keys.size() / 8);
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i].is_string() && keys[i].text() == key) return &dict.body->items[i];
  return nullptr;
}
// Adds or replaces a key of a dict that is being built.
inline void put(state& s, std::vector<value>& keys, std::vector<value>& items, value key, value item) {
  for (std::size_t i = 0; i < keys.size() && !s.failed; ++i)
    if (equal(s, keys[i], key)) {
      items[i] = std::move(item);
      return;
    }
  keys.push_back(std::move(key)), items.push_back(std::move(item));
}

// The elements of a value that is iterated over, as `for` does. An iterator is consumed. False after an error.
inline bool elements(state& s, const value& v, std::vector<value>& out) {
  switch (v.what) {
    case kind::undefined: return !s.failed;
    case kind::list:
    case kind::tuple:
    case kind::range:
    case kind::view: out = v.items(); break;
    case kind::dict: out = v.body->keys; break;
    case kind::iterator:
      out.assign(v.items().begin() + static_cast<std::ptrdiff_t>(v.body->taken), v.items().end());
      v.body->taken = v.size();
      break;
    case kind::string: {
      if (!s.work(v.text().size())) return false;
      std::string_view rest = v.text();
      s.text_bytes += 64 * rest.size();
      if (!s.fits(0)) return false;
      while (!rest.empty()) {
        const std::size_t n = std::max<std::size_t>(1, utf8_length(rest));
        out.push_back(string(std::string(rest.substr(0, n)))), rest.remove_prefix(n);
      }
      return true;
    }
    default: s.stop("'" + std::string(type_name(v)) + "' object is not iterable"); return false;
  }
  s.text_bytes += 32 * out.size();
  return s.fits(0) && s.work(out.size() / 4);
}

// A JSON value as the template sees it.
inline value from_json(state& s, const json& v, int depth = 0) {
  if (depth > s.limits.value_depth)
    return s.stop("the values given to the template are nested deeper than " + std::to_string(s.limits.value_depth));
  switch (v.what) {
    case json::kind::null: return none();
    case json::kind::boolean: return boolean(v.flag);
    case json::kind::whole:
    case json::kind::negative: {
      std::int64_t n = 0;
      const char* last = v.word.data() + v.word.size();
      if (v.word.find_first_of(".eE") != v.word.npos) return real(v.real);
      if (const auto read = std::from_chars(v.word.data(), last, n); read.ec != std::errc{} || read.ptr != last)
        return s.stop("the number " + v.word + " given to the template does not fit 64 bits");
      return integer(n);
    }
    case json::kind::real:
      // An integer with more digits than 64 bits hold would be printed as another number.
      if (v.word.find_first_of(".eE") == v.word.npos)
        return s.stop("the number " + v.word + " given to the template does not fit 64 bits");
      return real(v.real);
    case json::kind::word:
      if (!is_utf8(v.word)) return s.stop("a string given to the template is not UTF-8");
      return s.text(v.word);
    case json::kind::list:
    case json::kind::object: break;
  }
  std::vector<value> items, keys;
  for (const json& item : v.items) items.push_back(from_json(s, item, depth + 1));
  for (const std::string& key : v.keys) {
    if (!is_utf8(key)) return s.stop("a key given to the template is not UTF-8");
    keys.push_back(string(key));
  }
  if (s.failed) return {};
  return s.collection(v.is_list() ? kind::list : kind::dict, std::move(items), std::move(keys));
}

}  // namespace graft::io::jinja
