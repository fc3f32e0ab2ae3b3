#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The error of PEFT in bf16 relative to PEFT in float on the golden models, measured as by `golden --on cuda-bf16`: matrices
are rounded to bf16 first, and the largest difference of a logit is divided by the largest logit. On the CPU.

    pip install torch peft safetensors transformers
    python3 bench/compare_bf16.py test/golden/models/llama [NAME...]
"""
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file


def logits(folder, name, narrow):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32, attn_implementation="eager")
    for p in model.parameters():
        if p.dim() > 1:
            p.data = p.data.bfloat16().float()
    model = model.bfloat16() if narrow else model
    model = peft.PeftModel.from_pretrained(model, folder / name / "adapter_init").eval()  # PEFT keeps adapters in float
    with torch.no_grad():
        return model(load_file(folder / name / "expected.safetensors")["ids"].long()).logits.float()


folder = pathlib.Path(sys.argv[1])
print(f"torch {torch.__version__}, peft {peft.__version__}, transformers {transformers.__version__}")
for name in sys.argv[2:] or sorted(f.name for f in folder.iterdir() if (f / "adapter_init").is_dir()):
    try:
        wide, narrow = logits(folder, name, False), logits(folder, name, True)
        print(f"{name:28} {(wide - narrow).abs().max() / wide.abs().max():.1e}", flush=True)
    except Exception as e:  # a folder that PEFT itself cannot load
        print(f"{name:28} cannot be run: {str(e).splitlines()[0][:80]}", flush=True)
