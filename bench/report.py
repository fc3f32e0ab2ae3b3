#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what the pages state, and writes bench/results, the plots and the tables of docs/performance.md.

    python3 bench/report.py [--cpu] [--only NAME...] [--build DIR] [--machine NAME]
    python3 bench/report.py --render      rewrites the tables from bench/results, and measures nothing
    python3 bench/report.py --check       fails if a table differs from its results, or if a result is missing
    python3 bench/report.py --list        every result, its commands, and what is not written here

`./run report` builds the benchmarks and calls this. --cpu leaves out what needs a GPU. A comparison is skipped, and its
results stay, where a package that it compares with is not installed. The sentences around the tables are written by
hand: the report ends with the tables that have changed, and their sentences must be read again."""
import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
import typing

import collect
import tables

root, results = tables.root, tables.folder


def json_lines(text):
    """The objects that a program prints, one to a line."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def benchmarks(text):
    """The medians of Google Benchmark's JSON as (name without the number of iterations, row)."""
    rows = json.loads(text)["benchmarks"]
    return [(re.sub(r"/(iterations|repeats|real_time).*", "", r["run_name"]), r) for r in rows if r.get("aggregate_name") == "median"]


# What a program's output becomes in bench/results. Each function takes the outputs of the run's commands, in their order.

def as_it_is(text):
    return json.loads(text)


def layers(*texts):
    return {"layer": collect.LAYER, "results": [row for text in texts for row in collect.rows_of(json.loads(text)["benchmarks"])]}


def quantized(few, many, model):
    return {"model": json_lines(model)[-1], **layers(few, many)}


def decode(steps, one_sequence):
    """All steps, bare and with LoRA, and one sequence with every adapter."""
    of, others = json_lines(steps)[-1], json_lines(one_sequence)[-1]
    return {**{a: {k: v for k, v in of.items() if k.startswith(f"{a}_decode")} for a in ("lora", "bare")},
            "oft": {k: others[k] for k in ("oft_decode_1", "lora_decode_1")},
            "prefill_2048": {a: others[f"{a}_prefill_2048"] for a in ("bare", "lora")}}


def experts(text):
    return {line.pop("shape"): line for line in json_lines(text)}


def training(*texts):
    """All adapters of one run, then a run of dropout and one of LoRA, twice."""
    times, *others = [json_lines(t)[-1] for t in texts]
    made = {f"{a}_us": times[f"{a}_train_2x2048"] for a in ("lora", "dora", "oft")}
    made["dropout"] = {f"{a}_us": [o[f"{a}_train_2x2048"] for o in others if f"{a}_train_2x2048" in o] for a in ("lora", "lora_dropout")}
    return made


def multi_lora(text):
    """PEFT's times of these batches are not measured: the page has them from a run of their own."""
    made = {"peft_us": {}, "copies": [], "cases": []}
    for name, row in benchmarks(text):
        case, _, rest = name.partition("/")
        if rest.endswith("resident"):
            made["copies"].append({"case": case, "resident": int(rest.split()[0]), "us": round(row["real_time"], 2)})
            continue
        tokens, out = map(int, rest.split("/"))
        bare = next(r["real_time"] for n, r in benchmarks(text) if n == f"cublaslt bare/{rest}")
        made["cases"].append({"contender": case, "tokens": tokens, "out": out, "in": 4096, "us": round(row["real_time"], 1),
                              "to_bare": round(row["real_time"] / bare, 3)})
        if tokens == 64:
            made["cases"][-1]["of_floor"] = round(row["real_time"] / (1e6 * row["bytes"] / collect.MEMORY), 2)
    return made


def switching(*texts):
    return {"runs": [line for text in texts for line in json_lines(text)]}


def products(text):
    made = []
    for name, row in benchmarks(text):
        product, tokens, size = re.fullmatch(r"(.*)/tokens:(\d+)/size:(\d+)", name).groups()
        made.append({"product": product, "tokens": int(tokens), "size": int(size), "us": round(row["cpu_time"], 1),
                     "gflops": round(row["GFLOP/s"], 1)})
    return {"results": made}


def training_steps(*texts):
    """Seconds of a training step, ours and PEFT's, of rounds of bench/compare_models.py."""
    made = {}
    for text in texts:
        for row in json.loads(text)["results"]:
            if "step_s" in row["peft"]:
                pair = [round(row[side]["step_s"], 3) for side in ("graft", "peft")]
                made.setdefault(row["dtype"], {}).setdefault(row["method"], []).append(pair)
    return made


@dataclasses.dataclass
class run:
    """One file of bench/results. In a command, {b} is the folder of the programs and {o} a file that the program writes;
    the output of a command without {o} is what it prints."""
    file: str
    on: str  # gpu or cpu
    commands: list[str]
    convert: typing.Callable = as_it_is
    needs: tuple = ()  # packages of Python
    note: str = ""


bench_json = "--benchmark_out={o} --benchmark_out_format=json"
cool = "cool: a pause of 30 ms and an untimed replay before each sample"
arm = platform.machine() in ("aarch64", "arm64")
runs = [
    run("gpu-linear.json", "gpu", [f"{{b}}/bench_gpu_linear {bench_json}"], layers, note=cool),
    run("gpu-linear-hot.json", "gpu", [f"GRAFT_HOT=1 GRAFT_CASES=512,4096,16384 {{b}}/bench_gpu_linear {bench_json}"], layers,
        note="hot: back to back"),
    run("gpu-backward.json", "gpu", [f"GRAFT_CASES=4096 {{b}}/bench_gpu_backward --benchmark_repetitions=5 {bench_json}",
                                     f"GRAFT_CASES=14336,16384,512 {{b}}/bench_gpu_backward --benchmark_repetitions=5 {bench_json}"],
        layers, note=cool),
    run("gpu-quantized.json", "gpu", [f"GRAFT_CASES=1,8,16,32 {{b}}/bench_gpu_quantized --benchmark_repetitions=5 {bench_json}",
                                      f"GRAFT_CASES=4096 {{b}}/bench_gpu_quantized --benchmark_repetitions=7 {bench_json}",
                                      "{b}/bench_gpu_model 4 1024 quantized"], quantized, note=cool),
    run("gpu-peft.json", "gpu", ["{p} bench/compare_peft.py {b}/libgraft_capi.so --modes default --json {o}"], needs=("torch", "peft")),
    run("gpu-peft-backward.json", "gpu", ["{p} bench/compare_peft.py --backward --tokens 4096 {b}/libgraft_capi.so --json {o}"],
        needs=("torch", "peft")),
    run("gpu-bitsandbytes.json", "gpu", ["{p} bench/compare_bitsandbytes.py {b}/libgraft_nf4.so --json {o}"],
        needs=("torch", "bitsandbytes")),
    run("gpu-attention.json", "gpu", ["{p} bench/compare_attention.py {b}/libgraft_attention.so --json {o} --only forward backward"],
        needs=("torch",)),
    run("gpu-decode.json", "gpu", ["{b}/bench_gpu_model 4 1024 steps", "{b}/bench_gpu_model 4 1024 all 1"], decode),
    run("gpu-experts.json", "gpu", ["{b}/bench_gpu_experts 4"], experts),
    run("gpu-training.json", "gpu", ["{b}/bench_gpu_model 4 1024 train"] +
        ["{b}/bench_gpu_model 4 1024 train 0 lora_dropout", "{b}/bench_gpu_model 4 1024 train 0 lora"] * 2, training),
    run("gpu-start.json", "gpu", ["{p} bench/compare_start.py {b}/bench_gpu_start --json {o}"], needs=("torch", "peft")),
    run("gpu-multi-lora.json", "gpu", [f"{{b}}/bench_gpu_multi_lora {bench_json}"], multi_lora),
    run("gpu-switching.json", "gpu", ["{b}/bench_gpu_adapter_switching 4"] * 2 + ["{b}/bench_gpu_adapter_switching 4 64 8 32"], switching),
    run("gpu-torch.json", "gpu", ["{p} bench/compare_torch.py --device cuda --tokens 16 1 4096 512 --json {o}"],
        needs=("torch", "peft", "graft_torch")),
    run("cpu-peft.json" if arm else "cpu-peft-x86.json", "cpu", ["{p} bench/compare_peft.py --cpu {b}/libgraft_capi_cpu.so --json {o}"],
        needs=("torch", "peft")),
    run("cpu-products.json", "cpu", ["OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 {b}/bench_gemm --benchmark_min_time=0.05 "
                                     f"--benchmark_repetitions=3 {bench_json}"], products, note="processor time, medians"),
    run("cpu-models-arm64.json" if arm else "cpu-models.json", "cpu",
        ["{p} bench/compare_models.py --bench {b}/bench_models --new-tokens 16 --repeats 3 --out {o}"],
        needs=("torch", "peft", "transformers")),
    run("cpu-experts.json", "cpu", ["{p} bench/compare_experts.py --bench {b}/bench_experts --rounds 3 --passes 3 --busy --out {o}"],
        needs=("torch", "peft", "transformers")),
    run("cpu-training.json", "cpu",
        ["{p} bench/compare_models.py --bench {b}/bench_models --sizes 134M --new-tokens 1 --repeats 3 --out {o}"] * 3, training_steps,
        needs=("torch", "peft", "transformers"), note="seconds of a training step of 4 x 128 tokens, ours and PEFT's; each pair is one run"),
]
# Files that a person puts together, because they hold runs of several machines or builds, or an hour of deliberate kills.
by_hand = {
    "compile.json": "bench/compile/run DIR on a machine per compiler",
    "cpu-bf16.txt": "python3 bench/compare_bf16.py test/golden/models",
    "cpu-multi-lora.json": "build/bench/bench_multi_lora 1024; build/bench/bench_multi_lora 2048",
    "cpu-quantized.txt": "OMP_NUM_THREADS=2 build/bench/bench_quantized --benchmark_min_time=0.1 on each machine",
    "cpu-serve-soak.json": "python3 bench/serve_load.py against a running server",
    "gpu-few-tokens.json": "GRAFT_CASES=16,64,512 GRAFT_ONLY='lora r16' bench_gpu_backward --benchmark_out=FILE, then bench/collect.py",
    "gpu-model.json": "bench_gpu_model 4 1024 short; bench_gpu_model 4 1024 quantized; bench_gpu_quantized --benchmark_filter=nf4",
    "gpu-host.txt": "GRAFT_CASES=1 build/bench/bench_gpu_linear --benchmark_filter=host",
    "gpu-nccl.json": "build/test/parallel/parallel_nccl_training test/golden/models/llama 4",
    "cpu-torch-trainer.json": "python3 bench/compare_trainer.py MODEL --json FILE",
    "llama-cpp.txt": "python3 test/golden/compare_llama_cpp.py REAL_MODEL MODEL.gguf perplexity",
    "ranks.json": "mpirun -n 1|2 build/bench/bench_ranks MODEL ADAPTER 300",
    "cpu-peft-x86.json" if arm else "cpu-peft.json": "./run report --cpu on the other architecture",
    "cpu-models.json" if arm else "cpu-models-arm64.json": "./run report --cpu on the other architecture",
}


def output_of(command, shown):
    """Runs a command from the root and returns what it writes to {o}, or else what it prints; ends the run if it fails."""
    print(f"   {shown}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "out"
        done = subprocess.run(["sh", "-euc", command.replace("{o}", shlex.quote(str(out)))], cwd=root, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {shown}")
        return out.read_text() if "{o}" in command else done.stdout


def machine_of(on, named):
    if on == "gpu":
        said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        gpu, _, driver = said.stdout.splitlines()[0].partition(", ")
        return {"gpu": gpu, "driver": driver}
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M) if os.path.exists("/proc/cpuinfo") else None
    return {"machine": named or f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores"}


def text_of(found):
    """The object as JSON with a line for each of its entries, and for each row of a list."""
    def value(v):
        if isinstance(v, list) and v and isinstance(v[0], dict):
            return "[\n" + ",\n".join("  " + json.dumps(r, ensure_ascii=False) for r in v) + "\n ]"
        return json.dumps(v, ensure_ascii=False)

    return "{\n" + ",\n".join(f" {json.dumps(k)}: {value(v)}" for k, v in found.items()) + "\n}\n"


def missing_for(r):
    return [m for m in r.needs if importlib.util.find_spec(m) is None]


def measure(r, build, named):
    shown = [c.replace("{b}", "build/bench").replace("{p}", "python3").replace("{o}", "FILE") for c in r.commands]
    commands = [c.replace("{b}", shlex.quote(str(build))).replace("{p}", shlex.quote(sys.executable)) for c in r.commands]
    found = r.convert(*map(output_of, commands, shown))
    head = {**machine_of(r.on, named), "date": time.strftime("%Y-%m-%d"), "command": "; ".join(dict.fromkeys(shown))}
    if r.note:
        head["note"] = r.note
    (results / r.file).write_text(text_of({**head, **{k: v for k, v in found.items() if k not in head}}))


def check():
    """Whether every table says what its results say, and every file of bench/results is written by somebody."""
    bad = []
    if tables.rendered(tables.page.read_text()) != tables.page.read_text():
        bad.append("docs/performance.md differs from bench/results: python3 bench/report.py --render")
    names = {f.name for f in results.iterdir()} - {"README.md"}
    for name in sorted(names ^ ({r.file for r in runs} | set(by_hand))):
        bad.append(f"bench/results/{name} and the runs of bench/report.py differ: one of them does not know it")
    print("\n".join(bad) or f"{len(tables.tables)} tables are those of {len(names)} results")
    return 1 if bad else 0


def render():
    """Rewrites the tables and returns the names of those that have changed."""
    text = tables.page.read_text()
    tables.page.write_text(tables.rendered(text))
    return [n for n in tables.tables if "\n".join(tables.tables[n]()) not in text]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="leave out what needs a GPU")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="files of bench/results, without their endings")
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "bench", help="the folder of the benchmarks")
    parser.add_argument("--machine", help="what to call this CPU in the results")
    for name in ("render", "check", "list"):
        parser.add_argument("--" + name, action="store_true")
    said = parser.parse_args()
    if said.check:
        return check()
    if said.list:
        for r in runs:
            print(f"{r.file}: {'; '.join(dict.fromkeys(r.commands))}" + (f" (needs {', '.join(r.needs)})" if r.needs else ""))
        for name, how in by_hand.items():
            print(f"{name}: not written here: {how}")
        return 0
    failed = []
    if not said.render:
        known = {pathlib.Path(r.file).stem for r in runs}
        if unknown := set(said.only or []) - known:
            parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(sorted(known))}")
        for r in runs:
            if (said.cpu and r.on == "gpu") or (said.only and pathlib.Path(r.file).stem not in said.only):
                continue
            if missing := missing_for(r):
                print(f"{r.file}: skipped, {', '.join(missing)} is not installed", flush=True)
                continue
            print(r.file, flush=True)
            try:
                measure(r, said.build.resolve(), said.machine)
            except (RuntimeError, OSError, ValueError, KeyError, IndexError) as error:
                failed.append(f"{r.file}: {type(error).__name__}: {error}")
        for name in by_hand:
            print(f"{name}: not written here, see --list")
        if importlib.util.find_spec("matplotlib"):
            subprocess.run([sys.executable, str(root / "bench/plot.py")], check=True)
        else:
            print("the plots are not drawn: matplotlib is not installed")
    changed = render()
    for name in changed:
        print(f"the table {name} has changed: read the sentences around it again")
    print("\n".join(failed) or "docs/performance.md says what bench/results says")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
