"""Sparing builds: a module is made with memory for its small tensors only.

Large tensors are on the meta device, whatever device the build names, and filling them is free:
nobody reads what a build writes into them. Small ones are real, for two reasons. Many a build reads
values of small tensors (`torch.linspace(0, rate, depth).tolist()`), which would otherwise force a
build with memory for everything; and where a build mixes both, as in `table[index] = 0`, the result
is what it would be on one device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

LARGEST_REAL = 1 << 14
"""Elements of the largest tensor that gets memory: 64 KB of floats."""

_FILLS = {
    aten.add_.Tensor,
    aten.bernoulli_.float,
    aten.clamp_.default,
    aten.fill_.Scalar,
    aten.mul_.Tensor,
    aten.normal_.default,
    aten.uniform_.default,
    aten.zero_.default,
}
"""In-place ops that change values and nothing else when they are given numbers."""


@contextlib.contextmanager
def sparing_build() -> Iterator[None]:
    """While it lasts, large tensors that are made have no memory; draws are the same each time."""
    mode = _SparingMode()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=[]), mode:
        torch.manual_seed(0)
        yield


class _SparingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sends what is large to the meta device, and small tensors after it where both meet."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while a model is built: torch need not guard every op against it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = _list_tensors((*args, *kwargs.values()))
        if any(tensor.is_meta for tensor in tensors):
            if func in _FILLS and len(tensors) == 1:
                return tensors[0]
            found = _run_on_meta(func, args, kwargs)
            return args[0] if _is_write(func) else found
        if not (tensors and _hands_on(func)):
            made = _make_large(func, args, kwargs)
            if made is not None:
                return made
        return func(*args, **kwargs)


def _list_tensors(arguments: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among an op's arguments, which are nested no deeper than in lists."""
    tensors = []
    for each in arguments:
        if isinstance(each, torch.Tensor):
            tensors.append(each)
        elif isinstance(each, (list, tuple)):
            tensors += [item for item in each if isinstance(item, torch.Tensor)]
    return tensors


def _make_large(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an op on small tensors makes, where that is large or not for the CPU; else None."""
    try:
        made = _run_on_meta(func, args, kwargs)
    except (NotImplementedError, RuntimeError):  # The result depends on values.
        return None
    results = made if isinstance(made, (list, tuple)) else (made,)
    is_large = any(tensor.numel() > LARGEST_REAL for tensor in _list_tensors(results))
    return made if is_large or not _is_for_cpu(kwargs) else None


def _run_on_meta(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if _list_tensors((*args, *kwargs.values())):
        args = [_move(each) for each in args]
        kwargs = {key: _move(each) for key, each in kwargs.items()}
        if kwargs.get("device") is None:
            return func(*args, **kwargs)
    return func(*args, **{**kwargs, "device": "meta"})


def _move(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_move(each) for each in argument]
    return argument.to("meta") if isinstance(argument, torch.Tensor) else argument


def _is_for_cpu(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is None or torch.device(device).type == "cpu"


@functools.cache
def _hands_on(func: Any) -> bool:
    """Whether an op returns its argument or a view of it, which takes no memory."""
    results = func._schema.returns
    return bool(results) and all(each.alias_info is not None for each in results)


@functools.cache
def _is_write(func: Any) -> bool:
    """Whether an op writes into its first argument and returns it."""
    results = func._schema.returns
    return (
        len(results) == 1 and results[0].alias_info is not None and results[0].alias_info.is_write
    )
