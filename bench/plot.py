#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the committed results: python3 bench/plot.py (needs matplotlib). Reads bench/results, writes docs/img."""
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

root = pathlib.Path(__file__).resolve().parent
out = root.parent / "docs" / "img"
plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "graft"})


def cpu_peft():
    rows = results("cpu-peft.json")
    names = list(dict.fromkeys(r["adapter"] for r in rows))
    tokens = sorted({r["tokens"] for r in rows})
    fig, axes = plt.subplots(1, 2, figsize=(10, 5.6), sharey=True)
    for axis, key, label in ((axes[0], "forward_over_peft", "forward"), (axes[1], "step_over_peft", "forward and backward")):
        for i, (n, color) in enumerate(zip(tokens, ("#9ecae1", "#3b7ea1", "#1b3a4b"))):
            of = {r["adapter"]: r[key] for r in rows if r["tokens"] == n}
            axis.barh([y + 0.27 * (1 - i) for y in range(len(names))], [of.get(a, 0) for a in names], height=0.25, color=color,
                      label=f"{n} token" + ("s" if n > 1 else ""))
        axis.axvline(1, color="black", linewidth=1)
        axis.set_xlabel(f"{label}: this library / PEFT")
        axis.set_yticks(range(len(names)), names)
        axis.set_xlim(0, 1.5)  # longer bars are in the table
    axes[0].invert_yaxis()
    axes[1].legend(frameon=False)
    fig.suptitle("One 1024 x 1024 layer on the CPU, float (less is better)")
    fig.tight_layout()
    fig.savefig(out / "cpu_peft.svg", metadata={"Date": None})


def compile_time():
    rows = json.loads((root / "results" / "compile.json").read_text())["results"]
    fig, (types, stack) = plt.subplots(1, 2, figsize=(10, 3.6))
    for axis, kind, label in ((types, "types", "layer types in one file"), (stack, "stack", "layers captured in one graph")):
        for compiler, color in (("cxx", "#3b7ea1"), ("nvcc", "#76a03a")):
            points = [(int(r["case"].split()[1]), r["ms"] / 1000) for r in rows
                      if r["compiler"] == compiler and r["case"].startswith(kind)]
            if points:
                axis.plot(*zip(*points), marker="o", color=color, label={"cxx": "g++", "nvcc": "nvcc"}[compiler])
        axis.set_xlabel(label)
        axis.set_ylabel("seconds")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(out / "compile_time.svg", metadata={"Date": None})


def results(name):
    return json.loads((root / "results" / name).read_text())["results"]


def gpu_tokens():
    rows = {(r["contender"], r["tokens"], r["out"]): r for r in results("gpu-linear.json")}
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, width in zip(axes, (4096, 14336)):
        tokens = sorted({t for c, t, o in rows if o == width and c == "lora r16"})
        for contender, color, label in (("plain", "#999999", "this library, no adapter"), ("lora r16", "#3b7ea1", "this library, LoRA r16"),
                                        ("cublaslt lora r16 in three calls", "#c4820e", "cuBLASLt in three calls, LoRA r16")):
            axis.plot([str(t) for t in tokens], [rows[contender, t, width]["to_bare"] for t in tokens], marker="o", color=color,
                      label=label)
        axis.axhline(1, color="black", linewidth=1)
        axis.set_xlabel("tokens")
        axis.set_title(f"4096 x {width}, bf16")
    axes[0].set_ylabel("time / bare layer by cuBLASLt")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    fig.tight_layout()
    fig.savefig(out / "gpu_tokens.svg", metadata={"Date": None})


def gpu_peft():
    rows = results("gpu-peft.json")
    names = ["lora", "dora", "adalora", "ia3", "ia3_ff", "vera", "loha", "lokr", "hra"]
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for axis, tokens in zip(axes, (16, 4096)):
        for k, (contender, color) in enumerate((("graft", "#3b7ea1"), ("PEFT eager", "#c4820e"), ("PEFT compile default", "#d9b36c"))):
            values = [next((r["to_bare"] for r in rows if (r["adapter"], r["tokens"], r["contender"]) == (n, tokens, contender)), 0)
                      for n in names]
            axis.bar([i + 0.27 * (k - 1) for i in range(len(names))], values, 0.27, color=color,
                     label={"graft": "this library"}.get(contender, contender))
        axis.axhline(1, color="black", linewidth=1)
        axis.set_yscale("log")
        axis.set_xticks(range(len(names)), names)
        axis.set_title(f"{tokens} tokens")
    axes[0].set_ylabel("time / bare torch linear")
    axes[0].legend(frameon=False)
    fig.tight_layout()
    fig.savefig(out / "gpu_peft.svg", metadata={"Date": None})


def gpu_torch():
    rows = json.loads((root / "results" / "gpu-torch.json").read_text())["microseconds_per_layer"]
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.4))
    labels = {"peft": ("PEFT", "#999999"), "compile": ("PEFT under torch.compile", "#c4820e"),
              "graft": ("PEFT after graft_torch.accelerate", "#3b7ea1")}
    for axis, key, title in ((axes[0], "forward_graph", "forward in a CUDA graph"), (axes[1], "step", "eager forward and backward")):
        of = sorted((r for r in rows), key=lambda r: (r["method"] != "lora", r["tokens"]))
        for i, (who, (label, color)) in enumerate(labels.items()):
            values = [r[key][who] / r[key]["base"] for r in of]
            axis.bar([x + 0.27 * (i - 1) for x in range(len(of))], values, width=0.25, color=color, label=label)
            for x, v in enumerate(values):
                if v > 6:
                    axis.text(x + 0.27 * (i - 1), 6.05, f"{v:.0f}", ha="center", fontsize=8)
        axis.set_xticks(range(len(of)), [f"{r['tokens']}" for r in of])
        axis.set_xlabel("tokens: LoRA of rank 16, then DoRA of rank 16")
        axis.set_title(title)
        axis.axhline(1, color="black", linewidth=1)
        axis.set_ylim(0, 6.4)  # longer bars have their number
    axes[0].set_ylabel("time / layer without an adapter")
    axes[0].legend(frameon=False, loc="upper left", fontsize=9)
    fig.suptitle("One 4096 x 4096 layer of PyTorch, bf16, H200 (less is better)")
    fig.tight_layout()
    fig.savefig(out / "gpu_torch.svg", metadata={"Date": None})


def gpu_roofline():
    fig, axis = plt.subplots(figsize=(7, 4.2))
    intensity = [0.5 * 1.3 ** i for i in range(40)]
    axis.plot(intensity, [min(790, 4.3 * i) for i in intensity], color="black", linewidth=1, label="4.3 TB/s, 790 TF")
    for contender, color in (("cublaslt bare", "#999999"), ("lora r16", "#3b7ea1"), ("dora r16", "#76a03a"), ("cublaslt lora r16 in three calls", "#c4820e")):
        points = []
        for r in results("gpu-linear.json"):
            if r["contender"] != contender or not isinstance(r["out"], int):
                continue
            m, n = r["tokens"], r["out"]
            flops, moved = 2 * m * n * 4096, 2 * (n * 4096 + m * (n + 4096))
            points.append((flops / moved, flops / r["us"] * 1e-6))
        axis.scatter(*zip(*points), color=color, s=18, label=contender.replace("cublaslt", "cuBLASLt"), zorder=3)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("flop per byte of the base layer")
    axis.set_ylabel("TFLOP/s of the base layer")
    axis.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(out / "gpu_roofline.svg", metadata={"Date": None})


def gpu_backward():
    rows = {(r["contender"], r["tokens"], r["out"]): r for r in results("gpu-backward.json")}
    names = sorted({c[: -len(" both")] for c, t, o in rows if c.endswith(" both") and (t, o) == (4096, 4096)},
                   key=lambda n: rows[n + " both", 4096, 4096]["to_bare"])
    beyond = [n for n in names if rows[n + " both", 4096, 4096]["to_bare"] > 3]
    names = [n for n in names if n not in beyond]
    fig, axis = plt.subplots(figsize=(10, 3.8))
    for k, (what, color, label) in enumerate(((" backward", "#3b7ea1", "backward / bare dx"),
                                              (" both", "#c4820e", "forward and backward / bare pair"))):
        axis.bar([i + 0.4 * (k - 0.5) for i in range(len(names))], [rows[n + what, 4096, 4096]["to_bare"] for n in names], 0.4,
                 color=color, label=label)
    axis.axhline(1, color="black", linewidth=1)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_ylabel("time / cuBLASLt")
    axis.set_title("4096 tokens, 4096 x 4096, bf16" + "".join(
        f"; {n}: {rows[n + ' both', 4096, 4096]['to_bare']:.1f}" for n in beyond))
    axis.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(out / "gpu_backward.svg", metadata={"Date": None})


def gpu_decode():
    measured = json.loads((root / "results" / "gpu-decode.json").read_text())
    steps = [k[len("lora_decode_"):] for k in measured["lora"] if not k.endswith("_floor")]
    order = lambda name: (name.split("_")[2] if "_" in name else "1024", int(name.split("_")[0]))
    steps = sorted(steps, key=lambda name: (int(order(name)[0]), "upto" in name, order(name)[1]))
    label = lambda name: name.replace("_at_", "\nat ").replace("_upto_", "\n≤ ") if "_" in name else name + "\nat 1024"
    fig, axis = plt.subplots(figsize=(10, 3.6))
    for k, (adapter, color, text) in enumerate((("bare", "#999999", "no adapter"), ("lora", "#3b7ea1", "LoRA r16 on all projections"))):
        rows = [(i, f"{adapter}_decode_{s}") for i, s in enumerate(steps) if f"{adapter}_decode_{s}" in measured[adapter]]
        axis.bar([i + 0.4 * (k - 0.5) for i, _ in rows], [measured[adapter][n] / measured[adapter][n + "_floor"] for _, n in rows], 0.4,
                 color=color, label=text)
    axis.axhline(1, color="black", linewidth=1)
    axis.set_xticks(range(len(steps)), [label(s) for s in steps], fontsize=7)
    axis.set_xlabel("sequences, tokens in the KV cache of each")
    axis.set_ylabel("token step / memory floor")
    axis.set_ylim(0, 1.5)
    axis.legend(frameon=False, loc="upper left", ncols=2)
    fig.tight_layout()
    fig.savefig(out / "gpu_decode.svg", metadata={"Date": None})


def gpu_quantized():
    rows = {(r["contender"], r["tokens"], r["out"]): r for r in results("gpu-quantized.json")}
    kinds = ["nf4", "nf4 double", "nf4 32", "q4_0", "int8", "fp8", "q8_0"]
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
    for axis, wide in zip(axes, (4096, 14336)):
        for k, (tokens, color) in enumerate(((1, "#3b7ea1"), (8, "#c4820e"), (16, "#999999"))):
            over = [100 / rows[kind + " lora r16", tokens, wide]["percent_of_floor"] for kind in kinds]
            axis.bar([i + 0.27 * (k - 1) for i in range(len(kinds))], over, 0.27, color=color, label=f"{tokens} tokens")
        axis.axhline(1, color="black", linewidth=1)
        axis.set_xticks(range(len(kinds)), kinds)
        axis.set_title(f"{wide} x 4096, LoRA r16")
    axes[0].set_ylabel("time / floor of the quantized bytes")
    axes[0].legend(frameon=False)
    fig.tight_layout()
    fig.savefig(out / "gpu_quantized.svg", metadata={"Date": None})


if __name__ == "__main__":
    out.mkdir(exist_ok=True)
    for draw in (cpu_peft, compile_time, gpu_tokens, gpu_peft, gpu_roofline, gpu_backward, gpu_decode, gpu_quantized,
                 gpu_torch):
        draw()
