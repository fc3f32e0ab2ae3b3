#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden cases of models whose folders GPTQModel, AutoAWQ, transformers (MXFP4) and ModelOpt (NVFP4) would write.

    pip install torch peft safetensors transformers
    python3 test/golden/make_checkpoints.py test/golden/checkpoints/models [NAME...]

The libraries of these formats quantize on a GPU only, so weights are rounded and packed here from the descriptions of
the formats: AutoGPTQ's qlinear (a column of 32-bit words is a stream of codes; the format gptq stores zero points less
one, gptq_v2 as they are), AutoAWQ's WQLinear_GEMM (eight codes of a word in the order 0 2 4 6 1 3 5 7), gpt-oss, and
ModelOpt's NVFP4QTensor. Expected numbers are of transformers and PEFT on the dequantized weights in float, which for
MXFP4 transformers dequantizes itself. NAME/base has the model, other folders in NAME an adapter on it, in the layout of
make_models.py, without merged models: PEFT does not merge into these formats.
"""
import copy
import json
import pathlib
import shutil
import sys

import numpy as np
import peft
import torch
import transformers
from make_models import greedy, logits, seed_of, write_case
from safetensors.torch import load_file, save_file

VOCABULARY = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def packed(codes, bits):
    """The codes of each column as bits, the lowest first, in words of 32: [n, m] becomes [n bits / 32, m]."""
    n, m = codes.shape
    stream = (codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    words = stream.reshape(n * bits // 32, 32, m).astype(np.uint64) << np.arange(32, dtype=np.uint64)[None, :, None]
    return torch.from_numpy(words.sum(1).astype(np.uint32).view(np.int32).copy())


def grouped(weight, bits, group_of, symmetric):
    """Codes [out, in], scales in half precision and zero points [groups, out], and the numbers that they mean."""
    w, groups, most = weight.numpy().astype(np.float64), group_of.max() + 1, 2**bits - 1
    low = np.stack([np.minimum(w[:, group_of == g].min(1), 0) for g in range(groups)])
    high = np.stack([np.maximum(w[:, group_of == g].max(1), 0) for g in range(groups)])
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    scales = ((high - low) / most).astype(np.float16)
    scale = scales.astype(np.float64)
    zeros = np.full(scale.shape, 2 ** (bits - 1)) if symmetric else np.clip(np.rint(-low / scale), 0, most).astype(int)
    codes = np.clip(np.rint(w / scale[group_of].T) + zeros[group_of].T, 0, most).astype(int)
    numbers = ((codes - zeros[group_of].T) * scale[group_of].T).astype(np.float32)
    return codes, torch.from_numpy(scales), zeros, torch.from_numpy(numbers)


def gptq(name, weight, rng, *, bits, group_size, desc_act, sym, checkpoint_format):
    columns = weight.shape[1]
    size = columns if group_size == -1 else group_size
    group_of = np.arange(columns) // size
    if desc_act:
        group_of = group_of[rng.permutation(columns)]
    codes, scales, zeros, numbers = grouped(weight, bits, group_of, sym)
    stored = zeros if checkpoint_format == "gptq_v2" else (zeros - 1) & (2**bits - 1)
    return {name + ".qweight": packed(codes.T, bits), name + ".qzeros": packed(stored.T, bits).T.contiguous(),
            name + ".scales": scales, name + ".g_idx": torch.from_numpy(group_of.astype(np.int32))}, numbers


def awq(name, weight, _, *, group_size):
    group_of = np.arange(weight.shape[1]) // group_size
    codes, scales, zeros, numbers = grouped(weight, 4, group_of, False)
    order = (np.arange(weight.shape[0] // 8)[:, None] * 8 + np.array(AWQ_ORDER)).ravel()
    return {name + ".qweight": packed(codes[order], 4).T.contiguous(),
            name + ".qzeros": packed(zeros.T[order], 4).T.contiguous(), name + ".scales": scales}, numbers


def e2m1(x):
    """Codes of numbers whose blocks were divided by their scales: the nearest, of two the even one."""
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    code = torch.searchsorted(middles, x.abs().contiguous())
    code += (x.abs()[..., None] == middles[1::2]).any(-1)
    return (code + 8 * (x < 0)).to(torch.uint8)


def pairs(codes):
    return codes[..., ::2] | codes[..., 1::2] << 4


def mxfp4(name, weight, _):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = weight.reshape(weight.shape[0], -1, 32)
    exponent = torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 6))
    stored = {name + ".weight_blocks": pairs(e2m1(blocks / 2**exponent)),
              name + ".weight_scales": (exponent[..., 0] + 127).to(torch.uint8)}
    numbers = convert_moe_packed_tensors(*(t[None].clone() for t in stored.values()), dtype=torch.float32)
    return stored, numbers[0].T.contiguous()


def mxfp4_experts(name, weight):
    """The weight of experts [experts, in, out], whose matrices are stored [out, in]."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    parts = [mxfp4(name, one.T.contiguous(), None)[0] for one in weight]
    blocks, scales = (torch.stack([p[name + end] for p in parts]) for end in (".weight_blocks", ".weight_scales"))
    numbers = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
    return {name + "_blocks": blocks, name + "_scales": scales}, numbers.contiguous()


def nvfp4(name, weight, _):
    whole = weight.abs().max() / (6 * 448)
    blocks = weight.reshape(weight.shape[0], -1, 16)
    scales = (blocks.abs().amax(-1) / (6 * whole)).to(torch.float8_e4m3fn)
    scale = (scales.float() * whole)[..., None]
    codes = e2m1(blocks / scale)
    numbers = torch.where(codes > 7, -1.0, 1.0) * E2M1[(codes & 7).long()] * scale
    return {name + ".weight": pairs(codes.reshape(weight.shape)), name + ".weight_scale": scales,
            name + ".weight_scale_2": whole.clone(), name + ".input_scale": torch.tensor(0.01)}, numbers.reshape(weight.shape)


def gptq_config(how):
    return {"bits": how["bits"], "group_size": how["group_size"], "damp_percent": 0.1, "desc_act": how["desc_act"],
            "static_groups": False, "sym": how["sym"], "true_sequential": True, "quant_method": "gptq",
            "checkpoint_format": how["checkpoint_format"], "lm_head": False, "pack_dtype": "int32"}


def of_gptq(**how):
    return gptq, how, gptq_config(how)


AWQ = {"quant_method": "awq", "zero_point": True, "group_size": 32, "bits": 4, "version": "gemm",
       "modules_to_not_convert": None}
MODELOPT = {"producer": {"name": "modelopt", "version": "0.37.0"},
            "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
                             "exclude_modules": ["lm_head"]}}
# name -> how a weight is stored, its settings, quantization_config
BASES = {
    "gptq_4": of_gptq(bits=4, group_size=32, desc_act=True, sym=True, checkpoint_format="gptq"),
    "gptq_4_v2": of_gptq(bits=4, group_size=-1, desc_act=False, sym=False, checkpoint_format="gptq_v2"),
    "gptq_2": of_gptq(bits=2, group_size=32, desc_act=False, sym=False, checkpoint_format="gptq_v2"),
    "gptq_3": of_gptq(bits=3, group_size=64, desc_act=True, sym=False, checkpoint_format="gptq"),
    "gptq_8": of_gptq(bits=8, group_size=64, desc_act=False, sym=True, checkpoint_format="gptq"),
    "awq": (awq, {"group_size": 32}, AWQ),
    "mxfp4": (mxfp4, {}, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}),
    "nvfp4": (nvfp4, {}, None),  # hf_quant_config.json says it
    "gpt_oss_mxfp4": (None, {}, {"quant_method": "mxfp4", "modules_to_not_convert": [  # experts alone, as OpenAI writes it
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}),
}


def lora(**more):
    return lambda: peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "down_proj"],
                                   task_type="CAUSAL_LM", **more)


def lora_on_experts():
    return peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], task_type="CAUSAL_LM",
                           target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])


ADAPTERS = {"gptq_4": {"lora": lora()}, "awq": {"dora": lora(use_dora=True)}, "nvfp4": {"lora": lora()},
            "gpt_oss_mxfp4": {"lora_experts": lora_on_experts}}


def llama(name):
    return transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96 if name == "gptq_3" else 64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.2)


def gpt_oss():
    return transformers.GptOssConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=5,
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.2)


def make(root, name):
    store, settings, config = BASES[name]
    torch.manual_seed(seed_of(name))
    rng = np.random.default_rng(seed_of(name))
    config_of_model = gpt_oss() if store is None else llama(name)
    model = transformers.AutoModelForCausalLM.from_config(config_of_model).eval()
    with torch.no_grad():  # not model.half(), which would round RoPE's frequencies too
        for p in model.parameters():
            p.copy_(p.half())
    base = root / name / "base"
    copy.deepcopy(model).half().save_pretrained(base)
    tensors = load_file(base / "model.safetensors")
    with torch.no_grad():
        for module, linear in model.named_modules():
            for parameter in ("gate_up_proj", "down_proj") if store is None and module.endswith(".experts") else ():
                del tensors[f"{module}.{parameter}"]
                stored, numbers = mxfp4_experts(f"{module}.{parameter}", getattr(linear, parameter))
                tensors |= stored
                getattr(linear, parameter).copy_(numbers)
            if store is not None and isinstance(linear, torch.nn.Linear) and module != "lm_head":
                del tensors[module + ".weight"]
                stored, numbers = store(module, linear.weight, rng, **settings)
                tensors |= stored
                linear.weight.copy_(numbers)
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    if config is None:
        (base / "hf_quant_config.json").write_text(json.dumps(MODELOPT, indent=1) + "\n")
    else:
        said = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(said | {"quantization_config": config}, indent=1) + "\n")

    def draw():
        return torch.randint(3, VOCABULARY, (2, 9)), torch.randint(3, VOCABULARY, (6, 2, 9))

    ids = draw()[0]
    save_file({"ids": ids, "logits": logits(model, ids), "generated": greedy(model, ids)},
              base / "expected.safetensors")
    for adapter, of in ADAPTERS.get(name, {}).items():
        folder = root / name / adapter
        write_case(folder, model, of, draw)
        expected = load_file(folder / "expected.safetensors")
        del expected["logits_merged_unloaded"]
        save_file(expected, folder / "expected.safetensors")
        shutil.rmtree(folder / "adapter_trained")


if __name__ == "__main__":
    for one in sys.argv[2:] or BASES:
        make(pathlib.Path(sys.argv[1]), one)
        print(one)
