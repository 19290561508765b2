"""Limits: what a graph from a file may take of this machine while it is measured.

A captured model is the user's own and may be as large as it is. A file may say anything, so its
ops first run without memory: every tensor that they would make is counted, those inside of
composite ops too, and so is the arithmetic of products. What exceeds a limit, or cannot run without
memory for another reason than that its size depends on data, is estimated instead.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from graphplan.cost.measure_allowed import NotKnown, check_count
from graphplan.cost.measure_clock import Clock

CPU_BYTES = (1 << 30) // 5
"""Tensors of one unit. Gradients, their sums and the results of the backward need up to four times
as much again, so that measuring stays below 1 GB."""
CPU_FLOPS = 1e11
"""A few seconds of one core."""
DEVICE_SHARE = 1 / 8
DEVICE_FLOPS = 1e14

_DYNAMIC = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


@dataclass
class Limits:
    """The most that a unit may take, and what every node of a graph would take."""

    num_bytes: float
    num_flops: float
    bytes_by_node: dict[fx.Node, float] = field(default_factory=dict)
    flops_by_node: dict[fx.Node, float] = field(default_factory=dict)
    refused: dict[fx.Node, str] = field(default_factory=dict)
    """Nodes that must not run, and why."""

    def run(self, node: fx.Node, call: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        """Run a node on fake tensors and note what it would take."""
        counter = _Counter(self.num_bytes)
        loudness = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # torch tells of every op that fails on fake tensors.
        try:
            check_count(node.target, args)
            with counter:
                found = call()
        except Exception as error:
            if not any(tag in _DYNAMIC for tag in getattr(node.target, "tags", ())):
                self.refused[node] = str(error)
            raise
        finally:
            logging.disable(loudness)
            self.bytes_by_node[node] = counter.num_bytes
            self.flops_by_node[node] = counter.num_flops
        return found

    def note(self, node: fx.Node, value: Any) -> None:
        """Note the bytes of an input, a weight or a result."""
        self.bytes_by_node[node] = max(self.bytes_by_node.get(node, 0), _count_bytes(value))

    def check(self, nodes: Iterable[fx.Node], *, what: str, times: int = 1) -> None:
        """Refuse to run nodes that would take too much."""
        nodes = list(nodes)
        for node in nodes:
            if node in self.refused:
                raise NotKnown(self.refused[node])
        total = sum(self.bytes_by_node.get(node, 0) for node in nodes)
        flops = sum(self.flops_by_node.get(node, 0) for node in nodes)
        if total > times * self.num_bytes:
            raise NotKnown(f"{what} would take {total / 1e9:.3g} GB of a file's word")
        if flops > times * self.num_flops:
            raise NotKnown(f"{what} would take {flops:.3g} operations of a file's word")


def choose_limits(clock: Clock) -> Limits:
    """The limits of a device."""
    if clock.device.type == "cpu":
        return Limits(min(CPU_BYTES, clock.free_bytes() * DEVICE_SHARE), CPU_FLOPS)
    return Limits(clock.free_bytes() * DEVICE_SHARE, DEVICE_FLOPS)


def _count_bytes(found: Any) -> float:
    """Bytes of all tensors of a result, each as if it had memory of its own.

    That of a view with wide steps reaches from its first to its last element.
    """
    tensors = [each for each in pytree.tree_leaves(found) if isinstance(each, torch.Tensor)]
    if any(isinstance(size, torch.SymInt) for each in tensors for size in each.shape):
        return 0  # The size depends on data, and is at most that of what the op reads.
    return sum(_count_elements(each) * each.element_size() for each in tensors)


def _count_elements(tensor: torch.Tensor) -> int:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in steps)
    return max(math.prod(tensor.shape), span) if 0 not in tensor.shape else 0


class _Counter(TorchDispatchMode):
    """Counts what the ops inside of a call would make, and stops at the first that is too large."""

    def __init__(self, most: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = most
        self.num_bytes = 0.0
        self.num_flops = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.num_bytes += _count_bytes(found)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.num_flops += formula(*args, **(kwargs or {}), out_val=found)
        if self.num_bytes > 64 * self._most:
            raise NotKnown(f"it would take {self.num_bytes / 1e9:.3g} GB of a file's word")
        return found
