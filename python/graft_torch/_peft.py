# SPDX-License-Identifier: Apache-2.0
"""What one of PEFT's layers computes: the library's description of it, and where its tensors are.

The library reads the adapter's configuration, as it reads adapter_config.json, and answers with the formula, its
numbers, and the names of its tensors. Here each name becomes a reference to a tensor of the PyTorch module.
"""

import collections
import enum
import json

import torch

from ._operators import complete, has_cuda_kernels, ops


class Unsupported(Exception):
    """Why a layer, or a call of it, stays with PEFT's forward."""


# Keys that say how PEFT finds, initializes or saves a module, and not what it computes.
_UNREAD = {"target_modules", "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern",
           "trainable_token_indices", "init_lora_weights", "loftq_config", "eva_config", "corda_config",
           "lora_ga_config", "runtime_config", "base_model_name_or_path", "revision", "auto_mapping", "task_type",
           "peft_version", "inference_mode", "layer_replication", "megatron_core", "ensure_weight_tying"}

# Methods whose update of W does not read W, so that several active ones add up, as in PEFT.
_ADDITIVE = {"LORA", "LOHA", "LOKR", "VERA", "ADALORA"}

# Additive methods that PEFT computes as a branch beside the base layer, with dropout on the branch's input: the
# attribute with the dropout modules, and the one with the parameters whose type PEFT converts that input to.
_BRANCHES = {"LORA": ("lora_dropout", "lora_A"), "ADALORA": ("lora_dropout", "lora_A"),
             "VERA": ("vera_dropout", "vera_lambda_d"), "RANDLORA": ("randlora_dropout", "randlora_lambda")}

# PEFT's module for a formula that is DoRA on this kind of layer; other variants of LoRA are no formula of the library.
_VARIANTS = {"linear": "DoraLinearVariant", "embedding": "DoraEmbeddingVariant"}

# The layers of bitsandbytes, whose weight only bitsandbytes reads.
_QUANTIZED = {"Linear4bit", "LinearNF4", "LinearFP4", "Linear8bitLt"}


def _plain(value):
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset, tuple)):
        return sorted(value) if isinstance(value, (set, frozenset)) else list(value)
    raise TypeError(f"{type(value).__name__} is no value of a JSON file")


def _type_name(config):
    kind = config.peft_type
    return getattr(kind, "value", str(kind))


def config_text(config, module):
    """The configuration as the library reads it, for one module."""
    kept = {k: v for k, v in config.to_dict().items() if k not in _UNREAD and v is not None}
    kept["target_modules"] = [module]
    if _type_name(config) != "MISS":  # where it names the form of the method
        kept.pop("init_weights", None)
    if _type_name(config) == "IA3" and kept.get("feedforward_modules"):
        names = kept["feedforward_modules"]
        if not isinstance(names, str):
            kept["feedforward_modules"] = [module] if any(module.endswith(n) for n in names) else []
    return json.dumps(kept, default=_plain)


class TensorRef:
    """A tensor of an adapter in the module of its layer: an attribute, an entry of it, and attributes of the entry."""

    __slots__ = ("attribute", "key", "rest", "shape", "corner", "constant", "joins", "place", "dense")

    def __init__(self, attribute=None, key=None, rest=(), constant=None):
        self.attribute, self.key, self.rest, self.constant = attribute, key, tuple(rest), constant
        self.shape = self.corner = self.joins = self.place = self.dense = None

    def find_place(self, layer):
        """Remembers the dictionary of the tensor, which spares the attributes of modules in every call."""
        if self.constant is None and self.joins is None:
            self.place = _place(layer, (self.attribute, *([] if self.key is None else [self.key]), *self.rest))

    def raw(self, layer):
        if self.constant is not None:
            return self.constant
        at = getattr(layer, self.attribute)
        if self.key is not None:
            at = at[self.key]
        for name in self.rest:
            at = at[name] if isinstance(name, int) else getattr(at, name)
        if self.joins is not None:  # a list of matrices: their rows, or all their numbers
            return torch.cat([t if self.joins == 2 else t.reshape(-1) for t in at])
        return at

    def tensor(self, layer):
        t = None if self.place is None else self.place[0].get(self.place[1])
        if t is None:
            t = self.raw(layer)
        if self.corner is not None:
            t = t[tuple(slice(0, n) for n in self.corner)]
            return t if t.is_cpu or t.requires_grad else self._dense(t)
        return t if self.shape is None else t.reshape(self.shape)

    def _dense(self, t):
        """A copy without gaps of a frozen tensor, as kernels on a GPU read it, which stays until the tensor changes."""
        if t.is_contiguous():
            return t
        if torch.compiler.is_compiling():
            return t.contiguous()
        of = (t.data_ptr(), t.dtype, t.device, t._version)
        if self.dense is None or self.dense[0] != of:
            self.dense = of, t.contiguous()
        return self.dense[1]

    def bring_to(self, device):
        """Moves a tensor that is no part of the module to where the module is."""
        if self.constant is not None and self.constant.device != device:
            self.constant = self.constant.to(device)


def _place(module, path):
    """The dictionary of parameters that holds the tensor at a path, and its key; None: it is no parameter."""
    for name in path[:-1]:
        module = module._modules.get(str(name))
        if module is None:
            return None
    found = (module._parameters, str(path[-1]))
    return found if found[0].get(found[1]) is not None else None


def _parts(layer, adapter, leaf, rank):
    ref = TensorRef(leaf, adapter)
    ref.joins = rank
    return ref


def _entry(layer, adapter, leaf):
    """The reference of a leaf that has the name of its tensor in the file, without the adapter's name."""
    attribute, *rest = leaf.split(".")
    holder = getattr(layer, attribute, None)
    if holder is None:
        raise Unsupported(f"the module has no '{attribute}'")
    if isinstance(holder, torch.Tensor):
        return TensorRef(attribute)
    try:
        found = holder[adapter]
    except (KeyError, TypeError):
        raise Unsupported(f"'{attribute}' of the module has no adapter '{adapter}'") from None
    steps = []
    for name in rest:
        if isinstance(found, (torch.nn.ModuleList, torch.nn.ParameterList, torch.nn.Sequential)) and name.isdigit():
            name = int(name)
            found = found[name]
        elif isinstance(found, (torch.nn.ModuleDict, torch.nn.ParameterDict)):
            found = found[name]
        else:
            found = getattr(found, name, None)
        if found is None:
            raise Unsupported(f"'{attribute}' of the module has no '{'.'.join(rest)}'")
        steps.append(name)
    if isinstance(found, torch.nn.Module):
        if not isinstance(getattr(found, "weight", None), torch.Tensor):
            raise Unsupported(f"'{attribute}' of the module holds no tensor")
        steps.append("weight")
    return TensorRef(attribute, adapter, steps)


def _pairs(rows, columns):
    return torch.stack([rows.reshape(-1).long(), columns.reshape(-1).long()])


def _turns(indices, size):
    return 2 * torch.pi * torch.outer(torch.arange(size, dtype=torch.float64), indices.double()) / size


def _fourier_factors(layer, adapter, leaf, out, features):
    at = layer.indices[adapter].cpu()
    if leaf == "fourierft_rows":
        angle = _turns(at[0], out)
        return torch.cat([angle.cos(), angle.sin()], 1).float()
    angle = _turns(at[1], features).T
    return torch.cat([angle.cos(), -angle.sin()], 0).float() / (out * features)


def _wavelet_entries(layer, adapter, out, features):
    """For each coefficient of WaveFT the entries of W that it reaches, and by how much: (taps, indices)."""
    at = layer.waveft_indices[adapter].cpu()
    low = torch.ones(1, dtype=torch.float64)
    if layer.waveft_use_idwt[adapter]:
        from peft.tuners.waveft.wavelet import Wavelet

        low = torch.tensor(Wavelet(layer.waveft_wavelet_family[adapter]).rec_lo, dtype=torch.float64)
    high = low.flip(0) * torch.tensor([(-1.0) ** k for k in range(low.numel())], dtype=torch.float64)

    def reach(position, size):
        if not layer.waveft_use_idwt[adapter]:
            return position, torch.zeros_like(position, dtype=torch.bool)
        padded = size + low.numel() - 2 + size % 2
        half, position = padded // 2, position + (padded - size) // 2
        return 2 * (position % half) - (low.numel() - 2), position >= half

    (row, row_detail), (column, column_detail) = reach(at[0], out), reach(at[1], features)
    steps = torch.arange(low.numel())
    rows = (row[:, None, None] + steps[None, :, None]).expand(-1, -1, low.numel())
    columns = (column[:, None, None] + steps[None, None, :]).expand(-1, low.numel(), -1)
    # PEFT uses the right quarter for the details of rows and the lower one for those of columns.
    by_row = torch.where(column_detail[:, None], high, low)
    by_column = torch.where(row_detail[:, None], high, low)
    inside = (rows >= 0) & (rows < out) & (columns >= 0) & (columns < features)
    taps = by_row[:, :, None] * by_column[:, None, :] * inside
    return taps.reshape(at.shape[1], -1).float(), _pairs(rows * inside, columns * inside)


def _kept_factors(layer, adapter):
    """The singular pairs that OSF does not train: the weight without those that it began with."""
    U, S, V = (getattr(layer, f"_osf_{name}_low_init")[adapter] for name in ("U", "S", "V"))
    rest = layer.get_base_layer().weight.detach().double() - (U.double() * S.double()) @ V.double()
    n = min(rest.shape) - S.numel()
    left, values, right = torch.linalg.svd(rest, full_matrices=False)
    return {"osf_U_high": left[:, :n], "osf_S_high": values[:n], "osf_V_high": right[:n]}


def _group_entries(layer, adapter):
    """The indices of AdaMSS' numbers: for each group its rows, and the columns that its rank takes."""
    groups = [layer.seg_result[adapter][k] for k in layer.train_subspace_index[adapter]]
    rows, columns, first = [], [], 0
    for group, A in zip(groups, layer.adamss_A[adapter]):
        n = A.shape[0]
        rows.append(group[:, None].expand(-1, n).reshape(-1))
        columns.append(torch.arange(first, first + n).repeat(len(group)))
        first += n
    return _pairs(torch.cat(rows), torch.cat(columns))


def _selected_rows(layer, adapter, rows):
    """The matrix of trainable tokens whose column k has its one in the row of token k."""
    tokens = layer.token_indices[adapter]
    selected = torch.zeros(rows, len(tokens), dtype=layer.get_base_layer().weight.dtype)
    selected[torch.tensor(tokens), torch.arange(len(tokens))] = 1
    return selected


def _derived(layer, adapter, leaf, out, features):
    """A frozen tensor that PEFT's module holds in another form than the formula reads; None: in the same form."""
    if leaf == "selected":
        return _selected_rows(layer, adapter, out)
    if leaf in ("unilora_indices_A", "unilora_indices_B"):
        at = getattr(layer, leaf)[adapter]
        return _pairs(at, torch.zeros_like(at))
    if leaf == "supertuning_indices":
        at = layer.supertuning_indices[adapter].long()
        return _pairs(at // features, at % features)
    if leaf == "shira_indices":
        return layer.shira_indices[adapter].long()
    if leaf in ("fourierft_rows", "fourierft_columns"):
        return _fourier_factors(layer, adapter, leaf, out, features)
    if leaf in ("waveft_taps", "waveft_indices"):
        return _wavelet_entries(layer, adapter, out, features)[leaf == "waveft_indices"]
    if leaf == "adamss_indices":
        return _group_entries(layer, adapter)
    if leaf == "adamss_right":
        return layer.adamss_newB[adapter][:, :features].detach().contiguous()
    if leaf == "adamss_right_of_bias":
        return layer.adamss_newB[adapter][:, features].detach().contiguous()
    if leaf == "delora_w_norm":
        return layer.delora_w_norm[adapter].detach().reshape(-1)
    if leaf in ("osf_U_high", "osf_S_high", "osf_V_high"):
        return _kept_factors(layer, adapter)[leaf].to(layer.get_base_layer().weight.dtype).contiguous()
    return None


# Tensors that PEFT's modules hold under another name than its files.
_NAMES = {"psoft_A": "_psoft_A_cache", "psoft_B": "_psoft_B_cache"}


def _tinylora_group(layer, adapter):
    """The key of the vector that a layer shares with its group. Some releases of PEFT keep it in the layer, others keep
    the vector itself."""
    if hasattr(layer, "_tinylora_v_key"):
        return layer._tinylora_v_key[adapter]
    vector = layer._tinylora_v_ref[adapter]
    for key, shared in layer.tinylora_v[adapter].items():
        if shared is vector:
            return key
    raise Unsupported("'tinylora_v' of the model does not have the vector that the layer reads")


def refs_of(leaves, layer, adapter, out, features):
    """Where the tensors of an adapter lie in a layer. Some of them are in attributes that PEFT renames between releases,
    and a layer without them stays with PEFT."""
    try:
        return [ref_of(leaf, layer, adapter, out, features) for leaf in leaves]
    except (AttributeError, KeyError) as e:
        raise Unsupported(f"the module of this release of PEFT holds its tensors in another form: {e}") from None


def ref_of(leaf, layer, adapter, out, features):
    name = leaf["name"]
    if name == "base_layer.bias":
        return TensorRef("base_layer", None, ("bias",))
    made = _derived(layer, adapter, name, out, features)
    if made is not None:
        ref = TensorRef(constant=made)
    elif leaf["layout"] == "parts":
        ref = _parts(layer, adapter, name, len(leaf["shape"]))
    elif name == "tinylora_v":
        ref = TensorRef(name, adapter, (_tinylora_group(layer, adapter),))
    else:
        ref = _entry(layer, adapter, _NAMES.get(name, name))
    found, expected = ref.raw(layer), leaf["shape"]
    if not isinstance(found, torch.Tensor):
        raise Unsupported(f"'{name}' is a {type(found).__name__}, and the formula reads a tensor")
    if leaf["role"] == "index":
        ref = TensorRef(constant=found.detach().long())
        found = ref.constant
    fits = len(expected) == found.dim() and all(n in (-1, m) for n, m in zip(expected, found.shape))
    if leaf["layout"] == "corner" and not fits:
        ref.corner = tuple(expected)
    elif not fits:
        shape = [found.numel()] if len(expected) == 1 else expected
        if sum(n < 0 for n in shape) > 1 or leaf["layout"] not in ("itself", "column"):
            raise Unsupported(f"'{name}' has shape {list(found.shape)}, and the formula reads {expected}")
        ref.shape = tuple(shape)
    return ref


class Inside:
    """The modules inside a layer, whose hooks a fused forward would not call."""

    __slots__ = ("places", "hooks")

    def __init__(self, layer):
        self.places, self.hooks, pending = [], [], [layer]
        while pending:
            parent = pending.pop()._modules
            for name, module in parent.items():
                self.places.append((parent, name, module))
                if module is not None:
                    pending.append(module)
                    self.hooks += (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks,
                                   module._backward_pre_hooks)

    def is_current(self):
        """False after a module was replaced or removed."""
        for parent, name, module in self.places:
            if parent.get(name) is not module:
                return False
        return True

    def has_hooks(self):
        return any(self.hooks)


class Dropout(enum.Enum):
    """How a layer with dropout is computed in training."""

    BRANCHES = 1
    WHOLE = 2


class Branch:
    """What one adapter adds to its base layer, on an input of its own."""

    __slots__ = ("text", "refs", "adapter", "config", "scalings", "inside", "number", "memory", "_dropout", "_parameters",
                 "base", "__weakref__")  # without a dropout: x are indices of rows, which PEFT passes on as they are

    @property
    def configs(self):
        return (self.config,)

    def tensors(self, layer):
        return [ref.tensor(layer) for ref in self.refs]

    def input(self, layer, x):
        """x as PEFT passes it to the adapter: in the type of its parameters, and with dropout in training."""
        if self._dropout is None:
            return x
        of_type = getattr(layer, self._parameters)[self.adapter]
        x = layer._cast_input_dtype(x, of_type.dtype if isinstance(of_type, torch.Tensor) else of_type.weight.dtype)
        return getattr(layer, self._dropout)[self.adapter](x)


class Plan:
    """The formula of a layer with certain adapters, and the references to its tensors.

    Where `training` is set, PEFT drops a part of what the adapters read in training: Dropout.BRANCHES is the base layer
    and what branch_of() describes, Dropout.WHOLE is the difference of the layer with and without the adapter on the
    dropped input, and a text says why PEFT's forward stays. Where the base layer is `quantized`, another library reads its
    weight, and the layer is the base layer and the branches in evaluation too.
    """

    __slots__ = ("text", "refs", "has_bias", "trains_bias", "transposed", "training", "configs", "scalings", "methods",
                 "eval_only", "inside", "base", "memory", "is_table", "quantized")

    def base_tensors(self):
        """The weight and the bias of the base layer, as they lie there."""
        of = self.base._parameters
        weight = of.get("weight")
        if weight is None:  # parametrized
            return self.base.weight, self.base.bias
        return weight, of.get("bias")

    def tensors(self, layer):
        weight, bias = self.base_tensors()
        all_of_them = [weight.t() if self.transposed else weight]
        if self.has_bias:  # a trained bias is a parameter of the adapter, and listed again there
            all_of_them.append(bias.detach() if self.trains_bias else bias)
        return all_of_them + [ref.tensor(layer) for ref in self.refs]


def memory_of(layer):
    """Device and type of the base layer, which say which kernels there are for it."""
    return memory_of_base(layer.get_base_layer())


def memory_of_base(base):
    weight = base._parameters.get("weight")
    if weight is None:  # parametrized
        weight = next(base.parameters(), None)
    return None if weight is None else (weight.device, weight.dtype)


def _refuse_device(memory, quantized):
    device, dtype = memory
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise Unsupported(f"the layer is on {device}, and graft_torch has kernels for the CPU and for CUDA")
    if not has_cuda_kernels:
        raise Unsupported(f"the layer is on {device}, and this build of graft_torch has kernels for the CPU alone; "
                          "install it where nvcc and a torch with CUDA are")
    if not quantized and dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise Unsupported(f"the weight is {dtype}, and the kernels for CUDA compute in float32, bfloat16 and float16")


def _refuse_copies(refs, layer):
    """On a GPU a layer is bound to the memory of its tensors, which takes longer than a call."""
    for ref in refs:
        if ref.joins is not None or (ref.shape is not None and not ref.raw(layer).is_contiguous()):
            raise Unsupported("tensors of the adapter have no memory of their own in the form that kernels for CUDA read; "
                              "every call would copy them")


# A base layer: its kind, the rows and columns of its weight, whether that is stored transposed, and whether it is in a
# format that only its own forward reads.
Base = collections.namedtuple("Base", ["module", "kind", "rows", "columns", "transposed", "quantized"])


def base_of(layer):
    """The base layer with its sizes, or why it cannot be taken."""
    base = layer.get_base_layer()
    name = type(base).__name__
    if type(base) is torch.nn.Linear:
        if _is_tokens(layer) and base.bias is not None:
            raise Unsupported("PEFT leaves the bias of a layer with trainable tokens out")
        return Base(base, "linear", base.out_features, base.in_features, False, False)
    if name == "Conv1D" and getattr(layer, "fan_in_fan_out", False):
        return Base(base, "linear", base.weight.shape[1], base.weight.shape[0], True, False)
    if type(base) is torch.nn.Embedding:
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(base, option):
                raise Unsupported(f"the embedding has {option}")
        return Base(base, "embedding", base.num_embeddings, base.embedding_dim, False, False)
    if type(base).__module__.startswith("bitsandbytes.") and name in _QUANTIZED:
        return Base(base, "linear", base.out_features, base.in_features, False, True)
    raise Unsupported(f"the base layer is {type(base).__module__}.{name}, and graft_torch takes torch.nn.Linear, "
                      "torch.nn.Embedding and the linear layers of bitsandbytes" +
                      (", and Conv1D with fan_in_fan_out" if name == "Conv1D" else ""))


def _is_tokens(layer):
    """Whether the layer is PEFT's of trainable tokens, which replaces rows of the weight for adapters of any method."""
    return "trainable_tokens_delta" in layer.adapter_layer_names


def scalings_of(layer, adapters):
    """The numbers that set_scale(), scale_layer() and their like change."""
    scaling = layer.__dict__.get("scaling")
    return tuple([scaling.get(a) for a in adapters]) if isinstance(scaling, dict) else ()


def _describe(layer, adapter, config, module, base, has_bias):
    if _is_tokens(layer):
        n = len(layer.token_indices[adapter])
        shapes = {"selected": [base.rows, n], "trainable_tokens_original": [n, base.columns],
                  "trainable_tokens_delta": [n, base.columns]}
        leaves = [{"name": name, "role": "", "layout": "itself", "shape": shape} for name, shape in shapes.items()]
        return {"method": "trainable_tokens", "trains_bias": False, "scalars": {}, "sizes": {"trained_tokens": n},
                "leaves": leaves}
    shapes = {}
    for name, t in list(layer.named_parameters()) + list(layer.named_buffers()):
        if name.startswith("base_layer."):
            continue
        parts = name.split(".")
        if adapter in parts[1:]:
            parts.remove(adapter)
            shapes[".".join(parts)] = list(t.shape)
    try:
        described = ops.describe_layer(config_text(config, module), base.kind, module, base.rows, base.columns, has_bias,
                                       json.dumps(shapes))
    except RuntimeError as e:
        raise Unsupported(str(e).splitlines()[0]) from None
    return json.loads(described)


def _numbers(description, layer, adapter):
    """The scalars of the formula, with the scaling that the layer has now."""
    scalars = dict(description["scalars"])
    live = getattr(layer, "scaling", None)
    if "scaling" in scalars and isinstance(live, dict) and isinstance(live.get(adapter), (int, float)):
        if description["method"] != "adalora":
            scalars["scaling"] = float(live[adapter])
    return scalars


def _without_gradient(base, layer, refs, first):
    """The elements of tensors to which PEFT gives no gradient, as [tensor, axis, index]: those that only the padding
    index of a table reads. `first` is the number of the first of these tensors in a call."""
    padding = getattr(base.module, "padding_idx", None) if base.kind == "embedding" else None
    if padding is None:
        return []
    places = []
    for k, ref in enumerate(refs, first):
        if ref.attribute == "lora_embedding_A":
            places.append([k, 1, padding])
        elif ref.attribute == "trainable_tokens_delta" and padding in layer.token_indices[ref.key]:
            places.append([k, 0, layer.token_indices[ref.key].index(padding)])
    return places


def _refuse_variants(layer, adapter, config, kind):
    name = _type_name(config)
    if name == "OFT" and getattr(config, "coft", False):
        raise Unsupported("constrained OFT writes its parameters in every forward")
    if getattr(layer, "lora_variant", None):
        variant = layer.lora_variant.get(adapter)
        if variant is not None and type(variant).__name__ != _VARIANTS[kind]:
            raise Unsupported(f"LoRA's variant {type(variant).__name__} is no formula of the library")
    for name in ("input_fns", "output_fns"):
        if getattr(layer, name, None):
            raise Unsupported(f"the layer has {name}")


def _has(layer, adapter):
    return any(adapter in getattr(layer, n, {}) for n in layer.adapter_layer_names)


def _adapter_text(description, layer, adapter):
    return {"method": description["method"], "trains_bias": description["trains_bias"],
            "tensors": [leaf["name"] for leaf in description["leaves"]],
            "scalars": _numbers(description, layer, adapter), "sizes": description["sizes"]}


def branch_of(layer, adapter, configs, module):
    """Makes the branch of one adapter; None: the layer does not have it; raises Unsupported where it is no branch."""
    if not _has(layer, adapter):
        return None
    base = base_of(layer)
    out, features = base.rows, base.columns
    branch = Branch()
    branch.base, branch.memory = base.module, memory_of(layer)
    _refuse_device(branch.memory, base.quantized)
    branch.adapter, branch.config = adapter, configs.get(adapter)
    if branch.config is None:
        raise Unsupported(f"the model has no configuration of adapter '{adapter}'")
    kind = _type_name(branch.config)
    if kind not in _BRANCHES or getattr(branch.config, "use_dora", False) or _is_tokens(layer):
        raise Unsupported("what the adapter adds is no branch of its own input")
    _refuse_variants(layer, adapter, branch.config, base.kind)
    branch._dropout, branch._parameters = _BRANCHES[kind] if base.kind == "linear" else (None, None)
    branch.scalings, branch.inside = scalings_of(layer, (adapter,)), Inside(layer)
    d = _describe(layer, adapter, branch.config, module, base, False)
    branch.refs = refs_of(d["leaves"], layer, adapter, out, features)
    for ref in branch.refs:
        ref.find_place(layer)
        ref.bring_to(branch.memory[0])
    if branch.memory[0].type == "cuda":
        _refuse_copies(branch.refs, layer)
    sizes = {"out": out, "in": features} if base.kind == "linear" else {"out": features, "in": out}
    text = {"kind": base.kind, "bias": False, "branch": sizes, "adapters": [_adapter_text(d, layer, adapter)],
            "no_gradient": _without_gradient(base, layer, branch.refs, 0)}
    try:
        with torch.no_grad():
            branch.text = complete(text, branch.tensors(layer))
    except RuntimeError as e:
        raise Unsupported(str(e).splitlines()[0]) from None
    return branch


def _has_dropout(config):
    return any(isinstance(v, (int, float)) and v > 0 for k, v in vars(config).items() if "dropout" in k)


def _training_of(adapters, configs, has_input):
    """How the layer is computed in training; None: as in evaluation. PEFT drops nothing where indices are the input."""
    if not has_input or not any(_has_dropout(configs[a]) for a in adapters):
        return None
    kinds = {_type_name(configs[a]) for a in adapters}
    if kinds == {"LORA"} and len(adapters) == 1 and configs[adapters[0]].use_dora:
        return Dropout.WHOLE
    if kinds <= _BRANCHES.keys():
        return Dropout.BRANCHES
    return f"{' and '.join(sorted(kinds - _BRANCHES.keys()))} has a dropout of its own, which only PEFT draws"


def plan_of(layer, adapters, configs, module):
    """Makes the plan of a layer for its active adapters; raises Unsupported where PEFT's forward stays."""
    base = base_of(layer)
    out, features = base.rows, base.columns
    has_bias = getattr(base.module, "bias", None) is not None
    plan = Plan()
    plan.memory = memory_of(layer)
    _refuse_device(plan.memory, base.quantized)
    if base.transposed and plan.memory[0].type == "cuda":
        raise Unsupported("Conv1D stores its weight transposed, and the kernels for CUDA read rows of the weight")
    plan.base, plan.has_bias, plan.transposed, plan.refs = base.module, has_bias, base.transposed, []
    plan.is_table, plan.quantized = base.kind == "embedding", base.quantized
    plan.configs = tuple(configs.get(a) for a in adapters)
    plan.scalings, plan.inside = scalings_of(layer, adapters), Inside(layer)
    plan.trains_bias = plan.eval_only = False
    described, present = [], []
    for adapter in adapters:
        config = configs.get(adapter)
        if config is None:
            raise Unsupported(f"the model has no configuration of adapter '{adapter}'")
        if not _has(layer, adapter):
            continue
        present.append(adapter)
        if base.quantized and (_type_name(config) not in _BRANCHES or getattr(config, "use_dora", False)):
            raise Unsupported(f"the base weight is quantized by bitsandbytes, and {_type_name(config)} is no branch beside "
                              "the base layer" + (" with DoRA" if getattr(config, "use_dora", False) else ""))
        _refuse_variants(layer, adapter, config, base.kind)
        d = _describe(layer, adapter, config, module, base, has_bias)
        refs = refs_of(d["leaves"], layer, adapter, out, features)
        described.append(_adapter_text(d, layer, adapter))
        plan.refs += refs
        plan.trains_bias = plan.trains_bias or d["trains_bias"]
        plan.eval_only = plan.eval_only or _type_name(config) == "PVERA"
    if not described:
        return None
    plan.methods = [d["method"] for d in described]
    plan.training = _training_of(present, configs, base.kind == "linear" and not _is_tokens(layer))
    if base.quantized:
        plan.training = Dropout.BRANCHES
        return plan
    for ref in plan.refs:
        ref.find_place(layer)
        ref.bring_to(plan.memory[0])
    if plan.memory[0].type == "cuda":
        _refuse_copies(plan.refs, layer)
    if len(described) > 1:
        kinds = {_type_name(c) for c in plan.configs if c is not None}
        dora = any(getattr(c, "use_dora", False) for c in plan.configs)
        if not kinds <= _ADDITIVE or dora or plan.trains_bias or _is_tokens(layer):
            raise Unsupported("several active adapters add up for LoRA, AdaLoRA, LoHa, LoKr and VeRA alone")
    try:
        with torch.no_grad():
            text = {"kind": base.kind, "bias": has_bias, "adapters": described,
                    "no_gradient": _without_gradient(base, layer, plan.refs, 2 if has_bias else 1)}
            plan.text = complete(text, plan.tensors(layer))
    except RuntimeError as e:
        raise Unsupported(str(e).splitlines()[0]) from None
    return plan
