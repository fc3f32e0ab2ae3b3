# SPDX-License-Identifier: Apache-2.0
"""The operators as PyTorch sees them: shapes, gradients, memory, and errors."""

import json
import threading

import pytest
import torch
from methods import configs, make, relative

import graft_torch
from graft_torch import ops
from graft_torch._operators import complete


def lora(dtype=torch.float64, out=12, features=8, rank=4, dora=False, requires_grad=True):
    tensors = [torch.randn(out, features, dtype=dtype), torch.randn(out, dtype=dtype),
               torch.randn(rank, features, dtype=dtype), torch.randn(out, rank, dtype=dtype)]
    names = ["lora_A.weight", "lora_B.weight"]
    if dora:
        tensors.append(torch.rand(out, dtype=dtype) + 0.5)
        names.append("lora_magnitude_vector")
    layer = complete({"bias": True, "adapters": [{"method": "dora" if dora else "lora", "trains_bias": False,
                                                  "tensors": names, "scalars": {"scaling": 0.5}, "sizes": {}}]}, tensors)
    for t in tensors[2:]:
        t.requires_grad_(requires_grad)
    return tensors, layer


def expected(x, tensors):
    W, b, A, B, *m = [t.double() for t in tensors]
    V = W + 0.5 * B @ A
    if m:
        V = (m[0] / V.norm(dim=1).detach())[:, None] * V
    return x.double() @ V.T + b


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck(dora, dtype):
    tensors, layer = lora(dtype, dora=dora)
    x = torch.randn(5, 8, dtype=dtype, requires_grad=True)
    torch.library.opcheck(ops.adapted_linear.default, (x, tensors, layer, 0, [], True))
    plain = [t.detach() for t in tensors]
    torch.library.opcheck(ops.adapted_linear.default, (x.detach(), plain, layer, 0, [], False))
    y, saved = ops.adapted_linear(x.detach(), plain, layer, 0, [], True)
    torch.library.opcheck(ops.adapted_linear_backward.default,
                          (torch.randn_like(y), x.detach(), plain, saved, layer, 0, [], True, [2, 3]),
                          test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


def branch(dtype=torch.float64, **changes):
    tensors, layer = lora(dtype)
    text = {**json.loads(layer), "bias": False, "branch": {"out": 12, "in": 8}, **changes}
    return tensors[2:], complete(text, tensors[2:])


def test_a_branch_is_what_the_adapter_adds():
    tensors, layer = branch()
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(ops.adapted_linear.default, (x, tensors, layer, 0, [], True))
    assert torch.autograd.gradcheck(lambda x, *t: ops.adapted_linear(x, list(t), layer, 0, [], True)[0], (x, *tensors))
    y, _ = ops.adapted_linear(x, tensors, layer, 0, [], True)
    assert relative(y, 0.5 * x @ tensors[0].T @ tensors[1].T) < 1e-12
    with pytest.raises(RuntimeError, match=r"expected \[tokens, 8\]"):
        ops.adapted_linear(x[:, :3], tensors, layer, 0, [], False)


@pytest.mark.parametrize("changes, sentence", [
    ({"branch": {"out": 12}}, "no sizes 'out' and 'in'"),
    ({"branch": {"out": 12, "in": 0}}, "no sizes 'out' and 'in'"),
    ({"bias": True}, "what one adapter adds"),
    ({"adapters": [{"method": "dora", "tensors": ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"],
                    "scalars": {"scaling": 0.5}}]}, "reads the base weight"),
    ({"adapters": [{"method": "ia3", "tensors": ["ia3_l"]}]}, "reads the base weight"),
])
def test_a_wrong_branch_is_an_exception(changes, sentence):
    with pytest.raises(RuntimeError) as e:
        branch(**changes)
    assert sentence in str(e.value)


# By definition the norms of DoRA and DeLoRA are constants of the gradient, and OSF projects its gradient; the other
# formulas are differentiated as they stand.
_detached = {"dora", "delora", "osf"}


@pytest.mark.parametrize("name", [n for n in configs if n not in _detached])
def test_gradcheck(name):
    model = graft_torch.accelerate(make(name, torch.float64))
    layer = model.base_model.model.first
    plan = layer._graft.plan(layer, ("default",))
    with torch.no_grad():
        tensors = [t.detach().clone().double() if t.is_floating_point() else t for t in plan.tensors(layer)]
    trained = [k for k, t in enumerate(plan.tensors(layer)) if t.requires_grad]
    for k in trained:
        tensors[k].requires_grad_()
    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)

    def call(x, *parameters):
        all_of_them = list(tensors)
        for k, p in zip(trained, parameters):
            all_of_them[k] = p
        return ops.adapted_linear(x, all_of_them, plan.text, 0, [], True)[0]

    assert torch.autograd.gradcheck(call, (x, *[tensors[k] for k in trained]), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 17, 600])
@pytest.mark.parametrize("dora", [False, True])
def test_ragged_rows(rows, dora):
    tensors, layer = lora(torch.float32, 37, 29, 3, dora)
    x = torch.randn(rows, 29, requires_grad=True)
    y, _ = ops.adapted_linear(x, tensors, layer, 0, [], True)
    assert y.shape == (rows, 37)
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(y, [x, *tensors[2:]], dy)
    x2 = x.detach().double().requires_grad_()
    again = [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]
    reference = expected(x2, again)
    if rows:
        assert relative(y, reference) < 1e-5
    for a, b in zip(grads, torch.autograd.grad(reference, [x2, *again[2:]], dy.double())):
        assert relative(a, b) < 1e-4 or b.abs().max() < 1e-12 if b.numel() else a.shape == b.shape


def test_strided_tensors_are_read_in_place():
    tensors, layer = lora(torch.float32)
    wide = torch.randn(6, 32)
    x = wide[:, 8:16]
    transposed = [tensors[0].t().contiguous().t(), *tensors[1:]]
    assert not x.is_contiguous() and not transposed[0].is_contiguous()
    y, _ = ops.adapted_linear(x, transposed, layer, 0, [], False)
    assert relative(y, expected(x, tensors)) < 1e-5


def test_expanded_gradients():
    tensors, layer = lora(torch.float32)
    x = torch.randn(6, 8, requires_grad=True)
    ops.adapted_linear(x, tensors, layer, 0, [], True)[0].sum().backward()  # dy has strides of 0
    assert relative(x.grad, torch.autograd.grad(expected(x, tensors).sum(), x)[0]) < 1e-5


def test_steps_may_be_interleaved():
    tensors, layer = lora(torch.float32, dora=True)
    first, second = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    y1 = ops.adapted_linear(first, tensors, layer, 7, [0] * 5, True)[0]
    y2 = ops.adapted_linear(second, tensors, layer, 7, [0] * 5, True)[0]
    y1.square().sum().backward()
    y2.square().sum().backward()
    for x in (first, second):
        x2 = x.detach().clone().requires_grad_()
        expected(x2, tensors).square().sum().backward()
        assert relative(x.grad, x2.grad) < 1e-4
    ops.forget_layer(7)


def test_versions_say_when_parameters_were_written():
    tensors, layer = lora(torch.float32, dora=True, requires_grad=False)
    x = torch.randn(4, 8)
    before = ops.adapted_linear(x, tensors, layer, 8, [t._version for t in tensors], False)[0]
    for k in (0, 2, 4):
        tensors[k].mul_(1.5)
        y = ops.adapted_linear(x, tensors, layer, 8, [t._version for t in tensors], False)[0]
        assert relative(y, expected(x, tensors)) < 1e-5
    assert relative(before, y) > 1e-2
    tensors[3].mul_(2)  # without versions every call counts as one after a write
    assert relative(ops.adapted_linear(x, tensors, layer, 8, [], False)[0], expected(x, tensors)) < 1e-5
    ops.forget_layer(8)


def test_moved_tensors_are_found_again():
    tensors, layer = lora(torch.float32, requires_grad=False)
    x = torch.randn(4, 8)
    for _ in range(3):
        tensors = [t.clone() * 1.1 for t in tensors]
        y = ops.adapted_linear(x, tensors, layer, 9, [t._version for t in tensors], False)[0]
        assert relative(y, expected(x, tensors)) < 1e-5
    ops.forget_layer(9)


def test_threads():
    tensors, layer = lora(torch.float32, 64, 48, requires_grad=False)
    x = torch.randn(32, 48)
    right = expected(x, tensors)
    wrong = []

    def work():
        for _ in range(50):
            if relative(ops.adapted_linear(x, tensors, layer, 10, [0] * 4, False)[0], right) > 1e-5:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    ops.forget_layer(10)


def test_mixed_types():
    tensors, layer = lora(torch.float32, requires_grad=False)
    half = [tensors[0].bfloat16(), tensors[1].bfloat16(), *tensors[2:]]
    x = torch.randn(4, 8).bfloat16()
    y, _ = ops.adapted_linear(x, half, layer, 0, [], False)
    assert y.dtype == torch.bfloat16
    assert relative(y, expected(x, half)) < 0.01


@pytest.mark.parametrize("change, sentence", [
    (lambda x, t: (x[:, :3], t), "x has shape [5, 3], expected [tokens, 8]"),
    (lambda x, t: (x[0], t), "x has shape [8], expected [tokens, 8]"),
    (lambda x, t: (x.int(), t), "tensor 'x' is no float32"),
    (lambda x, t: (x, [t[0].int(), *t[1:]]), "tensor 'weight' is no float32"),
    (lambda x, t: (x, t[:2]), "the layer has 4 tensors, the call brings 2"),
    (lambda x, t: (x, [*t[:3], t[3][:, :2]]), "lora_B.weight"),
    (lambda x, t: (x, [t[0], t[1][:5], *t[2:]]), "bias"),
    (lambda x, t: (x, [t[0], t[1], t[2].long(), t[3]]), "'lora_A.weight' is stored as i64"),
    (lambda x, t: (x, [t[0].reshape(1, 1, 1, 12, 8), *t[1:]]), "5 dimensions"),
])
def test_a_wrong_tensor_is_an_exception(change, sentence):
    tensors, layer = lora(torch.float32, requires_grad=False)
    x, changed = change(torch.randn(5, 8), tensors)
    with pytest.raises(RuntimeError) as e:
        ops.adapted_linear(x, changed, layer, 0, [], False)
    assert sentence in str(e.value)


@pytest.mark.parametrize("text, sentence", [
    ("{", "unexpected end of input"), ("{}", "no bias or no adapters"), ("[]", "no bias"),
    ('{"bias": true, "adapters": [{}]}', "no method"),
    ('{"bias": true, "adapters": [{"method": "lorra"}]}', "there is no method 'lorra'"),
])
def test_a_wrong_description_is_an_exception(text, sentence):
    tensors, _ = lora(torch.float32, requires_grad=False)
    with pytest.raises(RuntimeError) as e:
        ops.adapted_linear(torch.randn(5, 8), tensors, text, 0, [], False)
    assert sentence in str(e.value)


def test_wrong_backward_arguments_are_exceptions():
    tensors, layer = lora(torch.float32, requires_grad=False)
    x = torch.randn(5, 8)
    y, saved = ops.adapted_linear(x, tensors, layer, 0, [], True)
    assert saved.shape == (5, json.loads(layer)["saved"])
    call = ops.adapted_linear_backward
    for arguments in [(y[:, :3], x, tensors, saved, layer, 0, [], True, [2]),
                      (y, x, tensors, saved[:2], layer, 0, [], True, [2]),
                      (y, x, tensors, saved, layer, 0, [], True, [0]),
                      (y, x, tensors, saved, layer, 0, [], True, [9])]:
        with pytest.raises(RuntimeError):
            call(*arguments)


def test_without_saved_values_backward_is_refused():
    tensors, layer = lora(torch.float32)
    y, _ = ops.adapted_linear(torch.randn(5, 8), tensors, layer, 0, [], False)
    with pytest.raises(RuntimeError, match="save=True"):
        y.sum().backward()


def test_the_library_depends_on_no_version_of_torch_or_python():
    import pathlib
    import shutil
    import subprocess

    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    library = pathlib.Path(graft_torch.__file__).with_name("_ops.so")
    symbols = subprocess.run(["nm", "-D", "--undefined-only", "--demangle", library], capture_output=True, text=True,
                             check=True).stdout.split("\n")
    names = [line.split()[-1] for line in symbols if line.strip()]
    assert not [n for n in names if n.startswith(("c10::", "at::", "torch::", "Py"))]
