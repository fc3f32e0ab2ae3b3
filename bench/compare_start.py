#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time from the start of a process to the first token on the GPU, of this library and of PEFT.

    python3 bench/compare_start.py BENCH_GPU_START [--json FILE] [--rounds N] [--skip-peft]

A Llama-3-8B-shaped model of four layers with random bf16 weights and LoRA of rank 16 on all seven projections is
written to a folder and read back, so that its files are in the system's cache for both. The parent measures the time of
a process from its start to the line that it prints after its first token. PEFT's time includes the imports of Python,
which are also listed separately; under torch.compile its caches are empty.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

PEFT = """
import sys, time
begin = time.perf_counter()
import torch, transformers, peft
imported = time.perf_counter() - begin
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, device_map="cuda")
model = peft.PeftModel.from_pretrained(model, sys.argv[2]).eval()
ids = torch.tensor([[5, 9, 200, 17, 3, 44, 101, 8]], device="cuda")
run = torch.compile(model) if sys.argv[3] == "compile" else model
with torch.no_grad():
    token = run(ids, use_cache=False).logits[0, -1].argmax().item()
print(f"imports {imported:.3f}", flush=True)
"""


def make_folders(at):
    import peft
    import torch
    import transformers
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=4096, intermediate_size=14336, num_hidden_layers=4, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=8192, rms_norm_eps=1e-5, bos_token_id=0,
        eos_token_id=1)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(f"{at}/model")
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules=names,
                                                        init_lora_weights=False, task_type="CAUSAL_LM"))
    adapted.save_pretrained(f"{at}/adapter")


def first_line(command, environment):
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    line = process.stdout.readline()
    took = time.perf_counter() - begin
    rest = process.stdout.read()
    if process.wait() != 0:
        sys.exit(f"{command[0]} failed")
    return took, line, rest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-peft", action="store_true")
    wanted = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as at:
        make_folders(at)
        folders = [f"{at}/model", f"{at}/adapter"]
        for mode in ["standard", "reduce-overhead"]:
            rows = []
            for _ in range(wanted.rounds):
                took, line, rest = first_line([wanted.program, *folders, mode], os.environ)
                rows.append({"process": took, **json.loads(line), **json.loads(rest)})
            found[mode] = {name: round(statistics.median(r[name] for r in rows), 3) for name in rows[0]}
            found[mode]["above_read_only"] = round(found[mode]["process"] - found[mode]["read_only"], 3)
        for how in [] if wanted.skip_peft else ["eager", "compile"]:
            with tempfile.TemporaryDirectory() as cache:
                took, line, _ = first_line([sys.executable, "-c", PEFT, *folders, how],
                                        {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache})
            found[f"peft_{how}"] = {"process": round(took, 1), "imports": float(line.split()[1])}
    print(json.dumps(found, indent=1))
    if wanted.json:
        with open(wanted.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
