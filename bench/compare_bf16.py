#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bf16 costs PEFT on the golden models, on the CPU: its results in bf16 against its own in float on the same
matrices, rounded to bf16. Each is compared with what float itself changes when every element of every matrix moves up
or down by 2^-9, the size of a rounding error of bf16 (the larger change of two draws). `golden --on gpu-bf16` finds
its bounds like that (test/golden/bf16_model.h). Distances of logits are norms, "largest" a ratio of largest elements.

    pip install torch peft safetensors transformers
    python3 bench/compare_bf16.py test/golden/models [MODEL/CASE...]
"""
import pathlib
import sys
import warnings

import peft
import torch
import transformers
from safetensors.torch import load_file

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
LOGITS = ["logits", "logits_disabled", "logits_trained"]


def base(folder, narrow, draw):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    signs, seen = torch.Generator().manual_seed(draw), set()
    for p in model.parameters():
        if p.dim() > 1 and p.data_ptr() not in seen:
            p.data = p.data.bfloat16().float()
            seen.add(p.data_ptr())
            if draw:
                p.data = p.data * (1 + 2.0**-9 * (torch.randint(0, 2, p.shape, generator=signs) * 2 - 1))
    model.tie_weights()
    return (model.bfloat16() if narrow else model).eval()


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits.float()


def results(case, narrow=False, draw=0):
    stored = load_file(case / "expected.safetensors")
    ids, model = stored["ids"].long(), base(case.parent / "base", narrow, draw)
    if case.name == "base":
        return {"logits": logits(model, ids)}
    model = peft.PeftModel.from_pretrained(model, case / "adapter_init", is_trainable=True).eval()  # in float
    out = {"logits": logits(model, ids), "losses": []}
    with model.disable_adapter():
        out["logits_disabled"] = logits(model, ids)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=0.005, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    for step, batch in enumerate(stored["train_ids"].long()):
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        if step == 0:
            out["grad"] = {n: p.grad.double().flatten() for n, p in trained.items() if p.grad is not None}
        out["losses"].append(loss.item())
        optimizer.step()
        if hasattr(model.base_model, "update_and_allocate"):
            model.base_model.update_and_allocate(step)
    out["logits_trained"] = logits(model, ids)
    return out


def norm(a, b):
    return ((a - b).norm() / b.norm()).item()


def largest(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def gradients(a, b):
    least = 1e-3 * max(g.abs().max() for g in b.values())  # below it rounding errors of terms that cancel
    pairs = [(a[n], g) for n, g in b.items() if g.abs().max() >= least]
    return (max((1 - torch.dot(x, y) / (x.norm() * y.norm())).item() for x, y in pairs),
            max(abs((x.norm() / y.norm()).item() - 1) for x, y in pairs))


def compare(case):
    wide, narrow, moved = results(case), results(case, narrow=True), [results(case, draw=d) for d in (1, 2)]
    line = ""
    for key in LOGITS:
        if key in wide:
            off, near = norm(narrow[key], wide[key]), max(norm(m[key], wide[key]) for m in moved)
            most = largest(narrow[key], wide[key]) / max(largest(m[key], wide[key]) for m in moved)
            line += f"  {key} {off:.1e} / {near:.1e} = {off / near:.1f} (largest {most:.1f})"
    if "grad" in wide:
        angle, length = gradients(narrow["grad"], wide["grad"])
        line += f"  grad0_angle {angle:.1e} grad0_length {length:.1e}"
        line += f" losses {max(abs(x / y - 1) for x, y in zip(narrow['losses'], wide['losses'])):.1e}"
    return line


root, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
print(f"torch {torch.__version__}, peft {peft.__version__}, transformers {transformers.__version__}")
for case in sorted(p.parent for p in root.glob("*/*/expected.safetensors")):
    name = f"{case.parent.name}/{case.name}"
    if (wanted and name not in wanted) or not (case.name == "base" or (case / "adapter_init").is_dir()):
        continue
    try:
        print(f"{name:44}{compare(case)}", flush=True)
    except Exception as e:  # a folder that PEFT itself cannot load
        print(f"{name:44}  cannot be run: {str(e).splitlines()[0][:60]}", flush=True)
