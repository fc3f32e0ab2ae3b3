#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Writes include/graft/io/chat_template/case_tables.h from Python's str methods (3.11, Unicode 14.0).
# usage: cmake/generate_case_tables.py > include/graft/io/chat_template/case_tables.h
import textwrap

every = [chr(c) for c in range(0x80, 0x110000) if not 0xD800 <= c <= 0xDFFF]


def table(name, width, rows, comment, type="std::int32_t"):
    print(f"// {comment}\ninline constexpr {type} {name}[][{width}] = {{")
    print(textwrap.fill(", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows), 118,
                        initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False) + "};\n")


def mapping(name, method):
    rows = []  # first, last, step, difference
    for c in every:
        m = method(c)
        if m == c or len(m) > 1:
            continue
        d = ord(m) - ord(c)
        last = rows[-1] if rows else None
        if last and last[3] == d and ord(c) - last[1] in ((1, 2) if last[2] == 0 else (last[2],)):
            last[2] = ord(c) - last[1]
            last[1] = ord(c)
        else:
            rows.append([ord(c), ord(c), 0, d])
    table(name, 4, [[a, b, s or 1, d] for a, b, s, d in rows], f"str.{name[:5]}: first, last, step, difference")


print("""// SPDX-License-Identifier: Apache-2.0
// Upper, lower and title case and printable characters above ASCII as Python 3.11 has them (Unicode 14.0). Written by
// cmake/generate_case_tables.py.
#pragma once
#include <cstdint>

// clang-format off
namespace graft::io::jinja {
""")
mapping("upper_case", str.upper)
mapping("lower_case", str.lower)
titles = [c for c in every if len(c.title()) == 1 and c.title() != c.upper() and len(c.upper()) == 1]
table("title_case", 2, [[ord(c), ord(c.title())] for c in titles],
      "str.title where it differs from str.upper: character, title")
for name, method in (("longer_upper", str.upper), ("longer_title", str.title), ("longer_lower", str.lower)):
    rows = [[ord(c), *map(ord, method(c)), *[0] * (3 - len(method(c)))] for c in every if len(method(c)) > 1]
    table(name, 4, rows, f"{name}: character and the two or three that it becomes")
for name, test in (("cased_letters", lambda c: c.islower() or c.isupper() or c.istitle()),
                   ("not_printable", lambda c: not c.isprintable())):
    out = []
    for c in range(0x80, 0x110000):
        if test(chr(c)):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    table(name, 2, out, f"{name}: first, last")
print("}  // namespace graft::io::jinja\n// clang-format on")
