"""Finite: refuse values that are not, when that is asked for."""

from __future__ import annotations

from collections.abc import Callable

from graphplan.frontend import StageModule
from graphplan.nouns.task import Task
from graphplan_runtime.faults.failures import NotFinite
from graphplan_runtime.stages.executor import Made
from graphplan_runtime.updates.finite import FINITE_REMEDY, is_finite

Check = Callable[[Made], None]


def make_check(module: StageModule, task: Task) -> Check:
    """What looks at the outputs of a forward, or at the gradients of a backward."""
    is_forward = task.kind == "F"
    names = module.outputs if is_forward else [given.name for given in module.inputs]

    def check(made: Made) -> None:
        for name, tensor in zip(names, made, strict=True):
            if tensor is not None and not is_finite(tensor):
                what = "" if is_forward else "the gradient of "
                raise NotFinite(
                    f"{what}{name!r} is not finite after {task}.",
                    remedy=FINITE_REMEDY,
                )

    return check
