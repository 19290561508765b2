"""Opaque ops: code that the tracer must not look into, kept as one op that calls the original.

Two kinds: a custom `autograd.Function`, whose own backward a tracer would lose without a word, and
a sub-module that no tracer can follow. While the model is traced each call shows up as the op
`graphplan::opaque`; afterwards `restore_opaque` puts the original callable in its place, so that
the op runs, and differentiates, exactly as before.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from graphplan.frontend.targets import Target

_LIBRARY = torch.library.Library("graphplan", "FRAGMENT")  # type: ignore[no-untyped-call]
_SCHEMA = "opaque(str key, Tensor[] values, SymInt[] sizes, Tensor[] weights) -> Tensor[]"
_LIBRARY.define(_SCHEMA)  # type: ignore[no-untyped-call]

FakeCall = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


class _Slot:
    """Marks where a tensor or a size goes among the other arguments."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __repr__(self) -> str:
        return self._mark


_TENSOR, _SIZE = _Slot("tensor"), _Slot("size")


_PLAIN = (int, float, str, bool, torch.dtype, type(None))
"""Arguments whose text is the same in every process."""


@dataclass(frozen=True)
class Template:
    """The arguments of a call with its tensors and symbolic sizes taken out."""

    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]

    def fill(self, tensors: Sequence[Any], sizes: Sequence[Any]) -> Any:
        """The arguments with tensors and sizes put back."""
        given = {_TENSOR: iter(tensors), _SIZE: iter(sizes)}
        leaves = [next(given[leaf]) if isinstance(leaf, _Slot) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.tree)

    @property
    def num_tensors(self) -> int:
        """How many tensors were taken out."""
        return sum(leaf is _TENSOR for leaf in self.leaves)

    @property
    def num_sizes(self) -> int:
        """How many sizes were taken out."""
        return sum(leaf is _SIZE for leaf in self.leaves)

    def __str__(self) -> str:
        others = [leaf for leaf in self.leaves if not isinstance(leaf, _Slot)]
        return ", ".join(repr(leaf) if isinstance(leaf, _PLAIN) else "…" for leaf in others)


def split_call(arguments: Any) -> tuple[Template, list[torch.Tensor], list[torch.SymInt]]:
    """A template of the arguments, their tensors, and their symbolic sizes."""
    leaves, tree = pytree.tree_flatten(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes = [leaf for leaf in leaves if isinstance(leaf, torch.SymInt)]
    marked = [
        _TENSOR
        if isinstance(leaf, torch.Tensor)
        else _SIZE
        if isinstance(leaf, torch.SymInt)
        else leaf
        for leaf in leaves
    ]
    return Template(tree, tuple(marked)), tensors, sizes


class OpaqueOp(Target):
    """Code that runs as it is."""

    def __init__(self, name: str, template: Template) -> None:
        super().__init__(f"opaque.{name}")
        self.template = template

    def describe(self) -> str:
        return f"{self}[{self.template}]"

    def __call__(self, *given: Any) -> list[torch.Tensor]:
        """Tensors, then sizes, then weights; the tensors of the result."""
        raise NotImplementedError

    def written_positions(self) -> list[int]:
        """Which of the arguments it writes in place."""
        return []


@dataclass(frozen=True)
class _Entry:
    target: OpaqueOp
    fake: FakeCall
    """Fake results from fake tensors."""


_entries: dict[str, _Entry] = {}
"""Calls of the trace that is running, by key."""


@torch.library.register_fake("graphplan::opaque", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _fake_opaque(
    key: str, values: list[torch.Tensor], sizes: list[int], weights: list[torch.Tensor]
) -> list[torch.Tensor]:
    # A function may return a view of its input. The tracer would take that for the input itself.
    return [each.clone() for each in _entries[key].fake(values)]


_runs_original = contextvars.ContextVar("_runs_original", default=False)
"""Whether the original is running, which must then not leave an op."""


@torch.library.impl("graphplan::opaque", "CompositeExplicitAutograd", lib=_LIBRARY)
def _run_opaque(
    key: str, values: list[torch.Tensor], sizes: list[int], weights: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Run the original: only a trace that follows real values comes here."""
    token = _runs_original.set(True)
    try:
        found = _entries[key].target(*values, *sizes, *weights)
        return [each.detach().clone() for each in found]
    finally:
        _runs_original.reset(token)


def runs_original() -> bool:
    """Whether a replaced forward must call the original."""
    return _runs_original.get()


def call_opaque(
    target: OpaqueOp,
    fake: FakeCall,
    values: Sequence[torch.Tensor],
    *,
    sizes: Sequence[torch.SymInt] = (),
    weights: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """Leave one op in the trace."""
    key = f"{target}#{len(_entries)}"
    _entries[key] = _Entry(target, fake)
    found: list[torch.Tensor] = torch.ops.graphplan.opaque(
        key, list(values), list(sizes), list(weights)
    )
    return found


@contextlib.contextmanager
def opaque_entries() -> Iterator[None]:
    """The time of one trace: afterwards its entries are forgotten."""
    _entries.clear()
    try:
        yield
    finally:
        _entries.clear()


def restore_opaque(graph: fx.Graph) -> None:
    """Let every opaque op of a graph call its original."""
    for node in graph.nodes:
        if node.target is torch.ops.graphplan.opaque.default:
            key, *given = node.args
            node.target = _entries[key].target
            node.args = tuple(each for part in given for each in part)


class FunctionCall(OpaqueOp):
    """A call of a custom `autograd.Function`."""

    def __init__(self, function: type[torch.autograd.Function], template: Template) -> None:
        super().__init__(function.__qualname__, template)
        self.function = function

    def __call__(self, *given: Any) -> list[torch.Tensor]:
        split = self.template.num_tensors
        args = self.template.fill(given[:split], given[split:])
        found = self.function.apply(*args)  # type: ignore[no-untyped-call]
        return list(found) if isinstance(found, (tuple, list)) else [found]


class _Context:
    """Stands in for the `ctx` of a function while only its results matter."""

    needs_input_grad = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Nothing is saved."""

    mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_backward
    save_for_forward = save_for_backward


@contextlib.contextmanager
def opaque_functions() -> Iterator[None]:
    """While it lasts, custom `autograd.Function`s leave one op each.

    The forward is replaced, not `apply`: models keep `apply` under names of their own.
    """
    replaced = []
    for function in _custom_functions(torch.autograd.Function):
        original = function.__dict__["forward"]
        replaced.append((function, original))
        setattr(function, "forward", staticmethod(_opaque_forward(function, function.forward)))  # noqa: B010
    try:
        yield
    finally:
        for function, original in replaced:
            setattr(function, "forward", original)  # noqa: B010


def _custom_functions(base: type) -> Iterator[type[torch.autograd.Function]]:
    """Subclasses outside torch that define a forward."""
    function: type[torch.autograd.Function]
    for function in base.__subclasses__():
        if not function.__module__.startswith("torch.") and "forward" in function.__dict__:
            yield function
        yield from _custom_functions(function)


def _opaque_forward(
    function: type[torch.autograd.Function], original: Callable[..., Any]
) -> Callable[..., Any]:
    combined = function.setup_context is torch.autograd.Function.setup_context

    def forward(*given: Any) -> Any:
        if runs_original():
            return original(*given)
        template, tensors, sizes = split_call(given[1:] if combined else given)
        is_single = True

        def fake(fakes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            nonlocal is_single
            args = template.fill(fakes, sizes)
            found = original(_Context(), *args) if combined else original(*args)
            is_single = isinstance(found, torch.Tensor)
            return [found] if is_single else list(found)

        found = call_opaque(FunctionCall(function, template), fake, tensors, sizes=sizes)
        return found[0] if is_single else tuple(found)

    return forward
