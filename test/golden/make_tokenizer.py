#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Tokenizers of three families, trained with the tokenizers package (PyPI), and the tokens it gives for texts.
#   make_tokenizer.py small DIR                       writes DIR/NAME/{tokenizer.json,cases.json}, which the tests read
#   make_tokenizer.py compare TOKENIZE [MEGABYTES]    trains larger ones, encodes mixed text and every Unicode block
#                                                     with the package and with TOKENIZE, and prints one line each
import glob, itertools, json, os, random, subprocess, sys, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
qwen2 = llama3.replace("{1,3}", "")


def family(name):
    t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    if name == "gpt2":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif name == "gpt2_space":
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        regex = Regex(llama3 if name == "llama3" else qwen2)
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(regex, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if name == "qwen2":
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def train(name, texts, size):
    t = family(name)
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>", "<|begin|>"]))
    t.add_tokens([AddedToken("<tool>", normalized=True, special=False), AddedToken("<tool>s", special=False)])
    if name == "llama3":
        begin = t.token_to_id("<|begin|>")
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B",
                                          special_tokens=[("<|begin|>", begin)])])
    return t


def every_block():
    """Some characters of every 128, each also after a quote, a letter, a digit, a space, an accent and a newline."""
    out = []
    for base in range(0, 0x110000, 128):
        codes = [c for c in (base, base + 1, base + 31, base + 64, base + 127) if not 0xD800 <= c <= 0xDFFF]
        if 0xF0000 <= base and base % 0x4000:
            continue
        for c in map(chr, codes):
            out.append(f"{c}a'{c}1{c} {c}{c}\u0301{c}\n{c}")
    return "".join(out)


def all_letters():
    """Every assigned character."""
    return " ".join("".join(map(chr, range(b, b + 64))) for b in range(0, 0x30000, 64) if not 0xD800 <= b <= 0xDFFF)


hand_made = [
    "", " ", "  ", "a", "Hello, world!", " Hello  world ", "\n", "a\n", "a \n b", "a\r\n\r\n  b", "  \n  \n  x", "x   ",
    "don't DON'T we'LL 'Re ' s 'ſ it's'S", "12345678 1 22 333 4444 ½ ٣٤٥ Ⅷ", "tab\tx\t\ty", "…—“quoted”",
    "e\u0301 \u0041\u030a \u1100\u1161\u11a8 \u212b \ufb01 q\u0323\u0307 q\u0307\u0323", "日本語テキスト。中文，文字",
    "नमस्ते दुनिया", "שלום עולם", "👩‍👩‍👧‍👦 🏳️‍🌈 ☺️", "a\u00a0b\u3000c\u2028d\u2003\u2003e", "<|endoftext|>", "x<|endoftext|>y<|begin|>",
    "<tool> <tool>s <too", "int main() {\n  return 0;\n}\n\n\n// done", "a" * 300, "ab" * 200 + "!" * 100, "\u0000\u0001\u007f",
    "\U0001F600\U000E0001\U0010FFFF", "'", "''", " 's", "'s", "\t's", "A\u030a\u0323 \u0344 \u0f73 \u2adc"]


def corpus(megabytes):
    wanted, parts, size = int(megabytes * 1e6), [], 0
    files = sorted(itertools.chain.from_iterable(glob.glob(p, recursive=True) for p in (
        "/usr/lib/python3*/**/*.py", sys.prefix + "/lib/python3*/**/*.py", "/usr/include/**/*.h",
        "/usr/share/i18n/locales/*", "/usr/share/doc/**/copyright", "/usr/share/perl/**/*.pod",
        sys.prefix + "/lib/python3*/**/*.md", sys.prefix + "/lib/python3*/**/*.json")))
    random.Random(1).shuffle(files)
    for f in files:
        try:
            text = open(f, encoding="utf-8").read(60000)
        except (OSError, UnicodeDecodeError):
            continue
        parts.append(text)
        size += len(text.encode())
        if size > wanted * 0.7:
            break
    draw = random.Random(2)
    pools = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0xDFF), (0x1100, 0x11FF),
             (0x1E00, 0x206F), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF), (0x10000, 0x1FFFF)]
    while size < wanted:
        low, high = draw.choice(pools)
        words = ["".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 9))) for _ in range(200)]
        text = "".join(w + draw.choice([" ", " ", "  ", "\n", "\r\n", "\t", "'s ", ".", "12 "]) for w in words)
        parts.append(text)
        size += len(text.encode())
    return "".join(parts)


def small(folder):
    texts = [*hand_made, open(__file__, encoding="utf-8").read(), every_block()[:20000]] * 2
    for name in ("gpt2", "gpt2_space", "llama3", "qwen2"):
        t = train(name, texts, 420)
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        t.save(f"{folder}/{name}/tokenizer.json", pretty=False)
        cases = []
        for text in hand_made + [every_block()[i:i + 200] for i in range(0, 60000, 15000)]:
            ids = t.encode(text).ids
            assert t.encode(text, add_special_tokens=False).ids == ids[name == "llama3":]
            case = {"text": text, "ids": ids}
            # a case without a decoded text decodes to its text
            for key, skip in (("decoded", True), ("decoded_all", False)):
                back = t.decode(ids, skip_special_tokens=skip)
                if back != text:
                    case[key] = back
            cases.append(case)
        # incomplete characters: every second token is left out
        for c in cases[-4:]:
            c["broken"] = t.decode(c["ids"][::2])
        json.dump(cases, open(f"{folder}/{name}/cases.json", "w", encoding="utf-8"), separators=(",", ":"),
                  ensure_ascii=False)


def compare(program, megabytes):
    import numpy
    texts = {"mixed": corpus(megabytes), "blocks": every_block(), "letters": all_letters()}
    with tempfile.TemporaryDirectory() as temp:
        for name in ("gpt2", "gpt2_space", "llama3", "qwen2"):
            t = train(name, [texts["mixed"][:3000000], texts["blocks"]], 30000)
            t.save(f"{temp}/tokenizer.json")
            for what, text in texts.items():
                open(f"{temp}/text", "w", encoding="utf-8", newline="").write(text)
                start = time.perf_counter()
                wanted = t.encode(text).ids
                took = time.perf_counter() - start
                lines = text.splitlines(keepends=True)
                start = time.perf_counter()
                t.encode_batch_fast(lines)
                by_lines = time.perf_counter() - start
                ran = subprocess.run([program, f"{temp}/tokenizer.json", f"{temp}/text", f"{temp}/ids"],
                                     capture_output=True, text=True, check=True)
                got = numpy.fromfile(f"{temp}/ids", dtype=numpy.int32).tolist()
                size = len(text.encode())
                first = next((i for i, (a, b) in enumerate(zip(wanted, got)) if a != b), None)
                print(json.dumps({"family": name, "text": what, "bytes": size, "same": got == wanted, "first_difference": first,
                                  "package_MB_s": round(size / 1e6 / took, 2),
                                  "package_by_lines_MB_s": round(size / 1e6 / by_lines, 2), **json.loads(ran.stdout)}), flush=True)
                if got != wanted and first is not None:
                    print(repr(t.decode(wanted[max(0, first - 3):first + 6])), repr(t.decode(got[max(0, first - 3):first + 6])))


if len(sys.argv) == 3 and sys.argv[1] == "small":
    small(sys.argv[2])
elif len(sys.argv) in (3, 4) and sys.argv[1] == "compare":
    print(json.dumps({"tokenizers": tokenizers.__version__, "python": sys.version.split()[0]}))
    compare(sys.argv[2], float(sys.argv[3]) if len(sys.argv) == 4 else 10)
else:
    sys.exit(__doc__ or "usage: make_tokenizer.py small DIR | compare TOKENIZE [MEGABYTES]")
