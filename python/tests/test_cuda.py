# SPDX-License-Identifier: Apache-2.0
"""PEFT's models on CUDA: the values of every method, types, autocast, torch.compile, and what stays with PEFT."""

import copy

import peft
import pytest
import torch
from methods import configs, make, relative, step

import graft_torch
from graft_torch._operators import has_cuda_kernels

pytestmark = [pytest.mark.skipif(not has_cuda_kernels, reason="this build of graft_torch has no operators for CUDA"),
              pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]


class Net(torch.nn.Module):
    """Two linear layers of sizes that tiles divide, the second without a bias."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 128)
        self.second = torch.nn.Linear(128, 64, bias=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def both(name, dtype=torch.float32, net=Net):
    """The same model on CUDA, on PEFT's forward and on graft's."""
    model = make(name, dtype, net()).cuda()
    return model, graft_torch.accelerate(copy.deepcopy(model))


def taken(model):
    return all(line.startswith("graft: ") and "last call" not in line for line in graft_torch.report(model).values())


def skip_where_peft_stays(model):
    for line in graft_torch.report(model).values():
        if not line.startswith("graft: "):
            pytest.skip(line)


@pytest.mark.parametrize("name", configs)
def test_forward_and_gradients_equal_peft(name):
    model, other = both(name)
    skip_where_peft_stays(other)
    for shape in ((3, 5, 64), (200, 64)):
        x, dy = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")
        y, dx, grads = step(model, x, dy)
        y2, dx2, grads2 = step(other, x, dy)
        assert y2.shape == y.shape and y2.dtype == y.dtype
        assert relative(y2, y) < 1e-5 and relative(dx2, dx) < 1e-5
        assert grads.keys() == grads2.keys()
        for n in grads:
            assert relative(grads2[n], grads[n]) < 1e-4, n
    assert taken(other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["lora", "lora_bias", "rslora", "dora", "ia3", "loha", "lokr", "vera", "miss", "oft", "boft",
                                  "hra", "delora", "road_1", "adalora"])
def test_narrow_types(name, dtype):
    model, other = both(name, dtype)
    skip_where_peft_stays(other)
    x, dy = (torch.randn(48, 64, device="cuda", dtype=dtype) for _ in range(2))
    wide = copy.deepcopy(model).float()
    try:
        theirs = step(model, x, dy)
    except RuntimeError as e:
        pytest.skip(f"PEFT in {dtype}: {e}")
    y, dx, grads = step(wide, x.float(), dy.float())
    y2, dx2, grads2 = step(other, x, dy)
    assert taken(other)
    pairs = [(y2, theirs[0], y), (dx2, theirs[1], dx), *((grads2[n], theirs[2][n], grads[n]) for n in grads)]
    for k, (a, b, r) in enumerate(pairs):
        assert a.dtype == b.dtype
        assert relative(a, r) <= max(3 * relative(b, r), 4 * torch.finfo(dtype).eps), k


@pytest.mark.parametrize("name", ["lora", "dora", "oft"])
def test_fused_optimizers(name):
    models = both(name)
    x, target = torch.randn(32, 64, device="cuda"), torch.randn(32, 64, device="cuda")
    losses = []
    for m in models:
        optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=0.01, fused=True)
        of = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = (m(x) - target).square().mean()
            loss.backward()
            optimizer.step()
            of.append(loss.item())
            with torch.no_grad():
                of.append(m(x).square().mean().item())
        losses.append(torch.tensor(of))
    assert relative(losses[1], losses[0]) < 1e-4
    assert losses[0][0] > losses[0][-2] and taken(models[1])


@pytest.mark.parametrize("name", ["lora", "dora"])
def test_autocast(name):
    model, other = both(name, torch.bfloat16)
    x, dy = torch.randn(24, 64, device="cuda"), torch.randn(24, 64, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", torch.bfloat16):
        theirs, ours = step(model, x, dy), step(other, x, dy)
    wide = step(copy.deepcopy(model).float(), x, dy.float())
    assert taken(other) and ours[0].dtype == theirs[0].dtype
    for a, b, r in zip(ours[:2], theirs, wide):
        assert relative(a, r) <= max(3 * relative(b, r), 4 * torch.finfo(torch.bfloat16).eps)
    model, other = both(name)
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(other(x), model(x))
    assert "autocast computes in torch.bfloat16 and the weight is torch.float32" in graft_torch.report(other)["first"]


@pytest.mark.parametrize("name", ["lora", "dora"])
def test_dropout_in_training_draws_the_numbers_of_peft(name):
    config = peft.LoraConfig(target_modules=["first", "second"], r=4, lora_dropout=0.3, use_dora=name == "dora",
                             init_lora_weights=False)
    model = peft.get_peft_model(Net(), config).cuda()
    other = graft_torch.accelerate(copy.deepcopy(model))
    x, dy = torch.randn(24, 64, device="cuda"), torch.randn(24, 64, device="cuda")
    results = []
    for m in (model, other):
        torch.manual_seed(3)
        results.append(step(m, x, dy))
    (y, dx, grads), (y2, dx2, grads2) = results
    assert relative(y2, y) < 1e-5 and relative(dx2, dx) < 1e-5
    for n in grads:
        assert relative(grads2[n], grads[n]) < 1e-4, n
    assert taken(other)


def test_mixed_batches():
    models = []
    for seed in (5, 5):
        torch.manual_seed(seed)
        model = peft.get_peft_model(Net(), copy.deepcopy(configs["lora"]))
        model.add_adapter("other", peft.LoraConfig(target_modules=["second"], r=2, init_lora_weights=False))
        models.append(model.cuda().eval())
    graft_torch.accelerate(models[1])
    x = torch.randn(5, 3, 64, device="cuda")
    names = ["default", "__base__", "other", "other", "default"]
    a, b = (m(x, adapter_names=names).detach() for m in models)
    assert relative(b, a) < 1e-5 and taken(models[1])


def test_models_that_move():
    model, other = both("vera")
    x = torch.randn(6, 64, device="cuda")
    for device in ("cuda", "cpu", "cuda"):
        for m in (model, other):
            m.to(device).eval()
        with torch.no_grad():
            assert relative(other(x.to(device)), model(x.to(device))) < 1e-5
        assert taken(other)
    with pytest.raises(RuntimeError):  # PEFT's own error
        other(x.cpu())
    assert "x is on cpu and the weight is on cuda" in graft_torch.report(other)["first"]


def test_what_stays_with_peft():
    for dtype, sentence in ((torch.float64, "compute in float32, bfloat16 and float16"), (torch.float32, None)):
        model, other = both("lora", dtype)
        x = torch.randn(6, 64, device="cuda", dtype=dtype)
        assert relative(other(x).detach(), model(x).detach()) < 1e-5
        line = graft_torch.report(other)["first"]
        assert line == "graft: lora" if sentence is None else line.startswith("PEFT: ") and sentence in line


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", ["lora", "dora"])
def test_compiled(name, mode):
    model, other = both(name, torch.bfloat16)
    x, dy = (torch.randn(16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(other, fullgraph=True, mode=mode)
    wide = copy.deepcopy(model).float()
    for k in range(4):
        for m in (model, other, wide):
            with torch.no_grad():
                for p in m.parameters():
                    if p.requires_grad:
                        p.mul_(1.0 + 0.25 * (k % 2))
            m.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        theirs, y = step(model, x, dy), step(wide, x.float(), dy.float())
        v = x.clone().requires_grad_()
        out = compiled(v)
        out.backward(dy)
        ours = [out.detach().clone(), v.grad.clone()]
        for a, b, r in zip(ours, theirs, y):
            assert relative(a, r) <= max(3 * relative(b, r), 4 * torch.finfo(torch.bfloat16).eps), k


def test_compiled_decoding_in_captured_graphs():
    model, other = both("dora", torch.bfloat16)
    model.eval(), other.eval()
    torch._dynamo.reset()
    compiled = torch.compile(other, fullgraph=True, mode="reduce-overhead")
    wide = copy.deepcopy(model).float()
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(1, 64, device="cuda", dtype=torch.bfloat16)
            torch.compiler.cudagraph_mark_step_begin()
            a, b, r = compiled(x).clone(), model(x), wide(x.float())
            assert relative(a, r) <= max(3 * relative(b, r), 4 * torch.finfo(torch.bfloat16).eps)
