# SPDX-License-Identifier: Apache-2.0
"""Writes a page for each public header:  python3 docs/site/api.py FOLDER WORK

Doxygen reads the headers and knows their declarations; the words are the comments of the headers. They are plain `//`
comments of whole sentences, which Doxygen would skip and whose code it would interpret, so it reads copies in WORK in
which each comment is marked as documentation and as verbatim text."""
import html
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml

root = pathlib.Path(__file__).resolve().parents[2]
include = root / "include"
sections = {
    "The language": "core/result.h core/view.h core/dtype.h graph/formula.h adapter/adapter.h derive/layers.h "
                    "derive/block_scope.h derive/adapter_rules.h derive/cost.h plan/compile.h plan/target.h plan/explain.h "
                    "plan/draw.h run/print_plan.h",
    "Layers": "run/cpu_layer.h run/gpu_layer.cuh run/executor.h run/multi_lora.h backend/engine.h",
    "Models": "model/causal_lm.h model/model_config.h model/adapter_registry.h model/adapter_set.h model/methods.h "
              "model/generate.h model/generation_settings.h model/sampler.h model/trainer.h model/training_run.h "
              "model/multi_lora_training.h model/optimizer.h model/lr_schedule.h model/merge.h model/explain_step.h "
              "model/serving/request.h model/serving/adapter_store.h model/serving/serving_engine.h",
    "Files": "io/load_model.h io/hf/load_model.h io/hf/adapters.h io/hf/load_adapters.h io/hf/new_adapter.h "
             "io/hf/combine_adapters.h io/hf/layer_adapters.h io/hf/checkpoint.h io/hf/save_model.h io/peft/adapter_config.h "
             "io/peft/folder.h io/gguf/reader.h io/gguf/adapter.h io/gguf/save_model.h io/safetensors/reader.h "
             "io/safetensors/writer.h io/tokenizer/tokenizer.h io/tokenizer/text_stream.h io/chat_template/chat_template.h",
    "Several processes": "parallel/communicator.h parallel/mpi.h parallel/nccl.h parallel/single_process.h",
}
settings = """
GENERATE_HTML=NO
GENERATE_LATEX=NO
GENERATE_XML=YES
XML_PROGRAMLISTING=NO
QUIET=YES
WARNINGS=NO
EXTRACT_ALL=YES
MACRO_EXPANSION=YES
EXPAND_ONLY_PREDEF=YES
PREDEFINED=GRAFT_LIBRARY= GRAFT_BODIES=0
EXTENSION_MAPPING=cuh=C++
FILE_PATTERNS=*.h *.cuh
RECURSIVE=YES
"""


def marked(text):
    """A header whose comments Doxygen reads: blocks ahead of declarations, and ends of lines."""
    out, block = [], []

    def finish(as_file=False):
        if block:
            out.append("/** " + ("@file\n" if as_file else "") + "@verbatim\n" + "\n".join(block) + "\n@endverbatim */")
            block.clear()

    first = True
    for line in text.splitlines():
        comment = re.match(r"\s*// ?(.*)$", line)
        if comment and not comment[1].startswith(("SPDX", "NOLINT", "clang-format")):
            block.append(comment[1].replace("*/", "* /"))
            continue
        if comment:
            continue
        finish(as_file=first and bool(block))
        first = first and not line.startswith("#pragma once")
        end = re.match(r"(\s*[^\s/].*[;,{}])\s*// (.*)$", line)
        out.append(f"{end[1]} /**< @verbatim {end[2].replace('*/', '* /')} @endverbatim */" if end else line)
    finish()
    return "\n".join(out) + "\n"


def words(node):
    """The comment of a declaration as it stands in the header."""
    found = node.find("detaileddescription")
    texts = [v.text or "" for v in found.iter("verbatim")] if found is not None else []
    return "\n".join(t.strip("\n") for t in texts).rstrip()


def prose(comment):
    """A comment as Markdown: lines with four more spaces are code."""
    lines, out, code = comment.splitlines(), [], []

    def finish():
        if code:
            out.append("\n```cpp\n" + "\n".join(code) + "\n```\n")
            code.clear()

    for line in lines:
        if line.startswith("    "):
            code.append(line[4:])
            continue
        finish()
        text = html.escape(line.strip(), quote=False)
        out.append(re.sub(r"([*_`\[\]|#\\])", r"\\\1", text))
    finish()
    return "\n".join(out).strip()


def plain(node):
    return "" if node is None else re.sub(r"\s+", " ", "".join(node.itertext())).strip()


def template_of(node):
    parameters = node.find("templateparamlist")
    if parameters is None:
        return ""
    each = []
    for p in parameters.findall("param"):
        name, default = plain(p.find("declname")), plain(p.find("defval"))
        each.append(plain(p.find("type")) + (f" {name}" if name else "") + (f" = {default}" if default else ""))
    return f"template <{', '.join(each)}> "


def declaration(m):
    return spaced(written(m))


def written(m):
    kind, name = m.get("kind"), m.findtext("name")
    specifiers = "static " if m.get("static") == "yes" else ""
    if kind == "enum":
        values = ", ".join(plain(v.find("name")) for v in m.findall("enumvalue"))
        return f"enum class {name} {{ {values} }};"
    if kind == "typedef":
        return f"using {name} = {plain(m.find('type'))};"
    type_name = plain(m.find("type"))
    if kind == "function":
        constness = " const" if m.get("const") == "yes" else ""
        arguments = plain(m.find("argsstring"))
        arguments = re.sub(r"\s*(=\s*(default|delete|0))?$", "", arguments)
        if "const" in arguments.rsplit(")", 1)[-1]:
            constness = ""
        type_name = re.sub(r"^static ", "", type_name)
        return f"{template_of(m)}{specifiers}{type_name + ' ' if type_name else ''}{name}{arguments}{constness};"
    initializer = plain(m.find("initializer"))
    if len(initializer) > 60:
        initializer = ""
    ending = plain(m.find("argsstring")) + (f" {initializer}" if initializer else "")
    return f"{template_of(m)}{specifiers}{type_name} {name}{ending};"


def spaced(text):
    """A declaration as clang-format would space it."""
    text = re.sub(r"<\s+", "<", text)
    text = re.sub(r"\s+(?=>)", "", text)
    text = re.sub(r"\s*(&&|&|\*)\s*(?=[A-Za-z_])", r"\1 ", text)
    text = re.sub(r"\s+(&&|&|\*)(?=[,)>])", r"\1", text)
    text = re.sub(r"(?<=\w) (?=\{\})", "", text)
    return text if "operator" in text else re.sub(r"(?<=[\w>&*])\s*=\s*(?=[^=])", " = ", text)


def as_comment(comment, indent):
    return "".join(f"{indent}// {line}".rstrip() + "\n" for line in comment.splitlines())


def is_public(m):
    name = m.findtext("name") or ""
    return (m.get("prot", "public") == "public" and m.get("kind") in ("function", "variable", "typedef", "enum")
            and not name.startswith(("~", "@", "operator=")) and not name.endswith("_")
            and "= delete" not in (m.findtext("argsstring") or "") and m.get("kind") != "friend")


def class_text(c):
    name = c.findtext("compoundname")
    comment = words(c)
    out = [f"## {c.get('kind')} {html.escape(name.removeprefix('graft::'), quote=False)}", ""]
    if comment:
        out += [prose(comment), ""]
    bases = [f"{b.get('prot')} {plain(b)}" for b in c.findall("basecompoundref") if b.get("prot") == "public"]
    inherits = " : " + ", ".join(bases) if bases else ""
    lines = f"{template_of(c)}{c.get('kind')} {name.rsplit('::', 1)[-1]}{inherits} {{\n"
    for m in c.iter("memberdef"):
        if is_public(m):
            lines += as_comment(words(m), "  ") + "  " + declaration(m) + "\n"
    return "\n".join(out) + f"\n```cpp\n{lines}}};\n```\n"


def main(folder, work):
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    headers = [name for names in sections.values() for name in names.split()]
    for name in headers:
        to = work / "include/graft" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(marked((include / "graft" / name).read_text()))
    folders = f"INPUT={work / 'include'}\nOUTPUT_DIRECTORY={work}\n"
    subprocess.run(["doxygen", "-"], input=settings + folders, text=True, check=True)
    of = {name: {"words": "", "classes": [], "members": {}} for name in headers}

    def header_of(node):
        location = node.find("location")
        path = location.get("file", "") if location is not None else ""
        return of.get(path.partition("include/graft/")[2])

    for file in sorted((work / "xml").glob("*.xml")):
        if file.name == "index.xml":
            continue
        for c in xml.parse(file).getroot().iter("compounddef"):
            name, header = c.findtext("compoundname") or "", header_of(c)
            if c.get("kind") == "file" and header is not None:
                header["words"] = words(c)
            hidden = re.search(r"(^|::)detail(::|$)", name) or "@" in name
            if c.get("kind") in ("class", "struct") and header is not None and not hidden and "<" not in name:
                if c.get("prot") != "private":
                    header["classes"].append((int(c.find("location").get("line", 0)), c))
            if c.get("kind") in ("namespace", "file") and not hidden:
                for m in c.findall("sectiondef/memberdef"):
                    to = header_of(m)
                    if to is not None and is_public(m) and m.get("static") != "yes":
                        to["members"].setdefault(m.findtext("name"), {})[m.get("id")] = m
    index = ["# Headers", "", "The declarations that programs use, with the comments of the headers. What is not here may "
             "change at any time; [the floors](../docs/concepts.md#floors) say where everything else is.", ""]
    for section, names in sections.items():
        index += [f"## {section}", "", "| header | |", "|---|---|"]
        for name in names.split():
            page = folder / (name.replace("/", "-") + ".md")
            what = of[name]
            if not what["words"]:
                sys.exit(f"graft/{name}: the first lines of a header say what it is for, and Doxygen found none")
            text = [f"# graft/{name}", "", prose(what["words"]), "", f"```cpp\n#include <graft/{name}>\n```", ""]
            for _, c in sorted(what["classes"], key=lambda e: e[0]):
                text.append(class_text(c))
            for member, overloads in sorted(what["members"].items(), key=lambda e: min(
                    int(m.find("location").get("line", 0)) for m in e[1].values())):
                text += [f"## {html.escape(member, quote=False)}", ""]
                for m in overloads.values():
                    if comment := words(m):
                        text += [prose(comment), ""]
                    text += [f"```cpp\n{declaration(m)}\n```", ""]
            page.write_text("\n".join(text) + "\n")
            first = what["words"].split("\n    ")[0].replace("\n", " ")
            first = re.split(r"(?<=[.:])\s", first)[0].rstrip(":")
            index.append(f"| [`graft/{name}`]({page.name}) | {prose(first)} |")
        index.append("")
    (folder / "README.md").write_text("\n".join(index) + "\n")
    print(f"{len(headers)} headers")


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve())
