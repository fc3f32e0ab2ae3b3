# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that replaces the tiny models which PEFT's tests download by models of the same classes.

    pytest -p offline_models PEFT/tests/test_decoder_models.py      # with this folder in PYTHONPATH

The weights are random in both. A tokenizer has one token per byte. A name that is not listed here is downloaded.
"""

import pathlib
import tempfile

import torch
import transformers

_small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 264}
_gated = {**_small, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 512}
_gpt = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 264, "n_positions": 512, "bos_token_id": 256,
        "eos_token_id": 257}
_opt = {**_small, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 512}
_configs = {
    "tiny-random-OPTForCausalLM": lambda: transformers.OPTConfig(**_opt),
    "tiny-random-GPT2LMHeadModel": lambda: transformers.GPT2Config(**_gpt),
    "tiny-random-gpt2": lambda: transformers.GPT2Config(**_gpt),
    "tiny-random-GPTJForCausalLM": lambda: transformers.GPTJConfig(**_gpt, rotary_dim=4),
    "tiny-random-LlamaForCausalLM": lambda: transformers.LlamaConfig(**_gated),
    "tiny-random-MistralForCausalLM": lambda: transformers.MistralConfig(**_gated),
    "tiny-dummy-qwen2": lambda: transformers.Qwen2Config(**_gated),
    "tiny-random-Gemma3ForCausalLM": lambda: transformers.Gemma3TextConfig(**_gated, head_dim=8, sliding_window=32),
}
_folder = tempfile.TemporaryDirectory(prefix="tiny-models-")


def _tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: k for k, letter in enumerate(letters)} | {"<s>": 256, "</s>": 257}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>",
                                                pad_token="</s>")


def _local(name):
    """The folder of the model that replaces a name of the hub; other names stay as they are."""
    short = str(name).rsplit("/", 1)[-1]
    if short not in _configs or pathlib.Path(str(name)).exists():
        return name
    folder = pathlib.Path(_folder.name) / short
    if not folder.exists():
        state = torch.get_rng_state()
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(_configs[short]()).save_pretrained(folder)
        _tokenizer().save_pretrained(folder)
        torch.set_rng_state(state)
    return str(folder)


def _replace(owner):
    original = owner.from_pretrained.__func__

    def from_pretrained(cls, name, *args, **kwargs):
        return original(cls, _local(name), *args, **kwargs)

    owner.from_pretrained = classmethod(from_pretrained)


def pytest_configure(config):
    for owner in (transformers.PreTrainedModel, transformers.AutoModelForCausalLM, transformers.AutoConfig,
                  transformers.AutoTokenizer):
        _replace(owner)
