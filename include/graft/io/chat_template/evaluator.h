// SPDX-License-Identifier: Apache-2.0
// Renders a syntax tree. Scopes are Jinja's: for bodies, macros, filter blocks, block sets and with have scopes of
// their own, if does not, and `set` changes the innermost scope only, so that what a loop keeps goes through a
// namespace.
#pragma once
#include <graft/io/chat_template/clock.h>
#include <graft/io/chat_template/filters.h>
#include <graft/io/chat_template/syntax.h>

namespace graft::io::jinja {

struct scope {
  std::shared_ptr<scope> parent;
  std::vector<std::pair<std::uint32_t, value>> variables;

  void set(std::uint32_t symbol, value v) {
    for (auto& [name, old] : variables)
      if (name == symbol) {
        old = std::move(v);
        return;
      }
    variables.emplace_back(symbol, std::move(v));
  }
  const value* find(std::uint32_t symbol) const {
    for (const auto& [name, v] : variables)
      if (name == symbol) return &v;
    return nullptr;
  }
};

class evaluator {
 public:
  evaluator(const syntax_tree& tree, state& s, std::int64_t now) : tree_(tree), s_(s), now_(now) {}
  evaluator(const evaluator&) = delete;
  evaluator& operator=(const evaluator&) = delete;
  // Macros refer to the scopes they were defined in, and namespaces may refer to themselves, so these are emptied.
  ~evaluator() {
    for (const auto& home : homes_) home->variables.clear();
    for (const auto& space : spaces_) space->keys.clear(), space->items.clear();
  }
  void define(std::string_view name, value v) {
    if (const std::uint32_t symbol = tree_.symbol(name); symbol != absent) root_->set(symbol, std::move(v));
  }
  std::string run() {
    std::string out;
    out_ = &out;
    here_ = root_;
    homes_.push_back(root_);
    statement(tree_.root);
    return out;
  }

 private:
  using id = std::uint32_t;
  enum class flow : unsigned char { next, leave, again };

  const node& at(id n) const { return tree_.nodes[n]; }
  value text_of(std::string s) { return s_.text(std::move(s)); }
  bool print(const value& v) {
    if (v.is_string()) {
      if (!s_.read(v.text().size())) return false;
      *out_ += v.text();
    } else {
      append_text(s_, *out_, v);
    }
    if (out_->size() > s_.limits.output_bytes)
      s_.stop("the output has more than " + std::to_string(s_.limits.output_bytes) +
              " bytes, expected shorter messages");
    return !s_.failed;
  }

  // A scope that lasts as long as this object.
  struct inner {
    inner(evaluator& e, std::shared_ptr<scope> parent) : e_(e), outer_(e.here_) {
      e.here_ = std::make_shared<scope>();
      e.here_->parent = std::move(parent);
    }
    ~inner() { e_.here_ = std::move(outer_); }
    inner(const inner&) = delete;
    inner& operator=(const inner&) = delete;
    evaluator& e_;
    std::shared_ptr<scope> outer_;
  };
  // Output that goes into a string for a while.
  struct captured {
    explicit captured(evaluator& e) : e_(e), outer_(e.out_) { e.out_ = &text; }
    ~captured() { e_.out_ = outer_; }
    captured(const captured&) = delete;
    captured& operator=(const captured&) = delete;
    std::string text;
    evaluator& e_;
    std::string* outer_;
  };

  flow statement(id n) {
    const nested counted(s_, depth_);
    const node& it = at(n);
    if (!s_.work()) return flow::next;
    if (it.what != op::block) s_.line = it.line;
    switch (it.what) {
      case op::block:
        for (const id kid : it.kids) {
          if (s_.failed) break;
          if (const flow f = statement(kid); f != flow::next) return f;
        }
        break;
      case op::data:
        if (s_.read(it.text.size())) *out_ += it.text;
        if (out_->size() > s_.limits.output_bytes) print(string(""));
        break;
      case op::print: print(evaluate(it.kids[0])); break;
      case op::if_: return if_statement(it);
      case op::for_: for_statement(it); break;
      case op::set: assign(it.kids[0], evaluate(it.kids[1])); break;
      case op::set_block: return set_block(it);
      case op::macro: define_macro(n); break;
      case op::filter_block: {
        flow left = flow::next;
        const value text = inside_of(it.kids[1], left);
        if (left == flow::next) print(filtered(it.kids[0], text));
        return left;
      }
      case op::with: return with(it);
      case op::generation: {
        flow left = flow::next;
        print(inside_of(it.kids[0], left));
        break;
      }
      case op::break_: return flow::leave;
      case op::continue_: return flow::again;
      default: s_.stop("an expression stands for a statement");
    }
    return flow::next;
  }
  // Evaluates a body in a scope of its own and returns what it prints. The text of a body that leaves a loop is
  // dropped.
  value inside_of(id body, flow& left) {
    const inner own(*this, here_);
    captured out(*this);
    left = statement(body);
    return left == flow::next ? text_of(std::move(out.text)) : value{};
  }
  flow if_statement(const node& it) {
    std::size_t i = 0;
    for (; i + 1 < it.kids.size(); i += 2)
      if (truth(evaluate(it.kids[i])) && !s_.failed) return statement(it.kids[i + 1]);
    return i < it.kids.size() && !s_.failed ? statement(it.kids[i]) : flow::next;
  }
  void for_statement(const node& it) {
    const int line = it.line;
    std::vector<value> all;
    if (const value over = evaluate(it.kids[1]); s_.failed || !elements(s_, over, all)) return;
    if (it.kids[2] != absent) {
      std::vector<value> kept;
      for (value& one : all) {
        const inner own(*this, here_);
        assign(it.kids[0], one);
        if (truth(evaluate(it.kids[2]))) kept.push_back(std::move(one));
        if (s_.failed) return;
      }
      all = std::move(kept);
    }
    const value loop = s_.collection(kind::loop, std::move(all));
    if (loop_symbol_ == absent - 1) loop_symbol_ = tree_.symbol("loop");
    // Jinja runs `else` if no iteration ran to its end; break and continue count as not ended.
    bool completed = false, left = false;
    for (std::size_t i = 0; !s_.failed && !left && i < loop.size(); ++i) {
      s_.line = line;
      if (!s_.work()) return;
      const inner own(*this, here_);
      loop.body->position = i;
      if (loop_symbol_ != absent) set(loop_symbol_, loop);
      assign(it.kids[0], loop.items()[i]);
      if (s_.failed) return;
      const flow f = statement(it.kids[3]);
      completed = completed || f == flow::next, left = f == flow::leave;
    }
    if (s_.failed || completed || it.kids[4] == absent) return;
    const inner own(*this, here_);
    statement(it.kids[4]);
  }
  flow set_block(const node& it) {
    flow left = flow::next;
    const value text = inside_of(it.kids[1], left);
    if (left == flow::next) assign(it.kids[0], it.kids[2] == absent ? text : filtered(it.kids[2], text));
    return left;
  }
  flow with(const node& it) {
    std::vector<value> values;
    for (std::size_t i = 0; i + 1 < it.kids.size(); i += 2) values.push_back(evaluate(it.kids[i + 1]));
    const inner own(*this, here_);
    for (std::size_t i = 0; i < values.size() && !s_.failed; ++i) assign(it.kids[2 * i], values[i]);
    return s_.failed ? flow::next : statement(it.kids.back());
  }
  void define_macro(id n) {
    value v = s_.counted(kind::macro, at(n).text);
    if (s_.failed) return;
    v.body->node = n, v.body->home = here_;
    if (std::find(homes_.begin(), homes_.end(), here_) == homes_.end()) homes_.push_back(here_);
    s_.work(homes_.size());
    set(at(n).symbol, std::move(v));
  }
  void assign(id target, const value& v) {
    if (s_.failed) return;
    const node& to = at(target);
    if (to.what == op::name) return set(to.symbol, v);
    if (to.what == op::member) {
      const value space = variable(to.symbol);
      if (!space.is(kind::space)) {
        s_.stop("an attribute can be set on a namespace only, '" + tree_.symbols[to.symbol] + "' is " +
                type_name(space));
        return;
      }
      if (to.text.starts_with('_')) return refuse_underscore(to.text);
      return put(s_, space.body->keys, space.body->items, string(to.text), v);
    }
    std::vector<value> all;
    if (v.is_undefined()) {
      use_of_undefined(s_, v);
      return;
    }
    if (!elements(s_, v, all)) return;
    if (all.size() != to.kids.size()) {
      s_.stop("cannot unpack " + std::to_string(all.size()) + " values into " + std::to_string(to.kids.size()) +
              " names");
      return;
    }
    for (std::size_t i = 0; i < all.size(); ++i) assign(to.kids[i], all[i]);
  }
  void refuse_underscore(const std::string& name) {
    s_.stop("a namespace cannot hold '" + name + "': transformers refuses names that begin with an underscore");
  }

  // A scope is searched name by name, so scopes of many names cost steps.
  void set(id symbol, value v) {
    if (s_.work(here_->variables.size() / 16)) here_->set(symbol, std::move(v));
  }
  value variable(id symbol) {
    for (const scope* in = here_.get(); in != nullptr; in = in->parent.get()) {
      if (!s_.work(in->variables.size() / 16)) return {};
      if (const value* v = in->find(symbol)) return *v;
    }
    const std::string& name = tree_.symbols[symbol];
    for (const char* function : {"range", "namespace", "dict", "raise_exception", "strftime_now"})
      if (name == function) return s_.counted(kind::function, name);
    for (const char* other : {"lipsum", "cycler", "joiner"})
      if (name == other) return s_.stop("the function '" + name + "' is not supported in chat templates");
    return s_.undefined("'" + name + "' is undefined");
  }

  value evaluate(id n) {
    if (s_.failed) return {};
    const nested counted(s_, depth_);
    const node& it = at(n);
    if (!s_.work()) return {};
    switch (it.what) {
      case op::constant: return it.literal;
      case op::name: return variable(it.symbol);
      case op::attribute: return attribute(s_, evaluate(it.kids[0]), it.text);
      case op::item: return item_of(it);
      case op::slice: return slice_of(it);
      case op::call: return call(it);
      case op::filter: return filtered(n, it.kids[0] == absent ? value{} : evaluate(it.kids[0]));
      case op::test: return test(it);
      case op::negative:
      case op::positive: return signed_value(it);
      case op::logical_not: return boolean(!truth(evaluate(it.kids[0])));
      case op::binary: return binary(it);
      case op::compare: return compare(it);
      case op::logical_and:
      case op::logical_or: {
        value left = evaluate(it.kids[0]);
        return truth(left) == (it.what == op::logical_or) ? left : evaluate(it.kids[1]);
      }
      case op::concat: return concat(it);
      case op::conditional: return conditional(it);
      case op::list:
      case op::tuple: {
        std::vector<value> all = evaluate_all(it.kids);
        return s_.failed ? value{} : s_.collection(it.what == op::list ? kind::list : kind::tuple, std::move(all));
      }
      case op::dict: return dict(it);
      default: return s_.stop("a statement stands for an expression");
    }
  }
  std::vector<value> evaluate_all(const std::vector<id>& kids) {
    std::vector<value> all;
    for (const id kid : kids) {
      all.push_back(evaluate(kid));
      if (s_.failed) break;
    }
    return all;
  }
  value item_of(const node& it) {
    const value of = evaluate(it.kids[0]), key = evaluate(it.kids[1]);
    return s_.failed ? value{} : item(s_, of, key);
  }
  value slice_of(const node& it) {
    const value of = evaluate(it.kids[0]);
    value bounds[3];
    for (std::size_t i = 0; i < 3; ++i) bounds[i] = it.kids[i + 1] == absent ? none() : evaluate(it.kids[i + 1]);
    return s_.failed ? value{} : slice(s_, of, bounds[0], bounds[1], bounds[2]);
  }
  value signed_value(const node& it) {
    const value v = evaluate(it.kids[0]);
    if (v.is_undefined()) return s_.failed ? value{} : use_of_undefined(s_, v);
    if (!v.is_number()) return s_.stop("bad operand type for a sign: '" + std::string(type_name(v)) + "'");
    if (it.what == op::positive) return v.is_unsigned() ? integer(v.whole) : v;
    return v.is_unsigned() ? whole_arithmetic(s_, "-", 0, v.whole) : real(-v.real);
  }
  value binary(const node& it) {
    const value a = evaluate(it.kids[0]), b = evaluate(it.kids[1]);
    return s_.failed ? value{} : arithmetic(s_, it.text, a, b);
  }
  value compare(const node& it) {
    value left = evaluate(it.kids[0]);
    for (std::size_t i = 0; i < it.names.size() && !s_.failed; ++i) {
      value right = evaluate(it.kids[i + 1]);
      if (s_.failed || !compared(s_, it.names[i], left, right)) return boolean(false);
      left = std::move(right);
    }
    return boolean(true);
  }
  value concat(const node& it) {
    std::string all;
    for (const id kid : it.kids) {
      append_text(s_, all, evaluate(kid));
      if (s_.failed) return {};
    }
    return text_of(std::move(all));
  }
  value conditional(const node& it) {
    if (truth(evaluate(it.kids[0]))) return evaluate(it.kids[1]);
    if (it.kids[2] != absent) return evaluate(it.kids[2]);
    return s_.undefined("the inline if-expression on line " + std::to_string(it.line) +
                        " evaluated to false and no else section was defined");
  }
  value dict(const node& it) {
    std::vector<value> keys, items;
    for (std::size_t i = 0; i + 1 < it.kids.size() && !s_.failed; i += 2) {
      value key = evaluate(it.kids[i]), v = evaluate(it.kids[i + 1]);
      if (const char* const type = unhashable(s_, key)) return s_.stop(std::string("unhashable type: '") + type + "'");
      put(s_, keys, items, std::move(key), std::move(v));
    }
    return s_.failed ? value{} : s_.collection(kind::dict, std::move(items), std::move(keys));
  }

  // Arguments of a call, filter or test, whose first child is something else.
  arguments arguments_of(const node& it) {
    arguments all;
    for (std::size_t i = 1; i < it.kids.size() && !s_.failed; ++i) {
      value v = evaluate(it.kids[i]);
      if (i <= it.positional)
        all.positional.push_back(std::move(v));
      else
        all.named.emplace_back(it.names[i - 1 - it.positional], std::move(v));
    }
    return all;
  }
  // Applies a chain of filters, whose innermost operand is absent in filter blocks, to text; or one filter to a value.
  value filtered(id n, const value& operand) {
    const node& it = at(n);
    value v = operand;
    if (it.kids[0] != absent && chain_of_block(it.kids[0])) v = filtered(it.kids[0], operand);
    const arguments all = arguments_of(it);
    return s_.failed ? value{} : apply_filter(s_, it.text, v, all, depth_);
  }
  // Returns true if a chain of filters ends in the absent operand of a filter block.
  bool chain_of_block(id n) const {
    while (n != absent && at(n).what == op::filter) n = at(n).kids[0];
    return n == absent;
  }
  value test(const node& it) {
    const value v = evaluate(it.kids[0]);
    if (s_.failed) return {};
    const arguments all = arguments_of(it);
    return s_.failed ? value{} : boolean(apply_test(s_, it.text, v, all));
  }

  value call(const node& it) {
    const node& callee = at(it.kids[0]);
    // A method is called without making a value of it.
    if (callee.what == op::attribute) {
      const value self = evaluate(callee.kids[0]);
      if (s_.failed) return {};
      if (has_method(self, callee.text)) {
        const arguments all = arguments_of(it);
        return s_.failed ? value{} : call_method(self, callee.text, all);
      }
      const value found = attribute(s_, self, callee.text);
      return call_value(found, it);
    }
    const value found = evaluate(it.kids[0]);
    return call_value(found, it);
  }
  value call_value(const value& callee, const node& it) {
    if (s_.failed) return {};
    if (callee.is_undefined()) return use_of_undefined(s_, callee);
    const arguments all = arguments_of(it);
    if (s_.failed) return {};
    if (callee.is(kind::macro)) return call_macro(callee, all);
    if (callee.is(kind::function)) return call_function(callee.text(), all);
    if (callee.is(kind::method)) return call_method(callee.items()[0], callee.text(), all);
    if (callee.is(kind::loop)) return s_.stop("recursive loops are not supported");
    return s_.stop("'" + std::string(type_name(callee)) + "' object is not callable");
  }
  value call_method(const value& self, const std::string& name, const arguments& all) {
    if (self.is_string()) return string_method(s_, self, name, all);
    if (self.is(kind::dict)) return dict_method(s_, self, name, all);
    if (!self.is(kind::loop)) return list_method(s_, self, name, all);
    if (all.positional.empty()) return s_.stop("loop.cycle: no items for cycling given");
    return all.positional[self.body->position % all.positional.size()];
  }
  value call_macro(const value& macro, const arguments& in) {
    const node& it = at(macro.body->node);
    const int line = s_.line;
    const std::size_t parameters = it.symbols.size(), defaults = it.kids.size() - 1;
    if (in.positional.size() > parameters)
      return s_.stop("macro '" + it.text + "' takes not more than " + std::to_string(parameters) + " arguments");
    if (!s_.work(parameters * in.named.size() / 16)) return {};
    for (const auto& [name, v] : in.named) {
      const auto i = static_cast<std::size_t>(std::find(it.names.begin(), it.names.end(), name) - it.names.begin());
      if (i == parameters || i < in.positional.size())
        return s_.stop("macro '" + it.text + "' takes no keyword argument '" + name + "'");
    }
    const inner own(*this, macro.body->home);
    captured out(*this);
    for (std::size_t i = 0; i < parameters && !s_.failed; ++i) {
      value v;
      const auto given = std::find_if(in.named.begin(), in.named.end(),
                                      [&](const auto& argument) { return argument.first == it.names[i]; });
      if (i < in.positional.size())
        v = in.positional[i];
      else if (given != in.named.end())
        v = given->second;
      else if (i + defaults >= parameters)
        v = evaluate(it.kids[1 + i + defaults - parameters]);
      else
        v = s_.undefined("parameter '" + it.names[i] + "' was not provided");
      set(it.symbols[i], std::move(v));
    }
    if (!s_.failed) statement(it.kids[0]);
    if (!s_.failed) s_.line = line;
    return text_of(std::move(out.text));
  }
  value call_function(const std::string& name, const arguments& in) {
    if (name == "raise_exception") {
      const matched m(s_, name, in, {"message"}, 1);
      const std::string message = s_.failed ? std::string() : to_text(s_, m.get(0));
      if (s_.failed) return {};
      s_.raised = true;
      return s_.stop(message);
    }
    if (name == "strftime_now") {
      matched m(s_, name, in, {"format"}, 1);
      const std::string format = m.word(0);
      return s_.failed ? value{} : formatted_time(s_, format, now_);
    }
    if (name == "range") return range(in);
    return made_dict(name, in);
  }
  value range(const arguments& in) {
    matched m(s_, "range", in, {"start", "stop", "step"}, 1);
    std::int64_t from = m.whole(0, 0), to = m.whole(1, 0);
    const std::int64_t by = m.whole(2, 1);
    if (s_.failed) return {};
    if (m.at(1) == nullptr) to = from, from = 0;
    if (by == 0) return s_.stop("range() arg 3 must not be zero");
    std::vector<value> all;
    for (std::int64_t i = from; by > 0 ? i < to : i > to;) {
      if (all.size() == 100'000) return s_.stop("range() has more than 100000 elements, the limit of Jinja's sandbox");
      all.push_back(integer(i));
      if (__builtin_add_overflow(i, by, &i)) break;
    }
    value v = s_.collection(kind::range, std::move(all));
    if (v.body)
      v.body->text = "range(" + std::to_string(from) + ", " + std::to_string(to) +
                     (by == 1 ? "" : ", " + std::to_string(by)) + ")";
    return v;
  }
  // dict(…) and namespace(…): a mapping or pairs, and named arguments.
  value made_dict(const std::string& name, const arguments& in) {
    std::vector<value> keys, items;
    if (in.positional.size() > 1) return s_.stop(name + "() takes at most one argument without a name");
    if (!in.positional.empty()) {
      const value& from = in.positional[0];
      std::vector<value> pairs;
      if (from.is(kind::dict)) {
        keys = from.body->keys, items = from.body->items;
      } else if (!elements(s_, from, pairs)) {
        return {};
      }
      for (const value& pair : pairs) {
        std::vector<value> two;
        if (!elements(s_, pair, two)) return {};
        if (two.size() != 2) return s_.stop(name + "() expects pairs of a key and a value");
        if (unhashable(s_, two[0]) != nullptr) return s_.stop("unhashable type in " + name + "()");
        put(s_, keys, items, two[0], two[1]);
      }
    }
    for (const auto& [key, v] : in.named) put(s_, keys, items, string(key), v);
    if (name == "dict") return s_.collection(kind::dict, std::move(items), std::move(keys));
    for (const value& key : keys)
      if (key.is_string() && key.text().starts_with('_')) return refuse_underscore(key.text()), value{};
    // Namespaces have depth 0: their contents are freed one by one at the end, so cycles cannot overflow the stack.
    value v = named(kind::space, {});
    v.body->keys = std::move(keys), v.body->items = std::move(items);
    spaces_.push_back(v.body);
    s_.fits(256);
    return v;
  }

  const syntax_tree& tree_;
  state& s_;
  std::int64_t now_;
  std::shared_ptr<scope> root_ = std::make_shared<scope>(), here_;
  std::vector<std::shared_ptr<scope>> homes_;
  std::vector<std::shared_ptr<payload>> spaces_;
  std::string* out_ = nullptr;
  std::uint32_t loop_symbol_ = absent - 1;
  int depth_ = 0;
};

}  // namespace graft::io::jinja
