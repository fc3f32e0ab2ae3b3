#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A layer in NF4 compared with bitsandbytes on the same GPU, in one process, on the same quantized weights.

    python3 bench/compare_bitsandbytes.py BUILD/bench/libgraft_nf4.so [--json FILE]

Needs torch with CUDA and bitsandbytes, whose weights (blocks of 64, scales in float) both read in place. Candidates:
the kernel that bitsandbytes' matmul_4bit chooses; its kernel that dequantizes in registers; its older kernel for one
token; its dequantization and then torch's GEMM; torch's GEMM with the dequantized weight. Calls rotate through more
weights than the L2 cache holds and are captured in a CUDA graph; candidates take turns with a pause and an untimed
replay before each sample, and the median counts. Errors are relative to the GEMM with the dequantized weight in float.
The floor is the bytes of the quantized weight and its scales at 4.3 TB/s.
"""
import argparse
import ctypes
import json
import statistics
import time

import bitsandbytes
import bitsandbytes.functional as B
import torch
import torch.nn.functional as F
from bitsandbytes.backends.cuda import ops

IN, ROUNDS, BANDWIDTH = 4096, 11, 4.3e12


class Ours:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.graft_error.restype = ctypes.c_char_p
        self.lib.graft_nf4_layer.restype = ctypes.c_void_p

    def check(self, failed):
        if failed:
            raise RuntimeError("graft: " + self.lib.graft_error().decode())

    @staticmethod
    def stream():
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def layer(self, codes, state, tokens):
        made = self.lib.graft_nf4_layer(ctypes.c_void_p(codes.data_ptr()), ctypes.c_void_p(state.absmax.data_ptr()),
                                        ctypes.c_longlong(state.shape[0]))
        self.check(not made)
        made, m = ctypes.c_void_p(made), ctypes.c_longlong(tokens)
        self.check(self.lib.graft_bind(made, self.stream(), m))

        def run(x):
            y = torch.empty(tokens, state.shape[0], dtype=torch.bfloat16, device="cuda")
            self.check(self.lib.graft_forward(made, self.stream(), ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), m))
            return y

        return run


def weights(out, count):
    made = []
    for i in range(count):
        torch.manual_seed(i)
        w = torch.randn(out, IN, dtype=torch.bfloat16, device="cuda") * 0.02
        made.append(B.quantize_4bit(w, blocksize=64, quant_type="nf4", compress_statistics=False))
    return made


def contenders(ours, quantized, tokens):
    def of_kernel(codes, state):
        return lambda x: ops._gemm_4bit_kernel_impl(x, codes, state.shape, state.absmax, state.blocksize, state.quant_type)

    def decoded_first(codes, state):
        return lambda x: F.linear(x, B.dequantize_4bit(codes, state))

    def decoded(codes, state):
        w = B.dequantize_4bit(codes, state)
        return lambda x: F.linear(x, w)

    every = {
        "graft": lambda c, s: ours.layer(c, s, tokens),
        "bitsandbytes matmul_4bit": lambda c, s: lambda x: bitsandbytes.matmul_4bit(x, c.t(), s),
        "bitsandbytes gemm_4bit": of_kernel,
        "bitsandbytes decoding, torch": decoded_first,
        "torch bf16": decoded,
    }
    if tokens == 1:
        every["bitsandbytes gemv_4bit"] = lambda c, s: lambda x: B.gemv_4bit(x, c.t(), state=s)
    return {name: [make(*w) for w in quantized] for name, make in every.items()}


def captured(calls, x):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls:
            call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for call in calls * 2:
            call(x)
    return graph


def microseconds(graph, calls):
    time.sleep(0.01)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1000 / calls


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--json")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 16])
    a = parser.parse_args()
    ours, measured = Ours(a.library), []
    for out, rotation in ((4096, 16), (14336, 6)):
        quantized = weights(out, rotation)
        codes, state = quantized[0]
        floor = (codes.numel() + state.absmax.numel() * 4) / BANDWIDTH * 1e6
        exact = B.dequantize_4bit(codes, state).float()
        for tokens in a.tokens:
            x = torch.randn(tokens, IN, dtype=torch.bfloat16, device="cuda")
            want = F.linear(x.double(), exact.double()).float()
            every = contenders(ours, quantized, tokens)
            errors = {name: ((calls[0](x).float() - want).norm() / want.norm()).item() for name, calls in every.items()}
            graphs = {name: captured(calls, x) for name, calls in every.items()}
            times = {name: [] for name in graphs}
            for _ in range(ROUNDS):
                for name, graph in graphs.items():
                    times[name].append(microseconds(graph, 2 * rotation))
            for name, all_times in times.items():
                us = statistics.median(all_times)
                print(f"{out:5} outputs, {tokens:2} tokens, {name:30} {us:7.2f} us, {us / floor:5.2f} x floor, error {errors[name]:.5f}", flush=True)
                measured.append({"out": out, "tokens": tokens, "name": name, "us": round(us, 2), "error": round(errors[name], 6)})
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__,
                       "date": time.strftime("%Y-%m-%d"), "command": "python3 bench/compare_bitsandbytes.py BUILD/bench/libgraft_nf4.so",
                       "note": "NF4, blocks of 64, bf16, 4096 inputs", "results": measured}, f, indent=1)


if __name__ == "__main__":
    main()
