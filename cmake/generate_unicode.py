#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Writes include/graft/io/hf/unicode_tables.h from the Unicode Character Database as unicodedata2 16.0.0 (PyPI) has it.
# usage: cmake/generate_unicode.py > include/graft/io/hf/unicode_tables.h
# Classes are those of Unicode 16.0, as in the regular expressions of tokenizers 0.23. Its normalisation is that of Unicode
# 9.0, so characters with a combining class or a decomposition that came later are left out there.
import textwrap
import unicodedata2 as ucd

assert ucd.unidata_version == "16.0.0"
later_than_9 = [
    (0x7FD, 0x7FD), (0x897, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C), (0xEBA, 0xEBA),
    (0x1715, 0x1715), (0x1ABF, 0x1ACE), (0x1DF6, 0x1DFA), (0xA82C, 0xA82C), (0x105C9, 0x105C9), (0x105E4, 0x105E4),
    (0x10D24, 0x10D27), (0x10D69, 0x10D6D), (0x10EAB, 0x10EAC), (0x10EFD, 0x10EFF), (0x10F46, 0x10F50),
    (0x10F82, 0x10F85), (0x11070, 0x11070), (0x1133B, 0x1133B), (0x11383, 0x11383), (0x11385, 0x11385),
    (0x1138E, 0x1138E), (0x11391, 0x11391), (0x113C5, 0x113C5), (0x113C7, 0x113C8), (0x113CE, 0x113D0),
    (0x1145E, 0x1145E), (0x11839, 0x1183A), (0x11938, 0x11938), (0x1193D, 0x1193E), (0x11943, 0x11943),
    (0x119E0, 0x119E0), (0x11A34, 0x11A34), (0x11A47, 0x11A47), (0x11A99, 0x11A99), (0x11D42, 0x11D42),
    (0x11D44, 0x11D45), (0x11D97, 0x11D97), (0x11F41, 0x11F42), (0x16121, 0x16128), (0x1612F, 0x1612F),
    (0x16D68, 0x16D6A), (0x16FF0, 0x16FF1), (0x1E08F, 0x1E08F), (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE),
    (0x1E2EC, 0x1E2EF), (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF)]
every = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
known = [c for c in every if not any(a <= c <= b for a, b in later_than_9)]


def runs(codes):
    out = []
    for c in codes:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, rows, comment):
    width = len(rows[0])
    print(f"// {comment}\ninline constexpr std::uint32_t {name}[][{width}] = {{")
    print(textwrap.fill(", ".join("{" + ", ".join(f"0x{n:X}" for n in row) + "}" for row in rows), 118,
                        initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False) + "};\n")


def of_category(letter):
    return runs(c for c in every if ucd.category(chr(c))[0] == letter)


classes = []
for c in known:
    k = ucd.combining(chr(c))
    if k and classes and classes[-1][1] == c - 1 and classes[-1][2] == k:
        classes[-1][1] = c
    elif k:
        classes.append([c, c, k])
composed, replaced = [], []
for c in known:
    parts = ucd.decomposition(chr(c))
    if not parts or parts.startswith("<"):
        continue
    parts = [int(p, 16) for p in parts.split()]
    both = ucd.normalize("NFC", chr(c)) == chr(c)
    (composed if both else replaced).append([c, *parts, *([0] * (2 - len(parts)))])

print("""// SPDX-License-Identifier: Apache-2.0
// What of Unicode a tokenizer needs. Written by cmake/generate_unicode.py: classes from Unicode 16.0.0, normalisation from
// Unicode 9.0.0, the versions that the tokenizers of models were made with.
#pragma once
#include <cstdint>

namespace graft::io::hf {

// clang-format off""")
table("letters", of_category("L"), "General category L, from first to last.")
table("numbers", of_category("N"), "General category N.")
table("combining_classes", classes, "Canonical combining class: from, to, class. All others have class 0.")
table("compositions", composed, "A character, and the two that it is composed of in NFC. Hangul follows from its numbers.")
table("replacements", replaced, "A character that NFC replaces by one other, or by two.")
print("""// clang-format on

}  // namespace graft::io::hf""")
