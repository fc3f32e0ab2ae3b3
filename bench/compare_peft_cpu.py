# SPDX-License-Identifier: Apache-2.0
"""The CPU part of bench/compare_peft.py: PEFT and this library on the same CPU, in one process, on the same tensors.

One adapted 1024 x 1024 layer in float. A training step is forward and backward with the gradients of x and of all
parameters of the adapter; before each step ours gets parameters_changed(), as an optimizer would call it. Two
candidates alternate, for few tokens in passes over eight layers; the median of the ratios of adjacent passes counts. On
a machine with other work --busy measures the CPU time of one thread instead of wall time.
"""
import copy
import ctypes
import json
import os
import platform
import resource
import statistics
import tempfile
import time

import peft
import torch

from peft_configs import configs, randomize

SIZE, LAYERS = 1024, 8


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x):
        return self.lin(x)


def adapted(name):
    torch.manual_seed(0)
    return randomize(peft.get_peft_model(Model(), configs(["lin"], 8)[name]()))


class Ours:
    def __init__(self, lib, folder, weight):
        self.lib, self.weight = lib, weight.detach().contiguous()
        self.layer = lib.graft_layer(folder.encode() if folder else None, self.at(self.weight), SIZE, SIZE)
        if not self.layer:
            raise RuntimeError(lib.graft_error().decode())
        self.layer = ctypes.c_void_p(self.layer)

    def __del__(self):
        self.lib.graft_free(self.layer)

    @staticmethod
    def at(tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    def check(self, failed):
        if failed:
            raise RuntimeError(self.lib.graft_error().decode())

    def forward(self, x, y):
        self.check(self.lib.graft_forward(self.layer, self.at(x), self.at(y), x.shape[0]))
        return y

    def step(self, x, y, dy, dx):
        self.check(self.lib.graft_parameters_changed(self.layer))
        self.forward(x, y)
        self.check(self.lib.graft_backward(self.layer, self.at(x), self.at(dy), self.at(dx), x.shape[0]))


def torch_step(model, x, dy):
    x.grad = None
    model.zero_grad(set_to_none=True)
    model(x).backward(dy)


def quietly(call):
    with torch.no_grad():
        call()


def cpu_seconds():
    """CPU seconds of the whole machine, where the system reports them, and of this process."""
    try:
        with open("/proc/stat") as f:
            ticks = [int(n) for n in f.readline().split()[1:9]]
    except OSError:
        return 0.0, 0.0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return sum(ticks[:3] + ticks[5:]) / os.sysconf("SC_CLK_TCK"), used.ru_utime + used.ru_stime


def neighbors(first, second, clock, seconds):
    """The time of a pass of `second` relative to `first`: the median of its ratios to the two adjacent passes of
    `first`, and the median milliseconds of both. Samples during which others used an eighth of a CPU do not count,
    unless there are no other ones."""
    def timed(call):
        begin = clock()
        for one in call:
            one()
        return (clock() - begin) / len(call) * 1e3

    timed(first), timed(second)
    kept, disturbed, good = [], [], 0.0
    end = time.perf_counter() + 4 * seconds
    while good < seconds and time.perf_counter() < end:
        begin, (all_before, own_before) = time.perf_counter(), cpu_seconds()
        piece, before = [], timed(first)
        while time.perf_counter() < begin + 0.2 or len(piece) < 3:
            between, after = timed(second), timed(first)
            piece.append((2 * between / (before + after), after, between))
            before = after
        took, (all_after, own_after) = time.perf_counter() - begin, cpu_seconds()
        if all_after - all_before - (own_after - own_before) > 0.125 * took:
            disturbed += piece
        else:
            kept, good = kept + piece, good + took
    return tuple(statistics.median(column) for column in zip(*(kept or disturbed)))


def compare(lib, name, tokens, clock, seconds, forward_only):
    # As in a model, calls with other weights come between two calls with one weight, more than L1 and L2 caches hold.
    count = LAYERS if tokens < 64 else 1
    models = [adapted(name)]
    models += [copy.deepcopy(models[0]) for _ in range(count - 1)]
    weights = [[p for key, p in m.named_parameters() if key.endswith("base_layer.weight")][0] for m in models]
    bases = []
    for w in weights:
        base = torch.nn.Linear(SIZE, SIZE, bias=False)
        base.weight = torch.nn.Parameter(w.detach(), requires_grad=False)  # the same memory for all
        bases.append(base)
    x, dy = torch.randn(tokens, SIZE), torch.randn(tokens, SIZE)
    leaf = x.clone().requires_grad_(True)
    y, dx = torch.full((tokens, SIZE), float("nan")), torch.full((tokens, SIZE), float("nan"))
    with tempfile.TemporaryDirectory() as folder:
        models[0].save_pretrained(folder)
        ours, train = [Ours(lib, folder, w) for w in weights], [Ours(lib, folder, w) for w in weights]
    bare = [Ours(lib, None, w) for w in weights]
    for t in train:
        lib.graft_train(t.layer, 1)
    of_bare, of_ours = [lambda b=b: b.forward(x, y) for b in bare], [lambda o=o: o.forward(x, y) for o in ours]
    over_torch, torch_ms, _ = neighbors([lambda b=b: quietly(lambda: b(x)) for b in bases], of_bare, clock, seconds)
    over_bare, bare_ms, ours_ms = neighbors(of_bare, of_ours, clock, seconds)
    over_peft, peft_ms, _ = neighbors([lambda m=m: quietly(lambda: m(x)) for m in models], of_ours, clock, seconds)
    r = {"bare_torch_ms": torch_ms, "bare_ms": bare_ms, "PEFT_ms": peft_ms, "graft_ms": ours_ms}
    ratios = {"bare_over_torch": over_torch, "forward_over_bare": over_bare, "forward_over_peft": over_peft}
    if not forward_only:
        ratios["step_over_peft"], r["PEFT_step_ms"], r["graft_step_ms"] = neighbors(
            [lambda m=m: torch_step(m, leaf, dy) for m in models], [lambda t=t: t.step(x, y, dy, dx) for t in train], clock, seconds)
    leaf.grad = None
    torch_step(models[0], leaf, dy)
    with torch.no_grad():
        theirs = models[0](x)
    ours[0].forward(x, y)
    error = float((y - theirs).norm() / theirs.norm())
    train[0].step(x, y, dy, dx)
    error_dx = float((dx - leaf.grad).norm() / leaf.grad.norm())
    return {"adapter": name, "tokens": tokens, "layers": count, **{key: float(f"{ms:.4g}") for key, ms in r.items()},
            **{key: round(ratio, 3) for key, ratio in ratios.items()},
            "difference_of_y": float(f"{error:.1e}"), "difference_of_dx": float(f"{error_dx:.1e}")}


def main(a):
    lib = ctypes.CDLL(a.library)
    lib.graft_layer.restype = ctypes.c_void_p
    lib.graft_layer.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong]
    lib.graft_error.restype = ctypes.c_char_p
    lib.graft_train.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.graft_forward.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_longlong]
    lib.graft_backward.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong]
    lib.graft_parameters_changed.argtypes = lib.graft_free.argtypes = [ctypes.c_void_p]
    torch.set_num_threads(1 if a.busy else a.threads or os.cpu_count())
    if a.busy and os.environ.get("OMP_NUM_THREADS") != "1":
        raise SystemExit("--busy needs OMP_NUM_THREADS=1")
    results = []
    if a.append and a.json and os.path.exists(a.json):
        with open(a.json) as f:
            results = json.load(f)["results"]
    print(f"{'adapter':8} {'tokens':>6} {'bare/torch':>10} {'fwd/bare':>9} {'fwd/PEFT':>9} {'step/PEFT':>9} {'fwd ms':>8} {'difference':>10}")
    for name in configs(["lin"], 8):
        if a.adapters and name not in a.adapters:
            continue
        for tokens in a.tokens or [1, 16, 512]:
            try:
                r = compare(lib, name, tokens, time.process_time if a.busy else time.perf_counter, a.seconds, a.forward)
            except Exception as e:  # one adapter that PEFT or we cannot run must not end the table
                print(f"{name:8} {tokens:6} failed: {type(e).__name__}: {str(e)[:200]}", flush=True)
                continue
            same = [old for old in results if (old["adapter"], old["tokens"]) == (name, tokens)]
            r = {**{key: old[key] for old in same for key in old if "step" in key}, **r}  # steps of an earlier run, if this one has none
            results = [old for old in results if old not in same] + [r]
            print(f"{name:8} {tokens:6} {r['bare_over_torch']:10.2f} {r['forward_over_bare']:9.2f} {r['forward_over_peft']:9.2f} "
                  f"{r.get('step_over_peft', float('nan')):9.2f} {r['graft_ms']:8.3f} {r['difference_of_y']:10.1e}", flush=True)
            if a.json:
                with open(a.json, "w") as f:
                    json.dump({"machine": a.machine or platform.processor() or platform.machine(), "threads": torch.get_num_threads(),
                               "clock": "processor time" if a.busy else "wall time",
                               "torch": torch.__version__, "peft": peft.__version__, "date": time.strftime("%Y-%m-%d"),
                               "command": "python3 bench/compare_peft.py --cpu BUILD/bench/libgraft_capi_cpu.so" + (" --busy" if a.busy else ""),
                               "layer": f"{SIZE} x {SIZE}, float", "results": results}, f, indent=1)
