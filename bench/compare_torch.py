# SPDX-License-Identifier: Apache-2.0
"""graft_torch beside PEFT on the CPU, in one process, on the same tensors: an adapted layer, forward and training.

    pip install ./python peft && python bench/compare_torch.py [--size 1024] [--tokens 1 16 512] [--busy] [METHOD...]

Two models alternate. The least time of each counts, and below 1 graft takes less. A training step is forward and
backward with the gradients of x and of all parameters of the adapter. `by base` is the accelerated layer by PEFT's base
layer alone. On a machine with other work --busy measures the CPU time of one thread instead of wall time.
"""
import argparse
import copy
import json
import time

import peft
import torch

import graft_torch
from peft_configs import configs, randomize


class Model(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.lin = torch.nn.Linear(size, size, bias=False)

    def forward(self, x):
        return self.lin(x)


def forward(model, x, dy):
    with torch.no_grad():
        model(x)


def training_step(model, x, dy):
    x.grad = None
    for p in model.parameters():
        p.grad = None
    model(x).backward(dy)


def ratio(ours, theirs, run, x, dy, clock, seconds):
    """Our least time by theirs, and ours in milliseconds."""
    for m in (ours, theirs):
        run(m, x, dy)
    start = clock()
    run(theirs, x, dy)
    run(ours, x, dy)
    calls = max(1, int(0.01 / max(clock() - start, 1e-6)))
    times, end = ([], []), time.monotonic() + seconds
    while len(times[0]) < 5 or time.monotonic() < end:
        for of, m in zip(times, (ours, theirs)):
            start = clock()
            for _ in range(calls):
                run(m, x, dy)
            of.append((clock() - start) / calls)
    return min(times[0]) / min(times[1]), 1e3 * min(times[0])


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("methods", nargs="*", metavar="METHOD")
    options.add_argument("--size", type=int, default=1024)
    options.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 512])
    options.add_argument("--seconds", type=float, default=2, help="for each ratio")
    options.add_argument("--busy", action="store_true")
    options.add_argument("--json")
    said = options.parse_args()
    if said.busy:
        torch.set_num_threads(1)
    clock = time.thread_time if said.busy else time.perf_counter
    rows = []
    print(f"{'method':16}{'tokens':>8}{'forward':>10}{'step':>10}{'by base':>10}")
    for name, make in configs(["lin"], 8).items():
        if said.methods and name not in said.methods:
            continue
        torch.manual_seed(0)
        theirs = randomize(peft.get_peft_model(Model(said.size), make()))
        ours = graft_torch.accelerate(copy.deepcopy(theirs))
        why = graft_torch.report(ours)["lin"]
        if not why.startswith("graft"):
            print(f"{name:16}  {why}")
            continue
        bare = theirs.base_model.model.lin.get_base_layer()
        for tokens in said.tokens:
            x, dy = torch.randn(tokens, said.size, requires_grad=True), torch.randn(tokens, said.size)
            row = {"method": name, "tokens": tokens}
            row["forward"], row["forward_ms"] = ratio(ours, theirs, forward, x, dy, clock, said.seconds)
            row["step"], row["step_ms"] = ratio(ours, theirs, training_step, x, dy, clock, said.seconds)
            row["by_base"], _ = ratio(ours, bare, forward, x, dy, clock, said.seconds)
            rows.append(row)
            print(f"{name:16}{tokens:8}{row['forward']:10.2f}{row['step']:10.2f}{row['by_base']:10.2f}", flush=True)
    if said.json:
        with open(said.json, "w") as file:
            json.dump({"size": said.size, "threads": torch.get_num_threads(), "torch": torch.__version__,
                       "peft": peft.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
