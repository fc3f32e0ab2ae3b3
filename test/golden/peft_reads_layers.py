#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# PEFT reads the layer adapters that this library wrote with its own configurations, and gives y as it is stored.
#   GRAFT_WRITTEN=KEPT build/test/test_io -tc='peft folder: every*'
#   test/golden/peft_reads_layers.py test/golden KEPT       prints one line for each layer and fails if one differs
import json
import pathlib
import sys
import warnings

try:
    import peft
    import torch
    from safetensors.torch import load_file
    from transformers.pytorch_utils import Conv1D
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

warnings.filterwarnings("ignore")


class Base(torch.nn.Module):
    def __init__(self, name, layer):
        super().__init__()
        self.name = name
        setattr(self, name, layer)

    def forward(self, x):
        return getattr(self, self.name)(x)


def base_of(tensors, config):
    name = next(k for k in tensors if k.endswith(".weight")).removesuffix(".weight")
    w, bias = tensors[name + ".weight"], name + ".bias" in tensors
    if name == "emb":
        layer = torch.nn.Embedding(*w.shape)
    elif name == "conv":
        layer = torch.nn.Conv2d(w.shape[1], w.shape[0], w.shape[2], padding=1)
    elif name == "norm":
        layer = torch.nn.LayerNorm(w.shape[0])
    elif config.get("fan_in_fan_out"):
        layer = Conv1D(w.shape[1], w.shape[0])
    else:
        layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=bias)
    layer.load_state_dict({k.removeprefix(name + "."): v for k, v in tensors.items()})
    return Base(name, layer)


golden, kept = map(pathlib.Path, sys.argv[1:3])
print(json.dumps({"peft": peft.__version__, "torch": torch.__version__}))
failed = 0
for folder in sorted(p.parent for p in kept.glob("*/adapter_config.json")):
    config = json.load(open(folder / "adapter_config.json"))
    if config.get("boft_n_butterfly_factor", 1) > 1:
        print(json.dumps({"case": folder.name, "skipped": "without its CUDA extension PEFT has one factor only"}))
        continue
    case = golden / "layers" / folder.name
    expected = load_file(case / "expected.safetensors")
    try:
        model = peft.PeftModel.from_pretrained(base_of(load_file(case / "base.safetensors"), config), folder).eval()
        with torch.no_grad():
            y = model(expected["x"])
        error = ((y - expected["y_eval"]).abs().max() / expected["y_eval"].abs().max()).item()
        line = {"case": folder.name, "error": float(f"{error:.1e}"), "good": error < 2e-5}
    except Exception as problem:  # an error of PEFT is the result
        line = {"case": folder.name, "good": False, "says": str(problem)[:300]}
    failed += not line["good"]
    print(json.dumps(line), flush=True)
print(json.dumps({"failed": failed}))
sys.exit(1 if failed else 0)
