# SPDX-License-Identifier: Apache-2.0
"""Runs the shell blocks of the pages:  python3 docs/commands.py ROOT PROGRAMS COMPILER SCRATCH

PROGRAMS is the folder of the built examples. A block is ```sh, whose lines are commands, or ```console, whose commands
follow "$ " and whose other lines are their output; there numbers may differ, and … or ... stands for any text. A
comment before a block says more about it, and shows on no page:

    <!-- setup: COMMANDS -->      runs COMMANDS, on one line or several, before those of the block in the same shell
    <!-- not run: REASON -->      leaves the block out, because it needs a GPU, a network, an installation or a server

The other comments before blocks are for blocks.py and bench/tables.py.

The blocks of a page run in its order, in a folder of its own that looks like the repository after a build: build is the
build folder, the programs are found by their names, and g++ is the compiler of the build. blockN.cpp is the N-th block
of C++ of the page, and tiny a model of random weights with a tokenizer of bytes and a chat template. The first
command that fails ends a block and fails the test, and so does a block of no kind."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

root, programs, compiler, scratch = (pathlib.Path(a) for a in sys.argv[1:])
how_tos = sorted(str(p.relative_to(root)) for p in root.glob("docs/how-to/*.md"))
pages = ["README.md", "docs/getting-started.md", "docs/parallel.md", "docs/performance-reproduce.md", "docs/serving.md",
         "docs/switching.md", *how_tos]
kinds = ("sh", "console", "cpp", "python", "pycon", "cmake", "text")  # of which the first two are run
patience = 240  # seconds for a block, on a machine with other work


def blocks_of(page):
    """The blocks of a page as (line, kind, lines, setup, reason). One that is indented or of no kind ends the test."""
    lines = (root / page).read_text().split("\n")
    at = 0
    comment = ""
    while at < len(lines):
        begin, line = at, lines[at]
        at += 1
        if line.startswith("<!--"):
            while "-->" not in lines[at - 1]:
                at += 1
            comment = "\n".join(lines[begin:at]).removeprefix("<!--").partition("-->")[0].strip()
        elif line.startswith("```"):
            kind = line[3:]
            while lines[at] != "```":
                at += 1
            if kind not in kinds:
                sys.exit(f"{page}:{begin + 1}: a block of one of {', '.join(kinds)} is expected, not '{kind}'")
            word, _, rest = comment.partition(":")
            if word not in ("", "setup", "not run", "in", "not compiled", "table"):
                sys.exit(f"{page}:{begin + 1}: '<!-- {word}:' is none of setup, not run, in, not compiled and table")
            setup, reason = (rest.strip() if word == w else "" for w in ("setup", "not run"))
            yield begin + 1, kind, lines[begin + 1:at], setup, reason
            at += 1
            comment = ""
        elif line.startswith("    ") and (begin == 0 or not lines[begin - 1].strip()):
            sys.exit(f"{page}:{begin + 1}: code is indented, so that its kind is unknown; put it between fences")
        elif line:
            comment = ""


def folder_of(page):
    """A folder for the blocks of a page."""
    folder = scratch / page.replace("/", "_")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for entry in root.iterdir():
        if not entry.name.startswith((".", "build")):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").symlink_to(programs.parent)
    (folder / "tiny").mkdir()
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copyfile(root / "test/golden/models/llama/base" / file, folder / "tiny" / file)
    shutil.copyfile(root / "test/programs/bytes_tokenizer.json", folder / "tiny/tokenizer.json")
    (folder / "tiny/chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}")
    return folder


def run(shell, folder):
    """Runs the text as a shell and returns its output and an error, which is empty if it succeeded."""
    environment = {**os.environ, "PATH": f"{scratch / 'bin'}:{programs}:{programs / 'serve'}:{os.environ['PATH']}"}
    process = subprocess.Popen(["sh", "-euc", shell], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], f"takes more than {patience} s"
    return output, f"exit code {process.returncode}" if process.returncode else ""


def pattern_of(line):
    """What a line of output in a page stands for: any numbers, and any text for an ellipsis."""
    number = r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?"
    parts = re.split(rf"(…|\.\.\.|{number})", line.strip())
    return "".join(re.escape(p) if n % 2 == 0 else ".*" if p in ("…", "...") else number for n, p in enumerate(parts))


def missing_line(expected, output):
    """The first of the expected lines that the output does not have, in their order; None if it has all."""
    printed = iter(re.split(r"[\r\n]+", output))
    for line in expected:
        if not any(re.search(pattern_of(line), p) for p in printed):
            return line
    return None


def parts_of(kind, lines, setup):
    """A block as pairs of a shell text and the lines that it prints. The commands of a console run one by one."""
    if kind == "sh":
        return [("\n".join([setup, *lines]), [])]
    parts = []
    for line in lines:
        if line.startswith("$ "):
            parts.append(("\n".join([setup, line[2:]]) if not parts else line[2:], []))
        else:
            parts[-1][1].append(line)
    return parts


(scratch / "bin").mkdir(parents=True, exist_ok=True)
(scratch / "bin/g++").unlink(missing_ok=True)
(scratch / "bin/g++").symlink_to(compiler)
ran = failed = 0
for page in pages:
    folder, sources = folder_of(page), 0
    for line, kind, lines, setup, reason in blocks_of(page):
        where = f"{page}:{line}"
        if kind == "cpp":
            sources += 1
            (folder / f"block{sources}.cpp").write_text("\n".join(lines) + "\n")
        if kind not in ("sh", "console"):
            continue
        if reason:
            print(f"{where}: not run: {reason}")
            continue
        begin = time.monotonic()
        for shell, expected in parts_of(kind, lines, setup):
            output, error = run(shell, folder)
            if not error and (absent := missing_line(expected, output)) is not None:
                error = f"no line of the output is like: {absent}"
            if error:
                break
        ran += 1
        failed += error != ""
        print(f"{where}: {error or 'runs'}, {time.monotonic() - begin:.1f} s", flush=True)
        if error:
            print(f"{shell.strip()}\n{output}")
    shutil.rmtree(folder)
print(f"{ran} blocks run, {failed} fail")
sys.exit(failed > 0 or ran == 0)
