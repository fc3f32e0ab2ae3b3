# SPDX-License-Identifier: Apache-2.0
"""graft_torch beside PEFT, in one process, on the same tensors: an adapted layer, forward and training.

    pip install ./python peft && python bench/compare_torch.py [--size 1024] [--tokens 1 16 512] [--busy] [METHOD...]
    python bench/compare_torch.py --device cuda [--size 4096] [--tokens 1 16 512 4096] [--json FILE] [METHOD...]

Two models alternate. The least time of each counts, and below 1 graft takes less. A training step is forward and
backward with the gradients of x and of all parameters of the adapter. `by base` is the accelerated layer by PEFT's base
layer alone. On a machine with other work --busy measures the CPU time of one thread instead of wall time.
"""
import argparse
import copy
import json
import statistics
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


class Layers(torch.nn.Module):
    """Independent linear layers."""

    def __init__(self, size, count):
        super().__init__()
        self.names = [f"lin{k}" for k in range(count)]
        for name in self.names:
            self.add_module(name, torch.nn.Linear(size, size, bias=False))

    def forward(self, inputs):
        return [getattr(self, name)(x) for name, x in zip(self.names, inputs)]


class OnCuda:
    """The contenders for one method, and the medians of their times on CUDA."""

    def __init__(self, make, said):
        self.said = said
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        count = 4 * cache // (2 * said.size**2) + 1  # weights of more than four times the cache
        torch.manual_seed(0)
        base = Layers(said.size, count)
        self.names = base.names
        model = randomize(peft.get_peft_model(base, make(self.names), autocast_adapter_dtype=False))
        model = model.to("cuda", torch.bfloat16)
        bare = Layers(said.size, count).to("cuda", torch.bfloat16).requires_grad_(False)
        with torch.no_grad():
            for name in self.names:
                getattr(bare, name).weight.copy_(getattr(model.base_model.model, name).get_base_layer().weight)
        ours = graft_torch.accelerate(copy.deepcopy(model))
        self.report = graft_torch.report(ours)[self.names[0]]
        self.models = {"peft": model, "compile": model, "base": bare, "graft": ours}
        self.parameters = {k: [p for p in m.parameters() if p.requires_grad] for k, m in self.models.items()}
        self.calls = dict(self.models)

    def compile(self):
        torch._dynamo.reset()
        self.calls["compile"] = torch.compile(self.models["peft"], fullgraph=True, dynamic=False)

    def medians(self, runs):
        """Microseconds per layer of each contender, which take turns."""
        times = {k: [] for k in runs}
        for run in runs.values():
            for _ in range(3):
                run()
        end = time.monotonic() + self.said.seconds
        while time.monotonic() < end or len(next(iter(times.values()))) < 20:
            events = {}
            for k, run in runs.items():
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record(), run(), last.record()
                events[k] = first, last
                torch.cuda.synchronize()
            for k, (first, last) in events.items():
                times[k].append(1e3 * first.elapsed_time(last) / len(self.names))
        return {k: statistics.median(t) for k, t in times.items()}

    def measure(self, tokens):
        random = {"device": "cuda", "dtype": torch.bfloat16}
        inputs = [torch.randn(tokens, self.said.size, **random) for _ in self.names]
        dys = [torch.randn(tokens, self.said.size, **random) for _ in self.names]
        self.compile()

        def forward(k):
            with torch.no_grad():
                return self.calls[k](inputs)

        def step(k):
            for x in leaves:
                x.grad = None
            for p in self.parameters[k]:
                p.grad = None
            torch.autograd.backward(self.calls[k](leaves), dys)

        row = {"tokens": tokens, "forward": self.medians({k: (lambda k=k: forward(k)) for k in self.calls})}
        expected = [y.float() for y in forward("peft")]
        row["difference"] = max(((a.float() - b).abs().max() / b.abs().max()).item()
                                for a, b in zip(forward("graft"), expected))
        graphs = {}
        for k in self.calls:
            graphs[k] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[k]):
                forward(k)
        row["forward_graph"] = self.medians({k: g.replay for k, g in graphs.items()})
        del graphs
        leaves = [x.requires_grad_() for x in inputs]
        row["step"] = self.medians({k: (lambda k=k: step(k)) for k in self.calls})
        return row


def on_cuda(said):
    rows = []
    print(f"{'method':10}{'tokens':>7}  {'':14}" + "".join(f"{k:>10}" for k in ("peft", "compile", "base", "graft")))
    for name in said.methods or ["lora", "dora"]:
        contenders = OnCuda(lambda names: configs(names, 8)[name](), said)
        print(f"{name}: {contenders.report}")
        for tokens in said.tokens or [1, 16, 512, 4096]:
            row = {"method": name, **contenders.measure(tokens)}
            rows.append(row)
            for what in ("forward", "forward_graph", "step"):
                print(f"{name:10}{tokens:7}  {what:14}" + "".join(f"{t:10.1f}" for t in row[what].values()), flush=True)
            if said.json:
                with open(said.json, "w") as file:
                    json.dump({"size": said.size, "dtype": "bfloat16", "device": torch.cuda.get_device_name(),
                               "torch": torch.__version__, "peft": peft.__version__, "microseconds_per_layer": rows},
                              file, indent=1)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("methods", nargs="*", metavar="METHOD")
    options.add_argument("--size", type=int, help="1024, on CUDA 4096")
    options.add_argument("--tokens", type=int, nargs="+")
    options.add_argument("--seconds", type=float, default=2, help="for each ratio")
    options.add_argument("--busy", action="store_true")
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--json")
    said = options.parse_args()
    said.size = said.size or (1024 if said.device == "cpu" else 4096)
    if said.device == "cuda":
        on_cuda(said)
        return
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
        for tokens in said.tokens or [1, 16, 512]:
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
