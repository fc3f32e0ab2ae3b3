#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small GGUF models with matrices in all formats of ggml, and what they compute, in double.

    python3 make.py        needs numpy, safetensors and gguf; writes the folders llama_mixed and qwen3_tied beside it

NAME/model.gguf: written by llama.cpp's gguf package. Blocks are random bits with scales that make numbers of the size
of an initialised model, because the package quantizes only some formats; what they mean is what the package reads.
NAME/expected.safetensors: ids, logits, generated (greedy, end tokens left out), and where there is an adapter
logits_adapter, the loss of ids and gradients, computed below from the formulas of Llama and Qwen3 in double; gradients
by central differences. test/golden/gguf_case.h says what is compared.
"""
import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as types
from gguf.constants import GGML_QUANT_SIZES
from safetensors.numpy import save_file

# The offsets of a block's halves in half precision: its scale, and a scale of minimums or a minimum, which is negative.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}
WIDTH, INNER, VOCABULARY, LAYERS, HEADS, KV_HEADS, EPS, THETA, END = 256, 32, 64, 2, 2, 1, 1e-5, 10000.0, 2


def random_blocks(rng, name, rows, cols, size):
    """Blocks whose numbers have about the mean 0 and the standard deviation `size`."""
    kind = types[name]
    block, count = GGML_QUANT_SIZES[kind]
    out = rng.integers(0, 256, (rows, cols // block, count), dtype=np.uint8)

    def store(scale):
        for at in HALVES[name]:
            minimum = at == HALVES[name][-1] and len(HALVES[name]) == 2
            largest = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}.get(name, 1)
            halves = rng.uniform(0.7, 1.3, out.shape[:2]) * scale * (largest if minimum else 1)
            out[:, :, at:at + 2] = halves.astype(np.float16)[:, :, None].view(np.uint8)
        return gguf.dequantize(out.reshape(rows, -1), kind)

    store(size / store(1e-2).std() * 1e-2)
    return out.reshape(rows, -1), kind


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    def __init__(self, family, head, formats, tied):
        self.rng, self.family, self.head, self.tied = np.random.default_rng(11), family, head, tied
        self.stored, self.numbers = {}, {}
        matrices = {"token_embd": (VOCABULARY, WIDTH)} | ({} if tied else {"output": (VOCABULARY, WIDTH)})
        for layer in range(LAYERS):
            p = f"blk.{layer}."
            matrices |= {p + "attn_q": (HEADS * head, WIDTH), p + "attn_k": (KV_HEADS * head, WIDTH),
                         p + "attn_v": (KV_HEADS * head, WIDTH), p + "attn_output": (WIDTH, HEADS * head),
                         p + "ffn_gate": (INNER, WIDTH), p + "ffn_up": (INNER, WIDTH), p + "ffn_down": (WIDTH, INNER)}
            norms = ["attn_norm", "ffn_norm"] + (["attn_q_norm", "attn_k_norm"] if family == "qwen3" else [])
            for n in norms:
                self.norm(p + n, head if n.endswith("_k_norm") or n.endswith("_q_norm") else WIDTH)
        self.norm("output_norm", WIDTH)
        turn = {256: 0, 32: 0}
        for name, (rows, cols) in matrices.items():
            unit = 256 if cols % 256 == 0 else 32
            kind = formats[unit][turn[unit] % len(formats[unit])]
            turn[unit] += 1
            size = 1.0 if name == "token_embd" and not tied else 2 / np.sqrt(cols)
            self.stored[name] = random_blocks(self.rng, kind, rows, cols, size)
            self.numbers[name] = gguf.dequantize(*self.stored[name]).astype(np.float64)

    def norm(self, name, width):
        self.stored[name] = (self.rng.uniform(0.5, 1.5, width).astype(np.float32), types.F32)
        self.numbers[name] = self.stored[name][0].astype(np.float64)

    def write(self, file):
        w = gguf.GGUFWriter(file, self.family)
        w.add_block_count(LAYERS), w.add_context_length(64), w.add_embedding_length(WIDTH)
        w.add_feed_forward_length(INNER), w.add_head_count(HEADS), w.add_head_count_kv(KV_HEADS)
        w.add_key_length(self.head), w.add_value_length(self.head), w.add_layer_norm_rms_eps(EPS)
        w.add_rope_freq_base(THETA), w.add_rope_dimension_count(self.head), w.add_vocab_size(VOCABULARY)
        w.add_bos_token_id(1), w.add_eos_token_id(END)
        for name, (data, kind) in self.stored.items():
            w.add_tensor(name + ".weight", data, raw_dtype=kind)
        w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()

    def rms(self, x, name):
        eps = np.float64(np.float32(EPS))
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.numbers[name]

    def rope(self, x):
        """Turns pairs: neighbors of a Llama's head, as the file has its rows, and halves of a Qwen3's."""
        half = self.head // 2
        angle = np.arange(x.shape[0])[:, None] * THETA ** (-np.arange(half) * 2 / self.head)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even = (slice(0, None, 2), slice(1, None, 2)) if self.family == "llama" else (slice(half), slice(half, None))
        out = np.empty_like(x)
        out[..., even[0]] = x[..., even[0]] * c - x[..., even[1]] * s
        out[..., even[1]] = x[..., even[1]] * c + x[..., even[0]] * s
        return out

    def linear(self, name, x, adapter):
        y = x @ self.numbers[name].T
        if adapter is not None and name in adapter:
            a, b = adapter[name]
            y = y + 2 * (x @ a.T) @ b.T
        return y

    def logits(self, ids, adapter=None):
        n = len(ids)
        h = self.numbers["token_embd"][ids]
        for layer in range(LAYERS):
            p = f"blk.{layer}."
            x = self.rms(h, p + "attn_norm")
            q, k, v = (self.linear(p + f"attn_{m}", x, adapter).reshape(n, -1, self.head) for m in "qkv")
            if self.family == "qwen3":
                q, k = self.rms(q, p + "attn_q_norm"), self.rms(k, p + "attn_k_norm")
            q, k = self.rope(q), np.repeat(self.rope(k), HEADS // KV_HEADS, 1)
            score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head)
            weight = softmax(np.where(np.tril(np.ones((n, n))) > 0, score, -np.inf))
            mixed = np.einsum("hqk,khd->qhd", weight, np.repeat(v, HEADS // KV_HEADS, 1)).reshape(n, -1)
            h = h + self.linear(p + "attn_output", mixed, adapter)
            x = self.rms(h, p + "ffn_norm")
            gate = self.linear(p + "ffn_gate", x, adapter)
            inner = gate / (1 + np.exp(-gate)) * self.linear(p + "ffn_up", x, adapter)
            h = h + self.linear(p + "ffn_down", inner, adapter)
        return self.rms(h, "output_norm") @ self.numbers["token_embd" if self.tied else "output"].T

    def loss(self, ids, adapter):
        total, count = 0, 0
        for row in ids:
            chance = softmax(self.logits(row, adapter))
            total -= np.log(chance[np.arange(len(row) - 1), row[1:]]).sum()
            count += len(row) - 1
        return total / count

    def generate(self, row, count):
        row = list(row)
        for _ in range(count):
            last = self.logits(row)[-1]
            last[END] = -np.inf
            row.append(int(last.argmax()))
        return row


def differences(f, at, step=1e-4):
    out = np.empty_like(at)
    for i in np.ndindex(at.shape):
        was = at[i]
        at[i] = was + step
        up = f()
        at[i] = was - step
        out[i] = (up - f()) / (2 * step)
        at[i] = was
    return out


MODULES = {"blk.0.attn_v": "model.layers.0.self_attn.v_proj", "blk.1.ffn_down": "model.layers.1.mlp.down_proj"}


def make(folder, model, rank=2):
    folder.mkdir(exist_ok=True)
    model.write(folder / "model.gguf")
    ids = model.rng.integers(3, VOCABULARY, (2, 6))
    out = {"ids": ids, "logits": np.stack([model.logits(r) for r in ids]).astype(np.float32),
           "generated": np.array([model.generate(r, 12) for r in ids])}
    kinds = {k.name for _, k in model.stored.values()}
    (folder / "case.json").write_text(json.dumps({"tensor_types": sorted(kinds)}) + "\n")
    if rank:
        adapter = {}
        for name in MODULES:
            rows, cols = model.numbers[name].shape
            adapter[name] = [(model.rng.standard_normal(s) * 0.1).astype(np.float32)
                             for s in ((rank, cols), (rows, rank))]
        (folder / "adapter").mkdir(exist_ok=True)
        save_file({f"base_model.model.{m}.lora_{ab}.weight": t for n, m in MODULES.items()
                   for ab, t in zip("AB", adapter[n])}, folder / "adapter/adapter_model.safetensors")
        (folder / "adapter/adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank,
             "target_modules": list(MODULES.values()), "lora_dropout": 0.0, "bias": "none"}, indent=1) + "\n")
        adapter = {n: [t.astype(np.float64) for t in ab] for n, ab in adapter.items()}
        out["logits_adapter"] = np.stack([model.logits(r, adapter) for r in ids]).astype(np.float32)
        out["loss"] = np.array([model.loss(ids, adapter)], np.float32)
        for n, m in MODULES.items():
            for ab, t in zip("AB", adapter[n]):
                key = f"grad.base_model.model.{m}.lora_{ab}.default.weight"
                out[key] = differences(lambda: model.loss(ids, adapter), t).astype(np.float32)
    save_file(out, folder / "expected.safetensors")


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    make(here / "llama_mixed", Model("llama", 16, {
        256: ["Q6_K", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "IQ4_XS", "Q8_0"], 32: ["Q4_1", "Q5_1"]}, tied=False))
    make(here / "qwen3_tied", Model("qwen3", 16, {
        256: ["Q6_K", "Q4_K", "Q5_K"], 32: ["Q5_0", "IQ4_NL", "Q4_0"]}, tied=True), rank=0)
