# SPDX-License-Identifier: Apache-2.0
"""Adapters beside the quantized linear layers of bitsandbytes, which compute the base: the rest is graft's."""

import copy

import peft
import pytest
import torch
from methods import Net, relative, step

import graft_torch

bnb = pytest.importorskip("bitsandbytes")
from graft_torch import _accelerate  # noqa: E402

targets = ["first", "second"]
configs = {
    "lora": peft.LoraConfig(target_modules=targets, r=4, lora_alpha=8, init_lora_weights=False),
    "rslora": peft.LoraConfig(target_modules=targets, r=4, use_rslora=True, init_lora_weights=False),
    "lora_bias": peft.LoraConfig(target_modules=targets, r=4, lora_bias=True, init_lora_weights=False),
    "adalora": peft.AdaLoraConfig(target_modules=targets, init_r=4, total_step=10, init_lora_weights=False),
    "randlora": peft.RandLoraConfig(target_modules=targets, r=4, randlora_alpha=4, init_weights=False),
}
formats = {
    "nf4": lambda *of, **kw: bnb.nn.Linear4bit(*of, quant_type="nf4", compress_statistics=False, **kw),
    "fp4": lambda *of, **kw: bnb.nn.Linear4bit(*of, quant_type="fp4", compress_statistics=False, **kw),
    "nf4_nested": lambda *of, **kw: bnb.nn.Linear4bit(*of, quant_type="nf4", compress_statistics=True, **kw),
    "fp4_nested": lambda *of, **kw: bnb.nn.Linear4bit(*of, quant_type="fp4", compress_statistics=True, **kw),
    "int8": lambda *of, **kw: bnb.nn.Linear8bitLt(*of, has_fp16_weights=False, **kw),
}
devices = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not (torch.cuda.is_available() and graft_torch.ops.has_cuda_kernels()), reason="no GPU, or a build without CUDA"))]


class Wide(Net):
    """Sizes of which bitsandbytes' blocks are full."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.first, self.second = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64, bias=False)


def quantized(kind, device="cpu"):
    """The net with weights of a format of bitsandbytes, which quantizes them when they move to a device."""
    net = Wide()
    for name in targets:
        linear = getattr(net, name)
        made = formats[kind](linear.in_features, linear.out_features, bias=linear.bias is not None)
        made.load_state_dict(linear.state_dict())
        setattr(net, name, made)
    setattr(net, "is_loaded_in_8bit" if kind == "int8" else "is_loaded_in_4bit", True)
    return net.to(device)


def pair(name, kind, device="cpu", **changed):
    """The same model, on PEFT's forward and on graft's, with dropout only where it is asked for."""
    config = copy.deepcopy(configs[name])
    for key, value in changed.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    model = peft.get_peft_model(quantized(kind, device), config)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.05)
    return model, graft_torch.accelerate(copy.deepcopy(model))


def taken(model, method):
    for line in graft_torch.report(model).values():
        assert line.startswith(f"graft: {method}") and line.endswith(" (beside the base layer, which is that of bitsandbytes)")


def type_of(kind):
    return torch.float16 if kind == "int8" else torch.float32


@pytest.fixture
def branches(monkeypatch):
    """Counts the branches that graft computes."""
    counted, run = [], _accelerate.adapted_linear

    def call(x, tensors, text, *args):
        assert '"branch": {' in text and all(t.is_floating_point() for t in tensors)  # no weight of the base layer
        counted.append(1)
        return run(x, tensors, text, *args)

    monkeypatch.setattr(_accelerate, "adapted_linear", call)
    return counted


@pytest.mark.parametrize("device", devices)
@pytest.mark.parametrize("kind", formats)
@pytest.mark.parametrize("name", configs)
def test_forward_and_gradients_equal_peft(name, kind, device, branches):
    model, other = pair(name, kind, device)
    for m in (model, other):
        m.train()
    x, dy = (torch.randn(3, 5, 64, device=device) for _ in range(2))
    y, dx, grads = step(model, x, dy)
    y2, dx2, grads2 = step(other, x, dy)
    assert len(branches) == 2
    assert y2.dtype == y.dtype and relative(y2, y) < 1e-5 and relative(dx2, dx) < 1e-5
    assert grads.keys() == grads2.keys() and len(grads) > 0
    for n in grads:
        assert relative(grads2[n], grads[n]) < 1e-4, n
    model.eval(), other.eval()
    with torch.no_grad():
        for rows in (1, 7):
            v = torch.randn(rows, 64, device=device)
            assert relative(other(v), model(v)) < 1e-5
    assert len(branches) == 6
    taken(other, {"rslora": "lora"}.get(name, name) if name != "lora_bias" else "lora_with_bias")


@pytest.mark.parametrize("kind", formats)
def test_merging_disabling_and_mixed_batches(kind, branches):
    model, other = pair("lora", kind)
    model.eval(), other.eval()
    x, names = torch.randn(4, 64), ["default", "__base__", "default", "default"]
    with torch.no_grad():
        assert relative(other(x, adapter_names=names), model(x, adapter_names=names)) < 1e-5
        assert len(branches) == 2
        with model.disable_adapter(), other.disable_adapter():
            assert relative(other(x), model(x)) < 1e-6
        assert len(branches) == 2
        for m in (model, other):
            m.merge_adapter()
        assert relative(other(x), model(x)) < 1e-5 and len(branches) == 2
        for m in (model, other):
            m.unmerge_adapter()
        assert relative(other(x), model(x)) < 1e-5 and len(branches) == 4


@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize("name", ["lora", "adalora", "randlora"])
def test_dropout_in_training_draws_the_numbers_of_peft(name, kind, branches):
    key = "randlora_dropout" if name == "randlora" else "lora_dropout"
    model, other = pair(name, kind, **{key: 0.4})
    results = []
    for m in (model, other):
        m.train()
        torch.manual_seed(5)
        results.append(step(m, torch.ones(6, 64), torch.ones(6, 64)))
    (y, dx, grads), (y2, dx2, grads2) = results
    assert relative(y2, y) < 1e-5 and relative(dx2, dx) < 1e-5 and len(branches) == 2
    for n in grads:
        assert relative(grads2[n], grads[n]) < 1e-4, n


def test_several_active_adapters(branches):
    model, other = pair("lora", "nf4")
    second = peft.LoraConfig(target_modules=targets, r=2, init_lora_weights=False)
    torch.manual_seed(1)
    model.add_adapter("second", second)
    other = graft_torch.accelerate(copy.deepcopy(graft_torch.restore(model)))
    for m in (model, other):
        m.base_model.set_adapter(["default", "second"])
        m.eval()
    x = torch.randn(5, 64)
    with torch.no_grad():
        assert relative(other(x), model(x)) < 1e-5
    assert len(branches) == 4


def test_what_stays_with_peft():
    dora = peft.LoraConfig(target_modules=targets, r=4, use_dora=True)
    ia3 = peft.IA3Config(target_modules=targets, feedforward_modules=[])
    for config, method in ((dora, "LORA"), (ia3, "IA3")):
        model = graft_torch.accelerate(peft.get_peft_model(quantized("nf4"), config))
        for line in graft_torch.report(model).values():
            assert line.startswith(f"PEFT: the base weight is quantized by bitsandbytes, and {method} is no branch beside")
        model(torch.randn(2, 64))
