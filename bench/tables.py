# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/performance.md, each a function of committed results. A table of the page follows a line
`<!-- table: NAME -->` and a blank line, and ends with the first line that is no row; `bench/report.py --render` replaces these rows."""
import json
import pathlib
import re

root = pathlib.Path(__file__).resolve().parent.parent
page = root / "docs" / "performance.md"
folder = root / "bench" / "results"
marker = re.compile(r"^<!-- table: (\S+) -->$")


def load(name):
    return json.loads((folder / name).read_text())


def fixed(value, digits):
    """The number with so many digits after the point."""
    return f"{value:.{digits}f}"


def us(value):
    """Microseconds: one digit after the point below a hundred."""
    return fixed(value, 1 if value < 99.95 else 0)


def three(value):
    """A factor with three digits."""
    return fixed(value, 2 if value < 9.995 else 1 if value < 99.95 else 0)


def ratio(value):
    return fixed(value, 2)


def over(a, b):
    return fixed(a / b, 2)


def table(head, rows, alignment=None):
    """The lines of a table: the first column is text, the others are numbers unless `alignment` says otherwise."""
    def line(cells):
        return re.sub(r"\|  (?=\|)", "| ", "| " + " | ".join(cells) + " |")

    return [line(head), "|" + "|".join(alignment or ["---"] + ["---:"] * (len(head) - 1)) + "|", *map(line, rows)]


def by(rows, *keys):
    return {tuple(r[k] for k in keys): r for r in rows}


def gpu_linear():
    rows = by(load("gpu-linear.json")["results"], "contender", "tokens", "out")
    cells = [(t, 4096) for t in (1, 8, 16, 64, 512, 4096, 16384)] + [(t, 14336) for t in (1, 16, 64, 4096)]
    made = []
    for tokens, out in cells:
        lora, bare, calls, plain = (rows[c, tokens, out] for c in ("lora r16", "cublaslt bare", "cublaslt lora r16 in three calls", "plain"))
        floor = lora["us"] * lora["percent_of_floor"] / 100
        made.append([f"{tokens} x {out}", us(lora["us"]), us(bare["us"]), us(calls["us"]), us(floor), ratio(lora["to_bare"]),
                     ratio(plain["to_bare"])])
    return table(["tokens x outputs", "ours, LoRA r16, µs", "bare, cuBLASLt, µs", "LoRA by three cuBLASLt calls, µs", "floor, µs",
                  "ours / bare", "ours without adapter / bare"], made)


def gpu_linear_adapters():
    rows = by(load("gpu-linear.json")["results"], "contender", "tokens", "out")
    names = ["lora r64", "dora r16", "adalora r16", "ia3", "ia3 feed-forward", "hra r8", "vera r256", "loha r16", "lokr r16", "oft b32",
             "boft b8 m2"]
    made = [[f"{t} tokens"] + [ratio(rows[n, t, 4096]["to_bare"]) if (n, t, 4096) in rows else "" for n in names] for t in (16, 4096)]
    return table(["", *names], made)


def gpu_peft():
    rows = by(load("gpu-peft.json")["results"], "adapter", "tokens", "contender")
    names = {"lora": "LoRA r16", "dora": "DoRA r16", "adalora": "AdaLoRA r16", "ia3": "IA3", "ia3_ff": "IA3, feed-forward", "vera": "VeRA r256",
             "loha": "LoHa r16", "lokr": "LoKr r16", "hra": "HRA r8"}
    contenders = ("graft", "PEFT eager", "PEFT compile default")
    made = []
    for key, name in names.items():
        launches = ", ".join(fixed(rows[key, 4096, c]["launches"], 0) for c in contenders[:2])
        made.append([name] + [ratio(rows[key, t, c]["to_bare"]) for t in (16, 4096) for c in contenders] + [launches])
    return table(["adapter", "16 tokens: ours", "PEFT eager", "torch.compile", "4096 tokens: ours", "PEFT eager", "torch.compile",
                  "launches: ours, PEFT"], made)


def gpu_peft_backward():
    rows = by(load("gpu-peft-backward.json")["results"], "adapter", "contender")
    names = {"lora": "LoRA r16", "dora": "DoRA r16", "adalora": "AdaLoRA r16", "ia3": "IA3", "ia3_ff": "IA3, feed-forward", "loha": "LoHa r16",
             "lokr": "LoKr r16", "vera": "VeRA r256", "hra": "HRA r8", "oft": "OFT", "boft": "BOFT", "miss": "MiSS", "road": "RoAd",
             "randlora": "RandLoRA", "vblora": "VB-LoRA", "delora": "DeLoRA", "c3a": "C3A", "gralora": "GraLoRA", "hira": "HiRA",
             "psoft": "PSOFT"}
    made = []
    for key, name in names.items():
        ours, bare, peft = (rows[key, c] for c in ("graft", "bare pair", "PEFT eager"))
        made.append([name, *(fixed(r["us"], 0) for r in (ours, bare, peft)), over(ours["us"], bare["us"]), over(peft["us"], ours["us"]),
                     *(fixed(r["megabytes"], 0) for r in (ours, peft))])
    return table(["adapter", "ours, µs", "bare, µs", "PEFT, µs", "ours / bare", "PEFT / ours", "memory: ours, MB", "PEFT, MB"], made)


def gpu_backward():
    rows = by(load("gpu-backward.json")["results"], "contender", "tokens", "out")
    names = {"plain": "no adapter", "lora r16": "LoRA r16", "lora r64": "LoRA r64", "adalora r16": "AdaLoRA r16", "ia3": "IA3",
             "ia3 feed-forward": "IA3, feed-forward", "dora r16": "DoRA r16", "miss r64": "MiSS r64", "vera r256": "VeRA r256",
             "oft b32": "OFT, blocks of 32", "hra r8": "HRA r8", "loha r16": "LoHa r16", "boft b8 m2": "BOFT, two factors of 8",
             "lokr r16": "LoKr r16"}
    made = []
    for key, name in names.items():
        of = {w: rows[f"{key} {w}", 4096, 4096] for w in ("forward", "backward", "both", "step")}
        made.append([name, *(ratio(r["to_bare"]) for r in of.values()), over(100, of["both"]["percent_of_floor"])])
    return table(["4096 tokens, 4096 x 4096", "forward / bare", "backward / bare dx", "both / bare pair", "step / bare pair", "both / floor"],
                 made)


def gpu_few_tokens():
    rows = by(load("gpu-few-tokens.json")["results"], "contender", "tokens", "out")
    made = []
    for tokens in (16, 64, 512):
        cells = [str(tokens)]
        for ours, bare in (("forward", "forward"), ("backward", "dx"), ("both", "pair")):
            r, b = rows[f"lora r16 {ours}", tokens, 4096], rows[f"cublaslt {bare}", tokens, 4096]
            cells += [us(r["us"]), us(b["us"])]
        made.append([*cells, ratio(rows["lora r16 both", tokens, 4096]["to_bare"])])
    return table(["tokens", "forward, µs", "bare", "backward, µs", "bare dx", "both, µs", "bare pair", "both / pair"], made)


def gpu_quantized():
    rows = by(load("gpu-quantized.json")["results"], "contender", "tokens", "out")
    cells = [(t, out) for out in (4096, 14336) for t in (1, 8, 16)]
    names = {"bf16": "bf16", "nf4": "NF4, blocks of 64", "nf4 double": "NF4, double quantization", "nf4 32": "NF4, blocks of 32", "q4_0": "Q4_0",
             "int8": "int8", "fp8": "FP8", "q8_0": "Q8_0"}
    made = [["bare, bf16, cuBLASLt", *(fixed(rows["cublaslt bare", *c]["us"], 1) for c in cells)]]
    for key, name in names.items():
        of = [rows[key + " lora r16", *c] for c in cells]
        made.append([name, *(f"{fixed(r['us'], 1)} ({over(100, r['percent_of_floor'])})" for r in of)])
    return table(["format", "4096 outputs: 1 token", "8", "16", "14336 outputs: 1 token", "8", "16"], made)


def gpu_quantized_many():
    rows = by(load("gpu-quantized.json")["results"], "contender", "tokens", "out")
    names = {"bf16": "bf16", "nf4": "NF4", "nf4 double": "NF4, double", "fp4": "FP4", "int8": "int8", "fp8": "FP8"}
    made = []
    for out in (4096, 14336):
        for what, word, bare in (("", "forward", "cublaslt bare"), (" backward", "backward", "cublaslt dx")):
            of = [rows.get((f"{n} lora r16{what}", 4096, out)) for n in names]
            made.append([f"{word}, {out} outputs", *(over(r["us"], rows[bare, 4096, out]["us"]) if r else "" for r in of)])
    return table(["4096 tokens, LoRA r16, over the bare bf16 product", *names.values()], made)


def gpu_quantized_model():
    m = load("gpu-quantized.json")["model"]
    rows = (("token step, 1 sequence at 1024, µs", "decode_1", 1, 0), ("token step, 8 sequences, µs", "decode_8", 1, 0),
            ("token step, 16 sequences, µs", "decode_16", 1, 0), ("prompt of 2048, ms", "prefill_2048", 1000, 2),
            ("training step, 2 x 2048 tokens, ms", "train_2x2048", 1000, 1), ("weights, MB", "weights_mb", 1, 0))
    return table(["four-layer model, LoRA on all projections", "NF4", "bf16", "NF4 / bf16"],
                 [[name, *(fixed(m[f"{k}_{key}"] / unit, digits) for k in ("nf4", "bf16")), over(m["nf4_" + key], m["bf16_" + key])]
                  for name, key, unit, digits in rows])


def gpu_bitsandbytes():
    rows = by(load("gpu-bitsandbytes.json")["results"], "name", "tokens", "out")
    names = {"graft": "ours", "bitsandbytes matmul_4bit": "bitsandbytes, `matmul_4bit`",
             "bitsandbytes dequantize, torch": "its dequantize, then torch", "torch bf16": "torch, bf16 weight"}
    return table(["", "4096 outputs: 1 token", "8", "16", "14336 outputs: 1 token", "8", "16"],
                 [[name, *(fixed(rows[key, t, out]["us"], 1) for out in (4096, 14336) for t in (1, 8, 16))] for key, name in names.items()])


def gpu_attention():
    rows = by(load("gpu-attention.json")["results"], "contender", "batch", "tokens")
    made = []
    for batch, tokens in ((1, 2048), (2, 2048), (1, 4096), (1, 8192), (1, 1999)):
        forward, theirs, both, their_both = (rows[c, batch, tokens] for c in ("graft forward", "cudnn forward", "graft both", "cudnn both"))
        made.append([f"{batch} x {tokens}", f"{fixed(forward['us'], 1)} ({fixed(forward['tflops'], 0)})", fixed(theirs["us"], 1),
                     over(forward["us"], theirs["us"]), fixed(both["us"], 0), fixed(their_both["us"], 0), over(both["us"], their_both["us"])])
    return table(["sequences x tokens", "forward: ours, µs (TFLOP/s)", "cuDNN, µs", "ours / cuDNN", "forward and backward: ours, µs",
                  "cuDNN, µs", "ours / cuDNN"], made)


def gpu_decode():
    measured = load("gpu-decode.json")
    steps = [(str(n), f"{n}, 1024") for n in (1, 2, 4, 8, 16, 32, 64)]
    for context, counts in ((64, (1, 16, 32, 64)), (4096, (1, 8, 16)), (8192, (4,)), (32768, (1,))):
        steps += [(f"{n}_at_{context}", f"{n}, {context}") for n in counts]
    steps += [(f"{n}_upto_2048", f"{n}, ragged up to 2048") for n in (16, 64)]
    made = []
    for key, name in steps:
        lora, floor = (measured["lora"][f"lora_decode_{key}{end}"] for end in ("", "_floor"))
        bare = measured["bare"].get("bare_decode_" + key)
        made.append([name, fixed(lora, 0), fixed(bare, 0) if bare else "", fixed(floor, 0), over(lora, floor)])
    return table(["sequences, context of each", "ours, LoRA r16, µs", "bare, µs", "floor, µs", "ours / floor"], made)


def gpu_experts():
    measured = load("gpu-experts.json")
    rows = (("token step, 1 sequence", "decode_1"), ("token step, 16", "decode_16"), ("token step, 64", "decode_64"),
            ("prompt of 2048", "prefill_2048"))
    made = []
    for name, key in rows:
        cells = [name]
        for model in ("qwen", "mixtral"):
            m = measured[model]
            cells += [over(m["bare_" + key], m[f"bare_{key}_floor"]), over(m["lora_" + key], m["bare_" + key])]
        made.append(cells)
    return table(["", "Qwen3: bare / floor", "LoRA / bare", "Mixtral: bare / floor", "LoRA / bare"], made)


def gpu_training():
    m = load("gpu-training.json")
    saved, dropout = m["saved_for_backward_mb"], m["dropout"]
    made = [[name, fixed(m[key + "_us"] / 1000, 1), "1" if key == "lora" else over(m[key + "_us"], m["lora_us"]), str(saved[key])]
            for key, name in (("lora", "LoRA r16"), ("dora", "DoRA r16"), ("oft", "OFT, blocks of 32"))]
    of = sorted(over(a, b) for a, b in zip(dropout["lora_dropout_us"], dropout["lora_us"]))
    beside = sorted(fixed(t / 1000, 1) for t in dropout["lora_us"])
    made.append(["LoRA r16, dropout 0.1", fixed(max(dropout["lora_dropout_us"]) / 1000, 1),
                 f"{of[0]} to {of[1]} (LoRA {beside[0]} and {beside[1]} in its runs)", ""])
    return table(["adapter on all seven projections", "step, ms", "over LoRA", "saved for backward, MB"], made)


def gpu_start():
    m = load("gpu-start.json")
    ours = [ratio(m["standard"][k]) for k in ("process", "driver", "model", "adapter", "first_token", "read_only")]
    peft = [[name, f"{fixed(m[key]['process'], 1)} ({fixed(m[key]['imports'], 1)} of them imports)", *[""] * 5]
            for name, key in (("PEFT, eager", "peft_eager"), ("PEFT, torch.compile", "peft_compile"))]
    return table(["", "whole process, s", "CUDA driver", "model", "adapter", "first token", "reading the files alone"], [["ours", *ours], *peft])


def gpu_multi_lora():
    m = load("gpu-multi-lora.json")
    rows = by(m["cases"], "contender", "tokens")
    names = ((64, "64 rows without", "64, no adapter"), (64, "8 lora r16", "64, 8 LoRA r16"), (64, "32 lora r16", "64, 32 LoRA r16"),
             (64, "8 of four methods", "64, 8 of four kinds (LoRA, with factors, factors alone, with a bias)"),
             (512, "2 adapters, segments of 256", "512, 2 adapters"),
             (512, "32 adapters, segments of 16", "512, 32 adapters in segments of 16"),
             (4096, "8 segments", "4096, 8 adapters in segments of 512"),
             (4096, "32 adapters, segments of 64", "4096, 32 adapters in segments of 64"))
    made = []
    for tokens, key, name in names:
        r, bare, peft = rows[key, tokens], rows["cublaslt bare", tokens], m["peft_us"].get(key)
        made.append([name, us(r["us"]), us(bare["us"]), str(peft or ""), over(r["us"], bare["us"]),
                     ratio(r["of_floor"]) if "of_floor" in r else ""])
    return table(["rows", "ours, µs", "bare, cuBLASLt, µs", "PEFT, µs", "ours / bare", "ours / floor"], made)


def gpu_switching():
    runs = [r for r in load("gpu-switching.json")["runs"] if r["sequences"] == 16]
    rows = (("one adapter all the time", "step"), ("another one activated before every token", "activated_before_each"),
            ("each row its own, 1, 8 or 16 in the batch", "multi_lora_step"), ("other rows before every token", "other_rows_before_each"))
    return table(["resident adapters", "1", "8", "64"],
                 [[name, *(fixed(sum(r[f"{key}_{n}"] for r in runs) / len(runs), 0) for n in (1, 8, 64))] for name, key in rows])


def cpu_layer():
    rows = by(load("cpu-peft-x86.json")["results"], "adapter", "tokens")
    names = {"lora": "LoRA", "dora": "DoRA", "adalora": "AdaLoRA", "ia3": "IA3", "ia3_ff": "IA3, feed-forward", "loha": "LoHa", "lokr": "LoKr",
             "vera": "VeRA", "hra": "HRA", "oft": "OFT", "boft": "BOFT", "miss": "MiSS", "vblora": "VB-LoRA", "delora": "DeLoRA",
             "gralora": "GraLoRA", "road": "RoAd", "c3a": "C3A", "randlora": "RandLoRA", "hira": "HiRA", "psoft": "PSOFT"}
    def cell(key, what):
        of = [rows[key, t].get(what) for t in (1, 16, 512)]
        return " / ".join("–" if v is None else ratio(v) for v in of)

    return table(["adapter", "forward / our bare layer", "forward / PEFT", "training step / PEFT"],
                 [[name, *(cell(key, w) for w in ("forward_over_bare", "forward_over_peft", "step_over_peft"))] for key, name in names.items()],
                 ["---"] * 4)


def cpu_products():
    rows = by(load("cpu-products.json")["results"], "product", "tokens", "size")
    tokens = (1, 4, 16, 64, 128, 512)
    def cell(product, t):
        ms = rows["x W' " + product, t, 1024]["us"] / 1000
        return fixed(ms, 2 if ms < 9.995 else 1)

    # Our layers multiply few tokens by dot products and more by packed blocks.
    made = [["ours", *(cell("dots" if t < 128 else "packed", t) for t in tokens)]]
    made += [[name, *(cell(key, t) for t in tokens)] for name, key in (("Eigen", "eigen"), ("OpenBLAS", "blas"))
             if ("x W' " + key, 1, 1024) in rows]  # a build without a BLAS has no such rows
    return table(["tokens", *map(str, tokens)], made)


def cpu_quantized():
    """The file is the programs' output under a line for each machine."""
    machine, times = "", {}
    for line in (folder / "cpu-quantized.txt").read_text().split("\n"):
        if found := re.match(r"(\S.*)/tokens:(\d+)/real_time +(\d+) us", line):
            times[machine, found[1], int(found[2])] = found[3]
        elif line and not line.startswith(" "):
            machine = line
    formats = {"float": "float", "nf4": "NF4", "nf4 double": "NF4, double", "int8": "int8", "q4_0": "Q4_0"}
    made = []
    for name, begin in (("Xeon (AVX-512)", "Intel Xeon"), ("Neoverse V1", "Neoverse V1")):
        of = {(f, t): us for (m, f, t), us in times.items() if m.startswith(begin)}
        made += [[f"{name}, {t}", *(of[f, t] for f in formats)] for t in (1, 4)]
    return table(["tokens", *formats.values()], made)


def cpu_models():
    rows = by(load("cpu-models.json")["results"], "model", "dtype", "method")
    names = {"lora": "LoRA", "dora": "DoRA", "oft": "OFT"}
    cells = [("134M", d, m) for d in ("float32", "bfloat16") for m in names] + [("tiny", d, "lora") for d in ("float32", "bfloat16")]
    made = []
    for model, dtype, method in cells:
        f = rows[model, dtype, method]["faster"]
        made.append([f"{model}, {dtype}", names[method], three(f["generate_1"]), three(f["generate_8"]), fixed(f["load"], 0),
                     fixed(f["memory"], 1)])
    return table(["model", "adapter", "1 sequence", "8 sequences", "loading", "memory"], made, ["---", "---", *["---:"] * 4])


def cpu_experts():
    rows = by(load("cpu-experts.json")["results"], "model", "adapter", "tokens")
    names = {"small": "small Qwen3-MoE", "mixtral": "golden Mixtral", "qwen3_moe": "golden Qwen3-MoE", "qwen2_moe": "golden Qwen2-MoE",
             "gpt_oss": "golden gpt-oss"}
    made = []
    for key, name in names.items():
        for adapter, word in (("none", "none"), ("lora_experts", "LoRA r16" if key == "small" else "LoRA")):
            made.append([name, word, *(three(rows[key, adapter, t]["faster"]) for t in (1, 16, 512))])
    return table(["model", "adapter", "1 token", "16 tokens", "512 tokens"], made, ["---", "---", "---:", "---:", "---:"])


def cpu_training():
    m = load("cpu-training.json")
    return table(["", "LoRA", "OFT", "DoRA"],
                 [[d, *(", ".join(over(peft, ours) for ours, peft in m[d][a]) for a in ("lora", "oft", "dora"))] for d in ("float32", "bfloat16")])


def compile_time():
    cases = {}
    for r in load("compile.json")["results"]:
        cases[r["case"]] = r["ms"]
    def seconds(case, digits=1):
        """The median of three and more runs, both of two."""
        of = sorted(cases[case]) if isinstance(cases[case], list) else [cases[case]]
        if len(of) > 2 and "GPU" not in case:
            of = [of[len(of) // 2]]
        low, high = (fixed(v / 1000, digits) for v in (of[0], of[-1]))
        return low if low == high else f"{low} to {high}"

    per_type = (cases["layers 50"] - cases["layers 10"]) / 40
    named = "one graph by name through graft/io.h over a layer, -O2, "
    made = [["`graft/graft.h` over an empty file", fixed((cases["header"] - cases["empty"]) / 1000, 3) + " s"],
            ["a further layer type, plan and verdict", f"{per_type:.0f} ms"],
            ["a decoder block, DoRA on seven projections, forward and backward",
             fixed((cases["block"] - cases["header"]) / 1000, 1) + " s"],
            ["one CPU layer that is called, header-only, `-O2`; `-O0`",
             f"{seconds('examples/lora_linear.cpp, -O2')} s; {seconds('examples/lora_linear.cpp, -O0')} s"],
            ["the same with the compiled CPU library, `-O2`", seconds("examples/lora_linear.cpp, -O2, graft::cpu_compiled") + " s"],
            ["an adapter by name through `graft/io.h` on top, header-only; with the compiled library",
             f"{seconds(named + 'header-only')} s; {seconds(named + 'graft::cpu_compiled', 2)} s"],
            ["one GPU layer, nvcc, header-only", seconds("a DoRA layer on the GPU, header-only") + " s"],
            ["the same with the compiled GPU library", seconds("a DoRA layer on the GPU, graft::cuda_compiled") + " s"]]
    return table(["", "time"], made)


# The name of a table on the page, and the function that makes its lines.
tables = {f.__name__: f for f in (
    gpu_linear, gpu_linear_adapters, gpu_peft, gpu_peft_backward, gpu_backward, gpu_few_tokens, gpu_quantized, gpu_quantized_many, gpu_quantized_model,
    gpu_bitsandbytes, gpu_attention, gpu_decode, gpu_experts, gpu_training, gpu_start, gpu_multi_lora, gpu_switching, cpu_layer, cpu_products,
    cpu_quantized, cpu_models, cpu_experts, cpu_training, compile_time)}


def rendered(text):
    """The text of the page with the rows of every marked table made anew."""
    lines, made, seen = text.split("\n"), [], []
    at = 0
    while at < len(lines):
        made.append(lines[at])
        found = marker.match(lines[at])
        at += 1
        if not found:
            continue
        seen.append(found[1])
        if found[1] not in tables:
            raise SystemExit(f"{page.name}: there is no table '{found[1]}' in bench/tables.py")
        while at < len(lines) and not lines[at]:
            at += 1
        while at < len(lines) and lines[at].startswith("|"):
            at += 1
        try:
            made += ["", *tables[found[1]]()]
        except (KeyError, StopIteration) as missing:
            raise SystemExit(f"the table {found[1]}: its file in bench/results has no {missing}; measure it again") from missing
    if sorted(seen) != sorted(tables):
        raise SystemExit(f"{page.name}: a table is missing or there twice: {', '.join(sorted(set(tables) ^ set(seen))) or seen}")
    return "\n".join(made)
