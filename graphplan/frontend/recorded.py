"""Recorded calls: what a sub-module asked of torch, and whether another one asks for the same.

A record holds every call of torch that the forward of one sub-module made, with its arguments and
results by number. Another sub-module *follows* it: its own Python runs, whatever it does, but each
call of torch is compared with the next one of the record and answered by a phantom, which stands
for the recorded result. When all are the same, a trace of this sub-module would have given the
same ops: the same functions, on the same values, with the same numbers, in the same order, in
sub-modules of the same names, only with other weights. Nothing needs to be known about the code,
its attributes, closures, globals or hooks, because all of it has been run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodWrapperType
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from graphplan.frontend.nodes import is_scalar
from graphplan.frontend.scalars import depends_on_data
from graphplan.frontend.writes import storage_of


class NotRepeated(BaseException):
    """A sub-module does something else than the record that it follows.

    A BaseException, so that no `except Exception` of a model takes it for an error of its own.
    """


class Phantom(torch.Tensor):
    """Stands for a value of a record. Only the mode that gave it knows what it is: wherever else it
    turns up, it was kept beyond the call, and the record must not be followed."""

    number: int
    owner: Follower
    place: torch.device

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """A fake tensor, too, answers this one itself."""
        return self.place

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotRepeated("a value was kept beyond the call")

    @classmethod
    def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotRepeated("a value was used behind torch's back")


class Ref(NamedTuple):
    """A tensor of a record, by number."""

    kind: str
    """`value`: given to the sub-module or made by a call; `weight`: one of the model; `outer`: any
    other, which must be the very same one for all that follow."""
    place: int


@dataclass(frozen=True)
class Call:
    """One call of torch; tensors are Refs."""

    function: Callable[..., Any]
    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]
    place: tuple[Any, ...]
    result_tree: pytree.TreeSpec
    results: tuple[Any, ...]


@dataclass
class Record:
    """The calls of one sub-module."""

    values: list[torch.Tensor]
    """Those that were given come first."""
    weights: list[torch.Tensor] = field(default_factory=list)
    outers: list[torch.Tensor] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    nodes: dict[Ref, fx.Node | None] = field(default_factory=dict)
    """Of tensors that it did not make: what they were before its calls, which may write them."""
    flaw: str | None = None
    """Why nothing can follow it."""

    def tensor(self, ref: Ref) -> torch.Tensor:
        """The tensor that a Ref stands for."""
        held = {"value": self.values, "weight": self.weights, "outer": self.outers}
        return held[ref.kind][ref.place]

    def list_given(self, num_given: int) -> tuple[list[Ref], list[Ref]]:
        """What went in, and the weights that were read."""
        given = [Ref("value", index) for index in range(num_given)]
        return given, [Ref("weight", index) for index in range(len(self.weights))]


Weights = dict[int, torch.Tensor]
"""The parameters and buffers of the model that is traced, by id."""


@dataclass(frozen=True)
class Scene:
    """Where calls of torch are made."""

    weights: Weights
    base: str
    """Path of the sub-module."""
    read_state: Callable[[], tuple[Any, ...]]
    """The path of the module that is running, and the modes of torch."""
    node_of: Callable[[torch.Tensor], fx.Node | None]
    """The node of the trace that a tensor is the result of now."""


def _place(state: tuple[Any, ...], base: str) -> tuple[Any, ...]:
    """A state with its path seen from a sub-module."""
    path, *modes = state
    is_inside = f"{path}.".startswith(f"{base}.")
    return (is_inside, path[len(base) :] if is_inside else path, *modes)


class Recorder(TorchFunctionMode):
    """Writes down the calls of a sub-module while it is traced."""

    def __init__(self, given: Sequence[torch.Tensor], scene: Scene) -> None:
        super().__init__()
        self.record = Record(values=list(given))
        self.is_paused = False
        self._scene = scene
        self._kept: list[torch.Tensor] = []
        """So that no id is given twice."""
        self._refs = {id(value): Ref("value", index) for index, value in enumerate(given)}
        self.record.nodes = {self._refs[id(value)]: scene.node_of(value) for value in given}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_paused or self.record.flaw is not None:
            return function(*args, **kwargs)
        state = self._scene.read_state()
        leaves, tree = pytree.tree_flatten((args, kwargs))
        written = tuple(map(self.refer, leaves))
        found = function(*args, **kwargs)
        # What the tracer makes of it is a node of its own.
        is_answered = function is not torch._C._set_grad_enabled
        self.note(function, tree, written, state, found if is_answered else None)
        return found

    def note(
        self,
        function: Callable[..., Any],
        tree: pytree.TreeSpec,
        leaves: tuple[Any, ...],
        state: tuple[Any, ...],
        found: Any,
    ) -> None:
        """Add one call to the record."""
        flat, result_tree = pytree.tree_flatten(found)
        if isinstance(found, tuple) and not tensor_leaves(flat):
            flat, result_tree = [found], pytree.tree_structure(0)  # A size stays one.
        results = tuple(self._refer_result(leaf) for leaf in flat)
        with torch._C.DisableTorchFunction():  # Its questions are not the model's.
            self.record.flaw = self.record.flaw or _find_flaw(function, flat)
        place = _place(state, self._scene.base)
        self.record.calls.append(Call(function, tree, leaves, place, result_tree, results))

    def refer(self, leaf: Any) -> Any:
        """A tensor as a Ref; anything else as it is."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        ref = self._refs.get(id(leaf))
        if ref is None:
            kind = "weight" if id(leaf) in self._scene.weights else "outer"
            held = self.record.weights if kind == "weight" else self.record.outers
            ref = self._refs[id(leaf)] = Ref(kind, len(held))
            held.append(leaf)
            self.record.nodes[ref] = self._scene.node_of(leaf)
        return ref

    def absorb(self, follower: Follower, real: Mapping[int, torch.Tensor]) -> None:
        """Add the calls of a sub-module that followed another record; `real` are the tensors that
        went in and came out of it, by their numbers there."""
        for index in range(follower.num_given):
            phantom = follower.phantom(index)
            self._refs[id(phantom)] = self.refer(real[index])
            self._kept.append(phantom)
        for function, tree, leaves, state, found in follower.noted:
            self.note(function, tree, tuple(map(self.refer, leaves)), state, found)
        for index, tensor in real.items():
            ref = self.refer(follower.phantom(index))
            self._refs[id(tensor)] = ref
            if ref.kind == "value":
                self.record.values[ref.place] = tensor

    def list_written(self) -> list[Ref]:
        """The tensors that it did not make and that its calls have written."""
        nodes = self.record.nodes.items()
        node_of = self._scene.node_of
        return [ref for ref, node in nodes if node_of(self.record.tensor(ref)) is not node]

    def _refer_result(self, leaf: Any) -> Any:
        is_known = id(leaf) in self._refs or id(leaf) in self._scene.weights
        if isinstance(leaf, torch.Tensor) and not is_known:
            self._refs[id(leaf)] = Ref("value", len(self.record.values))
            self.record.values.append(leaf)
        return self.refer(leaf)


_ANSWERS = (
    *(int, float, bool, str, type(None), torch.Tensor, torch.Size, torch.dtype, torch.device),
    *(torch.layout, torch.memory_format, torch.SymInt, torch.SymFloat, torch.SymBool),
)
"""What a call may return for a record to be followed: it is given again as it is."""


def _find_flaw(function: Any, results: Sequence[Any]) -> str | None:
    if function in (torch.ops.graphplan.opaque, torch.ops.graphplan.opaque.default):
        return "an opaque op"
    if getattr(function, "__name__", "") == "__set__":
        return "an attribute of a tensor is set"
    for leaf in pytree.tree_leaves(list(results)):
        if isinstance(leaf, Phantom):
            continue
        if not isinstance(leaf, _ANSWERS):
            return f"a call returns {type(leaf).__name__}"
        if (isinstance(leaf, torch.Tensor) or is_scalar(leaf)) and depends_on_data(leaf):
            return "a size depends on values"
    return None


class Follower(TorchFunctionMode):
    """Compares the calls of a sub-module with a record, and answers from it."""

    def __init__(self, record: Record, given: Sequence[torch.Tensor], scene: Scene) -> None:
        super().__init__()
        self.record = record
        self.position = 0
        self.bound: list[torch.Tensor | None] = [None] * len(record.weights)
        """The weight of this sub-module for each of the record."""
        self.noted: list[tuple[Any, ...]] = []
        """Calls as Recorder.note takes them, for a record around this one."""
        self._scene = scene
        self.num_given = len(given)
        self._given = {id(tensor): index for index, tensor in enumerate(given)}
        self._phantoms: dict[int, Phantom] = {}

    def phantom(self, index: int) -> Phantom:
        """What stands for a value of the record."""
        if index not in self._phantoms:
            with torch._C.DisableTorchFunction():
                value = self.record.values[index]
                made = torch.Tensor._make_wrapper_subclass(Phantom, (0,), dtype=value.dtype)
                made.place = value.device
            made.number, made.owner = index, self
            self._phantoms[index] = made
        return self._phantoms[index]

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.position == len(self.record.calls):
            raise NotRepeated(f"{function} is called after the end of the record")
        call = self.record.calls[self.position]
        state = self._scene.read_state()
        leaves, tree = pytree.tree_flatten((args, kwargs or {}))
        is_same = _is_same_function(call.function, function)
        if not is_same or tree != call.tree or _place(state, self._scene.base) != call.place:
            raise NotRepeated(f"{function} at {state} in place of {call.function} at {call.place}")
        for wanted, leaf in zip(call.leaves, leaves, strict=True):
            if not self._is_same(wanted, leaf):
                raise NotRepeated(f"{function} on {type(leaf).__name__} in place of {wanted}")
        self.position += 1
        if function is torch._C._set_grad_enabled:
            with torch._C.DisableTorchFunction():
                function(*args)
        found = pytree.tree_unflatten(
            [self._answer(each) for each in call.results], call.result_tree
        )
        self.noted.append((function, tree, tuple(leaves), state, found))
        return found

    def _answer(self, leaf: Any) -> Any:
        if not isinstance(leaf, Ref):
            return leaf
        if leaf.kind == "value":
            return self.phantom(leaf.place)
        return self.bound[leaf.place] if leaf.kind == "weight" else self.record.outers[leaf.place]

    def _is_same(self, wanted: Any, given: Any) -> bool:
        if not isinstance(wanted, Ref):
            return not isinstance(given, torch.Tensor) and is_same_constant(wanted, given)
        if wanted.kind == "weight":
            return self._bind(wanted.place, given)
        if wanted.kind == "outer":
            return given is self.record.outers[wanted.place]
        if isinstance(given, Phantom):
            return given.owner is self and given.number == wanted.place
        # The tensor itself, which came by another way than the arguments.
        return self._given.get(id(given)) == wanted.place

    def _bind(self, index: int, given: Any) -> bool:
        if id(given) not in self._scene.weights:
            return False
        if self.bound[index] is None:
            if describe_tensor(given) != describe_tensor(self.record.weights[index]):
                return False
            self.bound[index] = given
        return given is self.bound[index]


def _is_same_function(one: Any, other: Any) -> bool:
    """Getters of attributes are made anew for each call, and equal when they are of one slot."""
    return one is other or (type(one) is type(other) is MethodWrapperType and bool(one == other))


def is_same_constant(one: Any, other: Any) -> bool:
    """Whether two arguments that are no tensors mean the same to every op."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if is_scalar(one):
        return bool(one.node.expr == other.node.expr) and not depends_on_data(one)
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)
    if isinstance(one, slice):
        parts = ((one.start, other.start), (one.stop, other.stop), (one.step, other.step))
        return all(is_same_constant(*pair) for pair in parts)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(is_same_constant, one, other))
    plain = (int, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    return isinstance(one, plain) and bool(one == other)


def describe_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All that a trace sees of a tensor but its values."""
    with torch._C.DisableTorchFunction():
        sizes = (*tensor.shape, None, *tensor.stride(), tensor.storage_offset())
        return (
            *(type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad),
            *(tensor.is_conj(), tensor.is_neg(), isinstance(tensor, nn.Parameter)),
            *(size.node.expr if is_scalar(size) else size for size in sizes),
        )


def tensor_leaves(arguments: Any) -> list[torch.Tensor]:
    """The tensors of a nest."""
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def share_pattern(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """Which tensors are the same or share memory: the place of the first that does, for each."""
    seen: dict[int, int] = {}
    held: dict[int, int] = {}
    found = []
    with torch._C.DisableTorchFunction():
        for index, tensor in enumerate(tensors):
            memory = held.setdefault(storage_of(tensor), index)
            found += [seen.setdefault(id(tensor), index), memory]
    return tuple(found)


def is_apart(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether each tensor is the whole of a memory that it shares with none of the others."""
    with torch._C.DisableTorchFunction():
        own, outside = (set(map(storage_of, each)) for each in (tensors, others))
        is_whole = not any(each.storage_offset() for each in tensors)
        return is_whole and len(own) == len(tensors) and not own & outside
