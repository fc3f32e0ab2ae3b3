# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that accelerates every model that PEFT makes, so that PEFT's own tests run on graft's kernels:

    pytest -p accelerate_peft PEFT/tests/test_custom_models.py      # with this folder in PYTHONPATH

The last line of the run says how many calls of layers graft took.
"""

import peft

import graft_torch
from graft_torch import _accelerate

_taken = {"graft": 0}
_make, _load, _add = peft.get_peft_model, peft.PeftModel.from_pretrained, peft.PeftModel.add_adapter
_load_further = peft.PeftModel.load_adapter
_run = _accelerate.adapted_linear


def _accelerated(model):
    try:
        return graft_torch.accelerate(model)
    except ValueError:  # no adapter of a layer, as in prompt tuning
        return model


def _get_peft_model(*args, **kwargs):
    return _accelerated(_make(*args, **kwargs))


def _from_pretrained(*args, **kwargs):
    return _accelerated(_load(*args, **kwargs))


def _with_further(original):
    def call(self, *args, **kwargs):
        out = original(self, *args, **kwargs)
        _accelerated(self)
        return out

    return call


def _counted(*args):
    _taken["graft"] += 1
    return _run(*args)


def pytest_configure(config):
    peft.get_peft_model = peft.mapping_func.get_peft_model = _get_peft_model
    peft.PeftModel.from_pretrained = _from_pretrained
    peft.PeftModel.add_adapter = _with_further(_add)
    peft.PeftModel.load_adapter = _with_further(_load_further)
    _accelerate.adapted_linear = _counted


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"graft took {_taken['graft']} calls of layers")
