#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Writes include/graft/io/tokenizer/unicode_properties.h: properties of all characters as the tokenizers package (PyPI)
# sees them. They are asked of the package itself, because its parts use several versions of Unicode: regular expressions
# those of Oniguruma, Lowercase and Digits those of Rust, normal forms those of its own crate.
# usage: cmake/generate_tokenizer_tables.py > include/graft/io/tokenizer/unicode_properties.h
import textwrap
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

codes = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
everything = "".join(map(chr, codes))


def ranges(sorted_codes):
    out = []
    for c in sorted_codes:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def matched(regex):
    """All characters that a regular expression matches, alone."""
    found = pre_tokenizers.Split(Regex(regex), "removed", invert=True).pre_tokenize_str(everything)
    return sorted(ord(c) for piece, _ in found for c in piece)


def table(name, rows, comment):
    print(f"// {comment}\ninline constexpr std::uint32_t {name}[][{len(rows[0])}] = {{")
    print(textwrap.fill(", ".join("{" + ", ".join(f"{n}" if n < 32 else f"0x{n:X}" for n in row) + "}" for row in rows), 118,
                        initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False) + "};\n")


categories = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
category = {c: "Cn" for c in codes}
for name in categories:
    if name not in ("Cs", "Cn"):
        for c in matched(rf"\p{{{name}}}"):
            category[c] = name
by_category = []
for c in codes:
    k = categories.index(category[c])
    if by_category and by_category[-1][1] == c - 1 and by_category[-1][2] == k:
        by_category[-1][1] = c
    else:
        by_category.append([c, c, k])
by_category = [r for r in by_category if categories[r[2]] != "Cn"]

alphabetic, word, space = (matched(r) for r in (r"\p{Alphabetic}", r"\w", r"\s"))
by_rule = set(alphabetic) | {c for c in codes if category[c][0] == "M" or category[c] in ("Nd", "Pc")}
assert set(word) == by_rule | {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE}  # as unicode.h has it


def says(test):
    return [c for c in codes if test(chr(c))]


split_whitespace = pre_tokenizers.Whitespace()
digits, punctuation = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()
spaces = pre_tokenizers.WhitespaceSplit()
pieces = lambda part, c: len(part.pre_tokenize_str("a" + c + "a"))
rust_word = says(lambda c: pieces(split_whitespace, c) == 1)
rust_space = says(lambda c: pieces(spaces, c) == 2)
rust_number = says(lambda c: pieces(digits, c) == 3)
rust_punctuation = says(lambda c: pieces(punctuation, c) == 3)
N = {c for c in codes if category[c][0] == "N"}
assert rust_space == space == says(lambda c: normalizers.Strip().normalize_str(c) == "")
assert set(rust_word) == by_rule | {0x200C, 0x200D}
assert N <= set(rust_number)

lower = {c: normalizers.Lowercase().normalize_str(chr(c)) for c in codes}
lower = {c: s for c, s in lower.items() if s != chr(c)}
assert [c for c, s in lower.items() if len(s) != 1] == [0x130]
lower_rows = [[c, ord(s)] for c, s in lower.items() if len(s) == 1]
# Runs of one distance and a step of one or two.
lower_runs = []
for c, d in lower_rows:
    if lower_runs and (r := lower_runs[-1]) and d - c == r[3] and c - r[1] in (1, 2) and r[2] in (0, c - r[1]):
        r[1], r[2] = c, c - r[1]
    else:
        lower_runs.append([c, c, 0, d - c])
lower_runs = [[a, b, max(s, 1), d & 0xFFFFFFFF] for a, b, s, d in lower_runs]

# Characters that regular expressions take for one another with (?i): their simple case foldings are the same.
root = {}


def top(c):
    while c in root:
        c = root[c]
    return c


for c in codes:
    for other in (chr(c).lower(), chr(c).upper(), chr(c).casefold(), lower.get(c, chr(c))):
        if len(other) == 1 and top(ord(other)) != top(c):
            a, b = sorted((top(c), top(ord(other))))
            root[b] = a
folds = [[c, top(c)] for c in codes if top(c) != c]


def same(c, t):
    try:
        return len(pre_tokenizers.Split(Regex(f"(?i:\\x{{{t:x}}})"), "removed", invert=True).pre_tokenize_str(chr(c))) == 1
    except BaseException:
        return False


folds = [[c, t] for c, t in folds if same(c, t)]
fold_runs = []
for c, t in folds:
    if fold_runs and (r := fold_runs[-1]) and t - c == r[3] and c - r[1] in (1, 2) and r[2] in (0, c - r[1]):
        r[1], r[2] = c, c - r[1]
    else:
        fold_runs.append([c, c, 0, t - c])
fold_runs = [[a, b, max(s, 1), d & 0xFFFFFFFF] for a, b, s, d in fold_runs]

nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
compatible = []
for c in codes:
    if 0xAC00 <= c <= 0xD7A3:
        continue
    k = nfkd.normalize_str(chr(c))
    if k != nfd.normalize_str(chr(c)):
        compatible.append([c, len(k), *map(ord, k)])
accents = says(lambda c: normalizers.StripAccents().normalize_str(c) == "")

print(f"""// SPDX-License-Identifier: Apache-2.0
// Properties of all characters for regular expressions, Lowercase, StripAccents and compatibility decomposition, as the
// tokenizers package sees them; generated by cmake/generate_tokenizer_tables.py from tokenizers {tokenizers.__version__}.
#pragma once
#include <cstdint>

namespace graft::io::hf {{

// clang-format off
inline constexpr const char* category_names[] = {{{", ".join('"' + n + '"' for n in categories)}}};
""")
table("categories", by_category, "General category: from, to, index of its name. All other characters are Cn.")
table("alphabetic_marks", [r for r in ranges([c for c in alphabetic if category[c][0] not in "L" and category[c] != "Nl"])],
      "Alphabetic characters that are neither letters (L) nor letter numbers (Nl).")
for script in ("Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Thai", "Devanagari"):
    table("script_" + script.lower(), ranges(matched(rf"\p{{{script}}}")), f"Script {script}.")
table("later_numbers", ranges(sorted(set(rust_number) - N)), "Numbers (N) of the Digits pretokenizer alone, from a later Unicode.")
table("punctuation", ranges(rust_punctuation), "What the Punctuation pretokenizer splits at.")
table("accents", ranges(accents), "Characters that StripAccents removes.")
table("lowercase_runs", lower_runs, "Lowercase: from, to, step, distance modulo 2^32. U+0130 alone becomes two characters.")
table("fold_runs", fold_runs, "Case-insensitive matching: from, to, step, distance to the character of the same folding.")
print("// NFKD where it differs from NFD: a character, the number of characters that it becomes, and those.")
print("inline constexpr std::uint32_t compatibility_decompositions[] = {")
print(textwrap.fill(", ".join(f"{n}" if n < 32 else f"0x{n:X}" for row in compatible for n in row), 118,
                    initial_indent="    ", subsequent_indent="    ") + "};\n")
print("""// clang-format on

}  // namespace graft::io::hf""")
