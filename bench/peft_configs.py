# SPDX-License-Identifier: Apache-2.0
"""The PEFT configurations that bench/compare_peft.py compares, on the CPU and on a GPU."""
import peft
import torch

# Parameters that are initialized so that the adapter changes nothing get random numbers, so that no error is hidden.
RANDOM = ("lora_B", "lora_E", "hada_", "lokr_", "hra_u", "vera_lambda_b", "ia3_l", "oft_R", "boft_R", "miss_block", "vblora",
          "delora_B", "gralora_B", "road_theta", "c3a_kernel", "randlora_lambda", "hira_B",
          "psoft_R.default.weight")


def configs(targets, product_rank):
    """Configurations by name; LoHa and LoKr, whose rank is squared or divided by blocks, use product_rank."""
    on = {"target_modules": targets}
    return {
        "lora": lambda: peft.LoraConfig(r=16, lora_alpha=32, **on),
        "dora": lambda: peft.LoraConfig(r=16, lora_alpha=32, use_dora=True, **on),
        "adalora": lambda: peft.AdaLoraConfig(init_r=16, target_r=16, lora_alpha=32, total_step=10, **on),
        "ia3": lambda: peft.IA3Config(feedforward_modules=[], **on),
        "ia3_ff": lambda: peft.IA3Config(feedforward_modules=targets, **on),
        "loha": lambda: peft.LoHaConfig(r=product_rank, alpha=2 * product_rank, **on),
        "lokr": lambda: peft.LoKrConfig(r=product_rank, alpha=2 * product_rank, **on),
        "vera": lambda: peft.VeraConfig(r=256, projection_prng_key=0, save_projection=True, **on),
        "hra": lambda: peft.HRAConfig(r=8, **on),
        "oft": lambda: peft.OFTConfig(oft_block_size=32, **on),
        "boft": lambda: peft.BOFTConfig(boft_block_size=8, boft_n_butterfly_factor=2, **on),
        "miss": lambda: peft.MissConfig(r=64, **on),
        "vblora": lambda: peft.VBLoRAConfig(r=4, num_vectors=256, vector_length=256, **on),
        "delora": lambda: peft.DeloraConfig(r=16, **on),
        "gralora": lambda: peft.GraloraConfig(r=16, alpha=32, gralora_k=2, **on),
        "road": lambda: peft.RoadConfig(variant="road_1", group_size=64, **on),
        "c3a": lambda: peft.C3AConfig(block_size=128, **on),
        "randlora": lambda: peft.RandLoraConfig(r=32, randlora_alpha=64, projection_prng_key=0, save_projection=True, **on),
        "hira": lambda: peft.HiraConfig(r=16, **on),
        "psoft": lambda: peft.PsoftConfig(r=16, psoft_alpha=16, psoft_svd="lowrank", **on),
    }


def randomize(model):
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.requires_grad and any(part in key for part in RANDOM):
                p.copy_(torch.randn_like(p) * (0.02 if "_R" in key or "c3a" in key else 1.0 if "ia3" in key else 0.1))
    return model
