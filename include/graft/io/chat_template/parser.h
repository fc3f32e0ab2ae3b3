// SPDX-License-Identifier: Apache-2.0
// Recursive-descent parser of chat templates: tokens to the syntax tree, with Jinja's grammar and precedence.
// Statements that chat templates have no use for (include, import, extends, block, call, recursive loops) are refused
// by name.
#pragma once
#include <graft/io/chat_template/lexer.h>
#include <graft/io/chat_template/syntax.h>

#include <unordered_map>
#include <unordered_set>

namespace graft::io::jinja {

class parser {
 public:
  parser(std::vector<token> tokens, state& s, syntax_tree& tree) : in_(std::move(tokens)), s_(s), tree_(tree) {}
  bool run() {
    tree_.root = body({});
    return !s_.failed;
  }

 private:
  using id = std::uint32_t;
  using words = std::initializer_list<std::string_view>;

  const token& now() const { return in_[at_]; }
  const token& ahead() const { return in_[std::min(at_ + 1, in_.size() - 1)]; }
  void next() {
    if (at_ + 1 < in_.size()) ++at_;
  }
  id stop(std::string why) {
    if (!s_.failed) s_.line = now().line;
    s_.stop(std::move(why));
    at_ = in_.size() - 1;
    return absent;
  }
  static std::string describe(const token& t) {
    switch (t.what) {
      case token_kind::data: return "text";
      case token_kind::print_begin: return "'{{'";
      case token_kind::print_end: return "'}}'";
      case token_kind::block_begin: return "'{%'";
      case token_kind::block_end: return "'%}'";
      case token_kind::text: return "a string";
      case token_kind::end: return "the end of the template";
      default: return in_quotes(t.text, 60).c_str();
    }
  }
  id unexpected(std::string_view wanted) {
    return stop("unexpected " + describe(now()) + ", expected " + std::string(wanted));
  }
  bool is_sign(std::string_view text) const { return now().what == token_kind::sign && now().text == text; }
  bool is_string(std::string_view text) const { return now().what == token_kind::name && now().text == text; }
  bool is_string(words all) const {
    return std::any_of(all.begin(), all.end(), [&](std::string_view w) { return is_string(w); });
  }
  bool take_sign(std::string_view text) { return is_sign(text) && (next(), true); }
  bool take_word(std::string_view text) { return is_string(text) && (next(), true); }
  bool expect_sign(std::string_view text) {
    return take_sign(text) || (unexpected("'" + std::string(text) + "'"), false);
  }
  bool expect_word(std::string_view text) {
    return take_word(text) || (unexpected("'" + std::string(text) + "'"), false);
  }
  bool expect(token_kind what, std::string_view wanted) {
    if (now().what != what) return unexpected(wanted), false;
    next();
    return true;
  }
  std::string expect_name() {
    if (now().what != token_kind::name) return unexpected("a name"), std::string();
    std::string name = now().text;
    next();
    return name;
  }

  // Adds a node. Its depth is bounded here, so that a long chain such as a + b + c cannot overflow the stack later.
  id add(node n, int line) {
    if (s_.failed) return absent;
    n.line = line;
    for (const id kid : n.kids)
      if (kid != absent) n.depth = std::max(n.depth, 1 + tree_.nodes[kid].depth);
    if (n.depth > s_.limits.syntax_depth) return too_deep();
    tree_.nodes.push_back(std::move(n));
    return static_cast<id>(tree_.nodes.size() - 1);
  }
  id add(op what, int line, std::vector<id> kids, std::string text = {}) {
    node n;
    n.what = what, n.kids = std::move(kids), n.text = std::move(text);
    return add(std::move(n), line);
  }
  id too_deep() {
    return stop("statements or expressions are nested deeper than " + std::to_string(s_.limits.syntax_depth));
  }
  // Counts the recursion of the parser itself.
  struct level {
    explicit level(parser& p) : p_(p) {
      if (++p_.depth_ > p_.s_.limits.syntax_depth) p_.too_deep();
    }
    ~level() { --p_.depth_; }
    level(const level&) = delete;
    level& operator=(const level&) = delete;
    parser& p_;
  };
  id symbol(const std::string& name) {
    const auto [at, is_new] = symbols_.try_emplace(name, static_cast<id>(tree_.symbols.size()));
    if (is_new) tree_.symbols.push_back(name);
    return at->second;
  }
  id constant(value v, int line) {
    node n;
    n.what = op::constant, n.literal = std::move(v);
    return add(std::move(n), line);
  }

  // Parses statements until a tag whose first word is in `ends`; that word stays the current token.
  id body(words ends) {
    const level counted(*this);
    const int line = now().line;
    std::vector<id> all;
    while (!s_.failed) {
      const int at = now().line;
      if (now().what == token_kind::end) {
        if (ends.size() != 0) return unexpected("{% " + std::string(*(ends.end() - 1)) + " %}");
        break;
      }
      if (now().what == token_kind::data) {
        all.push_back(add(op::data, at, {}, now().text));
        next();
      } else if (now().what == token_kind::print_begin) {
        next();
        all.push_back(add(op::print, at, {tuple({}, false)}));
        expect(token_kind::print_end, "'}}'");
      } else {
        next();
        if (is_string(ends)) break;
        all.push_back(statement());
        expect(token_kind::block_end, "'%}'");
      }
    }
    return add(op::block, line, std::move(all));
  }
  // The rest of an opening tag, and its body.
  id statements(words ends) {
    take_sign(":");
    expect(token_kind::block_end, "'%}'");
    return body(ends);
  }
  id closed(words end) {
    const id inside = statements(end);
    next();
    return inside;
  }
  id statement() {
    const level counted(*this);
    if (now().what != token_kind::name) return unexpected("a statement");
    const int line = now().line;
    const std::string word = now().text;
    next();
    if (word == "if") return if_statement(line);
    if (word == "for") return for_statement(line);
    if (word == "set") return set_statement(line);
    if (word == "macro") return macro_statement(line);
    if (word == "filter") {
      const id chain = filters(absent, true);
      const id inside = closed({"endfilter"});
      return add(op::filter_block, line, {chain, inside});
    }
    if (word == "with") return with_statement(line);
    if (word == "generation") {
      // transformers makes a function of its body, which no loop around it can be left from.
      const int loops = loops_;
      loops_ = 0;
      const id inside = closed({"endgeneration"});
      loops_ = loops;
      return add(op::generation, line, {inside});
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return stop("'" + word + "' stands outside of a loop");
      return add(word == "break" ? op::break_ : op::continue_, line, {});
    }
    if (word == "print") {
      std::vector<id> all;
      do all.push_back(add(op::print, line, {expression()}));
      while (!s_.failed && take_sign(","));
      return add(op::block, line, std::move(all));
    }
    for (const char* known :
         {"include", "import", "from", "extends", "block", "call", "autoescape", "do", "debug", "trans"})
      if (word == known) return stop("the statement '" + word + "' is not supported in chat templates");
    return stop("the statement " + std::string(in_quotes(word, 60).c_str()) +
                " is unknown, expected if, for, set, macro, "
                "filter, with, generation, break or continue");
  }
  id if_statement(int line) {
    std::vector<id> kids;
    do {
      kids.push_back(tuple({}, false, false));
      kids.push_back(statements({"elif", "else", "endif"}));
    } while (take_word("elif") && !s_.failed);
    if (take_word("else"))
      kids.push_back(closed({"endif"}));
    else
      next();
    return add(op::if_, line, std::move(kids));
  }
  id for_statement(int line) {
    const id to = target(false, {"in"});
    expect_word("in");
    const id over = tuple({"recursive"}, false, false);
    const id condition = take_word("if") ? expression() : absent;
    if (is_string("recursive")) return stop("recursive loops are not supported");
    ++loops_;
    const id inside = statements({"endfor", "else"});
    --loops_;
    id otherwise = absent;
    if (take_word("else"))
      otherwise = closed({"endfor"});
    else
      next();
    return add(op::for_, line, {to, over, condition, inside, otherwise});
  }
  id set_statement(int line) {
    const id to = target(true, {});
    if (take_sign("=")) {
      const id what = tuple({}, false);
      return add(op::set, line, {to, what});
    }
    const id chain = is_sign("|") ? filters(absent, false) : absent;
    const id inside = closed({"endset"});
    return add(op::set_block, line, {to, inside, chain});
  }
  id with_statement(int line) {
    std::vector<id> kids;
    while (now().what != token_kind::block_end && !s_.failed) {
      if (!kids.empty()) expect_sign(",");
      kids.push_back(target(false, {}));
      expect_sign("=");
      kids.push_back(expression());
    }
    kids.push_back(closed({"endwith"}));
    return add(op::with, line, std::move(kids));
  }
  id macro_statement(int line) {
    node n;
    n.what = op::macro, n.text = expect_name(), n.symbol = symbol(n.text);
    std::vector<id> defaults;
    expect_sign("(");
    while (!is_sign(")") && !s_.failed) {
      if (!n.symbols.empty()) expect_sign(",");
      if (is_sign(")")) break;
      const std::string parameter = expect_name();
      n.names.push_back(parameter), n.symbols.push_back(symbol(parameter));
      if (take_sign("="))
        defaults.push_back(expression());
      else if (!defaults.empty())
        return stop("the parameter " + parameter + " has no default, but one before it has");
    }
    expect_sign(")");
    // A macro is a function of its own: a loop around its definition is not one that its body can leave.
    const int loops = loops_;
    loops_ = 0, ++macros_;
    n.kids.push_back(closed({"endmacro"}));
    loops_ = loops, --macros_;
    n.kids.insert(n.kids.end(), defaults.begin(), defaults.end());
    return add(std::move(n), line);
  }

  // Parses the target of an assignment: a name, several, or, in `set`, a member of a namespace.
  id target(bool with_member, words ends) {
    const level counted(*this);
    const int line = now().line;
    std::vector<id> all;
    bool several = false;
    while (!s_.failed) {
      if (!all.empty() && (is_string(ends) || is_sign(")") || is_sign("="))) break;
      if (take_sign("(")) {
        all.push_back(target(with_member, {}));
        expect_sign(")");
      } else {
        node n;
        n.what = op::name, n.text = expect_name();
        for (const char* reserved : {"true", "false", "none", "True", "False", "None"})
          if (n.text == reserved) return stop("'" + n.text + "' cannot be assigned to");
        n.symbol = symbol(n.text);
        if (with_member && take_sign(".")) n.what = op::member, n.text = expect_name();
        all.push_back(add(std::move(n), line));
      }
      if (!take_sign(",")) break;
      several = true;
    }
    return several ? add(op::tuple, line, std::move(all)) : all.empty() ? absent : all[0];
  }

  bool tuple_ends(words ends) const {
    return now().what == token_kind::print_end || now().what == token_kind::block_end || is_sign(")") ||
           is_string(ends);
  }
  // Expressions with commas between them, or a single one.
  id tuple(words ends, bool in_parentheses, bool with_condition = true) {
    const int line = now().line;
    std::vector<id> all;
    bool several = false;
    while (!s_.failed) {
      if (tuple_ends(ends)) break;
      all.push_back(with_condition ? expression() : logical_or());
      if (!take_sign(",")) break;
      several = true;
    }
    if (all.empty() && !in_parentheses) return unexpected("an expression");
    if (!several && !all.empty()) return all[0];
    return add(op::tuple, line, std::move(all));
  }
  id expression() {
    const level counted(*this);
    const int line = now().line;
    id first = logical_or();
    while (!s_.failed && take_word("if")) {
      const id condition = logical_or();
      const id otherwise = take_word("else") ? expression() : absent;
      first = add(op::conditional, line, {condition, first, otherwise});
    }
    return first;
  }
  id logical_or() {
    const int line = now().line;
    id left = logical_and();
    while (!s_.failed && take_word("or")) {
      const id right = logical_and();
      left = add(op::logical_or, line, {left, right});
    }
    return left;
  }
  id logical_and() {
    const int line = now().line;
    id left = logical_not();
    while (!s_.failed && take_word("and")) {
      const id right = logical_not();
      left = add(op::logical_and, line, {left, right});
    }
    return left;
  }
  id logical_not() {
    const level counted(*this);
    const int line = now().line;
    if (s_.failed) return absent;
    return take_word("not") ? add(op::logical_not, line, {logical_not()}) : compare();
  }
  id compare() {
    node n;
    n.what = op::compare;
    const int line = now().line;
    n.kids.push_back(sum());
    while (!s_.failed) {
      std::string word;
      for (const char* sign : {"==", "!=", ">=", "<=", ">", "<"})
        if (word.empty() && take_sign(sign)) word = sign;
      if (word.empty() && take_word("in")) word = "in";
      if (word.empty() && is_string("not") && ahead().what == token_kind::name && ahead().text == "in")
        next(), next(), word = "not in";
      if (word.empty()) break;
      n.names.push_back(word);
      n.kids.push_back(sum());
    }
    return n.names.empty() ? n.kids[0] : add(std::move(n), line);
  }
  template <class Next> id chain(words signs, Next operand) {
    id left = operand();
    while (!s_.failed && now().what == token_kind::sign &&
           std::find(signs.begin(), signs.end(), now().text) != signs.end()) {
      const std::string sign = now().text;
      const int line = now().line;
      next();
      const id right = operand();
      left = add(op::binary, line, {left, right}, sign);
    }
    return left;
  }
  id sum() {
    return chain({"+", "-"}, [this] { return concat(); });
  }
  id concat() {
    const int line = now().line;
    std::vector<id> all{product()};
    while (!s_.failed && take_sign("~")) all.push_back(product());
    return all.size() == 1 ? all[0] : add(op::concat, line, std::move(all));
  }
  id product() {
    return chain({"*", "/", "//", "%"}, [this] { return chain({"**"}, [this] { return unary(true); }); });
  }
  id unary(bool with_filter) {
    const level counted(*this);
    if (s_.failed) return absent;
    const int line = now().line;
    id n;
    if (take_sign("-"))
      n = add(op::negative, line, {unary(false)});
    else if (take_sign("+"))
      n = add(op::positive, line, {unary(false)});
    else
      n = primary();
    n = postfix(n);
    while (with_filter && !s_.failed) {
      if (is_sign("|"))
        n = filters(n, false);
      else if (is_string("is"))
        n = test(n);
      else if (is_sign("("))
        n = call(n);
      else
        break;
    }
    return n;
  }
  id primary() {
    const token t = now();
    switch (t.what) {
      case token_kind::name: {
        next();
        if (t.text == "true" || t.text == "True") return constant(boolean(true), t.line);
        if (t.text == "false" || t.text == "False") return constant(boolean(false), t.line);
        if (t.text == "none" || t.text == "None") return constant(none(), t.line);
        if (macros_ > 0 && (t.text == "varargs" || t.text == "kwargs" || t.text == "caller"))
          return stop("'" + t.text + "' in macros is not supported, expected named parameters");
        node n;
        n.what = op::name, n.text = t.text, n.symbol = symbol(t.text);
        return add(std::move(n), t.line);
      }
      case token_kind::text: {
        std::string all;
        while (now().what == token_kind::text) all += now().text, next();
        return constant(string(std::move(all)), t.line);
      }
      case token_kind::whole: return next(), constant(integer(t.whole), t.line);
      case token_kind::real: return next(), constant(real(t.real), t.line);
      default: break;
    }
    if (take_sign("(")) {
      const id inside = tuple({}, true);
      expect_sign(")");
      return inside;
    }
    const bool is_list = is_sign("["), is_dict = is_sign("{");
    if (!is_list && !is_dict) return unexpected("an expression");
    next();
    const std::string_view end = is_list ? "]" : "}";
    std::vector<id> all;
    while (!is_sign(end) && !s_.failed) {
      if (!all.empty()) expect_sign(",");
      if (is_sign(end)) break;
      all.push_back(expression());
      if (is_dict) expect_sign(":"), all.push_back(expression());
    }
    expect_sign(end);
    return add(is_list ? op::list : op::dict, t.line, std::move(all));
  }
  id postfix(id n) {
    while (!s_.failed) {
      if (is_sign("."))
        n = attribute(n);
      else if (is_sign("["))
        n = subscript(n);
      else if (is_sign("("))
        n = call(n);
      else
        break;
    }
    return n;
  }
  id attribute(id object) {
    const int line = now().line;
    next();
    const token t = now();
    if (t.what != token_kind::name && t.what != token_kind::whole) return unexpected("a name or a number after '.'");
    next();
    if (t.what == token_kind::whole) return add(op::item, line, {object, constant(integer(t.whole), line)});
    return add(op::attribute, line, {object}, t.text);
  }
  id subscript(id object) {
    const int line = now().line;
    next();
    id start = absent, stop_at = absent, step = absent;
    const auto ended = [&] { return is_sign("]") || is_sign(","); };
    if (!is_sign(":")) {
      start = expression();
      if (!is_sign(":")) {
        expect_sign("]");
        return add(op::item, line, {object, start});
      }
    }
    next();
    if (!is_sign(":") && !ended()) stop_at = expression();
    if (take_sign(":") && !ended()) step = expression();
    expect_sign("]");
    return add(op::slice, line, {object, start, stop_at, step});
  }
  void arguments(node& n) {
    expect_sign("(");
    std::unordered_set<std::string_view> names;
    bool first = true;
    while (!is_sign(")") && !s_.failed) {
      if (!first) expect_sign(",");
      first = false;
      if (is_sign(")")) break;
      if (is_sign("*") || is_sign("**")) {
        stop("'" + now().text + "' in arguments is not supported, expected arguments one by one");
        return;
      }
      if (now().what == token_kind::name && ahead().what == token_kind::sign && ahead().text == "=") {
        if (!names.insert(now().text).second) {
          stop("the argument " + now().text + " is given twice");
          return;
        }
        n.names.push_back(now().text);
        next(), next();
      } else if (!n.names.empty()) {
        unexpected("an argument with a name, after one that has a name");
        return;
      } else {
        ++n.positional;
      }
      n.kids.push_back(expression());
    }
    expect_sign(")");
  }
  id call(id callee) {
    node n;
    n.what = op::call, n.kids = {callee};
    const int line = now().line;
    arguments(n);
    return add(std::move(n), line);
  }
  std::string dotted_name() {
    std::string name = expect_name();
    while (!s_.failed && take_sign(".")) name += "." + expect_name();
    return name;
  }
  // One filter or more; `inline_start` is set where the first has no '|' before it.
  id filters(id operand, bool inline_start) {
    while (!s_.failed && (inline_start || take_sign("|"))) {
      inline_start = false;
      node n;
      const int line = now().line;
      n.what = op::filter, n.text = dotted_name(), n.kids = {operand};
      if (is_sign("(")) arguments(n);
      operand = add(std::move(n), line);
    }
    return operand;
  }
  id test(id operand) {
    const int line = now().line;
    next();
    const bool negated = take_word("not");
    node n;
    n.what = op::test, n.text = dotted_name(), n.kids = {operand};
    const token_kind what = now().what;
    if (is_sign("(")) {
      arguments(n);
    } else if (is_string("is")) {
      return stop("tests cannot be chained with 'is', expected 'and'");
    } else if ((what == token_kind::name && !is_string({"else", "or", "and"})) || what == token_kind::text ||
               what == token_kind::whole || what == token_kind::real || is_sign("[") || is_sign("{")) {
      n.kids.push_back(postfix(primary())), ++n.positional;
    }
    const id made = add(std::move(n), line);
    return negated ? add(op::logical_not, line, {made}) : made;
  }

  std::vector<token> in_;
  state& s_;
  syntax_tree& tree_;
  std::unordered_map<std::string, id> symbols_;
  std::size_t at_ = 0;
  int depth_ = 0, loops_ = 0, macros_ = 0;
};

}  // namespace graft::io::jinja
