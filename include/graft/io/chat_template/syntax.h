// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a chat template. Nodes are an array and children are indices, so that a tree of any depth is freed
// without recursion; names are numbers, so that variables are found by comparing integers.
#pragma once
#include <graft/io/chat_template/value.h>

namespace graft::io::jinja {

enum class op : unsigned char {
  // expressions
  constant,   // literal
  name,       // symbol
  attribute,  // kids: object; text
  item,       // kids: object, key
  slice,      // kids: object, start, stop, step, each may be absent
  call,       // kids: callee, arguments
  filter,     // text; kids: operand (absent in filter blocks and block sets), arguments
  test,       // text; kids: operand, arguments
  negative,
  positive,
  logical_not,
  binary,   // text is the operator
  compare,  // kids: operands; names: operators
  logical_and,
  logical_or,
  concat,
  conditional,  // kids: condition, value, other value, which may be absent
  list,
  tuple,
  dict,  // kids: key, value, key, value, …
  // targets of assignments: name, tuple, and
  member,  // symbol is the namespace, text the attribute
  // statements
  block,         // kids: statements
  data,          // text
  print,         // kids: expression
  if_,           // kids: condition, body, condition, body, …, and one body more for else
  for_,          // kids: target, iterable, condition, body, else; condition and else may be absent
  set,           // kids: target, expression
  set_block,     // kids: target, body, filter, which may be absent
  macro,         // symbol; text is the name; symbols: parameters; kids: body, defaults of the last parameters
  filter_block,  // kids: filter, body
  with,          // kids: targets and values in turns, then the body
  generation,    // kids: body
  break_,
  continue_
};

inline constexpr std::uint32_t absent = 0xFFFFFFFF;

struct node {
  op what = op::block;
  int line = 1, depth = 1;
  std::uint32_t symbol = absent;
  std::uint32_t positional = 0;  // arguments without a name; the others follow them, one per entry of names
  std::string text;
  value literal;
  std::vector<std::uint32_t> kids, symbols;
  std::vector<std::string> names;
};

struct syntax_tree {
  std::vector<node> nodes;
  std::vector<std::string> symbols;
  std::uint32_t root = absent;

  // The number of a name; absent where the template does not use it.
  std::uint32_t symbol(std::string_view name) const {
    for (std::size_t i = 0; i < symbols.size(); ++i)
      if (symbols[i] == name) return static_cast<std::uint32_t>(i);
    return absent;
  }
};

}  // namespace graft::io::jinja
