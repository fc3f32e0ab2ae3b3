# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
import torch


@pytest.fixture(autouse=True)
def repeatable():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
