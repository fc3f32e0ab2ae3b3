#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model of training on more devices: python3 bench/scaling.py (needs matplotlib). Reads the times measured on one
device (bench/results/gpu-training.json), counts the bytes of a step, and computes the times for given links. Writes the
tables of docs/parallel.md between their markers, and docs/img/scaling.svg."""
import json
import pathlib
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

root = pathlib.Path(__file__).resolve().parent.parent
measured = json.loads((root / "bench/results/gpu-training.json").read_text())
layers, tokens, hidden, inner, heads, rank = 4, 2 * 2048, 4096, 14336, 1024, 16
step = measured["lora_us"] * 1e-6
# LoRA's A and B of q, o; k, v; gate, up, down
parameters = layers * rank * (2 * (hidden + hidden) + 2 * (hidden + heads) + 3 * (hidden + inner))
node, inside, between, hop = 8, 450e9, 50e9, 10e-6  # devices of a machine, bytes/s of both links, seconds of one message


def ring(size, n):
    """Bytes that each of n devices sends, and the seconds, of an all-reduce of `size` bytes."""
    sent = 2 * (n - 1) / n * size
    return sent, sent / (inside if n <= node else between) + 2 * (n - 1) * hop if n > 1 else 0.0


def data_parallel(n):
    sent, seconds = ring(4 * parameters, n)
    return sent, seconds, step / (step + seconds), step / max(step, seconds)


def tensor_parallel(n):
    one, seconds = ring(2 * tokens * hidden, n)  # bf16
    sums = 4 * layers  # after attention and MLP, forward and backward
    return sums * one, sums * seconds, step / n / (step / n + sums * seconds) if n > 1 else 1.0


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows])


counts = [2**k for k in range(1, 11)]
tables = {
    "data": table(
        ["devices", "MB sent by each, a step", "ms of the exchange", "efficiency, one after the other", "efficiency, all of it hidden"],
        [[str(n), f"{s / 1e6:.1f}", f"{1e3 * t:.2f}", f"{100 * a:.1f} %", f"{100 * b:.1f} %"] for n in counts for s, t, a, b in [data_parallel(n)]],
    ),
    "tensor": table(
        ["devices", "MB sent by each, a step", "ms of the exchanges", "efficiency"],
        [[str(n), f"{s / 1e6:.0f}", f"{1e3 * t:.2f}", f"{100 * e:.1f} %"] for n in (2, 4, 8) for s, t, e in [tensor_parallel(n)]],
    ),
}
page = root / "docs/parallel.md"
text = page.read_text()
for name, made in tables.items():
    text = re.sub(f"<!-- computed: {name} -->.*?<!-- end -->", lambda m: f"<!-- computed: {name} -->\n\n{made}\n\n<!-- end -->", text, flags=re.S)
page.write_text(text)

plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "graft"})
fig, axis = plt.subplots(figsize=(7, 4))
axis.plot(counts, [100 * data_parallel(n)[2] for n in counts], marker="o", color="#3b7ea1", label="data parallel, exchange after the step")
axis.plot(counts, [100 * data_parallel(n)[3] for n in counts], linestyle="--", color="#3b7ea1", label="data parallel, exchange hidden")
axis.plot((2, 4, 8), [100 * tensor_parallel(n)[2] for n in (2, 4, 8)], marker="s", color="#c4820e", label="tensor parallel, one machine")
axis.set_xscale("log", base=2)
axis.set_xticks(counts, [str(n) for n in counts])
axis.set_ylim(0, 105)
axis.set_xlabel("devices")
axis.set_ylabel("efficiency, %")
axis.set_title(f"Computed from a measured step of {1e3 * step:.1f} ms on one device")
axis.legend(frameon=False)
fig.tight_layout()
fig.savefig(root / "docs/img/scaling.svg", metadata={"Date": None})
