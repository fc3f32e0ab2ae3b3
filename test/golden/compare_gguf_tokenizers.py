#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of GGUF files against what their models' own tokenizers gave, and against llama.cpp.

    cmake --build build --target tokenize
    compare_gguf_tokenizers.py build/test/golden/tokenize [FOLDER [STRINGS]]

FOLDER is the folder models of llama.cpp's repository ($GRAFT_GGUF_VOCABULARIES unless it is named): of each ggml-vocab-NAME.gguf with an .inp (texts) and an .out
(their tokens, by transformers) the texts are encoded. With STRINGS, and where llama-cpp-python is installed
(LLAMA_CPP_LIB_PATH names another folder of its library), llama.cpp loads each file too and encodes as many varied
strings. Prints a line for each file; the exit code is 1 where tokens differ in a text of an .out, and 77 with a reason
where FOLDER has no such files.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

SEPARATOR = "\n__ggml_vocab_test__\n"


def encoded(program, file, texts):
    """Tokens of each text, without those that every text gets; None where it has none."""
    with tempfile.TemporaryDirectory() as temp:
        with open(f"{temp}/texts", "wb") as f:
            for s in ["", *texts]:
                f.write(struct.pack("<I", len(s.encode())) + s.encode())
        ran = subprocess.run([program, file, f"{temp}/texts", f"{temp}/ids", "--each"], capture_output=True, text=True)
        if ran.returncode != 0:
            return ran.stderr.strip()
        data, at, all_ids = open(f"{temp}/ids", "rb").read(), 0, []
    for _ in range(len(texts) + 1):
        (n,) = struct.unpack_from("<I", data, at)
        at += 4
        if n == 0xFFFFFFFF:
            all_ids.append(None)
            continue
        all_ids.append(list(struct.unpack_from(f"<{n}I", data, at)))
        (size,) = struct.unpack_from("<I", data, at + 4 * n)
        at += 4 * n + 4 + size
    before = len(all_ids[0])
    return [ids if ids is None else ids[before:] for ids in all_ids[1:]]


def by_llama_cpp(lib, file, texts):
    how = lib.llama_model_default_params()
    how.vocab_only = True
    model = lib.llama_model_load_from_file(str(file).encode(), how)
    if not model:
        return None
    vocab, out = lib.llama_model_get_vocab(model), []
    for s in texts:
        raw = s.encode()
        to = (lib.llama_token * (len(raw) + 8))()
        out.append(list(to[:lib.llama_tokenize(vocab, raw, len(raw), to, len(to), False, True)]))
    lib.llama_model_free(model)
    return out


def strings_of(count):
    if count == 0:
        return []
    sys.argv[1:] = ["strings"]  # the module prints its usage where it is given no task
    here = pathlib.Path(__file__).parent / "compare_tokenizers.py"
    source = here.read_text().split("\nif len(sys.argv)")[0]
    names = {}
    exec(compile(source, str(here), "exec"), names)
    draw = random.Random(7)
    # llama.cpp ends a text at its first zero byte, and leaves out what is no character.
    return [s for s in (names["any_string"](draw) for _ in range(count)) if "\0" not in s]


def main():
    program, folder = sys.argv[1], pathlib.Path([*sys.argv, os.environ.get("GRAFT_GGUF_VOCABULARIES", "")][2])
    if not pathlib.Path(program).exists():
        print(f"skipped: {program} is not built; cmake --build build --target tokenize")
        return 77
    if not folder.name:
        print("skipped: GRAFT_GGUF_VOCABULARIES names no folder (llama.cpp's repository has one, models)")
        return 77
    texts, lib = strings_of(int(sys.argv[3]) if len(sys.argv) > 3 else 0), None
    if texts:
        import llama_cpp as lib
        silent = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(silent, None)
    wrong = files = 0
    for file in sorted(folder.glob("*.gguf")):
        line = {"file": file.name}
        inputs, outputs = pathlib.Path(f"{file}.inp"), pathlib.Path(f"{file}.out")
        if inputs.exists() and outputs.exists():
            asked = inputs.read_text(encoding="utf-8").split(SEPARATOR)[:-1]
            want = [list(map(int, row.split())) for row in outputs.read_text().split("\n")[:len(asked)]]
            got = encoded(program, file, asked)
            if isinstance(got, str):
                print(json.dumps({**line, "refused": got}), flush=True)
                continue
            differ = [i for i, (w, g) in enumerate(zip(want, got)) if w != g]
            line |= {"texts": len(asked), "differences": len(differ)}
            files, wrong = files + 1, wrong + len(differ)
            for i in differ[:3]:
                print(f"   {asked[i]!r}\n   expected {want[i]}\n   ours     {got[i]}")
        if texts:
            theirs, got = by_llama_cpp(lib, file, texts), encoded(program, file, texts)
            if theirs is not None and not isinstance(got, str):
                differ = [i for i, (w, g) in enumerate(zip(theirs, got)) if w != g]
                line |= {"strings": len(texts), "other_than_llama_cpp": len(differ)}
                for i in differ[:3]:
                    print(f"   {texts[i]!r}\n   llama.cpp {theirs[i]}\n   ours      {got[i]}")
        if len(line) > 1:
            print(json.dumps(line), flush=True)
    if files == 0:
        print(f"skipped: {folder} has no ggml-vocab-NAME.gguf with .inp and .out, as the folder models of llama.cpp has")
        return 77
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main())
