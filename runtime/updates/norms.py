"""Norms: what the gradients of all stages are together, and whether they may be used."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch

from graphplan_runtime.faults.failures import LostPeer, NotFinite
from graphplan_runtime.updates.finite import FINITE_REMEDY, is_finite
from graphplan_runtime.updates.scaling import LossScale

Gradients = Mapping[torch.nn.Parameter, torch.Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norms:
    """Of what one device updates."""

    parameters: Mapping[int, Mapping[str, torch.nn.Parameter]]
    """By owner and name."""
    answers_for: Callable[[str], bool]
    """Whether this device's gradient of a weight counts."""
    clip_norm: float | None
    check_finite: bool
    loss_scale: LossScale

    def judge(self, gradients: Sequence[torch.Tensor], square: float, *, is_finite: bool) -> bool:
        """Clip, and learn for the loss scale; whether the gradients may be used."""
        scaled = self.loss_scale.dynamic
        if is_finite or not scaled:
            self._clip(gradients, math.sqrt(square) if is_finite else math.nan)
        self.loss_scale.adjust(finite=is_finite)
        return is_finite or not scaled

    def stop_if_bad(self, gradients: Gradients, num_bad: float) -> None:
        """Before an update, on all ranks; where the loss is scaled, the update is left out."""
        if not self.check_finite or not num_bad or self.loss_scale.dynamic:
            return
        self.require_finite(gradients)
        if not math.isfinite(self.sum_squares(gradients)):
            raise NotFinite("the norm of the gradients is not finite.", remedy=FINITE_REMEDY)
        raise LostPeer(
            "a gradient of another rank is not finite.", remedy="Look for the cause there."
        )

    def require_finite(self, gradients: Gradients) -> None:
        """Refuse gradients that are not finite, before they change a weight."""
        names = {p: n for named in self.parameters.values() for n, p in named.items()}
        for parameter, gradient in gradients.items():
            if not is_finite(gradient):
                raise NotFinite(
                    f"the gradient of {names[parameter]!r} is not finite.", remedy=FINITE_REMEDY
                )

    def sum_squares(self, gradients: Gradients) -> float:
        """The squares of the gradients for which this device answers."""
        total = 0.0
        for named in self.parameters.values():
            own = [
                gradients[parameter]
                for name, parameter in named.items()
                if parameter in gradients and self.answers_for(name)
            ]
            if own:
                norms = torch.stack([norm.double() for norm in torch._foreach_norm(own)])
                total += float(norms.square().sum())
        return total

    def _clip(self, gradients: Sequence[torch.Tensor], norm: float) -> None:
        if self.clip_norm is None or not gradients:
            return
        # As torch.nn.utils.clip_grad_norm_, which reference runs use.
        factor = self.clip_norm / (norm + 1e-6)
        if not factor >= 1.0:
            torch._foreach_mul_(list(gradients), factor)
