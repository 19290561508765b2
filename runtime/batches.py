"""Batches: the data of a run, the same on every rank, whatever the stages draw.

The random generators that a model file's `data()` uses are its own: they are put in place while the
next batch is made, and taken away afterwards, so that batches depend on the seed alone.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from graphplan.errors import ModelFileError
from graphplan.frontend import ModelFile
from graphplan.frontend.modelfile import guarded

_END: Any = object()


class Batches:
    """Batches of `data()`, again from its start when it ends; else of `inputs()`."""

    def __init__(self, model_file: ModelFile, *, batch_size: int, seed: int) -> None:
        self.model_file = model_file
        self.batch_size = batch_size
        self.num_taken = 0
        self._iterator: Iterator[Any] | None = None
        with _generators(None):
            torch.manual_seed(seed)
            random.seed(seed)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed % (1 << 32))
            self._states: Any = _read_generators()

    def take(self) -> Any:
        """The next batch."""
        with _generators(self._states):
            batch = self._next()
            self._states = _read_generators()
        self.num_taken += 1
        return batch

    def skip(self, num_batches: int) -> None:
        """Go on as if so many batches had been taken."""
        for _ in range(num_batches):
            self.take()

    def _next(self) -> Any:
        if self.model_file.data is None:
            inputs = self.model_file.inputs
            return inputs(self.batch_size) if callable(inputs) else inputs
        path, what = self.model_file.path, f"data() of step {self.num_taken + 1}"
        for _ in range(2):
            if self._iterator is None:
                self._iterator = guarded(path, what, iter)(self.model_file.data(self.batch_size))
            batch = guarded(path, what, next)(self._iterator, _END)
            if batch is not _END:
                return batch
            self._iterator = None
        raise ModelFileError(
            f"{self.model_file.path}: data() gives no batch.",
            remedy="Let data() yield at least one batch, in the form of inputs().",
        )


def _read_generators() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()


def _write_generators(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2]:
        sys.modules["numpy"].random.set_state(states[2])


@contextlib.contextmanager
def _generators(states: tuple[Any, ...] | None) -> Iterator[None]:
    """Put states in place for a while."""
    held = _read_generators()
    try:
        if states is not None:
            _write_generators(states)
        yield
    finally:
        _write_generators(held)
