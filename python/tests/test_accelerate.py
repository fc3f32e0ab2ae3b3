# SPDX-License-Identifier: Apache-2.0
"""What PEFT does with its layers works on after accelerate(): switching, merging, disabling, saving, hooks."""

import copy
import io

import peft
import pytest
import torch
from methods import Net, configs, make, relative, step

import graft_torch
from graft_torch import _accelerate


class Calls:
    count = 0


@pytest.fixture
def calls(monkeypatch):
    """Counts the layers that graft computes."""
    counted, run = Calls(), _accelerate.adapted_linear

    def call(*args):
        counted.count += 1
        return run(*args)

    monkeypatch.setattr(_accelerate, "adapted_linear", call)
    return counted


def pair(name="lora", **kw):
    model = make(name, **kw)
    other = copy.deepcopy(model)
    return model, graft_torch.accelerate(other)


x = torch.randn(4, 16)


def same(a, b, bound=1e-5):
    return relative(a(x).detach(), b(x).detach()) < bound


def test_nothing_but_forward_changes(calls):
    model, other = pair()
    assert [n for n, _ in model.named_modules()] == [n for n, _ in other.named_modules()]
    assert [type(m) for m in model.modules()] == [type(m) for m in other.modules()]
    assert model.state_dict().keys() == other.state_dict().keys()
    assert peft.get_peft_model_state_dict(model).keys() == peft.get_peft_model_state_dict(other).keys()
    assert str(model) == str(other)
    assert same(model, other) and calls.count == 2


def test_restore_undoes_it(calls):
    _, other = pair()
    graft_torch.restore(other)
    other(x)
    assert calls.count == 0
    assert not any({"_graft", "forward"} & m.__dict__.keys() for m in other.modules())
    assert set(graft_torch.report(other).values()) == {"PEFT: call accelerate()"}


def test_twice_is_once(calls):
    _, other = pair()
    graft_torch.accelerate(other)
    other(x)
    assert calls.count == 2


def test_both_forms_of_the_vector_of_tinylora(calls):
    model, other = pair("tinylora")
    for layer in (other.base_model.model.first, other.base_model.model.second):
        held = layer.tinylora_v["default"]
        vector = getattr(layer, "_tinylora_v_ref", {}).get("default")
        key = layer._tinylora_v_key["default"] if vector is None else next(k for k, v in held.items() if v is vector)
        for name, value in (("_tinylora_v_key", key), ("_tinylora_v_ref", held[key])):
            kept = {n: layer.__dict__.pop(n) for n in ("_tinylora_v_key", "_tinylora_v_ref") if n in layer.__dict__}
            setattr(layer, name, {"default": value})
            graft_torch.accelerate(graft_torch.restore(other))
            assert set(graft_torch.report(other).values()) == {"graft: tinylora"}
            assert same(model, other)
            del layer.__dict__[name]
            layer.__dict__.update(kept)
    assert calls.count == 8


def test_a_layer_in_an_unknown_form_stays_with_peft(calls):
    model = make("tinylora")
    first = model.base_model.model.first
    for name in ("_tinylora_v_key", "_tinylora_v_ref"):
        first.__dict__.pop(name, None)
    lines = list(graft_torch.report(graft_torch.accelerate(model)).values())
    assert lines[0].startswith("PEFT: the module of this release of PEFT holds its tensors in another form: ")
    assert lines[1] == "graft: tinylora"


def test_a_model_without_adapters_is_refused():
    with pytest.raises(ValueError, match="no adapters of PEFT"):
        graft_torch.accelerate(Net())


def test_disabling(calls):
    model, other = pair()
    with model.disable_adapter(), other.disable_adapter():
        assert same(model, other) and calls.count == 0
    assert same(model, other) and calls.count == 2


@pytest.mark.parametrize("name", ["lora", "dora", "oft", "ia3", "loha"])
def test_merging_and_unmerging(calls, name):
    model, other = pair(name)
    y = other(x).detach()
    n = calls.count
    other.merge_adapter()
    assert relative(other(x).detach(), y) < 1e-4 and calls.count == n
    other.unmerge_adapter()
    assert relative(other(x).detach(), y) < 1e-4 and calls.count == 2 * n
    assert same(model, other, 1e-4)


def test_switching_adapters(calls):
    models = pair()
    for m in models:
        torch.manual_seed(1)
        m.add_adapter("other", copy.deepcopy(configs["dora"]))
    for name in ("other", "default", "other"):
        for m in models:
            m.set_adapter(name)
        assert same(*models)
    assert calls.count == 6


def test_an_adapter_of_the_same_name_is_a_new_one(calls):
    models = pair()
    for m in models:
        torch.manual_seed(1)
        m.add_adapter("other", copy.deepcopy(configs["dora"]))
        m.set_adapter("other")
    assert same(*models)
    for m in models:
        m.set_adapter("default")
        m.delete_adapter("other")
        torch.manual_seed(2)
        m.add_adapter("other", peft.LoraConfig(target_modules=["first", "second"], r=2, init_lora_weights=False))
        m.set_adapter("other")
    assert same(*models) and calls.count == 4


@pytest.mark.parametrize("name", ["lora", "loha", "lokr", "vera"])
def test_several_active_adapters(calls, name):
    models = pair(name)
    for m in models:
        torch.manual_seed(1)
        config = copy.deepcopy(configs[name])
        m.add_adapter("other", config)
        m.base_model.set_adapter(["default", "other"])
    x, dy = torch.randn(5, 16), torch.randn(5, 16)
    (y, dx, grads), (y2, dx2, grads2) = (step(m, x, dy) for m in models)
    assert relative(y2, y) < 1e-5 and relative(dx2, dx) < 1e-5
    assert grads.keys() == grads2.keys()
    for n in grads:
        assert relative(grads2[n], grads[n]) < 1e-4, n
    assert calls.count == 2
    for m in models:
        m.base_model.set_adapter(["other"])
    assert same(*models)


def test_several_active_rotations_stay_with_peft(calls):
    models = pair("oft")
    for m in models:
        torch.manual_seed(1)
        m.add_adapter("other", copy.deepcopy(configs["oft"]))
        m.base_model.set_adapter(["default", "other"])
    assert same(*models) and calls.count == 0
    assert "add up" in graft_torch.report(models[1])["first"]


def with_adapters(name="lora"):
    """Models with the adapters default, other and wide, the last one on the first layer alone."""
    models = pair(name)
    for m in models:
        torch.manual_seed(1)
        m.add_adapter("other", copy.deepcopy(configs["lora_bias" if name == "lora_bias" else "lora"]))
        m.add_adapter("wide", peft.LoraConfig(target_modules=["first"], r=7, use_rslora=True, init_lora_weights=False))
        m.eval()
    return models


mixed = ["__base__", "wide", "default", "other", "default", "other", "wide"]


@pytest.mark.parametrize("name", ["lora", "lora_bias"])
@pytest.mark.parametrize("shape", [(7, 16), (7, 3, 16)])
def test_mixed_batches(name, shape, calls):
    models = with_adapters(name)
    inputs = torch.randn(shape)
    for names in (mixed, mixed[::-1], ["default"] * 7, ["__base__"] * 7):
        a, b = (m(inputs, adapter_names=names).detach() for m in models)
        assert relative(b, a) < 1e-5
    assert calls.count == 2 * (3 + 2) + 2
    for k, n in enumerate(mixed):  # each entry is what it is alone
        alone = models[1](inputs[k:k + 1], adapter_names=[n]).detach()
        assert relative(models[1](inputs, adapter_names=mixed)[k:k + 1].detach(), alone) < 1e-5
    assert all("last call" not in line for line in graft_torch.report(models[1]).values())


def test_mixed_batches_follow_what_changes(calls):
    models = with_adapters()
    inputs = torch.randn(7, 16)

    def agree():
        a, b = (m(inputs, adapter_names=mixed).detach() for m in models)
        return relative(b, a) < 1e-5

    assert agree()
    for m in models:
        with torch.no_grad():
            for n, p in m.named_parameters():
                if ".other." in n:
                    p.mul_(1.2)
        m.base_model.model.first.set_scale("default", 3.0)
    assert agree()
    for m in models:
        m.delete_adapter("wide")
        torch.manual_seed(4)
        m.add_adapter("wide", peft.LoraConfig(target_modules=["second"], r=2, init_lora_weights=False))
        m.eval()
    assert agree() and calls.count == 5 + 5 + 5
    for m in models:
        m.set_adapter("other")
    assert agree() and same(*models)


def test_mixed_batches_have_gradients(calls):
    models = with_adapters()
    grads = []
    for m in models:
        m.requires_grad_(False)
        for n, p in m.named_parameters():
            p.requires_grad_("lora" in n)
        v = torch.randn(7, 16, generator=torch.Generator().manual_seed(4)).requires_grad_()
        m(v, adapter_names=mixed).square().sum().backward()
        grads.append([v.grad] + [p.grad for p in m.parameters() if p.grad is not None])
    assert len(grads[0]) == len(grads[1]) > 7
    for a, b in zip(*grads):
        assert relative(b, a) < 1e-4


def test_mixed_batches_that_stay_with_peft(calls):
    models = with_adapters()
    for m in models:
        for call, sentence in ((lambda: m(x, adapter_names=["default"]), "same as the number of inputs"),
                               (lambda: m(x, adapter_names=["absent"] * 4), "non-existing")):
            with pytest.raises(ValueError, match=sentence):
                call()
        m.merge_adapter()
        with pytest.raises(ValueError, match="merged"):
            m(x, adapter_names=["default"] * 4)
        m.unmerge_adapter()
        m.train()
        with pytest.raises(ValueError, match="training"):
            m(x, adapter_names=["default"] * 4)
        m.eval()
    handle = models[1].base_model.model.first.lora_A["default"].register_forward_hook(lambda m, i, o: None)
    count = calls.count
    a, b = (m(x, adapter_names=["default"] * 4).detach() for m in models)
    assert relative(b, a) < 1e-5 and calls.count == count + 1
    assert "adapter 'default' of a mixed batch: a module inside the layer has hooks" in (
        graft_torch.report(models[1])["first"])
    handle.remove()
    for m in models:
        m.add_adapter("dora", copy.deepcopy(configs["dora"]))
        m.eval()
        with pytest.raises(ValueError, match="DoRA"):
            m(x, adapter_names=["dora"] * 4)


def test_mixed_generation():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64))
    config = peft.LoraConfig(target_modules=["q_proj", "down_proj"], r=4, init_lora_weights=False,
                             task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    model.add_adapter("other", copy.deepcopy(config))
    other = graft_torch.accelerate(copy.deepcopy(model))
    model.eval(), other.eval()
    prompt = torch.randint(0, 64, (3, 5))
    settings = {"adapter_names": ["default", "__base__", "other"], "max_new_tokens": 8, "do_sample": False,
                "pad_token_id": 0}
    assert torch.equal(other.generate(prompt, **settings), model.generate(prompt, **settings))


@pytest.mark.parametrize("way", ["linear", "cat", "svd"])
def test_weighted_combinations(way, calls):
    """An adapter that is made of others after accelerate()."""
    models = pair()
    for m in models:
        torch.manual_seed(1)
        m.add_adapter("other", copy.deepcopy(configs["lora"]))
        m.add_weighted_adapter(["default", "other"], [0.7, 0.4], "both", combination_type=way)
        m.set_adapter("both")
    assert same(*models, 1e-4) and calls.count == 2
    a, b = (m.eval()(x, adapter_names=["both", "default", "other", "both"]).detach() for m in models)
    assert relative(b, a) < 1e-4 and calls.count == 2 + 6


def test_merging_one_of_several(calls):
    models = pair()
    for m in models:
        torch.manual_seed(1)
        m.add_adapter("other", copy.deepcopy(configs["lora"]))
        m.base_model.set_adapter(["default", "other"])
    before = models[1](x).detach()
    for m in models:
        m.merge_adapter(["other"])
    assert same(*models)
    with models[0].disable_adapter(), models[1].disable_adapter():
        assert same(*models)
    for m in models:
        if any(layer.merged for layer in (m.base_model.model.first, m.base_model.model.second)):
            m.unmerge_adapter()
    assert same(*models) and relative(models[1](x).detach(), before) < 1e-4


def test_scaling_may_change(calls):
    models = pair()
    for change in (lambda l: l.set_scale("default", 3.0), lambda l: l.scale_layer(0.5), lambda l: l.unscale_layer()):
        for m in models:
            change(m.base_model.model.first)
        assert same(*models)
    assert calls.count == 6


def test_weights_may_change(calls):
    """Writing and replacing parameters of the adapter and of the base, with and without gradients."""
    models = pair("dora")
    for change in (lambda p: p.mul_(1.1), lambda p: p.copy_(p * 0.9), lambda p: setattr(p, "data", p.data * 1.2)):
        for part in ("lora_A", "lora_B", "lora_magnitude", "base_layer"):
            for m in models:
                with torch.no_grad():
                    for n, p in m.named_parameters():
                        if part in n:
                            change(p)
            assert same(*models)
            with torch.no_grad():
                assert same(*models)


def test_fused_optimizers(calls):
    """They write parameters without counting it."""
    models = pair("dora")
    for m in models:
        optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=0.01, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            m(x).square().sum().backward()
            optimizer.step()
    assert same(*models, 1e-3)
    with torch.no_grad():
        for m in models:
            for n, p in m.named_parameters():
                if "lora" in n:
                    p.data.mul_(1.2)
        assert same(*models, 1e-3)


def with_dropout(name, rate=0.3, **kw):
    """A model on PEFT's forward and on graft's, whose adapters drop inputs in training."""
    config = copy.deepcopy(configs[name])
    setattr(config, f"{name}_dropout" if name in ("vera", "randlora") else "lora_dropout", rate)
    model = peft.get_peft_model(Net(), config, **kw)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.05)
    return model.train(), graft_torch.accelerate(copy.deepcopy(model)).train()


def seeded_step(model, x, dy):
    torch.manual_seed(3)
    return step(model, x, dy)


def equal_steps(models, x, dy, bound=1e-5):
    (y, dx, grads), (y2, dx2, grads2) = (seeded_step(m, x, dy) for m in models)
    assert y2.dtype == y.dtype and relative(y2, y) < bound and relative(dx2, dx) < bound
    assert grads.keys() == grads2.keys()
    for n in grads:
        assert relative(grads2[n], grads[n]) < 10 * bound, n
    return y2


@pytest.mark.parametrize("name", ["lora", "rslora", "lora_bias", "lora_trained_bias", "lora_pattern", "dora", "adalora",
                                  "vera", "randlora"])
def test_dropout_in_training_draws_the_numbers_of_peft(name, calls):
    models = with_dropout(name)
    inputs, dy = torch.randn(3, 5, 16), torch.randn(3, 5, 16)
    y = equal_steps(models, inputs, dy)
    assert calls.count == 2
    assert all("PEFT" not in line for line in graft_torch.report(models[1]).values())
    other_draw = models[1](inputs)
    assert relative(other_draw.detach(), y) > 1e-3
    for m in models:
        m.eval()
    assert same(*models) and same(models[1], models[1]) and relative(models[1](inputs).detach(), y) > 1e-3


@pytest.mark.parametrize("name", ["lora", "dora", "vera"])
def test_dropout_of_rate_0(name, calls):
    models = with_dropout(name, 0.0)
    equal_steps(models, torch.randn(5, 16), torch.randn(5, 16))
    assert calls.count == 2


@pytest.mark.parametrize("name", ["lora", "dora"])
def test_dropout_in_front_of_adapters_of_a_wider_type(name, calls):
    """As get_peft_model() makes them: the base in bf16, the adapters in float."""
    torch.manual_seed(1)
    models = with_dropout(name)
    for m in models:
        for layer in (m.base_model.model.first, m.base_model.model.second):
            layer.base_layer.to(torch.bfloat16)
    inputs = torch.randn(9, 16).bfloat16()
    exact = copy.deepcopy(models[0]).float()
    outs = []
    for m, x in ((exact, inputs.float()), (models[0], inputs), (models[1], inputs)):
        torch.manual_seed(3)
        outs.append(m.base_model.model.first(x).detach())
    assert outs[2].dtype == outs[1].dtype == torch.bfloat16
    assert relative(outs[2], outs[0]) < 0.01 and relative(outs[1], outs[0]) < 0.01
    assert calls.count == 1


def test_dropout_of_several_active_adapters(calls):
    models = with_dropout("lora")
    for m in models:
        torch.manual_seed(1)
        config = copy.deepcopy(configs["lora"])
        config.lora_dropout = 0.6
        m.add_adapter("other", config)
        torch.manual_seed(2)
        m.add_adapter("whole", copy.deepcopy(configs["lora"]))
        m.base_model.set_adapter(["default", "other", "whole"])
        m.train()
    equal_steps(models, torch.randn(5, 16), torch.randn(5, 16))
    assert calls.count == 6


def test_dropout_follows_written_parameters_and_scaling(calls):
    models = with_dropout("lora")
    inputs, dy = torch.randn(5, 16), torch.randn(5, 16)
    for _ in range(3):
        equal_steps(models, inputs, dy)
        for m in models:
            with torch.no_grad():
                for n, p in m.named_parameters():
                    if "lora" in n:
                        p.mul_(1.1)
            m.base_model.model.first.scale_layer(0.7)
    assert calls.count == 6


def check_gradients_with_checkpointing(model, other, reentrant):
    """The gradients of `other` under gradient checkpointing are those of `model` without, from the same seed."""
    from torch.utils.checkpoint import checkpoint

    grads = []
    for m, run in ((model, lambda m, v: m(v)), (other, lambda m, v: checkpoint(m, v, use_reentrant=reentrant))):
        torch.manual_seed(5)
        v = x.clone().requires_grad_()
        run(m, v).square().sum().backward()
        grads.append([v.grad] + [p.grad for p in m.parameters() if p.grad is not None])
    for a, b in zip(*grads):
        assert relative(b, a) < 1e-4


def test_dropout_with_gradient_checkpointing(calls):
    check_gradients_with_checkpointing(*with_dropout("lora"), reentrant=False)
    assert calls.count == 4


@pytest.mark.parametrize("name", ["lora", "dora"])
def test_dropout_compiles_without_a_graph_break(name):
    torch._dynamo.reset()
    model, other = with_dropout(name)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    torch.manual_seed(6)
    a = model(x)
    torch.manual_seed(6)
    b = compiled(x)
    assert relative(b.detach(), a.detach()) < 1e-5


def test_a_dropout_of_another_kind_stays_with_peft(calls):
    config = copy.deepcopy(configs["loha"])
    config.module_dropout = 0.5
    model = peft.get_peft_model(Net(), config).train()
    other = graft_torch.accelerate(copy.deepcopy(model))
    torch.manual_seed(3)
    a = model(x)
    torch.manual_seed(3)
    assert relative(other(x).detach(), a.detach()) < 1e-6 and calls.count == 0
    assert "LOHA has a dropout of its own" in graft_torch.report(other)["first"]
    model.eval(), other.eval()
    assert same(model, other) and calls.count == 2


def test_hooks(calls):
    model, other = pair()
    seen = []
    layer = other.base_model.model.first
    handle = layer.register_forward_hook(lambda m, i, o: seen.append("layer"))
    other(x)
    assert seen == ["layer"] and calls.count == 2
    inner = layer.lora_A["default"].register_forward_hook(lambda m, i, o: seen.append("inner"))
    assert same(model, other)
    assert seen == ["layer", "inner", "layer"] and calls.count == 3
    assert "hooks" in graft_torch.report(other)["first"]
    handle.remove(), inner.remove()
    other(x)
    assert calls.count == 5


def test_a_trained_base_stays_with_peft(calls):
    model, other = pair()
    for m in (model, other):
        m.base_model.model.first.base_layer.weight.requires_grad_()
    x, dy = torch.randn(5, 16), torch.randn(5, 16)
    (_, _, grads), (_, _, grads2) = (step(m, x, dy) for m in (model, other))
    assert grads.keys() == grads2.keys()
    assert calls.count == 1


def test_other_devices_and_types_say_so():
    _, other = pair()
    with pytest.raises(RuntimeError):
        other(x.double())  # as in PEFT
    other.to("meta")
    assert other(x.to("meta")).shape == (4, 16)


def test_saving_and_loading(tmp_path, calls):
    model, other = pair("dora")
    other.save_pretrained(tmp_path)
    torch.manual_seed(0)
    base = Net()
    base.load_state_dict({k.removeprefix("base_model.model.").replace(".base_layer", ""): v
                          for k, v in model.state_dict().items() if "lora" not in k})
    again = graft_torch.accelerate(peft.PeftModel.from_pretrained(base, tmp_path))
    assert same(model, again)


def test_copies(calls):
    model, other = pair("dora")
    other(x)
    twin = copy.deepcopy(other)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(1.1)
        for p in model.parameters():
            p.mul_(1.1)
    assert same(model, twin) and not same(model, other, 1e-3)
    file = io.BytesIO()
    torch.save(twin, file)
    file.seek(0)
    assert same(model, torch.load(file, weights_only=False))


def test_autocast(calls):
    model, other = pair()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = model(x), other(x)
        assert a.dtype == b.dtype == torch.bfloat16
        b.float().sum().backward()
    assert relative(b.detach(), a.detach()) < 0.05 and calls.count == 2
    assert all(p.grad.dtype == torch.float32 for p in other.parameters() if p.requires_grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant, calls):
    check_gradients_with_checkpointing(*pair("dora"), reentrant)
    assert calls.count == 4


@pytest.mark.parametrize("name", ["lora", "dora", "oft", "boft", "hra", "ia3", "loha", "lokr", "vera", "miss", "hira"])
def test_compile_without_a_graph_break(name):
    torch._dynamo.reset()  # another model is a recompilation of the same code
    model, other = pair(name)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    v = torch.randn(3, 5, 16, requires_grad=True)
    a = model(v)
    a.square().sum().backward()
    dx, v.grad = v.grad.clone(), None
    b = compiled(v)
    b.square().sum().backward()
    assert relative(b.detach(), a.detach()) < 1e-5 and relative(v.grad, dx) < 1e-4
    for p, q in zip(model.parameters(), other.parameters()):
        if p.grad is not None:
            assert relative(q.grad, p.grad) < 1e-4
    with torch.no_grad():
        for m in (model, other):
            for p in m.parameters():
                p.mul_(1.05)
        assert relative(compiled(v), model(v)) < 1e-5
        w = torch.randn(7, 2, 16)
        assert relative(compiled(w), model(w)) < 1e-5


def test_compile_with_dynamic_shapes():
    """What the first call compiled serves any number of rows."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model, other = pair("dora")
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(other, fullgraph=True, dynamic=True, backend=graphs)
    compiled(torch.randn(6, 3, 16, requires_grad=True)).sum().backward()
    of_first_call = graphs.frame_count
    for p in other.parameters():
        p.grad = None
    for rows in ((3, 5), (7, 2), (4, 9), (2, 31)):
        v, w = (torch.randn(*rows, 16, generator=torch.Generator().manual_seed(4)).requires_grad_() for _ in range(2))
        model(v).square().sum().backward()
        compiled(w).square().sum().backward()
        assert relative(w.grad, v.grad) < 1e-4
    assert graphs.frame_count == of_first_call


def test_inductor():
    torch._dynamo.reset()
    model, other = pair("dora")
    try:
        compiled = torch.compile(other, fullgraph=True)
        b = compiled(x)
    except Exception as e:
        if "InvalidCxxCompiler" in type(e).__name__ or "compiler" in str(e).lower():
            pytest.skip("inductor has no C++ compiler")
        raise
    assert relative(b.detach(), model(x).detach()) < 1e-5


def test_injected_adapters(calls):
    net = Net()
    model = peft.inject_adapter_in_model(copy.deepcopy(configs["lora"]), net)
    before = model(x).detach()
    graft_torch.accelerate(model)
    assert relative(model(x).detach(), before) < 1e-5 and calls.count == 2


def test_reasons():
    class Other(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(8, 16)
            self.image = torch.nn.Conv2d(2, 4, 3)
            self.first = torch.nn.Linear(16, 16)

    model = peft.get_peft_model(Other(), peft.LoraConfig(target_modules=["table", "image", "first"],
                                                         layers_pattern=None, init_lora_weights=False))
    said = graft_torch.report(graft_torch.accelerate(model))
    assert said["table"] == "graft: lora_embedding" and "Conv2d" in said["image"]
    assert said["first"] == "graft: lora"
    bounded = peft.get_peft_model(Net(), peft.OFTConfig(target_modules=["first"], r=0, oft_block_size=4, coft=True))
    assert "constrained OFT" in graft_torch.report(graft_torch.accelerate(bounded))["first"]
    sliced = peft.get_peft_model(Net(), peft.LoraConfig(target_modules=["first"], r=4, use_qalora=False,
                                                        use_bdlora=peft.BdLoraConfig(nblocks=2, target_modules_bd_a=["first"])
                                                        if hasattr(peft, "BdLoraConfig") else None))
    said = graft_torch.report(graft_torch.accelerate(sliced))["first"]
    assert said == "graft: lora" or "block-diagonal" in said or "variant" in said
