# SPDX-License-Identifier: Apache-2.0
"""graft_torch beside PEFT on the same tensors: an adapted layer, forward and training, and a model's steps.

    pip install ./python peft && python bench/compare_torch.py [--size 1024] [--tokens 1 16 512] [--busy] [METHOD...]
    python bench/compare_torch.py --device cuda [--size 4096] [--tokens 16 4096] [--compile] [--json FILE] [METHOD...]
    python bench/compare_torch.py --device cuda --model [--json FILE] [--small]
    python bench/compare_torch.py --host [--device cuda] [--json FILE]

Layers: two models alternate. The least time of each counts, and below 1 graft takes less. A training step is forward and
backward with the gradients of x and of all parameters of the adapter. `by base` is the accelerated layer by PEFT's base
layer alone. On a machine with other work --busy measures the CPU time of one thread instead of wall time. On CUDA the
contenders take turns and medians count; --compile adds PEFT and graft under torch.compile.

--model: a Llama-3-8B-shaped model of four layers with LoRA of rank 16 on all seven projections, bf16. The training step
of 2 x 2048 tokens with AdamW, its time and memory, and a decode step at context 1024 in a captured CUDA graph. Every
contender runs in a process of its own; those with Liger are left out where it is not installed.

--host: the host's time for one call with one token, during which nothing waits for the device.
"""
import argparse
import copy
import gc
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
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
        self.models = {"peft": model, "base": bare, "graft": ours}
        if said.compile:
            self.models.update({"compile": model, "graft_compile": copy.deepcopy(ours)})
        self.parameters = {k: [p for p in m.parameters() if p.requires_grad] for k, m in self.models.items()}
        self.calls = dict(self.models)

    def compile(self):
        torch._dynamo.reset()
        for name in ("compile", "graft_compile"):
            if name in self.models:
                self.calls[name] = torch.compile(self.models[name], fullgraph=True, dynamic=False)

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
        self.models["graft"]([torch.randn(tokens, self.said.size, **random) for _ in self.names])  # binds the layers
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


def versions():
    found = {"torch": torch.__version__, "peft": peft.__version__}
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
    return found


def write(said, results):
    if said.json:
        with open(said.json, "w") as file:
            command = " ".join(["bench/compare_torch.py", *sys.argv[1:]])
            json.dump({**versions(), "command": command, **results}, file, indent=1)


def on_cuda(said):
    rows, left_out = [], {}
    for name in said.methods or list(configs(["lin"], 8)):
        # A method that PEFT does not run in bf16, or a formula that stays with PEFT, ends its own rows and no others.
        try:
            contenders = OnCuda(lambda names: configs(names, 8)[name](), said)
            print(f"{name}: {contenders.report}")
            if not contenders.report.startswith("graft"):
                left_out[name] = contenders.report
                continue
            for tokens in said.tokens or [16, 4096]:
                row = {"method": name, **contenders.measure(tokens)}
                rows.append(row)
                for what in ("forward", "forward_graph", "step"):
                    print(f"{name:10}{tokens:6}  {what:14}" + "".join(f"  {k} {t:.1f}" for k, t in row[what].items()),
                          flush=True)
        except (RuntimeError, ValueError, NotImplementedError) as e:
            left_out[name] = str(e).splitlines()[0]
            print(f"{name}: left out: {left_out[name]}", flush=True)
        contenders = None
        gc.collect()
        torch.cuda.empty_cache()
        write(said, {"size": said.size, "dtype": "bfloat16", "microseconds_per_layer": rows, "left_out": left_out})


# ---- a model

contender_names = ["bare", "peft", "peft_compile", "graft", "graft_compile", "liger", "liger_compile", "liger_graft",
                   "liger_graft_compile"]


def model_of(how, said):
    """The model of a contender, whose name lists what it has, and the call that runs it."""
    import transformers

    shape = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4,
             "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    if said.small:
        shape.update({"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16})
    config = transformers.LlamaConfig(**shape, max_position_embeddings=8192, rms_norm_eps=1e-5)
    torch.manual_seed(0)
    with torch.device(said.device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16 if said.device == "cuda" else torch.float32)
    has = how.split("_")
    if "liger" in has:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model)
    if how != "bare":
        names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules=names, task_type="CAUSAL_LM"))
    if "graft" in has:
        graft_torch.accelerate(model)
        left = {line for line in graft_torch.report(model).values() if not line.startswith("graft")}
        if left:
            raise SystemExit(f"{how}: {left}")
    return model


def median_of(call, said, rounds=12, warm=4):
    times = []
    for k in range(3 if said.small else rounds):
        wait(said)
        start = time.perf_counter()
        call()
        wait(said)
        if k >= (1 if said.small else warm):
            times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def wait(said):
    if said.device == "cuda":
        torch.cuda.synchronize()


def training_of(how, said, found):
    model = model_of(how, said)
    run = torch.compile(model, dynamic=False) if how.endswith("_compile") else model
    ids = torch.randint(0, model.config.vocab_size, (2, 32 if said.small else 2048), device=said.device)
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    losses = []

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = run(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.detach())

    step()
    if said.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    found["train_us"] = median_of(step, said)
    found["losses"] = [x.item() for x in losses[:5]]
    if said.device == "cuda":
        found["peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
        free, total = torch.cuda.mem_get_info()
        found["device_mb"] = (total - free) / 1e6  # with what torch keeps, and what the library allocates itself


def decoding_of(how, said, found):
    """A decode step for 1 and 16 sequences at context 1024, in a captured CUDA graph."""
    import transformers

    model = model_of(how, said).eval()
    run = torch.compile(model, dynamic=False) if how.endswith("_compile") else model
    length = 16 if said.small else 1024
    kind = next(model.parameters())
    for n in (1, 16):
        with torch.no_grad():
            cache = transformers.StaticCache(config=model.config, max_cache_len=length + 128, max_batch_size=n,
                                             device=said.device, dtype=kind.dtype)
            prompt = torch.randint(0, model.config.vocab_size, (n, length), device=said.device)
            model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token, at = prompt[:, :1].contiguous(), torch.tensor([length], device=said.device)
            places = at.expand(n, 1)

            def step():
                return run(input_ids=token, past_key_values=cache, use_cache=True, cache_position=at, position_ids=places)

            if said.device != "cuda":
                found[f"decode_{n}_us"] = median_of(step, said)
                continue
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    step()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            found[f"decode_{n}_us"] = median_of(graph.replay, said, rounds=60, warm=10)


def one_contender(said):
    found = {}
    for measured in (training_of, decoding_of):
        if measured is training_of and said.contender == "bare":
            continue
        try:
            measured(said.contender, said, found)
        except Exception as e:  # what one of the other libraries cannot do is a result too
            found[f"{measured.__name__}_failed"] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
        gc.collect()
    pathlib.Path(said.json).write_text(json.dumps(found))


def on_a_model(said):
    results = {}
    for how in said.methods or contender_names:
        if "liger" in how and importlib.util.find_spec("liger_kernel") is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            to = pathlib.Path(folder) / "found.json"
            command = [sys.executable, __file__, "--device", said.device, "--model", "--contender", how, "--json", str(to)]
            ended = subprocess.run(command + (["--small"] if said.small else []))
            results[how] = json.loads(to.read_text()) if to.exists() else {"failed": f"exit status {ended.returncode}"}
        print(how, json.dumps(results[how]), flush=True)
        write(said, {"model": results})


# ---- the host's work for a call


def host_cost(said):
    """Microseconds of the host for a forward call, and for forward and backward, with one token."""
    torch.set_num_threads(1)
    rows = []
    size = said.size if said.device == "cuda" else 64  # small, so that on the CPU little else is measured
    for name in said.methods or ["lora", "dora", "oft", "ia3"]:
        torch.manual_seed(0)
        model = randomize(peft.get_peft_model(Model(size), configs(["lin"], 8)[name](), autocast_adapter_dtype=False))
        model = model.to(said.device, torch.bfloat16 if said.device == "cuda" else torch.float32)
        ours = graft_torch.accelerate(copy.deepcopy(model))
        layer = model.base_model.model.lin
        x, dy = (torch.randn(1, size, device=said.device, dtype=next(model.parameters()).dtype) for _ in range(2))
        x.requires_grad_()
        row = {"method": name}
        for who, of in (("base", layer.get_base_layer()), ("peft", layer), ("graft", ours.base_model.model.lin)):
            row[who] = {}
            for what, run in (("forward", forward), ("step", training_step)):
                least = float("inf")
                for _ in range(30):
                    wait(said)
                    start = time.thread_time()
                    for _ in range(50):
                        run(of, x, dy)
                    least = min(least, (time.thread_time() - start) / 50)
                row[who][what] = 1e6 * least
        rows.append(row)
        print(name, "".join(f"  {who} {row[who]['forward']:.1f} {row[who]['step']:.1f}" for who in ("base", "peft", "graft")),
              flush=True)
    write(said, {"host_microseconds_of_one_token": rows})


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("methods", nargs="*", metavar="METHOD")
    options.add_argument("--size", type=int, help="1024, on CUDA 4096")
    options.add_argument("--tokens", type=int, nargs="+")
    options.add_argument("--seconds", type=float, help="for each ratio, 2; on CUDA for each row of medians, 0.3")
    options.add_argument("--compile", action="store_true", help="on CUDA, torch.compile of PEFT and of graft too")
    options.add_argument("--model", action="store_true", help="a model's steps; METHOD are contenders")
    options.add_argument("--small", action="store_true", help="a small model, to try the script")
    options.add_argument("--host", action="store_true", help="the host's time for one call")
    options.add_argument("--contender", help=argparse.SUPPRESS)
    options.add_argument("--busy", action="store_true")
    options.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options.add_argument("--json")
    said = options.parse_args()
    said.size = said.size or (1024 if said.device == "cpu" else 4096)
    said.seconds = said.seconds or (2 if said.device == "cpu" else 0.3)
    if said.contender:
        one_contender(said)
        return
    if said.model or said.host:
        (on_a_model if said.model else host_cost)(said)
        return
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
    write(said, {"size": said.size, "threads": torch.get_num_threads(), "rows": rows})


if __name__ == "__main__":
    main()
