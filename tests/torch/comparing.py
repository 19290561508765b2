"""One training step, eager, captured or staged, and whether two of them are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from graphplan.frontend import Captured, cut_graph, run_stages


@dataclass(frozen=True)
class Step:
    """What a step leaves behind."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def sum_outputs(output: Any) -> Tensor:
    """A loss for any output: the mean square of all that has a gradient."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return sum((leaf.pow(2).mean() for leaf in leaves if leaf.requires_grad), torch.zeros(()))


def call_model(module: nn.Module, batch: Any) -> Any:
    """The model on a batch as `inputs` gives it."""
    return module(**batch) if isinstance(batch, dict) else module(*batch)


def run_step(module: nn.Module, forward: Callable[[], Any], *, seed: int = 3) -> Step:
    """Forward and backward with the module's own parameters; buffers are put back afterwards."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.zero_grad()
    torch.manual_seed(seed)
    output = forward()
    loss = output if isinstance(output, Tensor) and output.dim() == 0 else sum_outputs(output)
    torch.autograd.backward(loss)
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    return Step(loss.detach(), gradients, buffers)


def run_cut(
    captured: Captured,
    module: nn.Module,
    stage_by_op: dict[str, int],
    batch: Any,
    *,
    seed: int = 3,
) -> Step:
    """The same step by stages; the stages share the module's parameters and buffers."""
    stages = cut_graph(captured, stage_by_op)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    torch.manual_seed(seed)
    result = run_stages(stages, captured.flatten_batch(batch))
    assert captured.graph.loss is not None
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    return Step(result.outputs[captured.graph.loss], result.gradients, buffers)


def assert_same_step(found: Step, wanted: Step, *, tolerance: float = 0.0) -> None:
    """Loss, every gradient and every buffer agree; NaN is never equal to anything."""
    assert found.gradients.keys() == wanted.gradients.keys()
    assert found.buffers.keys() == wanted.buffers.keys()
    pairs = {"loss": (found.loss, wanted.loss)}
    pairs |= {name: (found.gradients[name], wanted.gradients[name]) for name in wanted.gradients}
    pairs |= {
        f"buffer {name}": (found.buffers[name], wanted.buffers[name]) for name in wanted.buffers
    }
    for name, (a, b) in pairs.items():
        assert not b.isnan().any() and not a.isnan().any(), f"{name} is NaN"
        difference = float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
        scale = max(1.0, float(b.double().abs().max())) if a.numel() else 1.0
        assert difference <= tolerance * scale, f"{name} differs by {difference}"
