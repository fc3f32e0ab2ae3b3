# SPDX-License-Identifier: Apache-2.0
"""Lays out the pages of the site:  python3 docs/site/stage.py FOLDER

The folder gets the pages of the repository under their paths, beginning with README.md and docs, and everything that
they link to, and so on. Pages keep their text; a source file becomes a page that shows it, a folder without a README.md
a list of its files, and links follow. So a link of a page works in the repository and on the site."""
import html
import os
import pathlib
import re
import shutil
import subprocess
import sys

import diagrams

root = pathlib.Path(__file__).resolve().parents[2]
link = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
languages = {".h": "cpp", ".cuh": "cpp", ".cpp": "cpp", ".cu": "cpp", ".in": "text", ".py": "python", ".sh": "sh",
             ".cmake": "cmake", ".jsonl": "json", ".ids": "text", "": "sh"}


def files_of(folder):
    """The files of a folder that are committed, or will be."""
    command = ["git", "-C", root, "ls-files", "-co", "--exclude-standard", f"{folder}/"]
    return sorted(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def page_of(path):
    """The page that shows a file or folder of the repository, relative to the folder of pages; None: a plain file."""
    if path.is_dir():
        return page_of(path / "README.md") if (path / "README.md").exists() else path.relative_to(root) / "README.md"
    relative = path.relative_to(root)
    if path.suffix == ".md":
        return relative
    if path.suffix in languages or path.name in ("run", "CMakeLists.txt"):
        return relative.with_name(relative.name + ".md")
    return None


def with_links(text, of, page, found):
    """The Markdown with its relative links rewritten for the site; what they lead to is appended to found."""
    def rewritten(match):
        target, _, anchor = match[2].partition("#")
        if re.match(r"[a-z]+:", match[2]) or not target:
            return match[0]
        path = (of.parent / target).resolve()
        if not path.exists() or root not in path.parents:
            sys.exit(f"{of}: {target} leads to no file of the repository")
        found.append(path)
        to = page_of(path) or path.relative_to(root)
        new = os.path.relpath(to, page.parent) + ("#" + anchor if anchor else "")
        return f"{match[1]}({new})"

    parts = re.split(r"(^```.*?^```$|`[^`\n]*`)", text, flags=re.M | re.S)
    whole = "".join(parts)
    assert whole == text
    code = {}
    for n, part in enumerate(parts):  # links may have code in their text, so code is set aside and not skipped
        if n % 2 == 1:
            code[f"\0{n}\0"] = part
    text = "".join(part if n % 2 == 0 else f"\0{n}\0" for n, part in enumerate(parts))
    text = link.sub(rewritten, text)
    return re.sub("\0\\d+\0", lambda m: code[m[0]], text)


def with_pictures(text):
    """The Markdown with pictures of its flowcharts."""
    chart = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
    pictures = iter(diagrams.svg(chart.findall(text)))
    return chart.sub(lambda _: next(pictures), text)


def main(folder):
    shutil.rmtree(folder, ignore_errors=True)
    to_do = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
    to_do += [root / name for name in files_of("docs") if name.endswith(".md")]
    done = set()
    while to_do:
        path = to_do.pop()
        if path in done:
            continue
        done.add(path)
        page = page_of(path)
        to = folder / (page or path.relative_to(root))
        to.parent.mkdir(parents=True, exist_ok=True)
        if page is None:
            shutil.copyfile(path, to)
        elif path.is_dir() and not (path / "README.md").exists():
            names = "".join(f"- `{name}`\n" for name in files_of(path.relative_to(root)))
            to.write_text(f"# {path.relative_to(root)}\n\n{names}")
        elif path.is_dir():
            to_do.append(path / "README.md")
        elif path.suffix == ".md":
            text = with_pictures(with_links(path.read_text(), path, page, to_do))
            # The first page has no neighbours that a column of links could show.
            to.write_text(("---\nhide: [navigation]\n---\n" if path == root / "README.md" else "") + text)
        else:
            text = path.read_text()
            fence = "`" * max(3, 1 + max((len(m) for m in re.findall("`+", text)), default=0))
            language = "cmake" if path.name == "CMakeLists.txt" else languages[path.suffix]
            # Shown, but not searched: the words of pages come first.
            to.write_text(f"---\nsearch:\n  exclude: true\n---\n# {html.escape(str(path.relative_to(root)))}\n\n"
                          f"{fence}{language}\n{text}{fence}\n")
    shutil.copytree(root / "docs/site/assets", folder / "assets")
    print(f"{len(done)} files")


main(pathlib.Path(sys.argv[1]))
