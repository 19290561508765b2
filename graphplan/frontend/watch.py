"""Watching: what torch.export would do in silence is noticed, and mended where possible.

Activation checkpoints are traced through as if they were not there (a reentrant one would otherwise
switch gradients off for the rest of the model). Autocast for a device that is not here is traced as
autocast of the CPU. Custom autograd functions become opaque ops. Decisions that depend on the
values of tensors are written down with the line that took them.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import sympy  # type: ignore[import-untyped]
import torch
import torch.utils.checkpoint
from torch import fx, nn
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    PendingUnbackedSymbolNotFound,
    ShapeEnv,
)

from graphplan.frontend.checks import find_check
from graphplan.frontend.nodes import fake_value, is_scalar
from graphplan.frontend.opaque import opaque_entries, opaque_functions
from graphplan.frontend.places import current_place
from graphplan.frontend.targets import is_random


@dataclass(frozen=True)
class Decision:
    """A branch that the example's values decided."""

    result: str
    is_random: bool
    """Whether a random draw decided."""
    place: str | None
    code: str
    modules: tuple[nn.Module, ...] = ()
    """Those whose forward was running."""


@dataclass
class Watch:
    """What was noticed during one trace."""

    checkpoints: list[str] = field(default_factory=list)
    """Places that call torch.utils.checkpoint."""
    checks: list[str] = field(default_factory=list)
    """Places that read values only to raise an error."""
    decisions: list[Decision] = field(default_factory=list)
    fixed_sizes: list[str] = field(default_factory=list)
    """Places that use a symbolic size as a number."""
    modules: list[nn.Module] = field(default_factory=list)
    """The modules whose forward is running; after a failure, those it happened in."""


@contextlib.contextmanager
def watched_trace() -> Iterator[Watch]:
    """While it lasts, a trace is watched; see the module's first lines."""
    watch = Watch()
    with contextlib.ExitStack() as stack:
        stack.enter_context(opaque_entries())
        stack.enter_context(opaque_functions())
        for patch in (*_checkpoint_patches(watch), *_shape_patches(watch), _autocast_patch()):
            stack.enter_context(patch)
        stack.enter_context(_watched_modules(watch))
        yield watch


def _checkpoint_patches(watch: Watch) -> list[Any]:
    def note() -> None:
        watch.checkpoints.append(current_place() or "the model")

    class Through:
        """Runs a reentrant checkpoint's function directly."""

        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            note()
            return function(*args)

    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
        note()
        yield

    where = torch.utils.checkpoint
    return [
        mock.patch.object(where, "CheckpointFunction", Through),
        mock.patch.object(where, "_checkpoint_without_reentrant_generator", generator),
    ]


def _autocast_patch() -> Any:
    original = torch.autocast.__init__

    def create(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        *args: Any,
        **kw: Any,
    ) -> None:
        if device_type not in ("cpu", "meta"):
            dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype
            device_type = "cpu"
        original(self, device_type, dtype, *args, **kw)

    return mock.patch.object(torch.autocast, "__init__", create)


def _shape_patches(watch: Watch) -> list[Any]:
    replace = ShapeEnv._set_replacement

    def note_size(self: ShapeEnv, symbol: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        place = current_place()
        if not target.free_symbols and place is not None:
            watch.fixed_sizes.append(place)
        replace(self, symbol, target, *args, **kwargs)

    def note_decision(self: ShapeEnv, expression: Any, result: Any) -> None:
        place = current_place()
        is_drawn = _is_drawn(getattr(expression, "free_symbols", set()))
        watch.decisions.append(
            Decision(str(result), is_drawn, place, code_at(place), tuple(watch.modules))
        )

    evaluate = ShapeEnv._evaluate_expr

    def pass_checks(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        try:
            return evaluate(self, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            place, wanted = find_check(sys._getframe(1))
            if place is None:
                raise
            watch.checks.append(place)
            return sympy.true if wanted else sympy.false

    bind = symbolic_shapes.compute_unbacked_bindings

    def bind_known(env: ShapeEnv | None, *args: Any, **kwargs: Any) -> Any:
        try:
            return bind(env, *args, **kwargs)
        except PendingUnbackedSymbolNotFound:
            # Following values, torch makes symbols while it compares a real result with the fake
            # one, and then misses them in the result. Nothing can depend on such a symbol.
            assert env is not None
            env.pending_fresh_unbacked_symbols.clear()
            return bind(env, *args, **kwargs)

    return [
        mock.patch.object(symbolic_shapes, "compute_unbacked_bindings", bind_known),
        mock.patch.object(ShapeEnv, "_evaluate_expr", pass_checks),
        mock.patch.object(ShapeEnv, "_set_replacement", note_size),
        mock.patch.object(ShapeEnv, "_log_real_tensor_propagation", note_decision),
    ]


def _is_drawn(symbols: set[Any]) -> bool:
    """Whether a random op is among the ancestors of the number that is being decided on."""
    mode = get_proxy_mode()
    for node in reversed(mode.tracer.graph.nodes) if mode is not None else ():
        value = fake_value(node)
        if is_scalar(value) and symbols & value.node.expr.free_symbols:
            return _has_random_ancestor(node)
    return False


def _has_random_ancestor(node: fx.Node) -> bool:
    pending, seen = [node], {node}
    while pending:
        current = pending.pop()
        if current.op == "call_function" and is_random(current.target):
            return True
        fresh = [given for given in current.all_input_nodes if given not in seen]
        seen.update(fresh)
        pending += fresh
    return False


def code_at(place: str | None) -> str:
    if place is None:
        return ""
    path, _, line = place.rpartition(":")
    return linecache.getline(path, int(line)).strip()


@contextlib.contextmanager
def _watched_modules(watch: Watch) -> Iterator[None]:
    def enter(module: nn.Module, args: Any) -> None:
        watch.modules.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        while watch.modules and watch.modules.pop() is not module:
            pass

    handles = [
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
