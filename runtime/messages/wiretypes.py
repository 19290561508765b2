"""Wire types: the dtype that every value really has, so that receivers can make room for it.

Without autocast a value has its captured dtype, or the reduced one when the whole model is cast.
Under autocast each op decides for itself; a run on fake tensors tells, without memory or time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphplan.cost.measure_body import move_devices
from graphplan.frontend import Captured
from graphplan.frontend.fakes import make_fake_mode
from graphplan.nouns.training import Training

FAKE_ROWS = 2


def cast_dtype(dtype: torch.dtype, training: Training) -> torch.dtype:
    """The dtype of a weight or an input: fp32 becomes the precision, unless it is mixed."""
    if dtype == torch.float32 and not training.mixed:
        reduced: torch.dtype = getattr(torch, training.precision)
        return reduced
    return dtype


def find_autocast(training: Training) -> torch.dtype | None:
    """The dtype of autocast, None when there is none."""
    return getattr(torch, training.precision) if training.mixed else None


def find_dtypes(
    captured: Captured, training: Training, device: torch.device
) -> dict[str, torch.dtype]:
    """The dtype of every value by name."""
    if training.precision == "float32":
        specs = ((op.name, op.output) for op in captured.graph.ops)
        return {name: getattr(torch, spec.dtype) for name, spec in specs if spec is not None}
    runner = _FakeRun(captured, training, device)
    autocast = find_autocast(training)
    with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
        return runner.list_dtypes()


class _FakeRun(fx.Interpreter):
    def __init__(self, captured: Captured, training: Training, device: torch.device) -> None:
        super().__init__(captured.module)
        self.captured = captured
        self.training = training
        self.device = device
        self.dtypes: dict[str, torch.dtype] = {}

    def list_dtypes(self) -> dict[str, torch.dtype]:
        with make_fake_mode(), torch.no_grad():
            specs = [given.spec for given in self.captured.graph.inputs]
            inputs = [
                self._fake(spec.sizes(FAKE_ROWS), getattr(torch, spec.dtype)) for spec in specs
            ]
            self.run(*inputs)
        return self.dtypes

    def _fake(self, sizes: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=cast_dtype(dtype, self.training), device=self.device)

    def fetch_attr(self, target: str) -> Any:
        held = super().fetch_attr(target)
        return self._fake(held.shape, held.dtype) if isinstance(held, torch.Tensor) else held

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The capture names the CPU; the stages name their device."""
        args, kwargs = move_devices((args, dict(kwargs)), self.device)
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.dtypes[n.name] = result.dtype
        return result
