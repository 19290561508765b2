"""Targets: what an op of a normalised graph calls.

Most call an op of torch. Two wrappers keep what a plain call would lose: an in-place op that has no
other form runs on a copy, and an op of an autocast block runs in an autocast context of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Autocast:
    """What an autocast block asks for; the device is that of the tensors."""

    dtype: torch.dtype
    enabled: bool

    def __str__(self) -> str:
        return f"autocast[{str(self.dtype).removeprefix('torch.')}]"


class Target:
    """A callable of ours; fx needs its `__name__` and `__module__` to write code."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = "".join(letter if letter.isalnum() else "_" for letter in name)
        self.__module__ = __name__

    def __str__(self) -> str:
        """The kind of op, without what it is called with."""
        return self.name

    def describe(self) -> str:
        """The op with all that decides what it computes, for the text of a call."""
        return str(self)


class WrappedOp(Target):
    """A callable around an op."""

    def __init__(self, target: Callable[..., Any], prefix: str) -> None:
        super().__init__(f"{prefix}_{target_name(target)}")
        self.target = target

    def __str__(self) -> str:
        return target_name(self.target)

    def describe(self) -> str:
        return call_name(self.target)


class OutOfPlace(WrappedOp):
    """An in-place op on a copy of its first argument."""

    def __init__(self, target: OpOverload) -> None:
        super().__init__(target, "copied")

    def __call__(self, written: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.target(written.clone(), *args, **kwargs)


class AutocastOp(WrappedOp):
    """An op under autocast."""

    def __init__(self, target: Callable[..., Any], autocast: Autocast) -> None:
        super().__init__(target, str(autocast))
        self.autocast = autocast

    def describe(self) -> str:
        return f"{self.autocast}.{call_name(self.target)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors = (leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor))
        device = next((tensor.device.type for tensor in tensors), "cpu")
        with torch.autocast(device, self.autocast.dtype, self.autocast.enabled):
            return self.target(*args, **kwargs)


def target_name(target: Any) -> str:
    """The name of an op, wrapped or not: `aten.linear.default`, `getitem`."""
    if isinstance(target, (OpOverload, Target)):
        return str(target)
    return str(getattr(target, "__name__", target))


def call_name(target: Any) -> str:
    """The name of an op with what surrounds it."""
    return target.describe() if isinstance(target, Target) else target_name(target)


def plain_op(target: Any) -> Any:
    """The op inside the wrappers."""
    return plain_op(target.target) if isinstance(target, WrappedOp) else target


def is_random(target: Any) -> bool:
    """Whether an op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(plain_op(target), "tags", ())
