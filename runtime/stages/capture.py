"""Capture: the model of a pipeline, captured if need be, and the plan's if it is the right one."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphplan.errors import InvalidFile, InvalidOption
from graphplan.frontend import Captured, trace_module
from graphplan.nouns.plan import Plan
from graphplan_runtime.stages.variants import Recapture


def capture_model(
    model: nn.Module | Captured, inputs: Any, loss: Any, recapture: Recapture | None
) -> tuple[Captured, Recapture | None]:
    """The captured model, and how to capture it for other shapes."""
    if isinstance(model, Captured):
        return model, recapture
    if inputs is None:
        raise InvalidOption(
            "A module alone cannot be captured: its inputs are missing.",
            remedy="Use Pipeline(plan, module, inputs=lambda batch_size: ..., loss=...).",
        )
    again = recapture or (lambda given: trace_module(model, given, loss=loss))
    return trace_module(model, inputs, loss=loss), again


def check_model(plan: Plan, captured: Captured) -> None:
    """Refuse a model that is not the one that was planned."""
    graph = captured.graph
    if graph.fingerprint != plan.model.fingerprint:
        raise InvalidFile(
            f"The plan is for the model {plan.model.name} {plan.model.fingerprint}; this one is"
            f" {graph.name} {graph.fingerprint}.",
            remedy="Give the model file and the --set options that the plan was made from, or"
            " search again.",
        )
    if graph.loss is None:
        raise InvalidFile(
            f"The model {graph.name} was captured without a loss.",
            remedy="Add loss(output, batch) to the model file, then search again.",
        )
    _refuse_partial(plan)


def _refuse_partial(plan: Plan) -> None:
    """Refuse to recompute a part of a stage where batches in flight are saved op by op."""
    for s, stage in enumerate(plan.stages.stages):
        if stage.recompute not in ((), stage.ops) and not plan.policy.is_synchronous:
            raise InvalidOption(
                f"Stage {s} recomputes {len(stage.recompute)} of its {len(stage.ops)} ops; under"
                f" the policy {plan.policy.name} a stage recomputes all of them or none.",
                remedy="Search again with --recompute none, or full.",
            )
