#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models on the CPU: PyTorch with PEFT, and this library, on the same folders and the same cores.

    python3 bench/compare_models.py --bench build/bench/bench_models --threads 2 --out bench/results/cpu-models.json

Makes random Llamas (tiny, and 134 million parameters) in float32 and bfloat16 with LoRA on all projections, DoRA and
OFT, and measures for each: loading, greedy tokens per second with 1 and 8 sequences, a training step (forward,
backward, AdamW), and the largest memory of the process. Each candidate is a process; they take turns, and every row is
written as soon as it is measured, also a failure of PEFT. Needs torch, transformers and peft, which are imported once:
PyTorch's processes are forked from one that has computed nothing, because importing takes longer than a row. --busy
compares the CPU time of one thread, for machines with other work.
"""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
import traceback

import peft
import torch
import transformers

SIZES = {
    "tiny": dict(hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                 num_key_value_heads=4, vocab_size=1000, max_position_embeddings=512),
    "134M": dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
                 num_key_value_heads=12, vocab_size=32000, max_position_embeddings=512),
}
METHODS = ("lora", "dora", "oft")


def in_a_process(function, *arguments):
    """Returns the result of function, computed in a child process, or its error, also if the process was killed."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write, json.dumps(function(*arguments)).encode())
        except BaseException as failure:
            traceback.print_exc()
            os.write(write, json.dumps({"error": f"{type(failure).__name__}: {str(failure)[:300]}"}).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if text else {"error": f"ended by signal {status & 127}"}


def make(folder, size, dtype, methods, threads):
    """A random model, and one adapter of each method with random numbers in it."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES[size], eos_token_id=None))
    model.to(getattr(torch, dtype)).save_pretrained(folder / "base")
    for method in methods:
        linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = {
            "lora": lambda: peft.LoraConfig(r=16, target_modules=linear, task_type="CAUSAL_LM"),
            "dora": lambda: peft.LoraConfig(r=16, target_modules=linear, use_dora=True, task_type="CAUSAL_LM"),
            "oft": lambda: peft.OFTConfig(oft_block_size=32, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        }[method]()
        base = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=getattr(torch, dtype))
        adapted = peft.get_peft_model(base, config)
        for p in adapted.parameters():
            if p.requires_grad:
                p.data += 0.01 * torch.randn_like(p)
        adapted.save_pretrained(folder / method)


def torch_side(folder, method, dtype, threads, shape, busy):
    clock = time.process_time if busy else time.perf_counter
    torch.set_num_threads(threads)
    start = clock()
    base = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=getattr(torch, dtype))
    load = clock() - start
    model = peft.PeftModel.from_pretrained(base, folder / method, is_trainable=True)
    vocabulary = base.config.vocab_size

    def ids(count, length):
        return torch.tensor([[(s * 7919 + t * 104729 + 11) % vocabulary for t in range(length)] for s in range(count)])

    def median(times, run):
        taken = []
        for _ in range(times):
            start = clock()
            run()
            taken.append(clock() - start)
        return sorted(taken)[len(taken) // 2]

    out = {"load_s": load}
    model.eval()
    with torch.no_grad():
        for n in (1, 8):
            prompt = ids(n, shape["prompt"])
            run = lambda: model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                         max_new_tokens=shape["new_tokens"], min_new_tokens=shape["new_tokens"],
                                         pad_token_id=0)
            run()
            out[f"tokens_per_second_{n}"] = n * shape["new_tokens"] / median(shape["repeats"], run)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    batch = ids(shape["batch"], shape["length"])

    def step():
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()

    step()
    out["step_s"] = median(shape["repeats"], step)
    status = pathlib.Path("/proc/self/status").read_text()
    out["peak_mb"] = int(status.split("VmHWM:")[1].split()[0]) / 1024
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", default="build/bench/bench_models")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES))
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5, help="of which the median counts")
    parser.add_argument("--busy", action="store_true", help="processor time of one thread")
    parser.add_argument("--append", action="store_true", help="keep the rows of --out that are not measured now")
    parser.add_argument("--folders", help="where the models are kept between runs; else they are made anew in each")
    parser.add_argument("--machine", default=platform.processor() or platform.machine())
    parser.add_argument("--out")
    args = parser.parse_args()
    args.threads = 1 if args.busy else args.threads
    shape = dict(prompt=32, new_tokens=args.new_tokens, batch=4, length=128, repeats=args.repeats)
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    table = {"machine": args.machine, "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "peft": peft.__version__,
             "transformers": transformers.__version__, "command": "python3 bench/compare_models.py " + " ".join(sys.argv[1:]),
             "threads": args.threads, "clock": "processor" if args.busy else "wall", "shape": shape, "results": []}
    if args.append and args.out and os.path.exists(args.out):
        table["results"] = json.loads(pathlib.Path(args.out).read_text())["results"]
    for size in args.sizes:
        for dtype in args.dtypes:
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(args.folders or name) / f"{size}-{dtype}"
                missing = [m for m in args.methods if not (folder / m).exists()]
                if missing and (made := in_a_process(make, folder, size, dtype, missing, args.threads)):
                    sys.exit(f"{size} {dtype}: {made['error']}")
                for method in args.methods:
                    command = [args.bench, str(folder / "base"), str(folder / method), *(str(v) for v in shape.values()),
                               *(["busy"] if args.busy else [])]
                    done = subprocess.run(command, env=environment, capture_output=True, text=True)
                    if done.returncode != 0:
                        sys.exit(f"{size} {dtype} {method}: {done.stderr[-2000:]}")
                    ours = json.loads(done.stdout.strip().splitlines()[-1])
                    theirs = in_a_process(torch_side, folder, method, dtype, args.threads, shape, args.busy)
                    row = {"model": size, "dtype": dtype, "method": method, "graft": ours, "peft": theirs}
                    table["results"] = [old for old in table["results"]
                                        if (old["model"], old["dtype"], old["method"]) != (size, dtype, method)] + [row]
                    faster = {} if "error" in theirs else {
                        "generate_1": ours["tokens_per_second_1"] / theirs["tokens_per_second_1"],
                        "generate_8": ours["tokens_per_second_8"] / theirs["tokens_per_second_8"],
                        "step": theirs["step_s"] / ours["step_s"],
                        "load": theirs["load_s"] / ours["load_s"],
                        "memory": theirs["peak_mb"] / ours["peak_mb"],
                    }
                    row["faster"] = {k: round(v, 3) for k, v in faster.items()}
                    print(size, dtype, method, {k: round(v, 2) for k, v in faster.items()} or theirs, flush=True)
                    if args.out:
                        pathlib.Path(args.out).write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
