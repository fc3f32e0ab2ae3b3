#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Blocks that llama.cpp quantizes to K-quants, which its gguf package only reads.

    gcc -O2 -ffp-contract=off -shared -fPIC -I ggml/include -I ggml/src ggml/src/ggml-quants.c -o libggml-quants.so \
        -Wl,--defsym=ggml_type_name=0,--defsym=ggml_abort=0,--defsym=ggml_row_size=0,--defsym=ggml_type_size=0
    python3 make_k_quants.py libggml-quants.so        needs numpy and safetensors; writes k_quants.safetensors beside it

The first line is run in llama.cpp's sources (those of llama-cpp-python 0.3.36 were). Contraction would make the last
bits of the sums by which scales are chosen depend on the compiler.
numbers [rows, 512]: normal, heavy-tailed, of one sign, sparse, in steps of 1/8, constant, zero and tiny numbers.
NAME.quantized [rows, bytes of a row].
"""
import ctypes
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file

BYTES = {"q4_k": (b"quantize_row_q4_K_ref", 144), "q5_k": (b"quantize_row_q5_K_ref", 176),
         "q6_k": (b"quantize_row_q6_K_ref", 210)}

if __name__ == "__main__":
    library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    rng = np.random.default_rng(5)
    rows = [rng.standard_normal(512) * 0.02 * k for k in (1, 5, 50)]
    rows += [rng.standard_t(2, 512) * 0.01 for _ in range(3)]
    rows += [np.abs(rows[0]), -np.abs(rows[1]), rows[2] * (rng.random(512) < 0.2), rows[1] * (np.arange(512) // 16 % 2)]
    rows += [rng.integers(-3, 4, 512) / 8, np.full(512, 0.75), np.full(512, -0.3), np.zeros(512), rows[0] * 1e-18]
    numbers = np.array(rows, np.float32)
    out = {"numbers": numbers}
    for name, (function, size) in BYTES.items():
        blocks = np.zeros((len(numbers), 2 * size), np.uint8)
        quantize = library[function.decode()]
        quantize.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        quantize.restype = None
        quantize(numbers.ctypes.data, blocks.ctypes.data, numbers.size)
        out[name + ".quantized"] = blocks
    save_file(out, pathlib.Path(__file__).with_name("k_quants.safetensors"))
