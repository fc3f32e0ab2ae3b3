#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks of every ggml format that is read, and what llama.cpp's gguf package makes of them.

    python3 make.py        needs numpy, safetensors and gguf; writes blocks.safetensors beside this file

NAME.bytes [rows, bytes of a row]: random bits, with scales in half precision around 0.01.
NAME.values [rows, elements]: the package's numbers.
NAME.quantized [rows, bytes of a row]: the package's blocks for `numbers`, where it quantizes that format.
"""
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as types
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

# The offsets of a block's halves in half precision: its scale and, where there is one, its minimum or scale of those.
# MXFP4 has an exponent instead.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}


def random_blocks(rng, name, rows, blocks):
    size = GGML_QUANT_SIZES[types[name]][1]
    out = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = (rng.uniform(0.5, 2, (rows, blocks)) * 0.01 * rng.choice([-1, 1], (rows, blocks))).astype(np.float16)
        out[:, :, at:at + 2] = halves[:, :, None].view(np.uint8)
    if name == "MXFP4":  # powers of two around 0.01, and the two subnormal ones
        out[:, :, 0] = rng.integers(118, 126, (rows, blocks))
        out[0, :2, 0] = 0, 1
    return out.reshape(rows, blocks * size)


if __name__ == "__main__":
    rng = np.random.default_rng(7)
    numbers = rng.standard_normal((3, 96)).astype(np.float32)
    numbers[1, 32:64] = 0  # a block without a number
    numbers[2, :32] = 0.75  # a block of one number
    out = {"numbers": numbers}
    for name in HALVES:
        rows, blocks = (3, 3) if GGML_QUANT_SIZES[types[name]][0] == 32 else (2, 1)
        stored = random_blocks(rng, name, rows, blocks)
        out[name.lower() + ".bytes"], out[name.lower() + ".values"] = stored, dequantize(stored, types[name])
        if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
            out[name.lower() + ".quantized"] = quantize(numbers, types[name])
    save_file(out, pathlib.Path(__file__).with_name("blocks.safetensors"))
