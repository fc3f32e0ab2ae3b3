# SPDX-License-Identifier: Apache-2.0
"""The operators on CUDA: values, streams, captured graphs, memory, and errors."""

import pytest
import torch

from graft_torch import ops
from graft_torch._operators import complete, has_cuda_kernels

pytestmark = [pytest.mark.skipif(not has_cuda_kernels, reason="this build of graft_torch has no operators for CUDA"),
              pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]
types = [torch.float32, torch.bfloat16, torch.float16]
scaling = 0.5


def lora(dtype=torch.float32, out=256, features=192, rank=16, dora=False, requires_grad=True, adapter_dtype=None):
    def random(*shape, scale):
        return torch.randn(*shape, device="cuda").mul_(scale)

    tensors = [random(out, features, scale=features**-0.5).to(dtype), random(out, scale=1).to(dtype),
               random(rank, features, scale=features**-0.5), random(out, rank, scale=rank**-0.5)]
    names = ["lora_A.weight", "lora_B.weight"]
    if dora:
        tensors.append(torch.rand(out, device="cuda") + 0.5)
        names.append("lora_magnitude_vector")
    tensors[2:] = [t.to(adapter_dtype or dtype).requires_grad_(requires_grad) for t in tensors[2:]]
    layer = {"bias": True, "adapters": [{"method": "dora" if dora else "lora", "trains_bias": False, "tensors": names,
                                         "scalars": {"scaling": scaling}, "sizes": {}}]}
    with torch.no_grad():
        return tensors, complete(layer, tensors)


def formula(x, tensors):
    """The layer as PEFT computes it, in the types of its arguments."""
    W, b, A, B, *m = tensors
    linear = torch.nn.functional.linear
    branch = linear(linear(x.to(A.dtype), A), B) * scaling
    if not m:
        return (linear(x, W, b) + branch).to(x.dtype)
    norm = (W + scaling * (B @ A).to(W.dtype)).norm(dim=1).detach()
    return (m[0] / norm * (linear(x, W) + branch)).to(x.dtype) + b


def in_double(tensors):
    return [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]


def error(a, reference):
    return ((a.double() - reference).abs().max() / reference.abs().max().clamp_min(1e-30)).item()


def values(call, x, tensors, dy):
    """y, dx and the gradients of the parameters."""
    x = x.detach().requires_grad_()
    y = call(x, tensors)
    return [y.detach(), *torch.autograd.grad(y, [x, *(t for t in tensors if t.requires_grad)], dy)]


def call_of(layer, number=0, versions=None):
    def call(x, tensors):
        seen = [] if versions is None else [t._version for t in tensors]
        return ops.adapted_linear(x, tensors, layer, number, seen, True)[0]

    return call


def terms_of(x, tensors):
    """How many products are added in float32 for a number of y, of dx, and of each gradient, as values() lists them."""
    (out, features), rank, rows = tensors[0].shape, tensors[2].shape[0], x.shape[0]
    # y and dx are one sum with that of the branch; a gradient is a sum over rows of what such a sum gave.
    return [features + rank, out + rank, rows + out, rows + features, rows + features + rank]


def assert_as_exact_as_torch(ours, theirs, reference, terms):
    """Errors against float64 of at most three times torch's, of a few roundings of the type, or of those of a sum.

    The kernels add products in float32 one after the other, where torch may add several shorter sums. Each of k
    additions rounds by at most eps / 2 of a partial sum, which is seldom above the largest result, and with signs that
    are as good as random: together by about sqrt(k) eps / 2 of the largest result.
    """
    for k, (a, b, r) in enumerate(zip(ours, theirs, reference)):
        assert a.dtype == b.dtype and a.shape == b.shape
        of_sum = terms[k]**0.5 * torch.finfo(torch.float32).eps / 2
        assert error(a, r) <= max(3 * error(b, r), 4 * torch.finfo(a.dtype).eps, of_sum), k


def close(a, b):
    return error(a, b.double()) <= 8 * torch.finfo(a.dtype).eps


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 600])
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dtype", types)
def test_values_and_gradients(dtype, dora, rows):
    tensors, layer = lora(dtype, dora=dora)
    x, dy = (torch.randn(rows, n, device="cuda", dtype=dtype) for n in (192, 256))
    assert_as_exact_as_torch(values(call_of(layer), x, tensors, dy), values(formula, x, tensors, dy),
                             values(formula, x.double(), in_double(tensors), dy.double()), terms_of(x, tensors))


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dtype", types)
def test_sizes_that_no_tile_divides(dtype, dora):
    tensors, layer = lora(dtype, 37, 29, 3, dora)
    for rows in (1, 5, 130):
        x, dy = (torch.randn(rows, n, device="cuda", dtype=dtype) for n in (29, 37))
        assert_as_exact_as_torch(values(call_of(layer), x, tensors, dy), values(formula, x, tensors, dy),
                                 values(formula, x.double(), in_double(tensors), dy.double()), terms_of(x, tensors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_float32(dtype):
    tensors, layer = lora(dtype, adapter_dtype=torch.float32)
    x, dy = (torch.randn(40, n, device="cuda", dtype=dtype) for n in (192, 256))
    ours = values(call_of(layer), x, tensors, dy)
    assert [g.dtype for g in ours] == [dtype, dtype, torch.float32, torch.float32]
    # The kernels multiply in the type of x, as torch does where all tensors have it.
    narrow = [t.detach().to(dtype).requires_grad_(t.requires_grad) for t in tensors]
    reference = values(formula, x.double(), in_double(tensors), dy.double())
    for a, b, r in zip(ours, values(formula, x, narrow, dy), reference):
        assert error(a, r) <= max(3 * error(b, r), 4 * torch.finfo(dtype).eps)


def test_no_rows():
    tensors, layer = lora()
    x = torch.empty(0, 192, device="cuda", requires_grad=True)
    y = call_of(layer)(x, tensors)
    y.sum().backward()
    assert y.shape == (0, 256) and all(not t.grad.any() for t in tensors[2:])


def test_opcheck():
    tensors, layer = lora(out=32, features=48, rank=8)
    x = torch.randn(5, 48, device="cuda", requires_grad=True)
    torch.library.opcheck(ops.adapted_linear.default, (x, tensors, layer, 0, [], True))
    plain = [t.detach() for t in tensors]
    torch.library.opcheck(ops.adapted_linear.default, (x.detach(), plain, layer, 0, [], False))
    for dtype in types[1:]:
        half = [t.to(dtype) for t in plain]
        y, saved = ops.adapted_linear(x.detach().to(dtype), half, layer, 0, [], True)
        torch.library.opcheck(ops.adapted_linear_backward.default,
                              (torch.randn_like(y), x.detach().to(dtype), half, saved, layer, 0, [], True, [2, 3]),
                              test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


def test_tensors_with_gaps():
    tensors, layer = lora()
    x = torch.randn(6, 256, device="cuda")[:, 32:224]
    changed = [tensors[0].t().contiguous().t(), *tensors[1:]]
    assert not x.is_contiguous() and not changed[0].is_contiguous()
    assert close(call_of(layer)(x, changed).detach(), formula(x, tensors).detach())
    x = x.detach().requires_grad_()
    call_of(layer)(x, tensors).sum().backward()  # dy has strides of 0
    assert close(x.grad, torch.autograd.grad(formula(x, tensors).sum(), x)[0])


def test_versions_say_when_tensors_were_written():
    tensors, layer = lora(dora=True, requires_grad=False)
    x = torch.randn(4, 192, device="cuda")

    def evaluate():
        return ops.adapted_linear(x, tensors, layer, 1000, [t._version for t in tensors], False)[0]

    before = evaluate()
    for k in (0, 2, 4):
        tensors[k].mul_(1.5)
        assert close(evaluate(), formula(x, tensors))
    assert not close(before, evaluate())
    tensors[3].data.mul_(2)  # is not counted
    assert close(ops.adapted_linear(x, tensors, layer, 1000, [], False)[0], formula(x, tensors))
    ops.forget_layer(1000)


def test_a_call_of_training_comes_after_writes_that_are_not_counted():
    tensors, layer = lora(dora=True)
    x, dy = torch.randn(8, 192, device="cuda"), torch.randn(8, 256, device="cuda")
    call = call_of(layer, 1001, versions=True)

    def agree():
        reference = values(formula, x.double(), in_double(tensors), dy.double())
        return all(error(a, r) < 1e-5 for a, r in zip(values(call, x, tensors, dy), reference))

    for _ in range(3):
        assert agree()
        for t in tensors[2:]:
            t.data.mul_(1.1)  # as fused optimizers write
        with torch.no_grad():
            seen = [t._version for t in tensors]
            y = ops.adapted_linear(x, tensors, layer, 1001, seen, False)[0]
            assert close(y, formula(x, tensors))
    ops.forget_layer(1001)


def test_steps_may_be_interleaved():
    tensors, layer = lora(dora=True)
    call = call_of(layer, 1002, versions=True)
    inputs = [torch.randn(n, 192, device="cuda", requires_grad=True) for n in (4, 300)]
    outputs = [call(x, tensors) for x in inputs]
    for x, y in zip(inputs, outputs):
        y.square().sum().backward()
        wide = x.detach().double().requires_grad_()
        formula(wide, in_double(tensors)).square().sum().backward()
        assert error(x.grad, wide.grad) < 1e-5
    ops.forget_layer(1002)


def test_moved_tensors_are_found_again():
    tensors, layer = lora(requires_grad=False)
    x = torch.randn(4, 192, device="cuda")
    for _ in range(3):
        tensors = [t.clone() * 1.1 for t in tensors]
        y = ops.adapted_linear(x, tensors, layer, 1003, [t._version for t in tensors], False)[0]
        assert close(y, formula(x, tensors))
    ops.forget_layer(1003)


@pytest.mark.parametrize("dora", [False, True])
def test_streams(dora):
    tensors, layer = lora(dora=dora)
    call = call_of(layer, 1004, versions=True)
    x, dy = torch.randn(64, 192, device="cuda"), torch.randn(64, 256, device="cuda")
    reference = values(formula, x.double(), in_double(tensors), dy.double())
    streams = [torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                late = torch.empty_like(x)
                torch.cuda._sleep(1_000_000)  # so that only work in the order of this stream reads the copy
                late.copy_(x)
                ours = values(call, late, tensors, dy)
            for a, r in zip(ours, reference):
                stream.synchronize()
                assert error(a, r) < 1e-5
    ops.forget_layer(1004)


def test_a_call_waits_for_nothing_and_allocates_nothing_of_its_own():
    tensors, layer = lora(torch.bfloat16, dora=True)
    call = call_of(layer, 1005, versions=True)
    x, dy = (torch.randn(64, n, device="cuda", dtype=torch.bfloat16) for n in (192, 256))
    for _ in range(3):
        values(call, x, tensors, dy)
    torch.cuda.synchronize()
    free, done = torch.cuda.mem_get_info()[0], torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # about a second
    for _ in range(10):
        values(call, x, tensors, dy)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == free
    ops.forget_layer(1005)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dtype", types)
def test_captured_graphs(dtype, dora):
    tensors, layer = lora(dtype, dora=dora)
    call = call_of(layer, 1006, versions=True)
    x, dy = (torch.randn(16, n, device="cuda", dtype=dtype) for n in (192, 256))
    with torch.cuda.stream(torch.cuda.Stream()):
        values(call, x, tensors, dy)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        ours = values(call, x, tensors, dy)
    for _ in range(2):
        x.normal_(), dy.normal_()
        with torch.no_grad():
            for t in tensors[2:]:
                t.mul_(1.1)
        captured.replay()
        assert_as_exact_as_torch(ours, values(formula, x, tensors, dy),
                                 values(formula, x.double(), in_double(tensors), dy.double()), terms_of(x, tensors))
        # A call with more rows takes other memory than the graph.
        values(call, torch.randn(2000, 192, device="cuda", dtype=dtype), tensors,
               torch.randn(2000, 256, device="cuda", dtype=dtype))
    ops.forget_layer(1006)


def test_a_capture_needs_an_earlier_call():
    tensors, layer = lora(requires_grad=False)
    x = torch.randn(16, 192, device="cuda")
    ops.adapted_linear(x[:4], tensors, layer, 1007, [0] * 4, False)
    with pytest.raises(RuntimeError, match="before the capture with as many rows"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            ops.adapted_linear(x, tensors, layer, 1007, [0] * 4, False)
    assert close(ops.adapted_linear(x, tensors, layer, 1007, [0] * 4, False)[0], formula(x, tensors))
    ops.forget_layer(1007)


@pytest.mark.parametrize("change, sentence", [
    (lambda x, t: (x[:, :3], t), "expected [tokens, 192]"),
    (lambda x, t: (x.double(), [t[0].double(), *t[1:]]), "no float32, bfloat16 or float16"),
    (lambda x, t: (x.bfloat16(), t), "x is bf16 and the weight is f32"),
    (lambda x, t: (x.cpu(), t), "x is in the memory of the CPU"),
    (lambda x, t: (x, [t[0].cpu(), *t[1:]]), "tensor 'weight' is in the memory of the CPU, expected that of cuda:0"),
    (lambda x, t: (x, [*t[:3], t[3][:, :2]]), "lora_B.weight"),
    (lambda x, t: (x, t[:2]), "the layer has 4 tensors, the call brings 2"),
])
def test_a_wrong_tensor_is_an_exception(change, sentence):
    tensors, layer = lora(requires_grad=False)
    x, changed = change(torch.randn(5, 192, device="cuda"), tensors)
    with pytest.raises(RuntimeError) as e:
        ops.adapted_linear(x, changed, layer, 0, [], False)
    assert sentence in str(e.value)
