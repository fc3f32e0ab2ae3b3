# SPDX-License-Identifier: Apache-2.0
"""Writes single_include/graft.hpp: the language (floors 0 to 4 and the blocks) as one header that needs nothing else.

    python3 cmake/generate_single_header.py [--check]

Each header stands where the first include of it was, so that the order is the one that a compiler sees. Lines that are
only a comment are left out: the header is copied, not read, and a change of a comment does not change it. With --check
nothing is written, and the exit status says whether the file is current."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
headers = root / "include"
target = root / "single_include" / "graft.hpp"
umbrellas = ["graft/graft.h", "graft/blocks.h", "graft/run/print_plan.h"]
include = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
raw_string = re.compile(r'(?<![\w"])(u8|u|U|L)?R"')
conditional = re.compile(r"\s*#\s*(if|ifdef|ifndef|endif)\b")

preamble = """\
// SPDX-License-Identifier: Apache-2.0
// Graft {version}, the language in one header: adapters as formulas, blocks, the graphs derived from them, plans,
// compile<> and explain<>. It needs a C++20 compiler and no library. Backends and file readers are in the full library,
// whose headers take the place of this one: a program includes either. Written by cmake/generate_single_header.py.
#pragma once
#ifdef GRAFT_VERSION
#error "graft.hpp and the headers below graft/ are the same library: include only one of them"
#endif
"""


def version():
    text = (headers / "graft/core/version.h").read_text()
    return ".".join(re.findall(r"#define GRAFT_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))


def add(name, lines, system, done):
    """Appends the header and, ahead of each of its parts, what that part includes."""
    if name in done:
        return
    done.add(name)
    depth = 0
    for number, line in enumerate((headers / name).read_text().splitlines(), 1):
        where = f"{headers / name}:{number}"
        if match := conditional.match(line):
            depth += -1 if match[1] == "endif" else 1
        if raw_string.search(line) or (line.rstrip().endswith("\\") and line.lstrip().startswith("//")):
            sys.exit(f"{where}: a raw string or a continued comment, which this program does not read")
        match = include.match(line)
        if match and match[2].startswith("graft/"):
            if depth != 0:
                sys.exit(f"{where}: {match[2]} is included under a condition, so it has no one place")
            add(match[2], lines, system, done)
        elif match and match[1] == '"':
            sys.exit(f"{where}: write the include with its path from the folder include")
        elif match and depth == 0:
            system.add(match[2])
        elif line.strip() and not line.lstrip().startswith("//") and line.strip() != "#pragma once":
            lines.append(line.rstrip())


def single_header():
    lines, system, done = [], set(), set()
    for name in umbrellas:
        add(name, lines, system, done)
    includes = "".join(f"#include <{name}>\n" for name in sorted(system))
    return preamble.format(version=version()) + includes + "\n" + "\n".join(lines) + "\n"


def main():
    text = single_header()
    if "--check" in sys.argv[1:]:
        if not target.exists() or target.read_text() != text:
            sys.exit("single_include/graft.hpp is not current: ./run single-header writes it")
        return
    target.write_text(text)
    print(f"{target.relative_to(root)}: {len(text.splitlines())} lines, {len(text) // 1000} kB")


main()
