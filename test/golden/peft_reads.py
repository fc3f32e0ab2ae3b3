#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# PEFT reads the adapters that this library trained and wrote, and its logits are compared with those that it had after
# its own training.
#   golden DIR --keep KEPT && peft_reads.py DIR KEPT       prints one line for each adapter and fails if one differs
import json
import pathlib
import sys
import warnings

try:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
golden, kept = map(pathlib.Path, sys.argv[1:3])
print(json.dumps({"peft": peft.__version__, "torch": torch.__version__, "transformers": transformers.__version__}))
failed = 0
for folder in sorted(p.parent for p in kept.glob("*/*/adapter_config.json")):
    model, case = folder.parts[-2:]
    config = json.load(open(folder / "adapter_config.json"))
    if config.get("boft_n_butterfly_factor", 1) > 1:
        print(json.dumps({"model": model, "case": case, "skipped": "without its CUDA extension PEFT has one factor only"}))
        continue
    expected = load_file(golden / "models" / model / case / "expected.safetensors")
    base = transformers.AutoModelForCausalLM.from_pretrained(golden / "models" / model / "base", dtype=torch.float32)
    try:
        adapted = peft.PeftModel.from_pretrained(base, folder).eval()
        with torch.no_grad():
            logits = adapted(expected["ids"]).logits
        wanted = expected["logits_trained"]
        error = ((logits - wanted).abs().max() / wanted.abs().max()).item()
        line = {"model": model, "case": case, "error": float(f"{error:.2e}"), "good": error < 2e-4}
    except Exception as problem:  # an error of PEFT is the result
        line = {"model": model, "case": case, "good": False, "says": str(problem)[:300]}
    failed += not line["good"]
    print(json.dumps(line), flush=True)
print(json.dumps({"failed": failed}))
sys.exit(1 if failed else 0)
