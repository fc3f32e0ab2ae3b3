#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PEFT on a Llama-3-8B-shaped model on the GPU, eager and under torch.compile, in the shape of bench/gpu/model.cu.

    python3 bench/compare_models_gpu.py [BENCH_GPU_MODEL] [--json FILE]

Four layers, random bf16 weights, a vocabulary of 1024, LoRA of rank 16 on all seven projections. If the program of this
library is named, it runs first and its line is printed as well. Times are of whole calls in microseconds, medians.
"""
import argparse
import json
import statistics
import subprocess
import time

import peft
import torch
import transformers


def timed(call, rounds=12, warm=4):
    each = []
    for k in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if k >= warm:
            each.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(each)


def model_of(layers, vocabulary):
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=8192, rms_norm_eps=1e-5)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules=names, task_type="CAUSAL_LM"))


def measure(how, layers, vocabulary, found):
    model = model_of(layers, vocabulary)
    run = model if how == "eager" else torch.compile(model, dynamic=False)
    ids = torch.randint(0, vocabulary, (2, 2048), device="cuda")
    with torch.no_grad():
        model.eval()
        found[f"peft_{how}_prefill_2048"] = timed(lambda: run(ids[:1], use_cache=False, logits_to_keep=1))
        for n in (1, 16):
            cache = transformers.StaticCache(config=model.config, max_cache_len=1152, max_batch_size=n, device="cuda",
                                             dtype=torch.bfloat16)
            prompt = torch.randint(0, vocabulary, (n, 1024), device="cuda")
            model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token, at = prompt[:, :1].contiguous(), torch.tensor([1024], device="cuda")
            step = lambda: run(token, past_key_values=cache, use_cache=True, cache_position=at,
                               position_ids=at.expand(n, 1))
            found[f"peft_{how}_decode_{n}"] = timed(step)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)

    def train():
        optimizer.zero_grad(set_to_none=False)
        run(ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()

    torch.cuda.reset_peak_memory_stats()
    found[f"peft_{how}_train_2x2048"] = timed(train)
    found[f"peft_{how}_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--json")
    parser.add_argument("--skip-compile", action="store_true")
    wanted = parser.parse_args()
    found = {}
    if wanted.program:
        found.update(json.loads(subprocess.run([wanted.program, "4", "1024"], capture_output=True, check=True).stdout))
    for how in ["eager"] if wanted.skip_compile else ["eager", "compile"]:
        measure(how, 4, 1024, found)
        torch.cuda.empty_cache()
        print(json.dumps(found), flush=True)
    if wanted.json:
        with open(wanted.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
