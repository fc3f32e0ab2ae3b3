# SPDX-License-Identifier: Apache-2.0
# Checks that what comments of the library's headers name exists: a `name` in backticks occurs in the code of that
# header, and a file such as gemm/sm90.cuh is a file of the tree.
# Names with a capital letter are placeholders (io/peft/METHOD.h) or files of other projects.
# usage: comment_names.py ROOT
import re
import sys
from pathlib import Path

root = Path(sys.argv[1])
folders = ("include", "src", "test", "bench", "examples", "python", "docs", "cmake", "packaging")
other_projects = {"arm_neon.h", "ggml.h", "ggml-common.h", "ggml-impl.h"}
skipped = ("build", "_deps", "node_modules", "__pycache__")
tree = [
    path.relative_to(root).as_posix()
    for folder in folders
    for path in (root / folder).rglob("*.*")
    if path.is_file() and not any(part.startswith(skipped) for part in path.relative_to(root).parts)
]
by_name = {}
for path in tree:
    by_name.setdefault(path.rsplit("/", 1)[-1], []).append("/" + path)

token = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.S)
backticked = re.compile(r"`([A-Za-z_]\w*)(?:\(\))?`")
file_name = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.(?:h|cuh))\b(?![/\w])")


def parts(text):
    """Returns the code with its string literals, and the (line, text) of every comment line."""
    comments, code, end = [], [], 0
    for match in token.finditer(text):
        code.append(text[end : match.start()])
        end = match.end()
        if match.group().startswith(("//", "/*")):
            comments.append((text.count("\n", 0, match.start()) + 1, match.group()))
        else:
            code.append(match.group())
    return "".join(code) + text[end:], comments


wrong = []
headers = sorted(path for path in (root / "include").rglob("*.*") if path.suffix in (".h", ".cuh"))
for header in headers:
    code, comments = parts(header.read_text(encoding="utf-8"))
    words = set(re.findall(r"[A-Za-z_]\w*", code))
    page = header.relative_to(root).as_posix()
    for line, text in comments:
        for name in backticked.findall(text):
            if name not in words:
                wrong.append(f"{page}:{line}: `{name}` does not occur in the code of this header")
        for name in file_name.findall(text):
            if name in other_projects or name != name.lower():
                continue
            if not any(path.endswith("/" + name) for path in by_name.get(name.rsplit("/", 1)[-1], ())):
                wrong.append(f"{page}:{line}: no file of the tree is called {name}")
for message in wrong:
    print(message)
if wrong:
    sys.exit(f"{len(wrong)} comments name what does not exist; write the name that the code has")
if len(headers) < 100:
    sys.exit(f"{root}/include has {len(headers)} headers: the usage is comment_names.py ROOT")
print(f"every name in the comments of {len(headers)} headers exists")
