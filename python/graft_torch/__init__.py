# SPDX-License-Identifier: Apache-2.0
"""PEFT's layers on Graft's kernels.

    model = peft.get_peft_model(base, config)
    graft_torch.accelerate(model)
    print(graft_torch.report(model))
"""

from ._accelerate import accelerate, report, restore
from ._operators import ops

__all__ = ["accelerate", "ops", "report", "restore"]
__version__ = "0.1.0"
