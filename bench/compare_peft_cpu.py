# SPDX-License-Identifier: Apache-2.0
"""The CPU part of bench/compare_peft.py: PEFT and this library on the same processor, in one process, on the same tensors.

One adapted 1024 x 1024 layer in float. A training step is forward and backward with the gradients of x and of all
parameters of the adapter; ours is told that the parameters changed before each, as an optimizer would. All contenders take turns;
the median counts, and its ratios more than its milliseconds. On a machine that does other things --busy measures one thread's
processor time instead of the time on the wall.
"""
import ctypes
import json
import os
import platform
import statistics
import tempfile
import time

import peft
import torch

SIZE = 1024
RANDOM = ("lora_B", "lora_E", "hada_", "lokr_", "hra_u", "vera_lambda_b", "ia3_l", "oft_R", "boft_R", "miss_block", "vblora")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(SIZE, SIZE, bias=False)

    def forward(self, x):
        return self.lin(x)


def configs():
    on = {"target_modules": ["lin"]}
    return {
        "lora": peft.LoraConfig(r=16, lora_alpha=32, **on),
        "dora": peft.LoraConfig(r=16, lora_alpha=32, use_dora=True, **on),
        "adalora": peft.AdaLoraConfig(init_r=16, target_r=16, lora_alpha=32, total_step=10, **on),
        "ia3": peft.IA3Config(feedforward_modules=[], **on),
        "ia3_ff": peft.IA3Config(feedforward_modules=["lin"], **on),
        "loha": peft.LoHaConfig(r=8, alpha=16, **on),
        "lokr": peft.LoKrConfig(r=8, alpha=16, **on),
        "vera": peft.VeraConfig(r=256, projection_prng_key=0, save_projection=True, **on),
        "hra": peft.HRAConfig(r=8, **on),
        "oft": peft.OFTConfig(oft_block_size=32, **on),
        "boft": peft.BOFTConfig(boft_block_size=8, boft_n_butterfly_factor=2, **on),
        "miss": peft.MissConfig(r=64, **on),
        "vblora": peft.VBLoRAConfig(r=4, num_vectors=256, vector_length=256, **on),
        "delora": peft.DeloraConfig(r=16, **on),
        "gralora": peft.GraloraConfig(r=16, alpha=32, gralora_k=2, **on),
        "road": peft.RoadConfig(variant="road_1", group_size=64, **on),
        "c3a": peft.C3AConfig(block_size=128, **on),
        "randlora": peft.RandLoraConfig(r=32, randlora_alpha=64, projection_prng_key=0, save_projection=True, **on),
        "hira": peft.HiraConfig(r=16, **on),
        "psoft": peft.PsoftConfig(r=16, psoft_alpha=16, **on),
    }


def adapted(config):
    torch.manual_seed(0)
    model = peft.get_peft_model(Model(), config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.requires_grad and any(part in key for part in RANDOM):
                p.copy_(torch.randn_like(p) * (0.02 if "_R" in key else 0.1))
    return model


class Ours:
    def __init__(self, lib, folder, weight):
        self.lib, self.weight = lib, weight.detach().contiguous()
        self.layer = lib.graft_layer(folder.encode() if folder else None, self.at(self.weight), SIZE, SIZE)
        if not self.layer:
            raise RuntimeError(lib.graft_error().decode())
        self.layer = ctypes.c_void_p(self.layer)

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


def measured(contenders, rounds, clock, seconds):
    """Milliseconds of each, in turns; short calls several times per turn. At least three rounds, and no more than fit."""
    end = time.perf_counter() + seconds
    repeat = {}
    for name, call in contenders.items():
        call()
        begin = clock()
        call()
        repeat[name] = max(1, min(200, int(0.004 / max(1e-7, clock() - begin))))
    times = {name: [] for name in contenders}
    for k in range(rounds):
        if k >= 3 and time.perf_counter() > end:
            break
        for name, call in contenders.items():
            begin = clock()
            for _ in range(repeat[name]):
                call()
            times[name].append((clock() - begin) / repeat[name] * 1e3)
    return {name: statistics.median(t) for name, t in times.items()}


def compare(lib, name, tokens, rounds, clock, seconds):
    model = adapted(configs()[name])
    base = torch.nn.Linear(SIZE, SIZE, bias=False)
    weight = [p for key, p in model.named_parameters() if key.endswith("base_layer.weight")][0]
    with torch.no_grad():
        base.weight.copy_(weight)
    base.weight.requires_grad_(False)
    x, dy = torch.randn(tokens, SIZE), torch.randn(tokens, SIZE)
    leaf = x.clone().requires_grad_(True)
    y, dx = torch.full((tokens, SIZE), float("nan")), torch.full((tokens, SIZE), float("nan"))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours, train = Ours(lib, folder, weight), Ours(lib, folder, weight)
    bare = Ours(lib, None, weight)
    lib.graft_train(train.layer, 1)
    ms = measured({
        "bare torch": lambda: quietly(lambda: base(x)),
        "bare": lambda: bare.forward(x, y),
        "PEFT": lambda: quietly(lambda: model(x)),
        "graft": lambda: ours.forward(x, y),
        "bare torch step": lambda: torch_step(base, leaf, dy),
        "PEFT step": lambda: torch_step(model, leaf, dy),
        "graft step": lambda: train.step(x, y, dy, dx),
    }, rounds, clock, seconds)
    torch_step(model, leaf, dy)
    with torch.no_grad():
        theirs = model(x)
    ours.forward(x, y)
    error = float((y - theirs).norm() / theirs.norm())
    train.step(x, y, dy, dx)
    error_dx = float((dx - leaf.grad).norm() / leaf.grad.norm())
    return {"adapter": name, "tokens": tokens, **{key.replace(" ", "_") + "_ms": float(f"{t:.4g}") for key, t in ms.items()},
            "bare_over_torch": round(ms["bare"] / ms["bare torch"], 3), "forward_over_bare": round(ms["graft"] / ms["bare"], 3),
            "forward_over_peft": round(ms["graft"] / ms["PEFT"], 3), "step_over_peft": round(ms["graft step"] / ms["PEFT step"], 3),
            "difference_of_y": float(f"{error:.1e}"), "difference_of_dx": float(f"{error_dx:.1e}")}


def main(a):
    lib = ctypes.CDLL(a.library)
    lib.graft_layer.restype = ctypes.c_void_p
    lib.graft_layer.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong]
    lib.graft_error.restype = ctypes.c_char_p
    lib.graft_train.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.graft_forward.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_longlong]
    lib.graft_backward.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_longlong]
    lib.graft_parameters_changed.argtypes = [ctypes.c_void_p]
    torch.set_num_threads(1 if a.busy else a.threads or os.cpu_count())
    if a.busy and os.environ.get("OMP_NUM_THREADS") != "1":
        raise SystemExit("--busy needs OMP_NUM_THREADS=1")
    results = []
    if a.append and a.json and os.path.exists(a.json):
        with open(a.json) as f:
            results = json.load(f)["results"]
    print(f"{'adapter':8} {'tokens':>6} {'bare/torch':>10} {'fwd/bare':>9} {'fwd/PEFT':>9} {'step/PEFT':>9} {'fwd ms':>8} {'difference':>10}")
    for name in configs():
        if a.adapters and name not in a.adapters:
            continue
        for tokens in a.tokens or [1, 16, 512]:
            try:
                r = compare(lib, name, tokens, a.rounds, time.process_time if a.busy else time.perf_counter,
                            a.seconds)
            except Exception as e:  # one adapter that PEFT or we cannot run must not end the table
                print(f"{name:8} {tokens:6} failed: {type(e).__name__}: {str(e)[:200]}", flush=True)
                continue
            results = [old for old in results if (old["adapter"], old["tokens"]) != (name, tokens)] + [r]
            print(f"{name:8} {tokens:6} {r['bare_over_torch']:10.2f} {r['forward_over_bare']:9.2f} {r['forward_over_peft']:9.2f} "
                  f"{r['step_over_peft']:9.2f} {r['graft_ms']:8.3f} {r['difference_of_y']:10.1e}", flush=True)
            if a.json:
                with open(a.json, "w") as f:
                    json.dump({"machine": a.machine or platform.processor() or platform.machine(), "threads": torch.get_num_threads(),
                               "clock": "processor time" if a.busy else "wall time",
                               "torch": torch.__version__, "peft": peft.__version__, "date": time.strftime("%Y-%m-%d"),
                               "command": "python3 bench/compare_peft.py --cpu BUILD/bench/libgraft_capi_cpu.so" + (" --busy" if a.busy else ""),
                               "layer": f"{SIZE} x {SIZE}, float", "results": results}, f, indent=1)
