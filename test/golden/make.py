#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Regenerates the golden layer cases with the real PEFT.

    pip install torch peft safetensors transformers
    python3 test/golden/make.py OUT [--seed N] [NAME...]

Every case is one base layer and one adapter, float32 on the CPU, with the adapter's parameters drawn at random after
initialisation so that no zero hides an error. Layout of OUT/layers/NAME: case.json, base.safetensors, adapter/ (exactly
what save_pretrained writes) and expected.safetensors. A seed other than 0 also draws other sizes.
"""
import argparse
import copy
import json
import pathlib
import random
import warnings

import peft
import torch
from safetensors.torch import save_file

warnings.filterwarnings("ignore")
PREFIX = "base_model.model."


class Base(torch.nn.Module):
    """A model of one layer; the attribute's name is the module path in the files."""

    def __init__(self, name, layer):
        super().__init__()
        self.name = name
        setattr(self, name, layer)

    def forward(self, x):
        return getattr(self, self.name)(x)


def linear(s, bias=True, out=None, inner=None):
    return Base("lin", torch.nn.Linear(inner or s["in"], out or s["out"], bias=bias))


def embedding(s):
    return Base("emb", torch.nn.Embedding(s["vocab"], s["in"]))


def conv(s):
    return Base("conv", torch.nn.Conv2d(8, 12, 3, padding=1))


def norm(s):
    return Base("norm", torch.nn.LayerNorm(s["in"]))


def cases(s):
    """name -> (base layer, PEFT config). The sizes s are divisible where a method requires it."""
    lora = dict(r=8, lora_alpha=16, target_modules=["lin"], lora_dropout=0.0)
    of = lambda kind, **kw: kind(**{"target_modules": ["lin"], **kw})
    c = {
        "lora": (linear, peft.LoraConfig(**lora)),
        "lora_nobias": (lambda s: linear(s, bias=False), peft.LoraConfig(**lora)),
        "lora_bias": (linear, peft.LoraConfig(**lora, lora_bias=True)),
        "lora_rslora": (linear, peft.LoraConfig(**lora, use_rslora=True)),
        "lora_rank1": (linear, peft.LoraConfig(**{**lora, "r": 1, "lora_alpha": 3})),
        "lora_rank_over": (lambda s: linear(s, out=20, inner=24), peft.LoraConfig(**{**lora, "r": 32})),
        "pissa": (linear, peft.LoraConfig(**lora, init_lora_weights="pissa")),
        "pissa_rslora": (lambda s: linear(s, bias=False, out=s["in"], inner=s["out"]),
                         peft.LoraConfig(**{**lora, "r": 3}, init_lora_weights="pissa", use_rslora=True)),
        "pissa_dora": (linear, peft.LoraConfig(**lora, init_lora_weights="pissa", use_dora=True)),
        "pissa_transposed": (conv1d, peft.LoraConfig(**lora, init_lora_weights="pissa", fan_in_fan_out=True)),
        "olora": (linear, peft.LoraConfig(**lora, init_lora_weights="olora")),
        "olora_wide": (lambda s: linear(s, bias=False, out=s["in"], inner=s["out"]),
                       peft.LoraConfig(**lora, init_lora_weights="olora")),
        "olora_dora": (linear, peft.LoraConfig(**lora, init_lora_weights="OLoRA", use_dora=True)),
        "lora_embedding": (embedding, peft.LoraConfig(**{**lora, "target_modules": ["emb"]})),
        "lora_conv2d": (conv, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["conv"])),
        "dora": (linear, peft.LoraConfig(**lora, use_dora=True)),
        "dora_nobias": (lambda s: linear(s, bias=False), peft.LoraConfig(**lora, use_dora=True)),
        "dora_embedding": (embedding, peft.LoraConfig(**{**lora, "target_modules": ["emb"]}, use_dora=True)),
        "adalora": (linear, of(peft.AdaLoraConfig, init_r=8, target_r=4, lora_alpha=16, total_step=10)),
        "ia3": (linear, of(peft.IA3Config, feedforward_modules=[])),
        "ia3_ff": (linear, of(peft.IA3Config, feedforward_modules=["lin"])),
        "ln_tuning": (norm, peft.LNTuningConfig(target_modules=["norm"])),
        "loha": (linear, of(peft.LoHaConfig, r=8, alpha=16)),
        "loha_conv2d": (conv, peft.LoHaConfig(r=4, alpha=8, target_modules=["conv"], use_effective_conv2d=True)),
        "lokr": (linear, of(peft.LoKrConfig, r=8, alpha=16)),
        "lokr_lowrank": (linear, of(peft.LoKrConfig, r=2, alpha=4)),
        "lokr_both": (linear, of(peft.LoKrConfig, r=2, alpha=4, decompose_both=True)),
        "lokr_factor": (linear, of(peft.LoKrConfig, r=2, alpha=4, decompose_factor=4)),
        "vera": (linear, of(peft.VeraConfig, r=8, projection_prng_key=1)),
        "hra": (linear, of(peft.HRAConfig, r=8)),
        "hra_gs": (linear, of(peft.HRAConfig, r=8, apply_GS=True)),
        "oft_cayley": (linear, of(peft.OFTConfig, oft_block_size=8, use_cayley_neumann=False)),
        "oft_neumann": (linear, of(peft.OFTConfig, oft_block_size=8, use_cayley_neumann=True)),
        "oft_shared": (linear, of(peft.OFTConfig, oft_block_size=8, block_share=True, use_cayley_neumann=False)),
        "oft_coft": (linear, of(peft.OFTConfig, oft_block_size=8, coft=True, eps=6e-3, use_cayley_neumann=False)),
        "vblora": (linear, of(peft.VBLoRAConfig, r=4, num_vectors=16, vector_length=8)),
    }
    for name, b, m in (("boft_1", 4, 1), ("boft_2", 4, 2), ("boft_3", 4, 3), ("boft_8", 8, 1)):
        c[name] = (linear, of(peft.BOFTConfig, boft_block_size=b, boft_n_butterfly_factor=m))
    c["boft_square"] = (
        lambda s: linear(s, out=64, inner=64),
        of(peft.BOFTConfig, boft_block_size=8, boft_n_butterfly_factor=3),
    )
    if hasattr(peft, "MissConfig"):
        c["miss"] = (linear, of(peft.MissConfig, r=8))
        c["miss_mini"] = (linear, of(peft.MissConfig, r=8, mini_r=4, init_weights="mini"))
        c["miss_bat"] = (linear, of(peft.MissConfig, r=8, init_weights="bat"))
    if hasattr(peft, "DeloraConfig"):
        c.update(newer(s, of))
    if hasattr(peft, "ShiraConfig"):
        c.update(sparse(s, of))
    if hasattr(peft, "PveraConfig"):
        c.update(latest(s, of))
    return c


def latest(s, of):
    """Relatives of VeRA and of LoRA, and subspaces of the weight, on small layers."""
    small = lambda s, **kw: linear(s, out=s["out"] // 2, inner=s["in"] // 2, **kw)
    odd = lambda s, **kw: linear(s, out=s["out"] // 2 - 3, inner=s["in"] // 2 - 1, **kw)
    wide = lambda s, **kw: linear(s, out=s["in"] // 2 - 5, inner=s["in"] // 2 + 9, **kw)
    table = lambda s: Base("emb", torch.nn.Embedding(s["vocab"], s["in"] // 2))
    return {
        "pvera": (small, of(peft.PveraConfig, r=8, projection_prng_key=1)),
        "pvera_drawn": (odd, of(peft.PveraConfig, r=5, projection_prng_key=3, save_projection=False, bias="pvera_only")),
        "tinylora": (small, of(peft.TinyLoraConfig)),
        "tinylora_drawn": (odd, of(peft.TinyLoraConfig, r=3, u=1, projection_seed=7, save_projection=False)),
        "tinylora_tied": (wide, of(peft.TinyLoraConfig, r=4, u=9, weight_tying=1.0, save_projection=False)),
        "tinylora_embedding": (table, peft.TinyLoraConfig(r=3, u=5, target_modules=["emb"])),
        "glora": (small, of(peft.GloraConfig, r=4)),
        "glora_vector": (odd, of(peft.GloraConfig, config_A_B="vector", config_C="vector", config_D_E="vector")),
        "glora_constant": (wide, of(peft.GloraConfig, config_A_B="constant", config_C="none", bias="glora_only")),
        "glora_nobias": (lambda s: odd(s, bias=False), of(peft.GloraConfig, r=3)),
        "glora_bias": (small, of(peft.GloraConfig, r=2, config_A_B="none", config_D_E="none")),
        "glora_uncoupled": (wide, of(peft.GloraConfig, r=5, config_C="none", config_D_E="vector")),
        "glora_shifted": (odd, of(peft.GloraConfig, config_A_B="none", config_C="none")),
        "glora_plain": (lambda s: wide(s, bias=False), of(peft.GloraConfig, config_A_B="vector")),
        "osf": (small, of(peft.OSFConfig)),
        "osf_rank": (wide, of(peft.OSFConfig, effective_rank=5)),
        "osf_fraction": (lambda s: odd(s, bias=False), of(peft.OSFConfig, rank_pattern={"li": 0.3})),
    }


def sparse(s, of):
    """Methods that train selected entries, on small layers."""
    small = lambda s, **kw: linear(s, out=s["out"] // 2, inner=s["in"] // 2, **kw)
    odd = lambda s: linear(s, out=s["out"] // 2 - 3, inner=s["in"] // 2 - 1)
    tall = lambda s: linear(s, out=s["in"] // 2 + 9, inner=s["in"] // 2)
    return {
        "shira": (small, of(peft.ShiraConfig, r=2, random_seed=7)),
        "shira_unseeded": (lambda s: small(s, bias=False), of(peft.ShiraConfig, r=3)),
        "supertuning": (small, of(peft.SupertuningConfig, sparsity=0.9)),
        "supertuning_lora": (small, of(peft.SupertuningConfig, sparsity=0.95, r=3)),
        "supertuning_smallest": (small, of(peft.SupertuningConfig, sparsity=0.99, select_top=False, r=2, lora_alpha=3,
                                           save_precomputed_indices=False)),
        "fourierft": (small, of(peft.FourierFTConfig, n_frequency=50)),
        "fourierft_bias": (odd, of(peft.FourierFTConfig, n_frequency=31, scaling=70, random_loc_seed=5, init_weights=True,
                                   bias="fourier_only")),
        "waveft": (small, of(peft.WaveFTConfig, n_frequency=60)),
        "waveft_sym": (odd, of(peft.WaveFTConfig, n_frequency=40, wavelet_family="sym4", random_loc_seed=3)),
        "waveft_coif": (small, of(peft.WaveFTConfig, n_frequency=20, wavelet_family="coif2", scaling=5)),
        "waveft_direct": (small, of(peft.WaveFTConfig, n_frequency=60, use_idwt=False, init_weights=False)),
        "unilora": (small, of(peft.UniLoraConfig, r=4)),
        "unilora_saved": (odd, of(peft.UniLoraConfig, r=3, theta_d_length=37, proj_seed=6, save_indices=True,
                                  bias="unilora_only")),
        "frod": (tall, of(peft.FrodConfig, sparse_rate=0.05, progressbar=False)),
        "adamss": (small, of(peft.AdamssConfig, r=10, num_subspaces=3, subspace_rank=2)),
        "adamss_dynamic": (lambda s: small(s, bias=False), of(peft.AdamssConfig, r=9, num_subspaces=4, subspace_rank=3,
                                                              use_dynamic_rank=True, random_seed=5)),
        "frod_diagonal": (tall, of(peft.FrodConfig, sparse_rate=0.0, progressbar=False)),
    }


def newer(s, of):
    """Methods of PEFT 0.21 and later, and options that every method has."""
    wide = lambda s: linear(s, out=s["in"], inner=s["out"])
    tall = lambda s: linear(s, out=max(s["in"], s["out"]) + 16, inner=min(s["in"], s["out"]))
    small = lambda s: linear(s, out=20, inner=16)
    group = 8 if s["out"] % 16 else 16
    psoft = lambda **kw: of(peft.PsoftConfig, **{"r": 8, "psoft_alpha": 8, **kw})
    return {
        "lora_bias_all": (linear, of(peft.LoraConfig, r=4, bias="all")),
        "lora_bias_only": (linear, of(peft.LoraConfig, r=4, bias="lora_only")),
        "dora_transposed": (conv1d, of(peft.LoraConfig, r=4, use_dora=True, fan_in_fan_out=True)),
        "lora_transposed": (conv1d, of(peft.LoraConfig, r=4, fan_in_fan_out=True)),
        "hira_conv2d": (conv, peft.HiraConfig(r=4, target_modules=["conv"])),
        "hira_embedding": (embedding, peft.HiraConfig(r=4, target_modules=["emb"])),
        "hira": (linear, of(peft.HiraConfig, r=8)),
        "hira_pattern": (small, of(peft.HiraConfig, r=3, rank_pattern={"lin": 5})),  # PEFT ignores it here
        "delora": (linear, of(peft.DeloraConfig, r=8, delora_lambda=15)),
        "delora_bias": (linear, of(peft.DeloraConfig, r=3, delora_lambda=7, bias="delora_only")),
        "gralora": (linear, of(peft.GraloraConfig, r=8, alpha=16)),
        "gralora_4": (linear, of(peft.GraloraConfig, r=8, alpha=16, gralora_k=4)),
        "gralora_hybrid": (wide, of(peft.GraloraConfig, r=8, alpha=16, hybrid_r=3)),
        "road_1": (linear, of(peft.RoadConfig, variant="road_1", group_size=group)),
        "road_2": (linear, of(peft.RoadConfig, variant="road_2", group_size=2)),
        "road_4": (linear, of(peft.RoadConfig, variant="road_4", group_size=group)),
        "c3a": (linear, of(peft.C3AConfig, block_size=8)),
        "c3a_wide": (wide, of(peft.C3AConfig, block_size=16, init_weights="gaussian")),
        "randlora": (linear, of(peft.RandLoraConfig, r=4, randlora_alpha=8)),
        "randlora_wide": (wide, of(peft.RandLoraConfig, r=5, randlora_alpha=4, projection_prng_key=3, save_projection=False)),
        "randlora_sparse": (tall, of(peft.RandLoraConfig, r=5, randlora_alpha=4, projection_prng_key=4, sparse=True,
                                     save_projection=False)),
        "randlora_very_sparse": (linear, of(peft.RandLoraConfig, r=4, randlora_alpha=4, very_sparse=True, save_projection=False)),
        "psoft": (linear, psoft()),
        "psoft_wide": (wide, psoft(ab_svd_init="pissa_init", psoft_mag_a=False)),
        "psoft_tall": (tall, psoft(use_cayley_neumann=True, psoft_mag_b=False)),
        "psoft_bounded": (linear, psoft(use_cayley_neumann=True, cayley_neumann_eps=0.5, num_cayley_neumann_terms=4)),
        "psoft_free": (linear, psoft(psoft_orth=False, psoft_mag_a=False, psoft_mag_b=False)),
        "psoft_lowrank": (linear, psoft(psoft_svd="lowrank", random_seed=5)),
        "beft": (linear, of(peft.BeftConfig)),
        "deft": (linear, of(peft.DeftConfig, r=8)),
        "deft_alpha": (wide, of(peft.DeftConfig, r=4, alpha=7)),
        "deft_para": (linear, of(peft.DeftConfig, r=8, para=True)),
        "deft_qr": (small, of(peft.DeftConfig, r=8, alpha=7, decomposition_method="qr")),
        "deft_qr_para": (small, of(peft.DeftConfig, r=4, para=True, decomposition_method="qr")),
        "deft_qr_square": (lambda s: linear(s, out=10, inner=16), of(peft.DeftConfig, r=16, decomposition_method="qr")),
        "peanut": (linear, of(peft.PeanutConfig, r=8)),
        "peanut_deep": (wide, of(peft.PeanutConfig, r=6, depth=2, act_fn="gelu", scaling=0.7)),
        "peanut_silu": (linear, of(peft.PeanutConfig, r=6, depth=1, act_fn="silu")),
    }


def conv1d(s):
    from transformers.pytorch_utils import Conv1D
    return Base("lin", Conv1D(s["out"], s["in"]))


def scatter_blocks_in_torch():
    """PEFT's CUDA extension for BOFT no longer builds, and without it PEFT silently uses one butterfly factor. The
    extension only scatters blocks [m, n, b, b] onto the diagonals of [m, n b, n b]: do that in torch instead."""
    from peft.tuners.boft import layer

    class scatter:
        @staticmethod
        def apply(blocks):
            return torch.stack([torch.block_diag(*factor) for factor in blocks])

    for name in ("get_fbd_cuda",):
        if hasattr(layer, name):
            setattr(layer, name, lambda: object())
    layer.FastBlockDiag = scatter


def randomise(model, generator):
    """Moves every trainable value away from its initial zero or one, by little enough for the series to converge."""
    for name, p in model.named_parameters():
        if p.requires_grad:
            with torch.no_grad():
                p.add_(torch.randn(p.shape, generator=generator) * 0.1)


def weight_of(model, name):
    for key, module in model.named_modules():
        if key.endswith("." + name) and hasattr(module, "get_base_layer"):
            return module.get_base_layer().weight.detach().clone()
    raise RuntimeError(f"no base layer {name}")


def reads_again(model, base, folder, x):
    """PEFT changed the base of this adapter (PiSSA, OLoRA): it must do so again when it reads the folder."""
    again = peft.PeftModel.from_pretrained(base, folder)
    torch.testing.assert_close(again.eval()(x), model.eval()(x))


def make(name, build, config, sizes, folder, seed):
    torch.manual_seed(1000 * seed + sum(map(ord, name)))
    generator = torch.Generator().manual_seed(seed + sum(map(ord, name)))
    base = build(sizes)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({f"{base.name}.{k}": v.detach().clone() for k, v in getattr(base, base.name).state_dict().items()},
              folder / "base.safetensors")
    layer = base.name
    if layer == "emb":
        x = torch.randint(0, sizes["vocab"], (2, 5), generator=generator)
    elif layer == "conv":
        x = torch.randn(2, 8, 6, 6, generator=generator)
    else:
        features = getattr(base, layer).weight.shape[0 if getattr(config, "fan_in_fan_out", False) else -1]
        x = torch.randn(2, 5, features, generator=generator)
    original = copy.deepcopy(base)
    changes_base = str(getattr(config, "init_lora_weights", "")).lower() in ("pissa", "olora")
    model = peft.get_peft_model(base, config)
    randomise(model, generator)
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    if changes_base:
        reads_again(model, copy.deepcopy(original), folder / "adapter", x)
    trainable = {k: list(p.shape) for k, p in model.named_parameters() if p.requires_grad}

    inputs = x.clone().requires_grad_(True) if x.is_floating_point() else x
    model.train(config.peft_type != "PVERA")  # PVERA adds noise in training
    y = model(inputs)
    dy = torch.randn(y.shape, generator=generator)
    (y * dy).sum().backward()
    out = {"x": x, "y": y, "dy": dy}
    if x.is_floating_point():
        out["dx"] = inputs.grad
    for k, p in model.named_parameters():
        if p.requires_grad and p.numel():
            out["grad." + k] = p.grad
    model.eval()
    with torch.no_grad():
        out["y_eval"] = model(x)
        with model.disable_adapter():
            out["y_disabled"] = model(x)
        before = weight_of(model, layer)
        model.merge_adapter()
        out["y_merged"] = model(x)
        out["W_merged"] = weight_of(model, layer)
        if config.peft_type == "OSF":  # PEFT does not unmerge OSF
            out["W_unmerged"] = before
        else:
            model.unmerge_adapter()
            out["W_unmerged"] = weight_of(model, layer)
        if changes_base:  # PEFT changed the base: the expected output without the adapter is that of the original
            out["y_disabled"] = original(x)
            out["W_unmerged"] = getattr(original, layer).weight.detach().clone()
    save_file({k: v.detach().contiguous().clone() for k, v in out.items()}, folder / "expected.safetensors")
    (folder / "case.json").write_text(json.dumps(
        {"case": name, "peft_type": str(config.peft_type.value), "note": "", "trainable": trainable,
         "peft": peft.__version__, "torch": torch.__version__}, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="cases to make; all when none is given")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    sizes = {"out": 64, "in": 48, "vocab": 50} if args.seed == 0 else {
        "out": 16 * rng.randint(2, 8), "in": 16 * rng.randint(2, 8), "vocab": rng.randint(20, 80)}
    scatter_blocks_in_torch()
    for name, (build, config) in cases(sizes).items():
        if args.names and name not in args.names:
            continue
        make(name, build, config, sizes, args.out / "layers" / name, args.seed)
        print(name)


if __name__ == "__main__":
    main()
