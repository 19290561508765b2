"""Directions: where an optimizer goes next, as far as its last step tells.

What = W - k * lr * Delta, where Delta is

    SGD                 the last gradient, weight decay included
    SGD with momentum   the momentum buffer
    Adam, AdamW         mhat / (sqrt(vhat) + eps); AdamW's decay is not predicted
    displacement        (W_old - W) / lr of the last step: any optimizer, one more buffer

At a constant learning rate, and without decoupled decay, the last one equals the others. Before the
first step What = W.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphplan.nouns.policy import DirectionForm

Group = Mapping[str, Any]
Find = Callable[[torch.Tensor, Group, Mapping[str, Any]], torch.Tensor | None]


class Directions:
    """The directions of some parameters, from the optimizers that step them."""

    def __init__(
        self, parameters: Sequence[torch.Tensor], *, form: DirectionForm = "optimizer"
    ) -> None:
        self.parameters = parameters
        self.form = form
        self._owner: dict[torch.Tensor, tuple[torch.optim.Optimizer, Group]] = {}
        self._before: dict[torch.Tensor, torch.Tensor] = {}
        """What a parameter was before the step that is being made."""
        self._held: dict[torch.Tensor, torch.Tensor] = {}
        """Directions that no state of the optimizer holds."""

    def prepare(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Before a step: remember who makes it, and what it will make unknown."""
        if not optimizers:
            return
        self.know(optimizers)
        for parameter in self.parameters:
            if parameter not in self._owner:
                continue
            optimizer, group = self._owner[parameter]
            if self._choose(optimizer, group) is not None:
                continue
            if self.form == "optimizer" and is_plain_descent(optimizer, group):
                self._held[parameter] = hold_gradient(parameter, group)
            else:  # In the memory of the last displacement.
                room = self._held.pop(parameter, None)
                room = torch.empty_like(parameter) if room is None else room
                self._before[parameter] = room.copy_(parameter.detach())

    def updated(self) -> None:
        """After a step: the displacement, for those that need it."""
        for parameter, before in self._before.items():
            rate = float(self._owner[parameter][1]["lr"]) or 1.0
            self._held[parameter] = before.sub_(parameter.detach()).div_(rate)
        self._before.clear()

    @torch.no_grad()
    def extrapolate(self, targets: Sequence[torch.Tensor], distance: int) -> None:
        """Write What into the targets."""
        for target, parameter in zip(targets, self.parameters, strict=True):
            target.copy_(parameter)
            if distance and parameter in self._owner:
                optimizer, group = self._owner[parameter]
                direction = self._find(parameter, optimizer, group)
                if direction is not None:
                    target.sub_(direction, alpha=distance * float(group["lr"]))

    def _choose(self, optimizer: torch.optim.Optimizer, group: Group) -> Find | None:
        return find_rule(optimizer, group) if self.form == "optimizer" else None

    def _find(
        self, parameter: torch.Tensor, optimizer: torch.optim.Optimizer, group: Group
    ) -> torch.Tensor | None:
        rule = self._choose(optimizer, group)
        if rule is None:
            return self._held.get(parameter)
        state = optimizer.state.get(parameter)
        return rule(parameter, group, state) if state else None

    # -- checkpoints -----------------------------------------------------------------------------

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Directions that the optimizer's own state does not tell."""
        return {
            f"direction.{i}": self._held[each]
            for i, each in enumerate(self.parameters)
            if each in self._held
        }

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take them back."""
        for i, each in enumerate(self.parameters):
            if f"direction.{i}" in tensors:
                self._held[each] = tensors[f"direction.{i}"].to(each.device)

    def know(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Learn which optimizer steps which parameter."""
        self._owner = {
            parameter: (optimizer, group)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }


def find_rule(optimizer: torch.optim.Optimizer, group: Group) -> Find | None:
    """How the state of an optimizer tells its direction; None when it does not."""
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return find_adam
    if isinstance(optimizer, torch.optim.SGD) and group["momentum"] and not group["nesterov"]:
        return find_momentum
    return None


def is_plain_descent(optimizer: torch.optim.Optimizer, group: Group) -> bool:
    """Whether the direction is the gradient itself."""
    return isinstance(optimizer, torch.optim.SGD) and not group["momentum"]


def hold_gradient(parameter: torch.Tensor, group: Group) -> torch.Tensor:
    """The gradient that SGD is about to follow."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"]:
        gradient = gradient.add(parameter.detach(), alpha=group["weight_decay"])
    return gradient


def find_momentum(
    parameter: torch.Tensor, group: Group, state: Mapping[str, Any]
) -> torch.Tensor | None:
    """The buffer that SGD with momentum steps along."""
    found: torch.Tensor | None = state.get("momentum_buffer")
    return found


def find_adam(
    parameter: torch.Tensor, group: Group, state: Mapping[str, Any]
) -> torch.Tensor | None:
    """mhat / (sqrt(vhat) + eps) after the last step."""
    if "exp_avg" not in state:
        return None
    beta1, beta2 = (float(each) for each in group["betas"])
    step = float(state["step"])
    second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    spread = (second.sqrt() / (1 - beta2**step) ** 0.5).add_(group["eps"])
    made: torch.Tensor = (state["exp_avg"] / (1 - beta1**step)).div_(spread)
    return made
