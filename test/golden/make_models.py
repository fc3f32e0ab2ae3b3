#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes golden cases of whole models with the real PEFT: trainable tokens, with LoRA and alone, a tied table that is
saved whole, C3A, and adapters on architectures and variants whose base is made here as well, one of them in 4 bits.

    pip install torch peft safetensors transformers bitsandbytes
    python3 test/golden/make_models.py test/golden/models [NAME...]
    python3 test/golden/make_models.py test/golden/quantized/models lora_gpt2_nf4

For every base folder BASE/base that a case names: BASE/NAME with adapter_init, adapter_trained, case.json and
expected.safetensors, in the layout that golden.cpp reads (test/golden/model_case.h lists the comparisons). The
adapter's parameters are moved at random before anything is computed, so that no zero hides an error.
"""
import copy
import json
import pathlib
import sys
import tempfile
import warnings

import peft
import torch
import transformers
from safetensors.torch import save_file

warnings.filterwarnings("ignore")
OPTIMIZER = {"name": "AdamW", "lr": 0.005, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
TARGETS = ["q_proj", "v_proj", "down_proj"]
OPT_LINEARS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]


def lora(**more):
    return peft.LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS, task_type="CAUSAL_LM", **more)


SMALL = {"vocab_size": 96, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
         "max_position_embeddings": 64, "initializer_range": 0.2}
GEMMA = {**SMALL, "hidden_size": 40, "intermediate_size": 56, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 5, "initializer_range": 0.15}
BASES = {  # name -> a model with random weights
    "gemma2": lambda: transformers.Gemma2Config(
        **GEMMA, num_hidden_layers=3, attn_logit_softcapping=2.5, final_logit_softcapping=4.0, attention_bias=True),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **GEMMA, num_hidden_layers=4, final_logit_softcapping=6.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
    "granite": lambda: transformers.GraniteConfig(
        **SMALL, hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, embedding_multiplier=1.7, attention_multiplier=0.21, residual_multiplier=0.6,
        logits_scaling=1.3, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "olmo2": lambda: transformers.Olmo2Config(
        **SMALL, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, rope_parameters={"rope_type": "default", "rope_theta": 700.0}),
    "phi3": lambda: transformers.Phi3Config(
        **SMALL, hidden_size=48, intermediate_size=60, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, resid_pdrop=0.0, embd_pdrop=0.0, sliding_window=7, rope_parameters={
            "rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.75}),
    "phi3_longrope": lambda: transformers.Phi3Config(
        **SMALL, hidden_size=32, intermediate_size=36, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, resid_pdrop=0.0, embd_pdrop=0.0, original_max_position_embeddings=40,
        rope_parameters={"rope_type": "longrope", "rope_theta": 300.0, "partial_rotary_factor": 0.5,
                         "short_factor": [1.0, 1.3, 1.9, 2.5], "long_factor": [1.5, 2.5, 5.0, 11.0]}),
    "smollm3": lambda: transformers.SmolLM3Config(
        **SMALL, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=6, mlp_bias=True),
    "opt_projected": lambda: transformers.OPTConfig(
        vocab_size=120, hidden_size=48, word_embed_proj_dim=24, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, do_layer_norm_before=False, dropout=0.0, attention_dropout=0.0, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, init_std=0.2),
    "opt_wide": lambda: transformers.OPTConfig(
        vocab_size=200, hidden_size=96, ffn_dim=384, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, dropout=0.0, attention_dropout=0.0, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        init_std=0.1),
    "gpt2_scaled": lambda: transformers.GPT2Config(
        vocab_size=120, n_embd=48, n_layer=3, n_head=4, n_positions=64, scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, initializer_range=0.2),
    "gpt2_nf4": lambda: transformers.GPT2Config(
        vocab_size=40, n_embd=64, n_layer=1, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.15),
}
MOE = {**SMALL, "vocab_size": 64, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
       "num_key_value_heads": 1, "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.3}
BASES |= {  # with the auxiliary loss of routers
    "mixtral_balanced": lambda: transformers.MixtralConfig(**MOE, intermediate_size=20, num_local_experts=5),
    "qwen2_moe_balanced": lambda: transformers.Qwen2MoeConfig(
        **MOE, intermediate_size=28, moe_intermediate_size=12, shared_expert_intermediate_size=16, num_experts=6,
        mlp_only_layers=[0]),
    "gpt_oss_balanced": lambda: transformers.GptOssConfig(
        **MOE, intermediate_size=16, head_dim=8, num_local_experts=4, sliding_window=6),
}
SEEDS = {  # with these an input of a ReLU is zero up to rounding in the fourth training step
    "opt_wide": 487, "dora_opt_wide": 717,
}
CODES = {  # bases that bitsandbytes stores; it transposes GPT-2's weights from [in, out] to [out, in]
    "gpt2_nf4": lambda: transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32),
}
GEMMA_NORMS = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
               "post_feedforward_layernorm", "norm"]
BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]  # the parameters of experts
CASES = {  # name -> (base, tokens that the prompts contain, configuration)
    "ln_tuning_gemma2": ("gemma2", [], lambda: peft.LNTuningConfig(target_modules=GEMMA_NORMS, task_type="CAUSAL_LM")),
    "lora_gemma3": ("gemma3", [], lambda: peft.LoraConfig(r=3, lora_alpha=8, target_modules="all-linear",
                                                         task_type="CAUSAL_LM")),
    "oft_granite": ("granite", [], lambda: peft.OFTConfig(r=0, oft_block_size=4, target_modules=["q_proj", "down_proj"],
                                                         bias="all", task_type="CAUSAL_LM")),
    "dora_olmo2": ("olmo2", [], lambda: peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", use_dora=True,
                                                       task_type="CAUSAL_LM")),
    "ia3_phi3": ("phi3", [], lambda: peft.IA3Config(target_modules=["qkv_proj", "gate_up_proj", "down_proj"],
                                                   feedforward_modules=["down_proj"], task_type="CAUSAL_LM")),
    "lora_phi3_longrope": ("phi3_longrope", [], lambda: peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["qkv_proj", "gate_up_proj"], task_type="CAUSAL_LM")),
    "dora_smollm3": ("smollm3", [3, 9], lambda: peft.LoraConfig(
        r=2, lora_alpha=4, target_modules="all-linear", use_dora=True, trainable_token_indices=[3, 9],
        task_type="CAUSAL_LM")),
    "lora_trainable_tokens_tied": (
        "llama_tied_bias", [3, 9, 41, 100], lambda: lora(trainable_token_indices=[3, 9, 41, 100])),
    "lora_trainable_tokens_head": (
        "llama", [5, 8, 30, 77], lambda: lora(trainable_token_indices={"embed_tokens": [5, 8], "lm_head": [8, 30, 77]})),
    "trainable_tokens": (
        "llama", [4, 60, 61, 255],
        lambda: peft.TrainableTokensConfig(token_indices=[4, 60, 61, 255], task_type="CAUSAL_LM")),
    "lora_saved_tied": (  # the head stays the base's table, also when merged
        "llama_tied_bias", [], lambda: lora(modules_to_save=["embed_tokens"])),
    "pissa": ("llama", [], lambda: lora(init_lora_weights="pissa")),  # PEFT subtracts the first factors from the base
    "c3a": (  # its gradient of the input uses another weight
        "llama", [], lambda: peft.C3AConfig(block_size=8, target_modules=["q_proj", "gate_proj"], task_type="CAUSAL_LM")),
    "lora_opt_projected": (
        "opt_projected", [], lambda: peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")),
    "dora_opt_wide": ("opt_wide", [], lambda: peft.LoraConfig(r=4, lora_alpha=8, target_modules=OPT_LINEARS,
                                                              use_dora=True, task_type="CAUSAL_LM")),
    "lora_mixtral_balanced": ("mixtral_balanced", [], lambda: peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=["q_proj"], target_parameters=BOTH, modules_to_save=["gate"],
        task_type="CAUSAL_LM")),
    "lora_qwen2_moe_balanced": ("qwen2_moe_balanced", [], lambda: peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["gate"], task_type="CAUSAL_LM")),
    "lora_gpt_oss_balanced": ("gpt_oss_balanced", [], lambda: peft.LoraConfig(
        r=2, lora_alpha=4, target_modules=[], target_parameters=BOTH, task_type="CAUSAL_LM")),
    "lora_gpt2_scaled": (
        "gpt2_scaled", [], lambda: peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"],
                                                   fan_in_fan_out=True, task_type="CAUSAL_LM")),
}


def quantized():
    """Made by name only: cases on the bases of CODES."""
    return {"lora_gpt2_nf4": ("gpt2_nf4", [], lambda: peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear",
                                                                      task_type="CAUSAL_LM"))}


def of(kind, **keys):
    return lambda: kind(**{"target_modules": TARGETS, "task_type": "CAUSAL_LM", **keys})


def further():
    """Made by name only, not stored: their files, and values drawn for all layers at once, on three architectures."""
    opt = {"target_modules": OPT_LINEARS}
    gpt2 = {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}
    return {
        "pissa_gpt2": ("gpt2", [], of(peft.LoraConfig, r=3, init_lora_weights="pissa", **gpt2)),
        "pissa_dora": ("llama", [], of(peft.LoraConfig, r=3, init_lora_weights="pissa", use_dora=True)),
        "olora": ("llama", [], of(peft.LoraConfig, r=4, init_lora_weights="olora")),
        "olora_opt": ("opt", [], of(peft.LoraConfig, r=4, init_lora_weights="olora", **opt)),
        "shira": ("llama", [], of(peft.ShiraConfig, r=2, random_seed=3)),
        "supertuning": ("llama", [], of(peft.SupertuningConfig, sparsity=0.95, r=2)),
        "fourierft": ("llama", [], of(peft.FourierFTConfig, n_frequency=40, scaling=30)),
        "fourierft_gpt2": ("gpt2", [], of(peft.FourierFTConfig, n_frequency=40, scaling=30, **gpt2)),
        "waveft": ("llama", [], of(peft.WaveFTConfig, n_frequency=40, wavelet_family="db2", scaling=3,
                                   proportional_parameters=True)),
        "unilora": ("llama", [], of(peft.UniLoraConfig, r=2, theta_d_length=100)),
        "unilora_all": ("llama", [], of(peft.UniLoraConfig, r=2, theta_d_length=64, target_modules="all-linear")),
        "unilora_opt": ("opt", [], of(peft.UniLoraConfig, r=2, theta_d_length=100, **opt)),
        "unilora_gpt2": ("gpt2", [], of(peft.UniLoraConfig, r=2, theta_d_length=100, **gpt2)),
        "frod": ("llama", [], of(peft.FrodConfig, sparse_rate=0.02, progressbar=False)),
        "adamss": ("llama", [], of(peft.AdamssConfig, r=12, num_subspaces=3, subspace_rank=2)),
        "pvera": ("llama", [], of(peft.PveraConfig, r=6, save_projection=False)),
        "tinylora": ("llama", [], of(peft.TinyLoraConfig, r=3, u=7, weight_tying=0.5, save_projection=False)),
        "tinylora_opt": ("opt", [], of(peft.TinyLoraConfig, u=9, weight_tying=0.7, **opt)),
        "tinylora_gpt2": ("gpt2", [], of(peft.TinyLoraConfig, u=9, save_projection=False, **gpt2)),
        "glora": ("llama", [], of(peft.GloraConfig, r=3)),
        "glora_opt": ("opt", [], of(peft.GloraConfig, r=3, target_modules=["v_proj", "fc1"])),
        "psoft": ("llama", [], of(peft.PsoftConfig, r=6, psoft_alpha=6)),
        "osf": ("llama", [], of(peft.OSFConfig, effective_rank=10)),
        "adamss_opt": ("opt", [], of(peft.AdamssConfig, r=12, num_subspaces=3, subspace_rank=2, **opt)),
    }


def seed_of(name):
    return SEEDS.get(name, sum(map(ord, name)))


def greedy(model, ids):
    with torch.no_grad():
        return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False,
                              eos_token_id=None, pad_token_id=0)


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits.float().contiguous()


def in_codes(model, how):
    import bitsandbytes.nn.modules

    bitsandbytes.nn.modules.has_avx512bf16 = lambda: False  # its bf16 kernels would round the compared values
    with tempfile.TemporaryDirectory() as floats:
        model.save_pretrained(floats)
        return transformers.AutoModelForCausalLM.from_pretrained(floats, quantization_config=how, dtype=torch.float32,
                                                                 device_map="cpu").eval()


def make_base(root, name):
    torch.manual_seed(seed_of(name))
    model = transformers.AutoModelForCausalLM.from_config(BASES[name]()).eval()
    with torch.no_grad():
        for n, p in model.named_parameters():  # norms and biases are not all ones and zeros
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
    if name in CODES:
        model = in_codes(model, CODES[name]())
    ids = torch.randint(3, model.config.vocab_size, (3, 11))
    model.save_pretrained(root / name / "base")
    save_file({"ids": ids, "logits": logits(model, ids), "generated": greedy(model, ids)},
              root / name / "base" / "expected.safetensors")


def make(root, name):
    base, tokens, config = (CASES | quantized() | further())[name]
    if base in BASES:
        make_base(root, base)
    torch.manual_seed(seed_of(name))
    model = transformers.AutoModelForCausalLM.from_pretrained(root / base / "base", dtype=torch.float32)
    vocabulary = model.config.vocab_size

    def draw():
        ids = torch.randint(3, vocabulary, (3, 11))
        ids[:, : len(tokens)] = torch.tensor(tokens)
        train_ids = torch.randint(3, vocabulary, (6, 4, 13))
        train_ids[:, :2, 2 : 2 + len(tokens)] = torch.tensor(tokens)
        return ids, train_ids

    write_case(root / base / name, model.eval(), config, draw)


def write_case(folder, model, config, draw):
    """An adapter on a model; draw() gives the prompts and the tokens to train on."""
    original = copy.deepcopy(model)
    model = peft.get_peft_model(model, config()).eval()
    ids, train_ids = draw()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn_like(p))
    out = {"ids": ids, "train_ids": train_ids, "logits": logits(model, ids), "generated": greedy(model, ids)}
    model.save_pretrained(folder / "adapter_init")
    with model.disable_adapter():
        out["logits_disabled"] = logits(model, ids)
    if str(getattr(config(), "init_lora_weights", "")).lower() in ("pissa", "olora"):
        # PEFT changes the base; it must change it in the same way when it reads the folder.
        out["logits_disabled"] = logits(original, ids)
        again = peft.PeftModel.from_pretrained(copy.deepcopy(original), folder / "adapter_init").eval()
        torch.testing.assert_close(logits(again, ids), out["logits"], rtol=1e-4, atol=1e-4)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    o = OPTIMIZER
    optimizer = torch.optim.AdamW(trained.values(), lr=o["lr"], betas=tuple(o["betas"]), eps=o["eps"],
                                  weight_decay=o["weight_decay"])
    losses = []
    for batch in train_ids:
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        if not losses:
            out.update({f"grad0.{n}": p.grad.clone() for n, p in trained.items()})
        losses.append(loss.item())
        optimizer.step()
    out["losses"] = torch.tensor(losses)
    out["logits_trained"], out["generated_trained"] = logits(model, ids), greedy(model, ids)
    model.save_pretrained(folder / "adapter_trained")
    out["logits_merged_unloaded"] = logits(model.merge_and_unload(), ids)
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "expected.safetensors")
    versions = {"peft": peft.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    case = {"case": folder.name, "arch": folder.parent.name, **versions, "optimizer": OPTIMIZER,
            "training": "loss on labels = input ids (shifted inside), one step per train_ids[s]"}
    (folder / "case.json").write_text(json.dumps(case, indent=1))
    for readme in folder.glob("*/README.md"):
        readme.unlink()


if __name__ == "__main__":
    for one in sys.argv[2:] or CASES:
        make(pathlib.Path(sys.argv[1]), one)
        print(one)
