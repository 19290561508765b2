"""Building: make a model file's module without memory, or for real when it must be."""

from __future__ import annotations

import os

import torch
from torch import nn

from graphplan.errors import CaptureError
from graphplan.frontend.attempt import quiet_torch
from graphplan.frontend.fakes import tensor_slots
from graphplan.frontend.modelfile import ModelFile
from graphplan.frontend.sparing import sparing_build

_USERS_ERRORS = (NameError, ImportError, SyntaxError)
"""Errors that have nothing to do with tensors: the model would fail for real too."""


def build_module(model_file: ModelFile) -> nn.Module:
    """The module without memory for large tensors; for real where build() reads their values."""
    try:
        with sparing_build(), quiet_torch():
            return model_file.build()
    except Exception as error:
        if isinstance(error.__cause__, _USERS_ERRORS):
            raise
        return _build_seeded(model_file)


def build_real_module(model_file: ModelFile, fake: nn.Module) -> nn.Module:
    """The module with memory, for small models that need an example's values to be traced."""
    needed = sum(tensor.nbytes for _, _, _, tensor in tensor_slots(fake))
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if 2 * needed > available:
        raise CaptureError(
            f"{model_file.path}: the model can only be traced by running it, but its weights have"
            f" {needed / 1e9:,.1f} GB and {available / 1e9:,.1f} GB are free.",
            remedy="Capture it with fewer layers (--set) to see the line that prevents tracing,"
            " and change that line.",
        )
    return _build_seeded(model_file)


def _build_seeded(model_file: ModelFile) -> nn.Module:
    """Random weights are the same each time, so that branches on values go the same way."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model_file.build()
