# SPDX-License-Identifier: Apache-2.0
"""The operators graft::adapted_linear and graft::adapted_linear_backward, as autograd and torch.compile see them."""

import functools
import json
import pathlib

import torch

_library = pathlib.Path(__file__).with_name("_ops.so")
if not _library.exists():
    raise ImportError(f"{_library} is missing: graft_torch is built by `pip install ./python`, not run from its sources")
torch.ops.load_library(str(_library))

ops = torch.ops.graft
has_cuda_kernels = ops.has_cuda_kernels()


@functools.lru_cache(maxsize=None)
def _saved_width(layer):
    return json.loads(layer)["saved"]


@functools.lru_cache(maxsize=None)
def _branch(layer):
    """The sizes of a branch, which has no weight of the base layer: (out, in); None: it is a whole layer."""
    sizes = json.loads(layer).get("branch")
    return sizes and (sizes["out"], sizes["in"])


@functools.lru_cache(maxsize=None)
def _is_table(layer):
    """Whether x are indices of the rows of a table."""
    return json.loads(layer).get("kind") == "embedding"


@functools.lru_cache(maxsize=None)
def _no_gradient(layer):
    """The elements of tensors to which PEFT gives no gradient: (tensor, axis, index)."""
    return tuple(map(tuple, json.loads(layer).get("no_gradient", ())))


def _leave_out(layer, wanted, grads):
    """Sets the gradients of _no_gradient() to 0."""
    for tensor, axis, index in _no_gradient(layer):
        if tensor in wanted:
            grads[wanted.index(tensor)].select(axis, index).zero_()


def _saved_dtype(x, tensors):
    if x.device.type == "cuda":
        return x.dtype if x.is_floating_point() else tensors[0].dtype
    wide = x.dtype == torch.float64 or tensors[0].dtype == torch.float64
    return torch.float64 if wide else torch.float32


@torch.library.register_fake("graft::adapted_linear")
def _(x, tensors, layer, number, versions, save):
    if _is_table(layer):
        torch._check(x.dim() == 1, lambda: f"x has {x.dim()} dimensions, expected indices of the shape [tokens]")
        out = _branch(layer)[0] if _branch(layer) else tensors[0].shape[1]
        y = tensors[0].new_empty((x.shape[0], out))
    else:
        torch._check(x.dim() == 2, lambda: f"x has {x.dim()} dimensions, expected [tokens, in]")
        out, features = _branch(layer) or tensors[0].shape
        torch._check(x.shape[1] == features, lambda: f"x has shape {list(x.shape)}, expected [tokens, {features}]")
        y = x.new_empty((x.shape[0], out))
    saved = (x.shape[0], _saved_width(layer)) if save else (0, 0)
    return y, y.new_empty(saved, dtype=_saved_dtype(x, tensors))


@torch.library.register_fake("graft::adapted_linear_backward")
def _(dy, x, tensors, saved, layer, number, versions, needs_dx, wanted):
    dx = [x.new_empty(x.shape)] if needs_dx else []
    return dx + [tensors[k].new_empty(tensors[k].shape) for k in wanted]


def _setup_context(ctx, inputs, output):
    x, tensors, ctx.layer, ctx.number, ctx.versions, save = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.needs_dx = x.requires_grad
    ctx.wanted = [k for k, t in enumerate(tensors) if t.requires_grad]
    ctx.count = len(tensors)
    ctx.was_saved = save
    ctx.save_for_backward(x, output[1], *tensors)


def _backward(ctx, dy, _):
    tensor_grads = [None] * ctx.count
    version_grads = None if ctx.versions else []  # torch takes an empty list for one of tensors
    if dy is None:
        return None, tensor_grads, None, None, version_grads, None
    if not ctx.was_saved:
        raise RuntimeError("this call of graft::adapted_linear kept nothing for backward; call it with save=True")
    x, saved, *tensors = ctx.saved_tensors
    grads = ops.adapted_linear_backward(dy, x, tensors, saved, ctx.layer, ctx.number, ctx.versions, ctx.needs_dx,
                                        ctx.wanted)
    grads = list(grads)
    dx = grads.pop(0) if ctx.needs_dx else None
    _leave_out(ctx.layer, ctx.wanted, grads)
    for k, g in zip(ctx.wanted, grads):
        tensor_grads[k] = g
    return dx, tensor_grads, None, None, version_grads, None


torch.library.register_autograd("graft::adapted_linear", _backward, setup_context=_setup_context)

_run = ops.adapted_linear.default
_run_backward = ops.adapted_linear_backward.default


class _AdaptedLinear(torch.autograd.Function):
    """graft::adapted_linear with its gradients, as a call outside of torch.compile takes it.

    The autograd that torch.library registers enters Python once more and looks through all arguments: with few tokens
    that costs more than the layer.
    """

    @staticmethod
    def forward(ctx, x, layer, number, versions, *tensors):  # setup_context() apart would cost five times as much
        with torch._C._AutoDispatchBelowAutograd():
            y, saved = _run(x, tensors, layer, number, versions, True)
        ctx.layer, ctx.number, ctx.versions = layer, number, versions
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, saved, *tensors)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        needs_dx, *needs = ctx.needs_input_grad
        needs = needs[3:]
        if dy is None:
            return (None,) * (4 + len(needs))
        x, saved, *tensors = ctx.saved_tensors
        wanted = [k for k, n in enumerate(needs) if n]
        with torch._C._AutoDispatchBelowAutograd():
            grads = _run_backward(dy, x, tensors, saved, ctx.layer, ctx.number, ctx.versions, needs_dx, wanted)
        dx, grads = (grads[0], grads[1:]) if needs_dx else (None, grads)
        _leave_out(ctx.layer, wanted, grads)
        grads = iter(grads)
        return (dx, None, None, None, *(next(grads) if n else None for n in needs))


def adapted_linear(x, tensors, layer, number, versions, compiles):
    """y of an adapted layer for rows of x, with its gradients where they are asked for."""
    needs_grad = torch.is_grad_enabled() and (x.requires_grad or any([t.requires_grad for t in tensors]))
    if compiles:
        return ops.adapted_linear(x, tensors, layer, number, versions, needs_grad)[0]
    if needs_grad:
        return _AdaptedLinear.apply(x, layer, number, versions, *tensors)
    with torch._C._AutoDispatchBelowAutograd():
        return _run(x, tensors, layer, number, versions, False)[0]


def complete(layer, tensors):
    """Adds to a layer's description how many numbers forward saves for each row of x, and returns it as text."""
    text = json.dumps(layer)
    return json.dumps({**layer, "saved": ops.saved_width(tensors, text)})
