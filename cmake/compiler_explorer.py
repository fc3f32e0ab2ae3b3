# SPDX-License-Identifier: Apache-2.0
"""Prints Compiler Explorer links to the examples that need the language alone.

    python3 cmake/compiler_explorer.py HEADER     HEADER: the address at which single_include/graft.hpp can be fetched

A link holds the state of the site (https://godbolt.org): the sources, the compilers and their options, as JSON,
compressed by zlib, in the base64 of addresses. The site fetches headers whose include names an address.

    python3 cmake/compiler_explorer.py HEADER --decode FOLDER     writes the sources that the links hold to FOLDER"""
import base64
import json
import pathlib
import re
import sys
import zlib

root = pathlib.Path(__file__).resolve().parent.parent
site = "https://godbolt.org/clientstate/"
examples = ["examples/compile_facts.cpp", "examples/own_block.cpp"]
compilers = ["g122", "clang1400"]  # the oldest releases that the library supports
options = "-std=c++20 -O1"


def source_of(example, header):
    """The example with the address of the single header in place of the library's headers."""
    lines = []
    for line in (root / example).read_text().splitlines():
        if not re.match(r"#include <graft/", line):
            lines.append(line)
        elif f"#include <{header}>" not in lines:
            lines.append(f"#include <{header}>")
    return "\n".join(lines) + "\n"


def link_of(source):
    state = {"sessions": [{
        "id": 1, "language": "c++", "source": source,
        "compilers": [{"id": id, "options": options, "libs": []} for id in compilers],
        "executors": [{"arguments": "", "stdin": "",
                       "compiler": {"id": compilers[0], "options": options, "libs": []}}]}]}
    text = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
    return site + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


def decoded(link):
    """What the site makes of a link: it inflates the state where the first byte is that of zlib."""
    return json.loads(zlib.decompress(base64.urlsafe_b64decode(link.removeprefix(site))))


def main(arguments):
    if len(arguments) not in (1, 3) or (len(arguments) == 3 and arguments[1] != "--decode"):
        sys.exit(__doc__)
    for example in examples:
        link = link_of(source_of(example, arguments[0]))
        if len(arguments) == 1:
            print(f"{example}\n{link}\n")
            continue
        session = decoded(link)["sessions"][0]
        (pathlib.Path(arguments[2]) / pathlib.Path(example).name).write_text(session["source"])


main(sys.argv[1:])
