"""A device that is late: work is done in any order that its queues allow, when a test says so.

Strict where a GPU is lenient: nothing is done by luck. What a queue was not told to wait for may
happen before or after, as a seed decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Op:
    """Work in a queue, with all that must be done before it."""

    def __init__(self, run: Callable[[], object], after: set[Op]) -> None:
        self.run = run
        self.after = after
        self.done_at: int | None = None

    def follows(self, other: Op) -> bool:
        """Whether this op waits for another one, directly or not."""
        return other in self.after or any(each.follows(other) for each in self.after)


class LazyQueue:
    """Ops one after another."""

    def __init__(self, device: LazyDevice) -> None:
        self.device = device
        self.last: set[Op] = set()

    def __enter__(self) -> None:
        self.device.entered.append(self)

    def __exit__(self, *_: object) -> None:
        self.device.entered.pop()

    def add(self, run: Callable[[], object]) -> Op:
        """Queue an op."""
        op = Op(run, self.last)
        self.last = {op}
        self.device.ops.append(op)
        return op

    def wait_stream(self, other: LazyQueue) -> None:
        """What is queued here from now on follows what the other queue has now."""
        self.last = self.last | other.last


class LazyEvent:
    """A mark; its time is known when the device has passed it."""

    def __init__(self, device: LazyDevice) -> None:
        self.device = device
        self.op = device.current.add(lambda: None)

    def synchronize(self) -> None:
        """Let the device work until it has passed."""
        self.device.run(until=self.op)

    def elapsed_time(self, later: LazyEvent) -> float:
        """Milliseconds; every op takes one second."""
        assert self.op.done_at is not None, "asked for a time that the device has not reached"
        assert later.op.done_at is not None, "asked for a time that the device has not reached"
        return 1000.0 * (later.op.done_at - self.op.done_at)


class LazyDevice:
    """Has what `Accelerator` has."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ops: list[Op] = []
        self.num_done = 0
        self.compute = LazyQueue(self)
        self.entered: list[LazyQueue] = [self.compute]
        self.users: dict[int, set[LazyQueue]] = {}
        """By address: queues that must have come as far as when the memory is freed."""
        self.pinned: set[int] = set()

    @property
    def current(self) -> LazyQueue:
        """Where work is queued now."""
        return self.entered[-1]

    def new_queue(self) -> Any:
        return LazyQueue(self)

    def compute_queue(self) -> Any:
        assert self.current is self.compute, "tasks belong to the compute queue"
        return self.compute

    def new_event(self) -> Any:
        return LazyEvent(self)

    def empty(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        made = torch.zeros(tuple(sizes), dtype=dtype)
        self.users[made.data_ptr()] = {self.current}
        return made

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        assert pinned.data_ptr() in self.pinned, "the device cannot read this memory by itself"
        made = self.empty(pinned.shape, pinned.dtype)
        self.current.add(lambda: made.copy_(pinned))
        return made

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        made = tensor.clone()
        self.pinned.add(made.data_ptr())
        return made

    def is_there(self, tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() in self.users

    def use(self, tensor: torch.Tensor, queue: Any) -> None:
        self.users.setdefault(tensor.data_ptr(), set()).add(queue)

    def run(self, until: Op | None = None) -> None:
        """Do what is queued, in an order that the queues allow."""
        while until is None or until.done_at is None:
            ready = [
                op
                for op in self.ops
                if op.done_at is None and all(each.done_at is not None for each in op.after)
            ]
            if not ready:
                return
            op = self.random.choice(ready)
            op.run()
            self.num_done += 1
            op.done_at = self.num_done


class LazyWork:
    """As NCCL's: the queue that calls `wait` waits, the host does not."""

    def __init__(self, device: LazyDevice, op: Op) -> None:
        self.device = device
        self.op = op

    def wait(self) -> None:
        self.device.current.last = {*self.device.current.last, self.op}


class LazyWire:
    """One direction between two devices: its own queue, which follows the queue of the caller."""

    def __init__(self, device: LazyDevice, arriving: torch.Tensor | None = None) -> None:
        self.device = device
        self.queue = LazyQueue(device)
        self.arriving = arriving
        self.left: list[torch.Tensor] = []

    def receive(self, buffer: torch.Tensor) -> LazyWork:
        """Post a receive of what arrives."""
        assert self.arriving is not None
        arriving = self.arriving
        return self._post(lambda: buffer.copy_(arriving))

    def send(self, tensor: torch.Tensor) -> LazyWork:
        """Post a send."""
        return self._post(lambda: self.left.append(tensor.clone()))

    def _post(self, run: Callable[[], object]) -> LazyWork:
        self.queue.wait_stream(self.device.current)
        return LazyWork(self.device, self.queue.add(run))
