"""Imported once, by the process from which the crew is forked: captures the models of the tests."""

from __future__ import annotations

import torch

from tests.processes.models import CASES
from tests.processes.training import capture_case

torch.set_num_threads(1)
for name in CASES.keys() - {"long"}:
    capture_case(name, torch.float64)
for name in ("chain", "towers", "unet", "mmt", "tied", "frozen"):
    capture_case(name, torch.float32)
