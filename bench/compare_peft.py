#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PEFT and this library on the same GPU, in one process, on the same tensors.

    python3 bench/compare_peft.py BUILD/bench/libgraft_capi.so [--tokens 16 4096] [--adapters lora ...] [--json FILE]
    python3 bench/compare_peft.py --backward BUILD/bench/libgraft_capi.so [...]    training: compare_peft_backward.py
    python3 bench/compare_peft.py --cpu BUILD/bench/libgraft_capi_cpu.so [...]     on the CPU: compare_peft_cpu.py

Needs torch with CUDA and peft. Four adapted 4096 x 4096 layers in bf16 with the same input make one sample, so that
their weights (134 MB) do not stay in the L2 cache; times are GPU time per layer. Everything that can be captured is
replayed as a CUDA graph; torch.compile's reduce-overhead and max-autotune have their own graphs and are timed as they
are called. All candidates take turns, with a pause before each sample; the median counts.
"""
import argparse
import ctypes
import json
import statistics
import tempfile
import time

import peft
import torch

from peft_configs import configs, randomize

SIZE, LAYERS, ROUNDS = 4096, 4, 15
TARGETS = [f"lin{i}" for i in range(LAYERS)]
# PEFT's BOFT looks for its extension at run time, and its PSOFT solves small systems with a library that synchronizes:
# neither can be captured, and a failed capture breaks all later ones.
NOT_CAPTURED = ("boft", "psoft")


class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(LAYERS):
            setattr(self, f"lin{i}", torch.nn.Linear(SIZE, SIZE, bias=False, device="cuda"))

    def forward(self, x):
        return [getattr(self, f"lin{i}")(x) for i in range(LAYERS)]


def adapted(name, float_adapters=False):
    torch.manual_seed(0)
    # PSOFT begins with randomized factors of the weight, which the library draws as torch does on a CPU
    begin = "cpu" if name == "psoft" else "cuda"
    model = peft.get_peft_model(Stack().to(begin, torch.bfloat16), configs(TARGETS, 16)[name](), autocast_adapter_dtype=float_adapters)
    return randomize(model).to("cuda").eval()


class Ours:
    """The layers of a PEFT model through the library: PEFT's weights in place, adapters from the folder it saves."""

    def __init__(self, lib, model, layers=LAYERS):
        self.lib, self.layers = lib, []
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            for name in TARGETS[:layers]:
                weight = getattr(model.base_model.model, name).get_base_layer().weight.detach()
                on_host = weight.float().cpu()
                layer = lib.graft_layer(folder.encode(), name.encode(), on_host.data_ptr(), weight.data_ptr(), SIZE, SIZE)
                if not layer:
                    raise RuntimeError("graft: " + lib.graft_error().decode())
                self.layers.append(ctypes.c_void_p(layer))

    def bind(self, x):
        for layer in self.layers:
            self.check(self.lib.graft_bind(layer, self.stream(), x.shape[0]))
        self.how = self.lib.graft_describe(self.layers[0], x.shape[0]).decode()
        return self

    def free(self):
        torch.cuda.synchronize()
        while self.layers:
            self.lib.graft_free(self.layers.pop())

    @staticmethod
    def stream():
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def check(self, failed):
        if failed:
            raise RuntimeError("graft: " + self.lib.graft_error().decode())

    def __call__(self, x, out):
        for layer, y in zip(self.layers, out):
            self.check(self.lib.graft_forward(layer, self.stream(), x.data_ptr(), y.data_ptr(), x.shape[0]))
        return out


def without_gradients(call):
    def quiet():
        with torch.no_grad():
            return call()
    return quiet


def replayed(call):
    """As a CUDA graph."""
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
    return graph.replay


def launches(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        call()
        torch.cuda.synchronize()
    return sum(e.device_type == torch.autograd.DeviceType.CUDA for e in p.events()) / LAYERS


def sample(call):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    time.sleep(0.03)
    call()
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / LAYERS


def compare(lib, name, tokens, modes, with_float):
    x = torch.randn(tokens, SIZE, device="cuda", dtype=torch.bfloat16)
    model, bare = adapted(name), Stack().to("cuda", torch.bfloat16)
    out = [torch.full((tokens, SIZE), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
    ours = Ours(lib, model).bind(x)
    contenders = {}

    def add(label, call, capture=True):
        call = without_gradients(call)
        contenders[label] = {"launches": launches(call), "us": []}
        if capture:
            contenders[label]["run"] = replayed(call)
        else:
            contenders[label]["run"] = call
            for _ in range(4):
                call()

    add("bare torch linear", lambda: bare(x))
    add("graft", lambda: ours(x, out))
    add("PEFT eager", lambda: model(x), capture=name not in NOT_CAPTURED)
    if with_float:
        wide = adapted(name, float_adapters=True)
        add("PEFT eager, float adapters", lambda: wide(x))
    for mode in modes:
        torch._dynamo.reset()
        begin = time.time()
        compiled = torch.compile(model, mode=mode)
        with torch.no_grad():
            for _ in range(3):
                compiled(x)
        torch.cuda.synchronize()
        add(f"PEFT compile {mode}", lambda c=compiled: c(x), capture=mode == "default")
        contenders[f"PEFT compile {mode}"]["cold start s"] = round(time.time() - begin, 1)
    with torch.no_grad():
        theirs = model(x)
        with model.disable_adapter():
            without = model(x)
    share = max(float((a.double() - b.double()).norm() / a.double().norm()) for a, b in zip(theirs, without))
    contenders["graft"]["run"]()
    torch.cuda.synchronize()
    error = max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(out, theirs))
    for _ in range(ROUNDS):
        for entry in contenders.values():
            entry["us"].append(sample(entry["run"]))
    ours.free()
    rows = []
    base = statistics.median(contenders["bare torch linear"]["us"])
    peft_time = statistics.median(contenders["PEFT eager"]["us"])
    floor = max(2 * tokens * SIZE * SIZE / 790e12, 2 * (SIZE * SIZE + 2 * tokens * SIZE) / 4.3e12) * 1e6
    for label, entry in contenders.items():
        us = statistics.median(entry["us"])
        rows.append({"adapter": name, "tokens": tokens, "contender": label, "us": round(us, 2), "to_bare": round(us / base, 3),
                     "to_peft": round(us / peft_time, 3), "percent_of_floor": round(100 * floor / us, 1),
                     "launches": entry["launches"], **({"cold_start_s": entry["cold start s"]} if "cold start s" in entry else {}),
                     **({"difference_to_peft": float(f"{error:.2e}"), "adapter_share_of_y": round(share, 3), "kernels": ours.how} if label == "graft" else {})})
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--adapters", nargs="+")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--threads", type=int, default=0, help="of torch on the CPU; OMP_NUM_THREADS sets ours")
    parser.add_argument("--seconds", type=float, default=2, help="on the CPU, for one ratio")
    parser.add_argument("--forward", action="store_true", help="on the CPU: no training steps; those in --json stay with --append")
    parser.add_argument("--busy", action="store_true", help="on the CPU: processor time of one thread")
    parser.add_argument("--append", action="store_true", help="on the CPU: keep the rows of --json that are not measured now")
    parser.add_argument("--machine", help="what to call this CPU in the results")
    parser.add_argument("--modes", nargs="*", default=["default", "reduce-overhead", "max-autotune"])
    parser.add_argument("--modes-for", nargs="+", default=["lora", "dora"], help="the others are compiled in default mode only")
    parser.add_argument("--json")
    a = parser.parse_args()
    if a.cpu:
        import compare_peft_cpu
        return compare_peft_cpu.main(a)
    a.tokens, a.adapters = a.tokens or [16, 4096], a.adapters or list(configs(TARGETS, 16))
    lib = ctypes.CDLL(a.library)
    lib.graft_layer.restype = ctypes.c_void_p
    lib.graft_layer.argtypes = [ctypes.c_char_p] * 2 + [ctypes.c_void_p] * 2 + [ctypes.c_longlong] * 2
    lib.graft_free.argtypes = [ctypes.c_void_p]
    for f in ("graft_error", "graft_describe", "graft_trained"):
        getattr(lib, f).restype = ctypes.c_char_p
    lib.graft_bind.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong]
    lib.graft_forward.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong]
    lib.graft_describe.argtypes = [ctypes.c_void_p, ctypes.c_longlong]
    if a.backward:
        import compare_peft_backward
        return compare_peft_backward.main(a, lib)
    results = []
    header = f"{'adapter':8} {'tokens':>6} {'contender':28} {'us':>8} {'x bare':>7} {'x PEFT':>7} {'% floor':>7} {'launches':>8}"
    print(header)
    for name in a.adapters:
        for tokens in a.tokens:
            modes = a.modes if name in a.modes_for else [m for m in a.modes if m == "default"]
            try:
                rows = compare(lib, name, tokens, modes, name == "lora")
            except Exception as e:  # one adapter that PEFT or torch cannot run must not end the table
                print(f"{name:8} {tokens:6} failed: {type(e).__name__}: {str(e)[:200]}")
                torch.cuda.synchronize()
                continue
            results += rows
            for r in rows:
                print(f"{r['adapter']:8} {r['tokens']:6} {r['contender']:28} {r['us']:8.1f} {r['to_bare']:7.2f} {r['to_peft']:7.2f} "
                      f"{r['percent_of_floor']:7.1f} {r['launches']:8.1f}" + (f"  difference {r['difference_to_peft']:.1e}"
                                                                             if "difference_to_peft" in r else ""), flush=True)
            if a.json:
                with open(a.json, "w") as f:
                    json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "peft": peft.__version__,
                               "date": time.strftime("%Y-%m-%d"), "command": "python3 bench/compare_peft.py BUILD/bench/libgraft_capi.so",
                               "results": results}, f, indent=1)


if __name__ == "__main__":
    main()
