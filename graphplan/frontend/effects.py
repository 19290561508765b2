"""Effects: what one call of an op produces and what autograd keeps of it, seen once for each kind.

A call is run on fake tensors under `saved_tensors_hooks`. What comes out depends on the op, its
numbers, and the shapes, dtypes and gradients of its tensors, and on which of these share memory. So
a call that has been seen is not run again: most calls of a model are like another one. Memory is
told apart by a number of our own, since like tensors are stood for by one fake tensor.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from graphplan.frontend.fakes import fake_like
from graphplan.frontend.scalars import depends_on_data, largest_size
from graphplan.frontend.targets import AutocastOp, OutOfPlace
from graphplan.frontend.writes import storage_of


@dataclass(frozen=True)
class Value:
    """A tensor of a run, and the number of its memory."""

    tensor: torch.Tensor
    memory: int


@dataclass(frozen=True)
class Effect:
    """What one call did. Tensors, also in nests, are Values."""

    result: Any
    saved: tuple[tuple[int, int], ...]
    """Memory that autograd keeps, and its bytes."""


@dataclass(frozen=True)
class _Seen:
    """An effect with its memory by place: that of the n-th tensor given, or the n-th new one."""

    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]
    """(tensor, place) for tensors."""
    saved: tuple[tuple[int, int], ...]
    num_new: int


class Effects:
    """The effects of the calls of one run."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._memory = itertools.count()
        self._seen: dict[Any, _Seen] = {}
        self._tensors: dict[Any, torch.Tensor] = {}
        self._forms: dict[int, Any] = {}

    def hold(self, tensor: torch.Tensor) -> Value:
        """A value with memory of its own."""
        return Value(self._unite(tensor), next(self._memory))

    def hold_like(self, tensor: torch.Tensor) -> Value:
        """A weight: nothing is made for one that is like another."""
        form = ("weight", tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)
        if form not in self._tensors:
            self._tensors[form] = self._unite(fake_like(tensor, self._mode))
        return Value(self._tensors[form], next(self._memory))

    def call(self, target: Callable[..., Any], args: Any, kwargs: Any, *, writes: bool) -> Effect:
        """The effect of a call; its tensors are Values. One that writes is run each time."""
        if target is operator.getitem and isinstance(args[0], (list, tuple)):
            return Effect(args[0][args[1]], ())
        leaves, tree = pytree.tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Value)]
        key = None if writes else self._key_of(target, tree, leaves)
        seen = self._seen.get(key) if key is not None else None
        if seen is None:
            seen = self._run(target, leaves, tree)
            if key is not None:
                self._seen[key] = seen
        memory = {place: value.memory for place, value in enumerate(given)}
        memory |= {-1 - number: next(self._memory) for number in range(seen.num_new)}
        found = [
            Value(leaf[0], memory[leaf[1]]) if isinstance(leaf, tuple) else leaf
            for leaf in seen.leaves
        ]
        saved = tuple((memory[place], num_bytes) for place, num_bytes in seen.saved)
        return Effect(pytree.tree_unflatten(found, seen.tree), saved)

    def _key_of(self, target: Any, tree: Any, leaves: Sequence[Any]) -> Any:
        """All that the effect of a call depends on; None where that is not known."""
        while isinstance(target, (AutocastOp, OutOfPlace)):
            tree = (tree, type(target), getattr(target, "autocast", None))
            target = target.target
        if not isinstance(target, OpOverload):
            return None
        parts: list[Any] = []
        places: dict[int, int] = {}
        for leaf in leaves:
            if isinstance(leaf, Value):
                form = self._forms.get(id(leaf.tensor))
                if form is None:
                    return None
                parts.append((form, places.setdefault(leaf.memory, len(places))))
            elif isinstance(leaf, _PLAIN):
                parts.append((type(leaf), repr(leaf)))
            else:
                return None
        return target, tree, tuple(parts)

    def _run(self, target: Callable[..., Any], leaves: Sequence[Any], tree: Any) -> _Seen:
        places: dict[int, int] = {}
        """By storage."""
        owner: dict[int, int] = {}
        given: list[torch.Tensor] = []
        for value in leaves:
            if isinstance(value, Value):
                tensor = self._stand_in(value, owner)
                places.setdefault(storage_of(tensor), len(given))
                given.append(tensor)
        tensors = iter(given)
        args, kwargs = pytree.tree_unflatten(
            [next(tensors) if isinstance(leaf, Value) else leaf for leaf in leaves], tree
        )
        kept: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            result = target(*args, **kwargs)
        num_given = len(places)
        new = itertools.count(1)

        def place_of(tensor: torch.Tensor) -> int:
            storage = storage_of(tensor)
            if storage not in places:
                places[storage] = -next(new)
            return places[storage]

        flat, result_tree = pytree.tree_flatten(result)
        found = tuple(
            (self._unite(leaf), place_of(leaf)) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in flat
        )
        saved = {place_of(each): _num_bytes(each) for each in kept}
        return _Seen(result_tree, found, tuple(saved.items()), len(places) - num_given)

    def _stand_in(self, value: Value, owner: dict[int, int]) -> torch.Tensor:
        """The tensor of a value, or one like it where its storage stands for another's memory."""
        storage = storage_of(value.tensor)
        if owner.setdefault(storage, value.memory) == value.memory:
            return value.tensor
        with torch.no_grad():
            fresh = value.tensor.new_empty_strided(value.tensor.shape, value.tensor.stride())
        return fresh.requires_grad_(value.tensor.requires_grad)

    def _unite(self, tensor: torch.Tensor) -> torch.Tensor:
        """One tensor for all that are alike; itself where a size depends on values."""
        if depends_on_data(tensor):
            return tensor
        form = (
            *(type(tensor), tuple(tensor.shape), tensor.stride(), tensor.storage_offset()),
            *(tensor.dtype, tensor.requires_grad, tensor.is_conj(), tensor.is_neg()),
            _num_bytes(tensor),
        )
        found = self._tensors.setdefault(form, tensor)
        self._forms[id(found)] = form
        return found


_PLAIN = (
    *(int, float, bool, str, complex, type(None), type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def _num_bytes(tensor: torch.Tensor) -> int:
    return largest_size(tensor.untyped_storage().nbytes())
