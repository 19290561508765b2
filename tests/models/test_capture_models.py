"""Models from outside: the capture equals eager to the last bit, a chain of stages to 1e-6."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from graphplan.frontend import trace_module
from tests.models.zoo import ZOO, Entry
from tests.torch.comparing import assert_same_step, run_cut, run_step
from tests.torch.cuts import chain_cut


def eager_loss(entry: Entry, module: nn.Module, batch: Any) -> Any:
    """The loss as a user's training loop computes it."""
    if not isinstance(batch, dict):
        output = module(*batch)
    else:
        names = inspect.signature(module.forward).parameters
        has_rest = any(each.kind is each.VAR_KEYWORD for each in names.values())
        output = module(**{k: v for k, v in batch.items() if has_rest or k in names})
    return output["loss"] if entry.loss is None else entry.loss(output, batch)


@pytest.mark.parametrize("name", ZOO)
def test_outside_models_are_captured_exactly(name: str) -> None:
    """Loss, every gradient, buffers and dropout, at a batch size that was not captured."""
    entry = ZOO[name]
    pytest.importorskip(entry.package, exc_type=ImportError)
    torch.manual_seed(0)
    module, inputs = entry.make()
    captured = trace_module(module, inputs, loss=entry.loss)
    graph = captured.graph
    assert graph.capture.startswith(f"{entry.method}, torch")
    assert graph.batch == entry.batch
    batch = inputs(5 if graph.batch == "dynamic" else graph.batch_size)
    eager = run_step(module, lambda: eager_loss(entry, module, batch))
    assert eager.gradients, "the model trains something"

    def run_captured() -> Any:
        found = captured.run(batch)
        return found["loss"] if isinstance(found, dict) else found

    assert_same_step(run_step(module, run_captured), eager)
    staged = run_cut(captured, module, chain_cut(graph, 3), batch)
    assert_same_step(staged, eager, tolerance=1e-6)
