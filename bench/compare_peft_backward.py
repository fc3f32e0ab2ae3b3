# SPDX-License-Identifier: Apache-2.0
"""Training compared with PEFT: forward, the gradient of x and those of the adapter, for the layers of compare_peft.py,
which runs this with --backward. The candidates are the bare pair (y = x W^T and dx = dy W), PEFT eager and PEFT
compiled; everything that can be captured is replayed as a CUDA graph. With the time it prints the peak memory of one
layer, without its weights and its adapter: y, dx, gradients, and saved tensors.
"""
import ctypes
import json
import statistics
import time

import peft
import torch

from compare_peft import LAYERS, NOT_CAPTURED, ROUNDS, SIZE, Ours, Stack, adapted, replayed, sample


class OursTrained(Ours):
    """Layers in training, with memory for the gradient of every tensor that PEFT trains."""

    def make_room(self, x):
        self.gradients = {}
        for layer in self.layers:
            self.lib.graft_train(layer)
            count, is_float, k = ctypes.c_longlong(), ctypes.c_int(), 0
            while key := self.lib.graft_trained(layer, k, ctypes.byref(count), ctypes.byref(is_float)):
                into = torch.full((count.value,), float("nan"), device="cuda",
                                  dtype=torch.float32 if is_float.value else torch.bfloat16)
                self.lib.graft_gradient(layer, k, into.data_ptr())
                self.gradients.setdefault(key.decode(), []).append(into)  # several layers may share one
                k += 1
        return self.bind(x)

    def step(self, x, out, dys, dxs):
        self(x, out)
        for layer, dy, dx in zip(self.layers, dys, dxs):
            self.check(self.lib.graft_backward(layer, self.stream(), x.data_ptr(), dy.data_ptr(), dx.data_ptr(), x.shape[0]))


def highest(call):
    """The peak of torch's allocated bytes during the call, minus those before."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def difference(model, ours, expected, trained, dxs):
    """The largest error of dx and of the gradients that PEFT has under the same key, and their number."""
    saved = peft.get_peft_model_state_dict(model)
    of_parameter = {t.data_ptr(): g for t, g in zip(trained, expected[1:])}
    pairs = [(sum(d.float() for d in dxs), expected[0])]
    pairs += [(sum(g.float() for g in got), of_parameter[saved[key].data_ptr()]) for key, got in ours.gradients.items()
              if key in saved and saved[key].data_ptr() in of_parameter and saved[key].numel() == got[0].numel()]
    return max(float((a.float().flatten() - b.float().flatten()).norm() / b.float().norm()) for a, b in pairs), len(pairs) - 1


def compare(lib, name, tokens, compiles):
    make = lambda: [torch.randn(tokens, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
    x, dys, out, dxs = make()[0].requires_grad_(True), make(), make(), make()
    model, bare = adapted(name), Stack().to("cuda", torch.bfloat16)
    modules = [getattr(model.base_model.model, f"lin{i}") for i in range(LAYERS)]
    of_one = [t for t in modules[0].parameters() if t.requires_grad]
    trained = [t for t in model.parameters() if t.requires_grad]

    def pair():
        return [dy @ getattr(bare, f"lin{i}").weight.detach() for i, (_, dy) in enumerate(zip(bare(x.detach()), dys))]

    def theirs(m):
        return torch.autograd.grad(m(x), [x, *trained], dys)

    def pair_of_one():
        w = bare.lin0.weight.detach()
        return x.detach() @ w.T, dys[0] @ w

    def theirs_of_one():
        return torch.autograd.grad(modules[0](x), [x, *of_one], dys[0])

    # One layer. The outputs and gradients that the caller provides count as memory of the call, like PEFT's.
    one = OursTrained(lib, model, 1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    one.make_room(x).step(x, out[:1], dys[:1], dxs[:1])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    own = free - torch.cuda.mem_get_info()[0] + out[0].nbytes + dxs[0].nbytes
    one.free()
    ours = OursTrained(lib, model).make_room(x)
    graft = lambda: ours.step(x, out, dys, dxs)
    graft()
    torch.cuda.synchronize()
    error, compared = difference(model, ours, theirs(model), trained, dxs)
    contenders = {"bare pair": (pair, highest(pair_of_one)), "graft": (graft, own),
                  "PEFT eager": (lambda: theirs(model), highest(theirs_of_one))}
    if compiles:
        torch._dynamo.reset()
        begin = time.time()
        compiled = torch.compile(model)
        theirs(compiled)
        contenders["PEFT compile"] = (lambda: theirs(compiled), None)  # memory of one layer is not measured
        cold = round(time.time() - begin, 1)
    runs = {label: call if label == "PEFT eager" and name in NOT_CAPTURED else replayed(call) for label, (call, _) in contenders.items()}
    us = {label: [] for label in contenders}
    for _ in range(ROUNDS):
        for label, run in runs.items():
            us[label].append(sample(run))
    ours.free()
    median = {label: statistics.median(all_of) for label, all_of in us.items()}
    return [{"adapter": name, "tokens": tokens, "contender": label, "us": round(median[label], 1),
             "to_pair": round(median[label] / median["bare pair"], 3), "to_peft": round(median[label] / median["PEFT eager"], 3),
             **({"megabytes": round(bytes_ / 1e6, 1)} if bytes_ is not None else {}),
             **({"difference_to_peft": float(f"{error:.2e}"), "gradients_compared": compared} if label == "graft" else {}),
             **({"cold_start_s": cold} if label == "PEFT compile" else {})} for label, (_, bytes_) in contenders.items()]


def main(a, lib):
    lib.graft_train.argtypes = [ctypes.c_void_p]
    lib.graft_trained.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    lib.graft_gradient.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    lib.graft_backward.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_longlong]
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
