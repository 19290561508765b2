"""Runs: one call of a sub-module in a trace, the modes around it, and the nodes that it left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator
from torch.amp import autocast_mode
from torch.fx.experimental.proxy_tensor import get_proxy_slot
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from graphplan.frontend.recorded import Scene, Weights


class ModuleRun:
    """One call of a candidate."""

    def __init__(
        self, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any, tracer: Any
    ) -> None:
        self.module = module
        self.original = original
        self.args = args
        self.kwargs = kwargs
        self.tracer = tracer
        self.path = self._path()

    def _path(self) -> str:
        """The module that is running, as the tracer calls it."""
        stack = self.tracer.module_stack
        return str(stack[next(reversed(stack))][0]) if stack else ""

    def scene(self, weights: Weights) -> Scene:
        """Where its calls of torch are made."""
        return Scene(weights, self.path, self.read_state, self.node_of)

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        """The node that a tensor is the result of now; None where the trace does not know it."""
        found = get_proxy_slot(tensor, self.tracer, None)
        return None if found is None else found.proxy.node

    def read_state(self) -> tuple[Any, ...]:
        """What decides beside its arguments what a call of torch leaves in a trace."""
        return (self._path(), *read_modes())


def read_modes() -> tuple[Any, ...]:
    """The settings of torch that change what a call leaves in a trace."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )


def list_modes() -> list[Any]:
    """The modes of torch that see every call, ours among them."""
    functions = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return [*functions, *_get_current_dispatch_mode_stack()]


def nodes_after(before: fx.Node) -> Iterator[fx.Node]:
    """What a trace got since a node."""
    node = before.next
    while node.op != "root":
        yield node
        node = node.next


_UNCOPIED = (autocast_mode._enter_autocast, autocast_mode._exit_autocast)


def mark_nodes(before: fx.Node, key: str) -> bool:
    """Mark what a sub-module left in the trace; False when it cannot be copied."""
    fresh = list(nodes_after(before))
    for node in fresh:
        if node.op != "call_function" or node.target in _UNCOPIED:
            return False
        if isinstance(node.target, HigherOrderOperator):
            return False
    for node in fresh:
        node.meta["firsts"] = (*node.meta.get("firsts", ()), key)
    return True
