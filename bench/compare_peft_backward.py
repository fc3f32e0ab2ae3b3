# SPDX-License-Identifier: Apache-2.0
"""Training beside PEFT: forward, the gradient of x and those of the adapter, of the layers of compare_peft.py, whose
--backward this is. The opponents are the bare pair (y = x W^T and dx = dy W), PEFT eager and PEFT compiled; everything is
replayed as a CUDA graph. Beside the time stands the memory of one layer alone, above its weights and its adapter, at its
highest: y, dx, gradients, and what is kept in between.
"""
import ctypes
import json
import statistics
import time

import peft
import torch

from compare_peft import LAYERS, ROUNDS, SIZE, Ours, Stack, adapted, sample


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


class OursTrained(Ours):
    """Layers that keep what backward reads, and the gradients of the parameters that PEFT trains."""

    def __init__(self, lib, name, model, x, layers=LAYERS):
        super().__init__(lib, name, model, x, layers)
        self.gradients = []
        for i, layer in enumerate(self.layers):
            lib.graft_train(layer)
            for key, tensor in self.tensors(name, getattr(model.base_model.model, f"lin{i}")):
                if not tensor.requires_grad:
                    continue
                into = torch.full_like(tensor.detach(), float("nan"))
                shape = [into.numel()] if key == "lora_magnitude_vector" else list(into.shape)
                lib.graft_gradient(layer, key.encode(), pointer(into), int(into.dtype == torch.float32), len(shape),
                                   (ctypes.c_longlong * 4)(*shape))
                self.gradients.append(into)
            self.check(lib.graft_bind(layer, self.stream(), x.shape[0]))

    def step(self, x, out, dys, dxs):
        self(x, out)
        for layer, dy, dx in zip(self.layers, dys, dxs):
            self.check(self.lib.graft_backward(layer, self.stream(), pointer(x), pointer(dy), pointer(dx), x.shape[0], SIZE, SIZE))


def captured(call):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.kept = call()
    return graph


def highest(call):
    """Bytes that torch holds at the most while it is called, above what it held before."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def compare(lib, name, tokens, compiles):
    make = lambda: [torch.randn(tokens, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
    x, dys, out, dxs = make()[0].requires_grad_(True), make(), make(), make()
    model, bare = adapted(name), Stack().to("cuda", torch.bfloat16)
    modules = [getattr(model.base_model.model, f"lin{i}") for i in range(LAYERS)]
    of_module = [[t for _, t in Ours.tensors(name, m) if t.requires_grad] for m in modules]
    trained = [t for of in of_module for t in of]  # in the order of our gradients

    def pair():
        return [dy @ getattr(bare, f"lin{i}").weight.detach() for i, (_, dy) in enumerate(zip(bare(x.detach()), dys))]

    def theirs(m):
        return torch.autograd.grad(m(x), [x, *trained], dys)

    def pair_of_one():
        w = bare.lin0.weight.detach()
        return x.detach() @ w.T, dys[0] @ w

    def theirs_of_one():
        return torch.autograd.grad(modules[0](x), [x, *of_module[0]], dys[0])

    # One layer alone. The outputs and gradients that the caller brings belong to a call as PEFT's do.
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    one = OursTrained(lib, name, model, x, 1)
    one.step(x, out[:1], dys[:1], dxs[:1])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    own = free - torch.cuda.mem_get_info()[0] + out[0].nbytes + dxs[0].nbytes
    ours = OursTrained(lib, name, model, x)
    graft = lambda: ours.step(x, out, dys, dxs)
    graft()
    torch.cuda.synchronize()
    expected = theirs(model)
    got = [sum(d.float() for d in dxs), *ours.gradients]
    error = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(got, expected))
    contenders = {"bare pair": (pair, highest(pair_of_one)), "graft": (graft, own),
                  "PEFT eager": (lambda: theirs(model), highest(theirs_of_one))}
    if compiles:
        torch._dynamo.reset()
        begin = time.time()
        compiled = torch.compile(model)
        theirs(compiled)
        contenders["PEFT compile"] = (lambda: theirs(compiled), None)  # of one layer: not measured
        cold = round(time.time() - begin, 1)
    graphs = {label: captured(call) for label, (call, _) in contenders.items()}
    us = {label: [] for label in contenders}
    for _ in range(ROUNDS):
        for label, graph in graphs.items():
            us[label].append(sample(graph.replay))
    median = {label: statistics.median(all_of) for label, all_of in us.items()}
    return [{"adapter": name, "tokens": tokens, "contender": label, "us": round(median[label], 1),
             "to_pair": round(median[label] / median["bare pair"], 3), "to_peft": round(median[label] / median["PEFT eager"], 3),
             **({"megabytes": round(bytes_ / 1e6, 1)} if bytes_ is not None else {}),
             **({"difference_to_peft": float(f"{error:.2e}")} if label == "graft" else {}),
             **({"cold_start_s": cold} if label == "PEFT compile" else {})} for label, (_, bytes_) in contenders.items()]


def main(a, lib):
    lib.graft_train.argtypes = [ctypes.c_void_p]
    lib.graft_backward.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_longlong] * 3
    results = []
    print(f"{'adapter':8} {'tokens':>6} {'contender':14} {'us':>8} {'x pair':>7} {'x PEFT':>7} {'MB':>8}")
    for name in a.adapters:
        for tokens in a.tokens:
            try:
                rows = compare(lib, name, tokens, "default" in a.modes)
            except Exception as e:  # one adapter that PEFT or torch cannot run must not end the table
                print(f"{name:8} {tokens:6} failed: {type(e).__name__}: {str(e)[:200]}", flush=True)
                torch.cuda.synchronize()
                continue
            results += rows
            for r in rows:
                print(f"{r['adapter']:8} {r['tokens']:6} {r['contender']:14} {r['us']:8.1f} {r['to_pair']:7.2f} {r['to_peft']:7.2f} "
                      f"{r.get('megabytes', ''):>8}" + (f"  difference {r['difference_to_peft']:.1e}" if "difference_to_peft" in r else ""), flush=True)
            if a.json:
                with open(a.json, "w") as f:
                    json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "peft": peft.__version__,
                               "date": time.strftime("%Y-%m-%d"),
                               "command": "python3 bench/compare_peft.py --backward BUILD/bench/libgraft_capi.so",
                               "results": results}, f, indent=1)
