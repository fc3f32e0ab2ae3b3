# SPDX-License-Identifier: Apache-2.0
"""Configurations of every PEFT method that graft_torch takes, on linear layers, and the layers to try them on."""

import copy
import pathlib

import peft
import torch

golden = pathlib.Path(__file__).parents[2] / "test" / "golden" / "layers"

targets = ["first", "second"]
configs = {
    "lora": peft.LoraConfig(target_modules=targets, r=4, lora_alpha=8, init_lora_weights=False),
    "rslora": peft.LoraConfig(target_modules=targets, r=4, use_rslora=True, init_lora_weights=False),
    "lora_bias": peft.LoraConfig(target_modules=targets, r=4, lora_bias=True, init_lora_weights=False),
    "lora_trained_bias": peft.LoraConfig(target_modules=targets, r=4, bias="lora_only", init_lora_weights=False),
    "lora_pattern": peft.LoraConfig(target_modules=targets, r=4, rank_pattern={"second": 2}, alpha_pattern={"first": 3},
                                    init_lora_weights=False),
    "pissa": peft.LoraConfig(target_modules=targets, r=4, init_lora_weights="pissa"),
    "dora": peft.LoraConfig(target_modules=targets, r=4, use_dora=True, init_lora_weights=False),
    "adalora": peft.AdaLoraConfig(target_modules=targets, init_r=4, total_step=10, init_lora_weights=False),
    "oft": peft.OFTConfig(target_modules=targets, r=0, oft_block_size=4, init_weights=False),
    "oft_exact": peft.OFTConfig(target_modules=targets, r=0, oft_block_size=4, use_cayley_neumann=False,
                                init_weights=False),
    "oft_shared": peft.OFTConfig(target_modules=targets, r=0, oft_block_size=4, block_share=True, init_weights=False),
    "boft": peft.BOFTConfig(target_modules=targets, boft_block_size=4, boft_n_butterfly_factor=1, init_weights=False),
    "hra": peft.HRAConfig(target_modules=targets, r=4, init_weights=False),
    "hra_gs": peft.HRAConfig(target_modules=targets, r=4, apply_GS=True, init_weights=False),
    "ia3": peft.IA3Config(target_modules=targets, feedforward_modules=[], init_ia3_weights=False),
    "ia3_feedforward": peft.IA3Config(target_modules=targets, feedforward_modules=["second"], init_ia3_weights=False),
    "loha": peft.LoHaConfig(target_modules=targets, r=4, init_weights=False),
    "lokr": peft.LoKrConfig(target_modules=targets, r=4, init_weights=False),
    "lokr_low_rank": peft.LoKrConfig(target_modules=targets, r=2, decompose_both=True, init_weights=False),
    "vera": peft.VeraConfig(target_modules=targets, r=4, init_weights=False),
    "miss": peft.MissConfig(target_modules=targets, r=4, init_weights=False),
    "miss_mini": peft.MissConfig(target_modules=targets, r=4, mini_r=4, init_weights="mini"),
    "miss_bat": peft.MissConfig(target_modules=targets, r=4, init_weights="bat"),
    "vblora": peft.VBLoRAConfig(target_modules=targets, r=2, vector_length=4, num_vectors=8, topk=2),
    "delora": peft.DeloraConfig(target_modules=targets, r=4, init_weights=False),
    "gralora": peft.GraloraConfig(target_modules=targets, r=4, gralora_k=2, init_weights=False),
    "gralora_hybrid": peft.GraloraConfig(target_modules=targets, r=4, gralora_k=2, hybrid_r=2, init_weights=False),
    "road_1": peft.RoadConfig(target_modules=targets, variant="road_1", group_size=4, init_weights=False),
    "road_4": peft.RoadConfig(target_modules=targets, variant="road_4", group_size=4, init_weights=False),
    "c3a": peft.C3AConfig(target_modules=targets, block_size=4, init_weights=False),
    "randlora": peft.RandLoraConfig(target_modules=targets, r=4, randlora_alpha=4, init_weights=False),
    "hira": peft.HiraConfig(target_modules=targets, r=4, init_weights=False),
    "psoft": peft.PsoftConfig(target_modules=targets, r=4, init_weights=False),
    "beft": peft.BeftConfig(target_modules=targets, init_weights=False),
    "deft": peft.DeftConfig(target_modules=targets, r=4, init_weights=False),
    "peanut": peft.PeanutConfig(target_modules=targets, r=4, init_weights=False),
    "shira": peft.ShiraConfig(target_modules=targets, r=2, init_weights=False),
    "supertuning": peft.SupertuningConfig(target_modules=targets, sparsity=0.9, init_weights=False),
    "fourierft": peft.FourierFTConfig(target_modules=targets, n_frequency=10, init_weights=False),
    "waveft": peft.WaveFTConfig(target_modules=targets, n_frequency=10, wavelet_family="db2", init_weights=False),
    "unilora": peft.UniLoraConfig(target_modules=targets, r=4, theta_d_length=64, init_weights=False),
    "frod": peft.FrodConfig(target_modules=targets, sparse_rate=0.1, init_weights=False),
    "tinylora": peft.TinyLoraConfig(target_modules=targets, r=2, u=4, init_weights="uniform"),
    "glora": peft.GloraConfig(target_modules=targets, r=4, init_weights=False),
    "osf": peft.OSFConfig(target_modules=targets, effective_rank=4),
}
try:  # PEFT groups the rows with it
    import sklearn  # noqa: F401

    configs["adamss"] = peft.AdamssConfig(target_modules=targets, r=8, num_subspaces=3, subspace_rank=2, init_weights=None)
except ImportError:
    pass


class Net(torch.nn.Module):
    """Two linear layers of unequal sides, the second without a bias."""

    def __init__(self, second_bias=False):
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 16, bias=second_bias)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def make(name, dtype=torch.float32, net=None):
    """A model with the adapter of that name, whose parameters are no longer those that leave the base as it is."""
    model = peft.get_peft_model(net or Net(), copy.deepcopy(configs[name]), autocast_adapter_dtype=False).to(dtype)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.05)
    return model


def relative(a, b):
    return ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30)).item()


def step(model, x, dy):
    """y, dx and the gradients of one call."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(dy)
    return y.detach(), x.grad, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
