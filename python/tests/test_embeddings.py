# SPDX-License-Identifier: Apache-2.0
"""Embeddings with LoRA, DoRA, HiRA and trainable tokens compute what PEFT computes, on accelerated layers."""

import copy

import peft
import pytest
import torch
from methods import golden, relative

import graft_torch

vocabulary, width = 20, 8
tables = ["table"]
configs = {
    "lora": peft.LoraConfig(target_modules=tables, r=4, lora_alpha=8, init_lora_weights=False),
    "dora": peft.LoraConfig(target_modules=tables, r=4, lora_alpha=8, use_dora=True, init_lora_weights=False),
    "hira": peft.HiraConfig(target_modules=tables, r=4, init_weights=False),
    "tokens": peft.TrainableTokensConfig(target_modules=tables, token_indices=[1, 7, 3, 19], init_weights=False),
}
devices = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not (torch.cuda.is_available() and graft_torch.ops.has_cuda_kernels()), reason="no GPU, or a build without CUDA"))]


class Net(torch.nn.Module):
    """A table, and a head that may share its weight."""

    def __init__(self, padding=None, tied=False):
        super().__init__()
        self.table = torch.nn.Embedding(vocabulary, width, padding_idx=padding)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)))

    def get_input_embeddings(self):
        return self.table


def make(config, device="cpu", dtype=torch.float32, **kw):
    model = peft.get_peft_model(Net(**kw), copy.deepcopy(config), autocast_adapter_dtype=False).to(device, dtype)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.05)
    return model


def step(model, ids, dy):
    model.zero_grad()
    y = model(ids)
    y.backward(dy)
    return y.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def lines(model, *, graft=True):
    said = graft_torch.report(model)
    assert all(s.startswith("graft: ") and "last call" not in s for s in said.values()) == graft, said
    return said


@pytest.mark.parametrize("device", devices)
@pytest.mark.parametrize("padding", [None, 7])
@pytest.mark.parametrize("name", configs)
def test_forward_and_gradients_equal_peft(name, padding, device):
    model = make(configs[name], device, padding=padding)
    other = graft_torch.accelerate(copy.deepcopy(model))
    for shape in ((3, 5), (40,), (2, 1, 3)):
        ids = torch.randint(0, vocabulary, shape, device=device)
        ids.reshape(-1)[0] = 7
        dy = torch.randn(*shape, vocabulary, device=device)
        y, grads = step(model, ids, dy)
        y2, grads2 = step(other, ids, dy)
        assert y2.shape == y.shape and y2.dtype == y.dtype
        assert relative(y2, y) < 1e-5
        assert grads.keys() == grads2.keys() and len(grads) > 0
        for n in grads:
            assert relative(grads2[n], grads[n]) < 1e-4, n
    y2, _ = step(other, ids.int(), dy)
    assert relative(y2, y) < 1e-5
    lines(other)


@pytest.mark.parametrize("name", configs)
def test_trained_weights_equal_peft(name):
    model = make(configs[name])
    other = graft_torch.accelerate(copy.deepcopy(model))
    ids, target = torch.randint(0, vocabulary, (6, 3)), torch.randn(6, 3, vocabulary)
    for m in (model, other):
        optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=0.01, fused=True)
        for _ in range(5):
            optimizer.zero_grad()
            (m(ids) - target).square().mean().backward()
            optimizer.step()
    with torch.no_grad():
        assert relative(other.eval()(ids), model.eval()(ids)) < 1e-4
    for (n, p), q in zip(model.named_parameters(), other.parameters()):
        assert relative(q.detach(), p.detach()) < 1e-4, n


@pytest.mark.parametrize("name", configs)
def test_merging_disabling_and_unmerging(name):
    model = make(configs[name]).eval()
    other = graft_torch.accelerate(copy.deepcopy(model))
    ids = torch.randint(0, vocabulary, (4, 3))
    with torch.no_grad():
        y = model(ids)
        with other.disable_adapter(), model.disable_adapter():
            assert relative(other(ids), model(ids)) < 1e-6
        other.merge_adapter()
        assert relative(other(ids), y) < 1e-4
        other.unmerge_adapter()
        assert relative(other(ids), y) < 1e-4
        assert relative(copy.deepcopy(other).merge_and_unload()(ids), y) < 1e-4
    lines(other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", configs)
def test_other_types(name, dtype):
    exact = make(configs[name])
    model = copy.deepcopy(exact).to(dtype)
    exact.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    other = graft_torch.accelerate(copy.deepcopy(model))
    ids, dy = torch.randint(0, vocabulary, (9,)), torch.randn(9, vocabulary).to(dtype)
    y, grads = step(exact, ids, dy.float())
    y2, grads2 = step(other, ids, dy)
    bound = {torch.float64: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.004}[dtype]
    assert y2.dtype == dtype and relative(y2, y) < bound
    for n in grads:
        assert grads2[n].dtype == dtype and relative(grads2[n], grads[n]) < 2 * bound, n


def test_mixed_batches_and_several_active_adapters():
    model = make(configs["lora"])
    model.add_adapter("second", peft.LoraConfig(target_modules=tables, r=2, init_lora_weights=False))
    model.eval()
    other = graft_torch.accelerate(copy.deepcopy(model))
    ids = torch.randint(0, vocabulary, (4, 3))
    names = ["default", "__base__", "second", "default"]
    with torch.no_grad():
        assert relative(other(ids, adapter_names=names), model(ids, adapter_names=names)) < 1e-5
        for m in (model, other):
            m.base_model.set_adapter(["default", "second"])
        assert relative(other(ids), model(ids)) < 1e-5
        assert lines(other) == {"table": "graft: lora_embedding, lora_embedding"}


def test_tokens_beside_lora_and_on_a_tied_head():
    config = peft.LoraConfig(target_modules=["other"], r=2, trainable_token_indices={"table": [2, 5, 11]})

    class Tied(Net):
        _tied_weights_keys = {"head.weight": "table.weight"}

        def __init__(self):
            super().__init__(tied=True)
            self.other = torch.nn.Linear(width, width)
            self.config = type("Config", (dict,), {"to_dict": dict})(tie_word_embeddings=True)

        def forward(self, ids):
            return self.head(self.other(self.table(ids)))

        def get_output_embeddings(self):
            return self.head

    model = peft.get_peft_model(Tied(), config)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
    other = graft_torch.accelerate(copy.deepcopy(model))
    ids, dy = torch.tensor([[2, 3, 5], [11, 2, 0]]), torch.randn(2, 3, vocabulary)
    y, grads = step(model, ids, dy)
    y2, grads2 = step(other, ids, dy)
    assert relative(y2, y) < 1e-5
    for n in grads:
        assert relative(grads2[n], grads[n]) < 1e-4, n
    said = lines(other)
    assert said["table.token_adapter"] == "graft: trainable_tokens" and said["other"] == "graft: lora"


@pytest.mark.parametrize("name", configs)
def test_compile_without_a_graph_break(name):
    torch._dynamo.reset()
    model = make(configs[name], padding=7)
    other = graft_torch.accelerate(copy.deepcopy(model))
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    ids, dy = torch.randint(0, vocabulary, (4, 3)), torch.randn(4, 3, vocabulary)
    ids[0, 0] = 7
    y, grads = step(model, ids, dy)
    other.zero_grad()
    y2 = compiled(ids)
    y2.backward(dy)
    assert relative(y2.detach(), y) < 1e-5
    for n, p in other.named_parameters():
        if n in grads:
            assert relative(p.grad, grads[n]) < 1e-4, n


def test_what_stays_with_peft():
    net = Net()
    net.table = torch.nn.Embedding(vocabulary, width, max_norm=1.0)
    other = graft_torch.accelerate(peft.get_peft_model(net, copy.deepcopy(configs["lora"])))
    assert graft_torch.report(other)["table"] == "PEFT: the embedding has max_norm"
    several = make(configs["tokens"])
    several.add_adapter("second", peft.TrainableTokensConfig(target_modules=tables, token_indices=[2]))
    several.base_model.set_adapter(["default", "second"])
    several.base_model.model.table.set_adapter(["default", "second"])
    said = graft_torch.report(graft_torch.accelerate(several))["table"]
    assert said.startswith("PEFT: several active adapters add up for ")


def test_an_index_that_the_table_does_not_have_is_an_exception():
    other = graft_torch.accelerate(make(configs["lora"]))
    with pytest.raises((RuntimeError, IndexError), match="20"):
        other(torch.tensor([1, vocabulary]))


@pytest.mark.parametrize("case", ["lora_embedding", "dora_embedding", "hira_embedding"])
def test_saved_adapter_gives_the_golden_numbers(case):
    from safetensors.torch import load_file

    if not (golden / case).exists():
        pytest.skip("the golden layers are not here")
    base, expected = load_file(golden / case / "base.safetensors"), load_file(golden / case / "expected.safetensors")
    (key,) = (k for k in base if k.endswith(".weight"))

    class Golden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(key.removesuffix(".weight"), torch.nn.Embedding.from_pretrained(base[key].clone()))

        def forward(self, ids):
            return getattr(self, key.removesuffix(".weight"))(ids)

    model = graft_torch.accelerate(peft.PeftModel.from_pretrained(Golden(), golden / case / "adapter", is_trainable=True))
    y, grads = step(model, expected["x"].long(), expected["dy"])
    assert relative(y, expected["y"].reshape(y.shape)) < 1e-4
    found = 0
    for n, g in grads.items():
        if f"grad.{n}" in expected:
            found += 1
            assert relative(g, expected[f"grad.{n}"]) < 1e-3, n
    assert found > 0
    lines(model)
