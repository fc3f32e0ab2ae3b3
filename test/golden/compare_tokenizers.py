#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Tokenizers of all styles that language models use, trained with the tokenizers package (PyPI), and what the package
# and the program TOKENIZE (tokenize.cpp) make of the same strings.
#   compare_tokenizers.py run TOKENIZE [STRINGS] [STYLE…]     encodes and decodes STRINGS (100000) strings per style,
#                                                             and prints a line each: differences, MB/s on one thread
#   compare_tokenizers.py given TOKENIZE STRINGS FILE…        the same with tokenizers of models: tokenizer.json files, or
#                                                             the GGUF file of SmolLM2 (byte-level BPE after digits)
#   compare_tokenizers.py small DIR                           writes DIR/STYLE/{tokenizer.json,cases.json} for the tests
import json, os, random, struct, subprocess, sys, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P, processors,
                        trainers)

contraction = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
llama3 = (contraction + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
gpt4o = (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contraction}?|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contraction}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
deepseek = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
cl100k = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
          r"|\s+(?!\S)|\s")
bloom = " ?[^(\\s|[.,!?…。，、।۔،])]+"
bytes_fall_back = [f"<0x{b:02X}>" for b in range(256)]
byte_alphabet = P.ByteLevel.alphabet()

# ---- strings

pools = [(0x20, 0x7E)] * 6 + [
    (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1100, 0x11FF),
    (0x1E00, 0x206F), (0x2070, 0x2BFF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFDFF),
    (0xFE00, 0xFFFD), (0x10000, 0x1FFFF), (0x1F300, 0x1F6FF), (0x1D400, 0x1D7FF), (0x1, 0x1F), (0x7F, 0x9F), (0x20000, 0x2A6DF),
    (0xE0000, 0x10FFFF)]
words = ("the of and to in is that it was for Hello WORLD don't we'LL I've they're it's naïve café straße Öl ſchön İstanbul "
         "ΣΊΣΥΦΟΣ Привет мир مرحبا עולם नमस्ते สวัสดี 日本語 中文字符 한국어 ガギグ ｶﾞｷﾞ ﬁne ½ ² Ⅷ ٣٤٥ 123 4567 89012 3.14 0x1F e\u0301 q\u0323\u0307 "
         "def return int main() { } ; == != <= -> // /* */ # ## ``` \\n \\t <s> </s> <unk> <0x41> <tool> <|end|> <mask> "
         "👩‍👩‍👧‍👦 🏳️‍🌈 ☺️ 🇩🇪 … — “q” ‘a’ ▁ ▁▁ ▁a Ġ Ċ a\u200db \u200c \ufeff 。 ， ! ? ... 'S 'ſ K").split(" ")
blanks = [" "] * 12 + ["", "", "  ", "   ", "    ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n ", "\u00a0", "\u3000", "\u2003\u2003", "\u2028"]


def any_string(draw):
    kind = draw.random()
    if kind < 0.55:
        return "".join(draw.choice(words) + draw.choice(blanks) for _ in range(draw.randint(0, 25)))
    if kind < 0.7:
        low, high = draw.choice(pools)
        s = "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 40)))
    elif kind < 0.85:
        s = "".join(chr(draw.randint(*draw.choice(pools))) + draw.choice(blanks) * (draw.random() < 0.3)
                    for _ in range(draw.randint(1, 40)))
    elif kind < 0.93:
        s = "".join(draw.choice(blanks + ["x", "1", "\n", " "]) for _ in range(draw.randint(1, 30)))
    else:
        s = "".join(draw.choice("abcdefgh ABC's 0123456789.,") for _ in range(draw.randint(1, 200)))
    return s


def texts_to_train(draw, n):
    return [any_string(draw) for _ in range(n)]


# ---- styles: a tokenizer that is not trained, and its trainer


def bpe(normalizer, pre, decoder, special=("<s>", "</s>"), alphabet=(), post=None, **model):
    def make(size):
        t = Tokenizer(models.BPE(**model))
        t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoder
        if post is not None:
            t.post_processor = post
        return t, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=list(special),
                                      initial_alphabet=list(alphabet), limit_alphabet=150)
    return make


def unigram(normalizer, pre, decoder, special=("<pad>", "</s>", "<unk>"), post=None):
    def make(size):
        t = Tokenizer(models.Unigram())
        t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoder
        if post is not None:
            t.post_processor = post
        return t, trainers.UnigramTrainer(vocab_size=size, show_progress=False, special_tokens=list(special),
                                          unk_token="<unk>", max_piece_length=16)
    return make


def seq(*parts):
    return P.Sequence(list(parts))


def split(*patterns):
    return seq(*[P.Split(Regex(p), "isolated") for p in patterns], P.ByteLevel(add_prefix_space=False, use_regex=False))


def begin(token="<s>", number=0):
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B",
                                         special_tokens=[(token, number)])


def end(token="</s>", number=1):
    return processors.TemplateProcessing(single=f"$A {token}", pair=f"$A {token} $B {token}", special_tokens=[(token, number)])


fallback = ["<unk>", "<s>", "</s>", *bytes_fall_back]
llama_decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
gemma_decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
styles = {
    "gpt2": bpe(None, P.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), alphabet=byte_alphabet,
                post=processors.ByteLevel(trim_offsets=False)),
    "gpt2_space": bpe(None, P.ByteLevel(add_prefix_space=True), decoders.ByteLevel(), alphabet=byte_alphabet),
    "absent_bytes": bpe(None, seq(P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)), decoders.ByteLevel()),
    "absent_bytes_unk": bpe(None, seq(P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)),
                            decoders.ByteLevel(), unk_token="<s>", fuse_unk=False),
    "llama3": bpe(None, split(llama3), decoders.ByteLevel(), alphabet=byte_alphabet, ignore_merges=True,
                  post=processors.Sequence([processors.ByteLevel(trim_offsets=False), begin()])),
    "qwen2": bpe(N.NFC(), split(llama3.replace("{1,3}", "")), decoders.ByteLevel(), alphabet=byte_alphabet),
    "deepseek": bpe(None, split(*deepseek), decoders.ByteLevel(), alphabet=byte_alphabet),
    "gpt4o": bpe(None, split(gpt4o), decoders.ByteLevel(), alphabet=byte_alphabet),
    "cl100k": bpe(None, split(cl100k), decoders.ByteLevel(), alphabet=byte_alphabet),
    "bloom": bpe(None, split(bloom), decoders.ByteLevel(), alphabet=byte_alphabet),
    "falcon": bpe(None, seq(P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(),
                            P.Split(Regex("[0-9][0-9][0-9]"), "isolated")), decoders.ByteLevel(), alphabet=byte_alphabet),
    "llama2": bpe(N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None, llama_decoder, special=fallback, post=begin("<s>", 1),
                  unk_token="<unk>", fuse_unk=True, byte_fallback=True),
    "gemma": bpe(N.Replace(" ", "▁"), P.Split(" ", "merged_with_previous"), gemma_decoder, special=fallback,
                 unk_token="<unk>", fuse_unk=True, byte_fallback=True),
    "mistral": bpe(None, P.Metaspace(prepend_scheme="first", split=False), llama_decoder, special=fallback,
                   post=begin("<s>", 1), unk_token="<unk>", fuse_unk=True, byte_fallback=True),
    "metaspace_unk": bpe(N.NFKC(), P.Metaspace(prepend_scheme="always", split=True), decoders.Metaspace(),
                         special=("<unk>", "<s>"), unk_token="<unk>", fuse_unk=True),
    "metaspace_unks": bpe(N.NFKD(), P.Metaspace(prepend_scheme="never", split=True), decoders.Metaspace(prepend_scheme="never"),
                          special=("<unk>", "<s>"), unk_token="<unk>", fuse_unk=False),
    "whitespace": bpe(N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents(), N.Strip()]), P.Whitespace(), None,
                      special=("<unk>",), unk_token="<unk>"),
    "splits": bpe(N.Sequence([N.Lowercase(), N.Replace(Regex(r"\d+"), "0")]),
                  seq(P.WhitespaceSplit(), P.Punctuation("merged_with_next"), P.Digits(individual_digits=False),
                      P.Split(Regex("[aeiou]+"), "merged_with_previous"), P.Split("th", "contiguous")),
                  decoders.Fuse(), special=("<unk>",), unk_token="<unk>"),
    "inverted": bpe(N.Strip(left=False, right=True),
                    seq(P.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True), P.Punctuation("removed"),
                        P.Split(Regex("[a-m]"), "merged_with_next", invert=True)), None, special=("<unk>",)),
    "t5": unigram(N.Sequence([N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), P.Metaspace(prepend_scheme="always"),
                  decoders.Metaspace(), post=end()),
    "unigram_bytes": unigram(N.Replace(" ", "▁"), None, gemma_decoder, special=("<pad>", "</s>", "<unk>", *bytes_fall_back)),
    "unigram_first": unigram(N.NFC(), seq(P.Digits(individual_digits=True), P.Metaspace(prepend_scheme="first")),
                             decoders.Metaspace(prepend_scheme="first")),
}


def train(name, size, seed=1, texts=6000):
    draw = random.Random(seed)
    t, trainer = styles[name](size)
    examples = texts_to_train(draw, texts)
    if isinstance(t.model, models.Unigram):  # whose trainer keeps every character that it has seen
        known = set("".join(words + blanks)) | {chr(c) for c in range(32, 127)}
        examples = [s for s in examples if known.issuperset(s)]
    t.train_from_iterator(examples, trainer)
    # Tokens of bytes are part of the vocabulary alone, as in files of models.
    content = json.loads(t.to_str())
    content["added_tokens"] = [a for a in content["added_tokens"] if a["content"] not in bytes_fall_back]
    if name == "unigram_bytes":
        content["model"]["byte_fallback"] = True
    t = Tokenizer.from_str(json.dumps(content))
    t.add_tokens([AddedToken("<tool>", normalized=True, special=False), AddedToken("<tool>s", special=False),
                  AddedToken("<|end|>", special=True, lstrip=True), AddedToken("<mask>", special=False, rstrip=True, lstrip=True,
                                                                              normalized=False),
                  AddedToken("WORLD", special=False, single_word=True, normalized=True)])
    return Tokenizer.from_str(t.to_str())


def expected(t, strings):
    """What the package makes of strings, None where it fails; and how long it took to encode."""
    out, took = [], 0.0
    for s in strings:
        start = time.perf_counter()
        try:
            ids = t.encode(s).ids
        except Exception:
            ids = None
        took += time.perf_counter() - start
        out.append((ids, t.decode(ids) if ids is not None else None))
    return out, took


def ours(program, file, strings, temp):
    with open(f"{temp}/texts", "wb") as f:
        for s in strings:
            b = s.encode()
            f.write(struct.pack("<I", len(b)) + b)
    ran = subprocess.run([program, file, f"{temp}/texts", f"{temp}/ids", "--each"], capture_output=True, text=True, timeout=600)
    if ran.returncode != 0:
        raise SystemExit(f"{file}: {ran.stderr}")
    data, at, out = open(f"{temp}/ids", "rb").read(), 0, []
    for _ in strings:
        (n,) = struct.unpack_from("<I", data, at)
        at += 4
        if n == 0xFFFFFFFF:
            out.append((None, None))
            continue
        ids = list(struct.unpack_from(f"<{n}I", data, at))
        (size,) = struct.unpack_from("<I", data, at + 4 * n)
        at += 4 * n + 4
        out.append((ids, data[at:at + size].decode()))
        at += size
    return out, json.loads(ran.stdout)


def compare_one(program, t, file, names, strings, temp):
    """Prints a line for one tokenizer; `names` are what the line begins with. The number of differences."""
    size = sum(len(s.encode()) for s in strings)
    want, took = expected(t, strings)
    got, said = ours(program, file, strings, temp)
    encoded = [i for i, (w, g) in enumerate(zip(want, got)) if w[0] != g[0]]
    decoded = [i for i, (w, g) in enumerate(zip(want, got)) if w[0] == g[0] and w[1] != g[1]]
    print(json.dumps({**names, "strings": len(strings), "bytes": size, "encode_differences": len(encoded),
                      "decode_differences": len(decoded), "package_MB_s": round(size / 1e6 / took, 2),
                      "encode_MB_s": said["encode_MB_s"], "decode_MB_s": said["decode_MB_s"]}), flush=True)
    for i in encoded[:3]:
        print("  ", repr(strings[i]), "\n   package", t.encode(strings[i]).tokens if want[i][0] is not None else None,
              "\n   ours   ", [t.id_to_token(k) for k in got[i][0]] if got[i][0] is not None else None)
    for i in decoded[:3]:
        print("  ", repr(strings[i]), "\n   package", repr(want[i][1]), "\n   ours   ", repr(got[i][1]))
    return len(encoded) + len(decoded)


def drawn(count):
    draw = random.Random(7)
    return [any_string(draw) for _ in range(count)]


def compare(program, names, count):
    strings, total = drawn(count), 0
    with tempfile.TemporaryDirectory() as temp:
        for name in names:
            t = train(name, 3000)
            t.save(f"{temp}/tokenizer.json")
            total += compare_one(program, t, f"{temp}/tokenizer.json", {"style": name}, strings, temp)
    return total


def of_gguf(file):
    """The tokenizer of a GGUF file with tokenizer.ggml.pre smollm, as SmolLM2's tokenizer.json has it."""
    import gguf
    fields = gguf.GGUFReader(file).fields
    value = {k: fields[f"tokenizer.ggml.{k}"].contents() for k in ("pre", "tokens", "merges", "token_type")}
    if value["pre"] != "smollm":
        raise SystemExit(f"{file}: its pre-tokenizer is {value['pre']}, expected smollm")
    t = Tokenizer(models.BPE({w: i for i, w in enumerate(value["tokens"])}, [tuple(m.split(" ")) for m in value["merges"]]))
    t.pre_tokenizer = seq(P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False))
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(w, normalized=False) for w, k in zip(value["tokens"], value["token_type"]) if k == 3])
    return t


def compare_given(program, count, files):
    strings, total = drawn(count), 0
    with tempfile.TemporaryDirectory() as temp:
        for file in files:
            t = of_gguf(file) if file.endswith(".gguf") else Tokenizer.from_file(file)
            name = "/".join(file.split("/")[-2:])
            total += compare_one(program, t, file, {"file": name, "tokens": t.get_vocab_size()}, strings, temp)
    return total


def small(folder):
    for name in styles:
        # make_tokenizer.py writes the first four; the others differ from those that are kept by their pattern alone.
        if name in ("gpt2", "gpt2_space", "llama3", "qwen2", "bloom", "cl100k", "falcon", "metaspace_unks"):
            continue
        t = train(name, 480, seed=3, texts=400)
        draw, cases = random.Random(5), []
        for s in ["", " ", "  a ", "Hello <tool>s <tool> x <|end|>  <mask> WORLD WORLDS", "don't 12345 é日本 👩‍👧 \u212b ﬁ"] + [
                any_string(draw)[:50] for _ in range(14)]:
            try:
                ids = t.encode(s).ids
            except Exception:
                cases.append({"text": s})
                continue
            plain = t.encode(s, add_special_tokens=False).ids
            case = {"text": s, "ids": ids, "decoded": t.decode(ids)}
            if plain != ids:
                case["plain"] = plain
            if t.decode(ids, skip_special_tokens=False) != case["decoded"]:
                case["decoded_all"] = t.decode(ids, skip_special_tokens=False)
            cases.append(case)
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        t.save(f"{folder}/{name}/tokenizer.json", pretty=False)
        json.dump(cases, open(f"{folder}/{name}/cases.json", "w", encoding="utf-8"), separators=(",", ":"), ensure_ascii=False)


if len(sys.argv) == 3 and sys.argv[1] == "small":
    small(sys.argv[2])
elif len(sys.argv) >= 3 and sys.argv[1] == "run":
    print(json.dumps({"tokenizers": tokenizers.__version__, "python": sys.version.split()[0]}))
    sys.exit(1 if compare(sys.argv[2], sys.argv[4:] or list(styles), int(sys.argv[3]) if len(sys.argv) > 3 else 100000) else 0)
elif len(sys.argv) >= 5 and sys.argv[1] == "given":
    print(json.dumps({"tokenizers": tokenizers.__version__, "python": sys.version.split()[0]}))
    sys.exit(1 if compare_given(sys.argv[2], int(sys.argv[3]), sys.argv[4:]) else 0)
else:
    sys.exit("usage: compare_tokenizers.py run TOKENIZE [STRINGS] [STYLE…] | given TOKENIZE STRINGS FILE… | small DIR")
