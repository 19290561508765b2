"""Recasts: under autocast, casts of weights that a backward makes anew from the weights of its own.

Autocast casts a weight before an op, and autograd keeps the cast for the backward. Where the
backward must use other weights than the forward, it may not: while a forward runs, every cast of
the stage's weights is noted by its memory, and what autograd keeps of that memory, the cast itself
or a view of it, is kept as a note. When the backward asks for it, the weight is cast again: its
memory then holds what the policy says.

A value that an op computes from weights alone otherwise than by views and casts is the forward's,
as without autocast.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Kept:
    """A tensor that autograd keeps for a backward."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def open(self) -> torch.Tensor:
        """What the backward gets."""
        return self.tensor


class Recast(Kept):
    """A view of a cast of a weight; `tensor` is the weight, as it was given to the cast."""

    __slots__ = ("options", "view")

    def __init__(self, cast: Cast, view: torch.Tensor) -> None:
        super().__init__(cast.weight)
        self.options = cast.options
        self.view = (view.size(), view.stride(), view.storage_offset())

    def open(self) -> torch.Tensor:
        """Cast what the weight's memory holds now."""
        with torch.no_grad():
            made: torch.Tensor = torch.ops.aten._to_copy.default(self.tensor, **self.options)
            return made.as_strided(*self.view)


class Cast:
    """A cast of a weight, made by a forward."""

    def __init__(self, weight: torch.Tensor, made: torch.Tensor, options: dict[str, Any]) -> None:
        self.weight = weight.detach()
        self.made = made
        """Held until the forward ends, so that nothing else gets its memory."""
        self.options = options


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes casts of some weights, by their memory."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.own = {find_memory(each) for each in weights if each.requires_grad}
        self.casts: dict[int, Cast] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an op; if it casts a weight, remember."""
        options = kwargs or {}
        made = func(*args, **options)
        if func is torch.ops.aten._to_copy.default and find_memory(args[0]) in self.own:
            self.casts[find_memory(made)] = Cast(args[0], made, options)
        return made


@contextlib.contextmanager
def recasting(weights: Sequence[torch.Tensor]) -> Iterator[list[weakref.ref[Kept]]]:
    """While a forward runs: what its backward will find, in the order in which it is kept."""
    watch = _Watch(weights)
    kept: list[weakref.ref[Kept]] = []

    def pack(tensor: torch.Tensor) -> Kept:
        cast = watch.casts.get(find_memory(tensor))
        found = Kept(tensor) if cast is None else Recast(cast, tensor)
        kept.append(weakref.ref(found))
        return found

    with watch, torch.autograd.graph.saved_tensors_hooks(pack, _open):
        yield kept


def _open(kept: Kept) -> torch.Tensor:
    return kept.open()


def list_kept(
    kept: Sequence[weakref.ref[Kept]], weights: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What a backward will find, by its place, without what the policy decides."""
    own = {find_memory(each) for each in weights}
    found = {}
    for place, reference in enumerate(kept):
        each = reference()
        if type(each) is Kept and find_memory(each.tensor) not in own:
            found[str(place)] = each.tensor
    return found


def replace_kept(kept: Sequence[weakref.ref[Kept]], tensors: Mapping[str, torch.Tensor]) -> None:
    """Let the backward find other tensors."""
    for place, reference in enumerate(kept):
        each = reference()
        if each is not None and str(place) in tensors:
            each.tensor = tensors[str(place)]


def find_memory(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins."""
    return tensor.untyped_storage().data_ptr()
