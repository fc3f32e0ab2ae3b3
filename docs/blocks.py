# SPDX-License-Identifier: Apache-2.0
"""Checks the blocks of code of the pages that are no whole programs:  python3 docs/blocks.py ROOT SCRATCH COMPILER [FLAG...]

A block of C++ without an include is a part of a program: all parts of all pages are one source, each in a namespace of
its own that uses the namespace graft, and the compiler reads it once. A comment before a block says where it stands, and
shows on no page:

    <!-- in: CODE … CODE -->        the block stands at the ellipsis, CODE declares the names that it uses
    <!-- not compiled: REASON -->   leaves the block out

An ellipsis within a block stands for lines of no interest and is left out. The examples of errors.md are read in the same
way, and each has to fail with the sentence quoted above it, and with nothing else. Blocks of CMake run with stand-ins of
the commands that would look for the package: versions, components and targets have to exist (the tests of packaging
run the same commands on the package). Blocks of Python have to parse, and what they name of graft_torch has to exist.
Programs and shell blocks are for readme.sh and commands.py."""
import ast
import pathlib
import re
import subprocess
import sys

root, scratch = map(pathlib.Path, sys.argv[1:3])
compiler = [*sys.argv[3:], "-std=c++20", "-fsyntax-only", "-w"]
headers = ["graft/blocks.h", "graft/io/hf/layer_adapters.h", "graft/model/serving/serving_engine.h", "graft/models.h",
           "graft/run/multi_lora.h", "graft/targets.h", "thread"]
pages = ["README.md", *sorted(str(p.relative_to(root)) for p in root.glob("docs/**/*.md") if p.parent.name != "adapters")]
kinds = ("cpp", "cmake", "python", "pycon", "sh", "console", "text", "mermaid", "ini", "json")
bad = []


def blocks_of(page):
    """The blocks as (place, kind, lines, word, rest): word and rest of a comment on the lines before, or empty."""
    lines = (root / page).read_text().split("\n")
    at, comment = 0, ""
    while at < len(lines):
        begin, line = at, lines[at]
        at += 1
        if line.startswith("<!--"):
            while "-->" not in lines[at - 1]:
                at += 1
            comment = "\n".join(lines[begin:at]).removeprefix("<!--").partition("-->")[0].strip()
        elif line.startswith("```"):
            while lines[at] != "```":
                at += 1
            word, _, rest = comment.partition(":")
            yield f"{page}:{begin + 1}", line[3:], lines[begin + 1:at], word, rest.strip()
            at, comment = at + 1, ""
        elif line:
            comment = ""


def read(source, text):
    """The compiler's messages about a source; none if it compiles."""
    (scratch / source).write_text(text)
    return subprocess.run([*compiler, str(scratch / source)], capture_output=True, text=True).stderr


def in_namespace(n, place, text):
    """The text in a namespace of its own; the compiler names the page and the line for it."""
    page, _, line = place.partition(":")
    return f'namespace block{n} {{\nusing namespace graft;\n#line {line} "{page}"\n{text}\n}}\n'


def check_cmake(place, lines):
    version = ".".join(re.findall(r"#define GRAFT_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (root / "include/graft/core/version.h").read_text()))
    text = "\n".join(lines)
    known = {"graft", "cpu", "io", "gpu", "mpi", "nccl", "bench", "cpu_compiled", "gpu_compiled", "models_compiled"}
    for found in re.findall(r"find_package\(graft ([\d.]+)", text) + re.findall(r"GIT_TAG v([\d.]+)", text):
        if not (version + ".").startswith(found + "."):
            bad.append(f"{place}: the version is {version}, not {found}")
    for components in re.findall(r"find_package\(graft [^)]*COMPONENTS ([\w ]*)\)", text) + [" ".join(re.findall(r"graft::(\w+)", text))]:
        for unknown in set(components.split()) - known:
            bad.append(f"{place}: there is no component {unknown}")
    stubs = "".join(f"function({f})\nendfunction()\n" for f in ("find_package", "target_link_libraries", "FetchContent_Declare",
                                                                "FetchContent_MakeAvailable", "CPMAddPackage"))
    (scratch / "block.cmake").write_text(stubs + text.replace("include(FetchContent)", "") + "\n")
    done = subprocess.run(["cmake", "-P", str(scratch / "block.cmake")], capture_output=True, text=True)
    if done.returncode != 0:
        bad.append(f"{place}: {done.stderr}")


def check_python(place, kind, lines):
    if kind == "pycon":
        lines = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
    text = "\n".join(lines)
    try:
        ast.parse(text)
    except SyntaxError as error:
        bad.append(f"{place}: {error}")
    offered = (root / "python/graft_torch/__init__.py").read_text()
    for name in set(re.findall(r"graft_torch\.(\w+)", text)):
        if not re.search(rf"\b{name}\b", offered):
            bad.append(f"{place}: graft_torch has no {name}")


scratch.mkdir(parents=True, exist_ok=True)
parts, mistakes, sentences, counts = [], [], [], {}
for page in pages:
    text_before = (root / page).read_text().split("\n")
    for place, kind, lines, word, rest in blocks_of(page):
        if kind not in kinds:
            bad.append(f"{place}: a block of one of {', '.join(kinds)} is expected, not '{kind}'")
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "cpp" and not any(line.startswith("#include") for line in lines):
            text = "\n".join(lines).replace("…", "")
            if page == "docs/errors.md" and not word:
                mistakes.append(in_namespace(len(mistakes), place, "\n" + text))
                above = [line[2:] for line in text_before[:int(place.rpartition(":")[2])] if line.startswith("> graft: ")]
                sentences += above[-1:]
            elif word == "in":
                before, _, after = rest.partition("…")
                parts.append(in_namespace(len(parts), place, before.replace("\n", " ") + "\n" + text + "\n" + after))
            elif word == "not compiled":
                print(f"{place}: not compiled: {rest}")
            else:
                parts.append(in_namespace(len(parts), place, "\n" + text))
        elif kind == "cmake":
            check_cmake(place, lines)
        elif kind in ("python", "pycon"):
            check_python(place, kind, lines)
said = read("parts.cpp", "".join(f"#include <{h}>\n" for h in headers) + "".join(parts))
if said:
    bad.append(said)
# static_assert is no end of a compilation, so one source has all mistakes.
said = read("mistakes.cpp", "#include <graft/blocks.h>\n#include <graft/targets.h>\n" + "".join(mistakes))
(scratch / "mistakes.txt").write_text(said)
bad += [f"docs/errors.md: no example fails with: {s}" for s in sentences if s not in said]
bad += [f"docs/errors.md: an example has another error: {line}" for line in said.splitlines()
        if re.search(r"\berror: ", line) and "graft: " not in line]
print("\n".join(bad))
print(f"{len(parts)} parts compile, {len(mistakes)} mistakes are reported, " + ", ".join(f"{n} {k}" for k, n in sorted(counts.items())))
sys.exit(bool(bad))
