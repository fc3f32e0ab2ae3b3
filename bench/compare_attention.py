#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention compared with cuDNN's (through torch) on the same GPU, in one process, on the same numbers.

    python3 bench/compare_attention.py BUILD/bench/libgraft_attention.so [--json FILE] [--only forward backward decode]

Needs torch with CUDA. Causal, 32 query heads over 8 KV heads of 128, bf16. Calls are captured in a CUDA
graph; candidates take turns with a pause of 30 ms and an untimed replay before each sample, and the median counts.
Errors are relative to float. Decode rotates through more KV caches than the L2 cache holds; its floor is the bytes of
the attention ranges at 4.3 TB/s.
"""
import argparse
import ctypes
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, GROUPS, HEAD, ROUNDS = 32, 8, 128, 11
WIDTH = (HEADS + 2 * GROUPS) * HEAD


class Size(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_longlong), ("head", ctypes.c_int), ("heads", ctypes.c_int),
                ("groups", ctypes.c_int), ("cached", ctypes.c_int)]


def pointer(t):
    return ctypes.c_void_p(t.data_ptr() if t is not None else None)


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.graft_error.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        if getattr(self.lib, name)(*arguments) != 0:
            raise RuntimeError(self.lib.graft_error().decode())

    def forward(self, qkv, ranges, out, cache=None, sums=None, head=HEAD, heads=HEADS, groups=GROUPS):
        size = Size(qkv.shape[0], head, heads, groups, int(cache is not None))
        places = cache.shape[0] if cache is not None else 0
        self.call("graft_attention", ctypes.byref(size), stream(), pointer(qkv), pointer(ranges), pointer(cache),
                  ctypes.c_longlong(places), pointer(out), pointer(sums))

    def workspace(self, rows):
        size, n = Size(rows, HEAD, HEADS, GROUPS, 0), [ctypes.c_longlong() for _ in range(3)]
        self.lib.graft_attention_workspace(ctypes.byref(size), *(ctypes.byref(v) for v in n))
        workspace = torch.empty(n[0].value, dtype=torch.uint8, device="cuda")
        return workspace, workspace[n[1].value:], workspace[n[2].value:]

    def backward(self, qkv, d_out, ranges, d_qkv, workspace, has_forward=True):
        size = Size(qkv.shape[0], HEAD, HEADS, GROUPS, 0)
        self.call("graft_attention_grad", ctypes.byref(size), stream(), pointer(qkv), pointer(d_out), pointer(ranges),
                  pointer(d_qkv), pointer(workspace), ctypes.c_int(int(has_forward)))


def captured(run, calls):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run(0)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for c in range(calls):
            run(c)
    return graph


def timed(contenders):
    """{name: (graph, calls)} -> {name: median µs of a call}"""
    samples = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, (graph, calls) in contenders.items():
            torch.cuda.synchronize()
            time.sleep(0.03)
            graph.replay()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end) * 1000 / calls)
    return {name: statistics.median(s) for name, s in samples.items()}


def causal_ranges(lengths):
    first, end, own, row = [], [], [], 0
    for n in lengths:
        first += [row] * n
        end += range(row + 1, row + n + 1)
        own += range(row, row + n)
        row += n
    return torch.tensor([first, end, own], dtype=torch.int64, device="cuda")


def difference(a, b):
    a, b = a.float(), b.float()
    return float((a - b).norm() / b.norm())


def attention_case(lib, batch, tokens, backward):
    rows = batch * tokens
    qkv = (torch.rand(rows, WIDTH, device="cuda") * 3.4 - 1.7).bfloat16()
    d_out = (torch.rand(rows, HEADS * HEAD, device="cuda") - 0.5).bfloat16()
    parts = qkv.split([HEADS * HEAD, GROUPS * HEAD, GROUPS * HEAD], 1)
    q, k, v = (p.reshape(batch, tokens, -1, HEAD).transpose(1, 2).contiguous().requires_grad_() for p in parts)
    q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v))
    d_heads = d_out.reshape(batch, tokens, HEADS, HEAD).transpose(1, 2)
    ranges = causal_ranges([tokens] * batch)
    out, d_qkv = torch.empty_like(d_out), torch.empty_like(qkv)
    workspace, saved_out, saved_lse = lib.workspace(rows)
    calls = 10 if rows < 8192 else 4

    def torch_forward(_):
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def torch_both(_=0):
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return o, torch.autograd.grad(o, (q, k, v), d_heads)

    def both(_=0):
        lib.forward(qkv, ranges, saved_out, sums=saved_lse)
        lib.backward(qkv, d_out, ranges, d_qkv, workspace)

    def alone(_=0):
        lib.backward(qkv, d_out, ranges, d_qkv, workspace)

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        contenders = {"cudnn forward": (captured(torch_forward, calls), calls)}
        contenders["graft forward"] = captured(lambda _: lib.forward(qkv, ranges, out), calls), calls
        errors = {}
        if backward:
            contenders["cudnn both"] = captured(torch_both, calls), calls
            contenders["graft both"] = captured(both, calls), calls
            contenders["graft backward"] = captured(alone, calls), calls
            o, grads = torch_both()
            errors["graft both"] = difference(d_qkv, torch.cat([x.transpose(1, 2).reshape(rows, -1) for x in grads], 1))
        else:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        errors["graft forward"] = difference(out, o.detach().transpose(1, 2).reshape(rows, -1))
        us = timed(contenders)
    flops = 4 * batch * HEADS * tokens * tokens * HEAD / 2
    results = []
    for name, t in us.items():
        part = name.split()[1]
        work = flops * {"forward": 1, "backward": 2.5, "both": 3.5}[part]
        row = {"batch": batch, "tokens": tokens, "contender": name, "us": round(t, 1), "tflops": round(work / t / 1e6, 1)}
        if name.startswith("graft") and "cudnn " + part in us:
            row["to_cudnn"] = round(t / us["cudnn " + part], 3)
        if name in errors:
            row["difference_to_cudnn"] = round(errors[name], 5)
        results.append(row)
    return results


def decode_case(lib, batch, context):
    kv = 2 * GROUPS * HEAD
    bytes_each = batch * context * kv * 2
    copies = max(1, min(64, -(-200_000_000 // bytes_each)))
    qkv = (torch.rand(batch, WIDTH, device="cuda") * 3.4 - 1.7).bfloat16()
    caches = [(torch.rand(batch * context, kv, device="cuda") - 0.5).bfloat16() for _ in range(copies)]
    first = torch.arange(batch) * context
    ranges = torch.stack([first, first + context, first + context - 1]).cuda()
    out = torch.empty(batch, HEADS * HEAD, device="cuda", dtype=torch.bfloat16)
    calls = max(copies, 8)
    graph = captured(lambda c: lib.forward(qkv, ranges, out, cache=caches[c % copies]), calls)
    us = timed({"graft decode": (graph, calls)})["graft decode"]
    floor = bytes_each / 4.3e12 * 1e6
    return [{"batch": batch, "context": context, "contender": "graft decode", "us": round(us, 2),
             "floor_us": round(floor, 2), "to_floor": round(us / floor, 2)}]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--json")
    parser.add_argument("--only", nargs="+", default=["forward", "backward", "decode"])
    arguments = parser.parse_args()
    lib, results = Library(arguments.library), []
    torch.manual_seed(1)
    cases = [lambda b=b, t=t: attention_case(lib, b, t, "backward" in arguments.only)
             for b, t in ((1, 2048), (2, 2048), (1, 4096), (1, 8192), (1, 1999))] if "forward" in arguments.only else []
    if "decode" in arguments.only:
        cases += [lambda b=b, c=c: decode_case(lib, b, c)
                  for b, c in ((1, 64), (1, 1024), (1, 4096), (1, 32768), (2, 1024), (4, 1024), (8, 1024), (16, 64),
                               (16, 1024), (16, 4096), (32, 1024), (64, 1024))]
    for case in cases:
        for row in case():
            results.append(row)
            print(row, flush=True)
    if arguments.json:
        with open(arguments.json, "w") as f:
            head = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                    "cudnn": torch.backends.cudnn.version(), "date": time.strftime("%Y-%m-%d"),
                    "command": "python3 bench/compare_attention.py BUILD/bench/libgraft_attention.so --json FILE"}
            f.write(json.dumps(head)[:-1] + ', "results": [\n' + ",\n".join("  " + json.dumps(r) for r in results) + "\n]}\n")


if __name__ == "__main__":
    main()
