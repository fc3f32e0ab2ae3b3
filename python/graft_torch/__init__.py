# SPDX-License-Identifier: Apache-2.0
"""PEFT's layers on Graft's kernels, and whole models on Graft's engine.

    model = peft.get_peft_model(base, config)
    graft_torch.accelerate(model)
    print(graft_torch.report(model))

    model = graft_torch.Model(folder)
    print(model.generate("Once upon a time"))
"""

from ._accelerate import accelerate, report, restore
from ._operators import ops
from ._stored_model import Model

__all__ = ["Model", "accelerate", "ops", "report", "restore"]
__version__ = "0.1.0"
