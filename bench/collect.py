#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts the output of bench_gpu_linear and bench_gpu_backward to the form of bench/results: a line per candidate
with its ratio to the bare layer: forward or backward to the bare GEMM, both passes to the bare pair.

    python3 bench/collect.py linear.json --gpu 'NVIDIA H200' --driver 580.159.04 --toolkit 'CUDA 13.0' \
        --command 'bench_gpu_linear --benchmark_out=FILE' \
        --regime 'cool: a pause of 30 ms and an untimed replay before each sample' > bench/results/gpu-linear.json
"""
import argparse
import json
import time

MEMORY, TENSOR = 4.3e12, 790e12  # bytes and operations per second that an H200 sustains
LAYER = ("in = 4096, bf16; weights rotate past the L2 cache; CUDA graph replay; median of interleaved repetitions; "
         "floor = max(bytes / 4.3 TB/s, flops / 790 TF)")


def rows_of(benchmarks):
    kinds = {"median": {}, "stddev": {}}
    for b in benchmarks:
        if b.get("aggregate_name") in kinds:
            kinds[b["aggregate_name"]][b["run_name"].split("/iterations")[0]] = b
    median, spread = kinds["median"], kinds["stddev"]
    for name in sorted(median, key=lambda n: (n.split("/")[2], int(n.split("/")[1]), n)):
        contender, tokens, out = name.split("/")
        b = median[name]
        us, floor = b["real_time"], 1e6 * max(b["bytes"] / MEMORY, b["flops"] / TENSOR)
        row = {"contender": contender, "tokens": int(tokens), "out": int(out) if out.isdigit() else out, "us": round(us, 2),
               "spread_us": round(spread[name]["real_time"], 2)}
        what = {"forward": "forward", "backward": "dx", "both": "pair", "step": "pair"}.get(contender.split()[-1], "bare")
        bare = median.get(f"cublaslt {what}/{tokens}/{out}")
        if bare:
            row["to_bare"] = round(us / bare["real_time"], 3)
        yield {**row, "percent_of_floor": round(100 * floor / us, 1)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="+")
    for name in ("gpu", "driver", "toolkit", "regime", "command"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"))
    given = vars(parser.parse_args())
    rows = []
    for name in given.pop("file"):
        with open(name) as file:
            rows += rows_of(json.load(file)["benchmarks"])
    given["layer"] = LAYER
    head = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in given.items())
    body = ",\n".join("    " + json.dumps(r) for r in rows)
    print(f'{{\n{head},\n  "results": [\n{body}\n  ]\n}}')


if __name__ == "__main__":
    main()
