# SPDX-License-Identifier: Apache-2.0
"""Model: a stored model with its adapters, run by the library's own engine instead of PyTorch's modules."""

import contextlib

import torch

try:
    from . import _model
except ImportError as e:
    _model, _missing = None, e


def _is_prompt(given):
    if isinstance(given, (str, torch.Tensor)):
        return isinstance(given, str) or given.dim() == 1
    return len(given) > 0 and isinstance(given[0], int)


def _names(given):
    return [given] if isinstance(given, str) else list(given)


class Model:
    """A causal language model of a Hugging Face folder or a GGUF file, in float on the CPU and in bf16 on a GPU.

        model = graft_torch.Model("SmolLM2-135M-Instruct")
        model.load_adapter("sql", "adapters/sql")                # a folder that PEFT wrote, or a GGUF file
        model.activate("sql")
        model.generate("How many", max_new_tokens=20)            # text, or token ids for token ids
        model.logits([1, 2, 3])                                  # a torch tensor [tokens, vocabulary]

    An error is a RuntimeError with the library's sentence, and leaves the model as it was.
    """

    def __init__(self, path, device="cpu", dtype=None, context=0):
        """`dtype`: torch.float32, or on a GPU torch.bfloat16, which is what a GPU computes in where none is given.
        `context`: the longest sequence; 0: the model's own, at most 4096."""
        if _model is None:
            raise ImportError(f"graft_torch._model is missing: graft_torch is built by `pip install ./python` ({_missing})")
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"the device is {self.device}, expected cpu or cuda")
        self.dtype = dtype or (torch.float32 if self.device.type == "cpu" else torch.bfloat16)
        allowed = (torch.float32,) if self.device.type == "cpu" else (torch.float32, torch.bfloat16)
        if self.dtype not in allowed:
            raise ValueError(f"the dtype is {self.dtype}, expected {' or '.join(map(str, allowed))} on {self.device}")
        if self.device.type == "cuda" and _model.has_cuda and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.path, self._tokenizer = str(path), None
        on = self.device.type + ("-f32" if self.device.type == "cuda" and self.dtype == torch.float32 else "")
        with self._on_device():
            self._stored = _model.load(self.path, on, context)

    def _on_device(self):
        cuda = self.device.type == "cuda" and _model.has_cuda
        return torch.cuda.device(self.device) if cuda else contextlib.nullcontext()

    @property
    def vocabulary(self):
        return self._stored.vocabulary

    @property
    def context(self):
        """The longest sequence, with its new tokens."""
        return self._stored.context

    @property
    def adapters(self):
        """The names of the loaded adapters."""
        return self._stored.adapters

    @property
    def active(self):
        """The names of the active adapters, in the order in which they act."""
        return self._stored.active

    @property
    def tokenizer(self):
        """The tokenizer of the model's folder, read at its first use: encode(text) and decode(ids)."""
        if self._tokenizer is None:
            self._tokenizer = _model.Tokenizer(self.path)
        return self._tokenizer

    def load_adapter(self, name, path):
        """Adds an adapter under a name; it is not active until activate() names it."""
        with self._on_device():
            self._stored.load_adapter(name, str(path))

    def remove_adapter(self, name):
        with self._on_device():
            self._stored.remove_adapter(name)

    def activate(self, *names):
        """Makes these adapters the active ones, in this order; without a name the base model alone runs."""
        with self._on_device():
            self._stored.activate([n for given in names for n in _names(given)])

    def _ids(self, prompt):
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return prompt.tolist() if isinstance(prompt, torch.Tensor) else list(prompt)

    def _sequences(self, given, adapters):
        """The sequences of a call, and the adapters of each: none for all, names for all, or a list of them per sequence."""
        single = _is_prompt(given)
        sequences = [self._ids(p) for p in ([given] if single else given)]
        if adapters is None:
            return single, sequences, []
        names = [_names(adapters)] * len(sequences) if single or isinstance(adapters, str) else list(map(_names, adapters))
        return single, sequences, names

    def logits(self, prompts, *, last_only=False, adapters=None):
        """The logits of every token, or of the last one of each sequence: [tokens, vocabulary].

        `prompts`: text, ids, or a list of them, whose rows follow one another. The tensor has the memory that the engine
        wrote, and no gradient. `adapters`: names for one sequence, or a list of names for each; not given: the active ones.
        """
        _, sequences, names = self._sequences(prompts, adapters)
        with self._on_device():
            return self._stored.logits(sequences, last_only, names, self.device.index or 0)

    def generate(self, prompts, *, max_new_tokens=32, adapters=None, sample=None, temperature=None, top_k=None, top_p=None,
                 min_p=None, repetition_penalty=None, seed=None, eos_tokens=None):
        """What follows the prompts: text for text, and for ids the ids with the prompt in front; a list for a list.

        Settings that are not given are those of the model's generation_config.json. `adapters`: as for logits().
        """
        single, sequences, names = self._sequences(prompts, adapters)
        settings = _model.Settings()
        settings.max_new_tokens, settings.eos_tokens = max_new_tokens, eos_tokens
        settings.sample, settings.temperature, settings.top_k, settings.top_p = sample, temperature, top_k, top_p
        settings.min_p, settings.repetition_penalty, settings.seed = min_p, repetition_penalty, seed
        with self._on_device():
            made = self._stored.generate(sequences, settings, names)
        if single:
            return self._answer(prompts, sequences[0], made[0])
        return [self._answer(p, s, m) for p, s, m in zip(prompts, sequences, made)]

    def _answer(self, prompt, ids, made):
        if isinstance(prompt, str):
            return self.tokenizer.decode(made[len(ids):])
        return torch.tensor(made, device=prompt.device) if isinstance(prompt, torch.Tensor) else made
