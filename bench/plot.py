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


def adapters():
    rows = [r for r in json.loads((root / "results" / "layers-ratios.json").read_text())["ratios"] if r["tokens"] == 512]
    rows.reverse()
    names = [r["adapter"] for r in rows]
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), sharey=True)
    left.barh(names, [r["fused_over_bare"] for r in rows], color="#3b7ea1")
    left.axvline(1, color="black", linewidth=1)
    left.set_xlabel("fused adapted layer / bare Eigen product")
    right.barh(names, [r["eager_over_fused"] for r in rows], color="#c4820e")
    right.axvline(1, color="black", linewidth=1)
    right.set_xlabel("eager / fused")
    fig.suptitle("1024 x 1024 layer, 512 tokens, float, 2 cores (less is better on the left, more on the right)")
    fig.tight_layout()
    fig.savefig(out / "cpu_adapters.svg", metadata={"Date": None})


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


if __name__ == "__main__":
    out.mkdir(exist_ok=True)
    adapters()
    compile_time()
