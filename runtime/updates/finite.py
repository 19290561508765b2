"""Finite: what a tensor is that training can go on from."""

from __future__ import annotations

import torch

FINITE_REMEDY = "Lower the learning rate, or clip gradients with --clip-norm."


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no value is infinite or NaN; integers never are."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    return bool(torch.isfinite(tensor).all())
