# SPDX-License-Identifier: Apache-2.0
"""Every method computes what PEFT computes: forward, gradients, weights after training, merged weights."""

import copy

import peft
import pytest
import torch
from methods import Net, configs, golden, make, relative, step

import graft_torch


def both(name, dtype=torch.float32, net=None):
    """The same model, on PEFT's forward and on graft's."""
    model = make(name, dtype, net)
    other = copy.deepcopy(model)
    graft_torch.accelerate(other)
    said = graft_torch.report(other)
    assert all(s.startswith("graft: ") for s in said.values()), said
    return model, other


@pytest.mark.parametrize("name", configs)
def test_forward_and_gradients_equal_peft(name):
    model, other = both(name)
    x, dy = torch.randn(3, 5, 16), torch.randn(3, 5, 16)
    y, dx, grads = step(model, x, dy)
    y2, dx2, grads2 = step(other, x, dy)
    assert y2.shape == y.shape and y2.dtype == y.dtype
    assert relative(y2, y) < 1e-5 and relative(dx2, dx) < 1e-5
    assert grads.keys() == grads2.keys()
    for n in grads:
        assert relative(grads2[n], grads[n]) < 1e-4, n
    assert all(s.startswith("graft: ") and "last call" not in s for s in graft_torch.report(other).values())


@pytest.mark.parametrize("name", configs)
def test_doubles_equal_peft(name):
    if name == "adamss":
        pytest.skip("PEFT multiplies its float factor with x")
    model, other = both(name, torch.float64)
    x, dy = torch.randn(7, 16, dtype=torch.float64), torch.randn(7, 16, dtype=torch.float64)
    y, dx, grads = step(model, x, dy)
    y2, dx2, grads2 = step(other, x, dy)
    # PEFT computes a part of these methods in float, or makes their frozen factors so.
    bound = 1e-5 if name in ("osf", "delora", "c3a", "deft", "fourierft", "waveft", "randlora") else 1e-9
    assert relative(y2, y) < bound and relative(dx2, dx) < bound
    for n in grads:
        assert relative(grads2[n], grads[n]) < bound, n


@pytest.mark.parametrize("name", configs)
def test_trained_weights_equal_peft(name):
    model, other = both(name)
    x, target = torch.randn(6, 16), torch.randn(6, 16)
    for m in (model, other):
        optimizer = torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.001)
        for _ in range(5):
            optimizer.zero_grad()
            (m(x) - target).square().mean().backward()
            optimizer.step()
    with torch.no_grad():
        assert relative(other.eval()(x), model.eval()(x)) < 1e-4
    for (n, p), q in zip(model.named_parameters(), other.parameters()):
        assert p.isfinite().all()
        assert relative(q.detach(), p.detach()) < 1e-4, n


@pytest.mark.parametrize("name", configs)
def test_evaluation_equals_the_merged_model(name):
    _, other = both(name, net=Net(second_bias=True))  # PEFT cannot merge a bias where there is none
    other.eval()
    x = torch.randn(4, 16)
    with torch.no_grad():
        y = other(x)
        merged = copy.deepcopy(other).merge_and_unload()
        assert not any("_graft" in m.__dict__ for m in merged.modules())
        assert relative(merged(x), y) < 1e-4


@pytest.mark.parametrize("name", ["lora", "dora", "oft", "boft", "hra", "ia3", "loha", "lokr", "vera", "miss", "hira"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_to_floats_as_peft(name, dtype):
    exact = make(name)
    model = copy.deepcopy(exact).to(dtype)
    exact.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    other = graft_torch.accelerate(copy.deepcopy(model))
    x, dy = torch.randn(9, 16).to(dtype), torch.randn(9, 16).to(dtype)
    y, dx, grads = step(exact, x.float(), dy.float())
    y2, dx2, grads2 = step(other, x, dy)
    assert y2.dtype == dtype and dx2.dtype == dtype
    bound = 0.03 if dtype == torch.bfloat16 else 0.004
    assert relative(y2, y) < bound and relative(dx2, dx) < bound
    for n in grads:
        assert grads2[n].dtype == dtype
        assert relative(grads2[n], grads[n]) < 2 * bound, n


def test_pvera_runs_its_mean_in_evaluation():
    model = peft.get_peft_model(Net(), peft.PveraConfig(target_modules=["first"], r=4, init_weights=False)).eval()
    other = graft_torch.accelerate(copy.deepcopy(model))
    x = torch.randn(4, 16)
    with torch.no_grad():
        assert relative(other(x), model(x)) < 1e-5
    said = graft_torch.report(other)["first"]
    assert said == "graft: pvera (PEFT in training, where the method samples)"


class Golden(torch.nn.Module):
    def __init__(self, weight, bias, transposed):
        super().__init__()
        if transposed:
            from transformers.pytorch_utils import Conv1D

            self.lin = Conv1D(weight.shape[1], weight.shape[0])
        else:
            self.lin = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        self.lin.weight.data = weight
        if bias is not None:
            self.lin.bias.data = bias

    def forward(self, x):
        return self.lin(x)


# Constrained OFT writes its parameters in every forward and stays with PEFT. Factors that PEFT makes of the base weight
# depend on its version, and are compared with PEFT's live ones above.
_not_golden = {"oft_coft", "pvera", "pvera_drawn", "frod", "frod_diagonal", "adamss", "adamss_dynamic"}
_cases = sorted(d.name for d in golden.iterdir() if d.name not in _not_golden) if golden.exists() else []


@pytest.mark.parametrize("case", _cases)
def test_saved_adapter_gives_the_golden_numbers(case):
    from safetensors.torch import load_file

    base = load_file(golden / case / "base.safetensors")
    if "lin.weight" not in base:
        pytest.skip("no linear layer")
    net = Golden(base["lin.weight"].clone(), base.get("lin.bias"), "transposed" in case)
    try:
        model = peft.PeftModel.from_pretrained(net, golden / case / "adapter", is_trainable=True)
    except (RuntimeError, ImportError) as e:
        pytest.skip(f"this PEFT does not read it: {str(e).splitlines()[0]}")
    graft_torch.accelerate(model)
    assert graft_torch.report(model)["lin"].startswith("graft: ")
    expected = load_file(golden / case / "expected.safetensors")
    y, dx, grads = step(model, expected["x"], expected["dy"])
    assert relative(y, expected["y"]) < 1e-4 and relative(dx, expected["dx"]) < 1e-4
    for n, g in grads.items():
        if f"grad.{n}" in expected:
            assert relative(g, expected[f"grad.{n}"]) < 1e-3, n
