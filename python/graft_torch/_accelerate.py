# SPDX-License-Identifier: Apache-2.0
"""accelerate(), restore() and report(): the forward of PEFT's layers becomes graft::adapted_linear.

Modules, parameters and everything else that PEFT does stay as they are. A call goes to PEFT's own forward where adapters
are merged or disabled, and where the library has no formula for what is asked. Where adapters read another input than
the base layer (dropout in training, batches whose rows have adapters of their own), the base layer is PyTorch's and
graft computes what each adapter adds.
"""

import itertools
import types
import weakref

import torch

from . import _peft
from ._operators import adapted_linear, ops

_numbers = itertools.count(1)
_INDICES = (torch.int64, torch.int32)


class _State:
    """What graft_torch keeps beside one of PEFT's layers; a copy of the layer starts with nothing kept."""

    def __init__(self, module, configs):
        self.module, self.configs = module, configs
        self.number = next(_numbers)
        self.plans = {}  # by active adapters: a plan, or the reason why there is none
        self.branches = {}  # by adapter: what it adds to the base layer, or the reason why that is no branch
        self.why = None  # the reason of the last call that PEFT's forward took
        weakref.finalize(self, ops.forget_layer, self.number)

    def __deepcopy__(self, memo):
        return _State(self.module, self.configs)

    def __reduce__(self):
        return _State, (self.module, self.configs)

    def plan(self, layer, adapters):
        """The plan for these adapters, made at the first call after they changed."""
        plan = self.plans.get(adapters)
        if plan is not None and self._is_current(plan, layer, adapters):
            return plan
        if torch.compiler.is_compiling():
            return "these adapters were not active yet when torch.compile began; call the model once before"
        configs = tuple(self.configs.get(a) for a in adapters)
        try:
            plan = _peft.plan_of(layer, adapters, self.configs, self.module)
        except _peft.Unsupported as e:
            plan = _Refusal(str(e), configs, _peft.memory_of(layer))
        if plan is None:
            plan = _Refusal("no adapter of this layer is active", configs, _peft.memory_of(layer))
        self.plans[adapters] = plan
        if not isinstance(plan, _Refusal) and plan.training is _peft.Dropout.BRANCHES:
            for adapter in adapters:
                self.branch(layer, adapter)
        return plan

    def branch(self, layer, adapter):
        """The branch of an adapter, made at the first call after it changed; None: the layer does not have it."""
        branch = self.branches.get(adapter)
        if branch is not None and self._is_current(branch, layer, (adapter,)):
            return branch
        if torch.compiler.is_compiling():
            return "this adapter was not active yet when torch.compile began; call the model once before"
        try:
            branch = _peft.branch_of(layer, adapter, self.configs, self.module)
        except _peft.Unsupported as e:
            branch = _Refusal(str(e), (self.configs.get(adapter),), _peft.memory_of(layer))
        if branch is None:
            self.branches.pop(adapter, None)
            return None
        if isinstance(branch, _peft.Branch):
            branch.number = next(_numbers)
            weakref.finalize(branch, ops.forget_layer, branch.number)
        self.branches[adapter] = branch
        return branch

    def forget(self):
        """Frees what the library keeps for the layer, so that the next call computes it again."""
        for number in (self.number, *(b.number for b in self.branches.values() if isinstance(b, _peft.Branch))):
            ops.forget_layer(number)

    def _is_current(self, plan, layer, adapters):
        for config, adapter in zip(plan.configs, adapters):
            if self.configs.get(adapter) is not config:
                return False
        if isinstance(plan, _Refusal):
            return plan.memory == _peft.memory_of(layer)
        # Where the modules are the same, so is the base layer, which spares a search for it.
        return (plan.inside.is_current() and plan.scalings == _peft.scalings_of(layer, adapters) and
                plan.memory == _peft.memory_of_base(plan.base))


class _Refusal:
    __slots__ = ("why", "configs", "memory")

    def __init__(self, why, configs, memory):
        self.why, self.configs, self.memory = why, configs, memory


def _versions(tensors):
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # tensors of inference mode count no versions
        return []


def _refusal_of_call(layer, plan, x):
    """Why PEFT's forward takes this call; None: it does not."""
    if isinstance(plan, (str, _Refusal)):
        return plan if isinstance(plan, str) else plan.why
    if layer.training and isinstance(plan.training, str):
        return plan.training
    if layer.training and plan.eval_only:
        return "the method samples in training"
    if plan.quantized:
        if x.device != plan.memory[0]:
            return f"x is on {x.device} and the weight is on {plan.memory[0]}"
        if not x.dtype.is_floating_point:
            return f"x is {x.dtype}"
        return "a module inside the layer has hooks" if plan.inside.has_hooks() else None
    weight, bias = plan.base_tensors()
    if weight.requires_grad:
        return "the base weight is trained too"
    if bias is not None and bias.requires_grad and not plan.trains_bias:
        return "the bias of the base layer is trained too"
    if x.device != weight.device:
        return f"x is on {x.device} and the weight is on {weight.device}"
    if plan.is_table:
        if x.dtype not in _INDICES:
            return f"x is {x.dtype}"
    elif not x.dtype.is_floating_point:
        return f"x is {x.dtype}"
    elif torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        if x.is_cuda and weight.dtype != dtype:
            return f"autocast computes in {dtype} and the weight is {weight.dtype}"
    elif x.dtype != weight.dtype:
        return f"x is {x.dtype} and the weight is {weight.dtype}"
    if plan.inside.has_hooks():
        return "a module inside the layer has hooks"
    return None


def _refusal_of_branch(branch):
    """Why a branch cannot be taken; None: it can, or the layer does not have the adapter."""
    if isinstance(branch, str) or branch is None:
        return branch
    if isinstance(branch, _Refusal):
        return branch.why
    return "a module inside the layer has hooks" if branch.inside.has_hooks() else None


def _keep_with_peft(state, why):
    if not torch.compiler.is_compiling():
        state.why = why


def _rows(x, tensors, text, number):
    """graft::adapted_linear on the rows of x, whatever its number of dimensions."""
    compiles = torch.compiler.is_compiling()
    versions = [] if compiles else _versions(tensors)
    if x.dtype in _INDICES:
        y = adapted_linear(x.reshape(-1).long(), tensors, text, number, versions, compiles)
        return y.reshape(*x.shape, y.shape[-1])
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))
    if x.dim() == 2:
        return adapted_linear(x, tensors, text, number, versions, compiles)
    y = adapted_linear(x.reshape(-1, x.shape[-1]), tensors, text, number, versions, compiles)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _branch(layer, branch, x):
    return _rows(branch.input(layer, x), branch.tensors(layer), branch.text, branch.number)


def _sum_of_branches(layer, branches, x):
    """The base layer on x, and what each adapter adds on an input of its own."""
    y = layer.base_layer(x)
    total = y
    for branch in branches:
        total = total + _branch(layer, branch, x)
    return total.to(y.dtype)


def _whole_with_dropout(layer, plan, x, number):
    """y = W x + b + (W' - W) dropout(x) = W (x - dropout(x)) + (W' dropout(x) + b), for a formula that reads W."""
    weight, _ = plan.base_tensors()
    (adapter,) = (a for a in layer.active_adapters if a in layer.lora_dropout)
    wide = layer._cast_input_dtype(x, layer.lora_A[adapter].weight.dtype)
    kept = layer.lora_dropout[adapter](wide)
    y = _rows(kept, plan.tensors(layer), plan.text, number)
    rest = torch.nn.functional.linear((wide - kept).to(x.dtype), weight.t() if plan.transposed else weight)
    return (rest + y).to(rest.dtype)


def _mixed_batch(layer, state, x, names):
    """A batch whose first axis has an adapter per entry (PEFT's adapter_names); None: PEFT's forward takes it."""
    if not torch.is_tensor(x) or x.device.type not in ("cpu", "cuda") or layer.training:
        return None
    if not x.dtype.is_floating_point and x.dtype not in _INDICES:
        return None
    branches = {}
    for name in dict.fromkeys(names):
        if name == "__base__":
            continue
        branch = state.branch(layer, name)
        why = _refusal_of_branch(branch)
        if why is not None:
            _keep_with_peft(state, f"adapter '{name}' of a mixed batch: {why}")
            return None
        if branch is None:
            continue
        if branch.config.peft_type != "LORA":
            return None
        branches[name] = branch
    layer._check_forward_args(x, adapter_names=names)
    y = layer.base_layer(x)
    for name, branch in branches.items():
        rows = torch.tensor([k for k, n in enumerate(names) if n == name], device=x.device)
        y = y.index_add(0, rows, _branch(layer, branch, x[rows]).to(y.dtype))
    return y


def forward(self, x, *args, **kwargs):
    """The forward of an accelerated layer."""
    state = self._graft
    if self.disable_adapters or self.merged:
        return type(self).forward(self, x, *args, **kwargs)
    if args or kwargs:
        if not args and kwargs.keys() == {"adapter_names"} and kwargs["adapter_names"] is not None:
            y = _mixed_batch(self, state, x, kwargs["adapter_names"])
            if y is not None:
                return y
        return type(self).forward(self, x, *args, **kwargs)
    plan = state.plan(self, tuple(self.active_adapters))
    why = _refusal_of_call(self, plan, x)
    branches = ()
    if why is None and (self.training or plan.quantized) and plan.training is _peft.Dropout.BRANCHES:
        branches = [state.branch(self, a) for a in self.active_adapters]
        why = next(filter(None, map(_refusal_of_branch, branches)), None)
    if why is not None:
        _keep_with_peft(state, why)
        return type(self).forward(self, x)
    if branches:
        return _sum_of_branches(self, [b for b in branches if b is not None], x)
    if self.training and plan.training is _peft.Dropout.WHOLE:
        return _whole_with_dropout(self, plan, x, state.number)
    return _rows(x, plan.tensors(self), plan.text, state.number)


def _configs_of(model):
    for at in (model, getattr(model, "base_model", None)):
        configs = getattr(at, "peft_config", None)
        if isinstance(configs, dict) and configs:
            return configs
    raise ValueError("the model has no adapters of PEFT: expected what peft.get_peft_model(), PeftModel.from_pretrained() "
                     "or peft.inject_adapter_in_model() returned")


def _layers_of(model):
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [(name, m) for name, m in model.named_modules() if isinstance(m, BaseTunerLayer)]


def accelerate(model):
    """Replaces the forward of PEFT's layers by graft's kernels, where the library has their formula.

    Returns the model. Call it after get_peft_model() or from_pretrained(), and before torch.compile. Call it again
    after adapters were added to layers that had none, and after the memory of base weights was written through `.data`,
    which PyTorch does not count. report(model) says what was replaced, and why not where it was not.
    """
    configs = _configs_of(model)
    for name, layer in _layers_of(model):
        path = name.removeprefix("base_model.model.")
        if "_graft" not in layer.__dict__:
            if "forward" in layer.__dict__:
                continue  # another tool has replaced it already
            layer.__dict__["_graft"] = _State(path, configs)
            layer.__dict__["forward"] = types.MethodType(forward, layer)
        state = layer.__dict__["_graft"]
        state.forget()
        for adapters in {tuple(layer.active_adapters)} | {(a,) for a in configs}:
            state.plan(layer, adapters)
    return model


def restore(model):
    """Gives PEFT's layers their own forward back, and frees what was kept for them. Returns the model."""
    for _, layer in _layers_of(model):
        if layer.__dict__.pop("_graft", None) is not None:
            layer.__dict__.pop("forward", None)
    return model


def report(model):
    """Says for each of PEFT's layers who computes it: {path: "graft: lora" or "PEFT: and why"}."""
    lines = {}
    for name, layer in _layers_of(model):
        path = name.removeprefix("base_model.model.")
        state = layer.__dict__.get("_graft")
        if state is None:
            other = "its forward was replaced by another tool" if "forward" in layer.__dict__ else "call accelerate()"
            lines[path] = f"PEFT: {other}"
            continue
        plan = state.plan(layer, tuple(layer.active_adapters))
        if isinstance(plan, _Refusal):
            lines[path] = f"PEFT: {plan.why}"
            continue
        methods = ", ".join(plan.methods)
        limits = []
        if plan.quantized:
            refused = [b.why for b in state.branches.values() if isinstance(b, _Refusal)]
            if refused:
                lines[path] = f"PEFT: {refused[0]}"
                continue
            limits.append("beside the base layer, which is that of bitsandbytes")
        if isinstance(plan.training, str):
            limits.append(f"PEFT in training: {plan.training}")
        if plan.eval_only:
            limits.append("PEFT in training, where the method samples")
        if state.why is not None:
            limits.append(f"PEFT in the last call that graft did not take: {state.why}")
        lines[path] = f"graft: {methods}" + (f" ({'; '.join(limits)})" if limits else "")
    return lines
