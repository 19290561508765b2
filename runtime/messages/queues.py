"""Queues: the one seam between the runtime and its device, for CPUs and for accelerators.

A call on a CPU is done when it returns. An accelerator works off queues (torch's streams): what one
queue does waits for another only where it is told to. There are four of them:

compute   the tasks, in the order of the program
arrivals  where receives are posted, so that they do not wait for the tasks queued before them;
          a task that reads a message waits for that message
departures  where sends end: the memory of what was sent is free when it has left, and no task
          waits for that
copies    batches from the host, through pinned memory

A *mark* is a point in the work of the device: a reading of the clock on a CPU, an event in the
compute queue of an accelerator, whose time is known when the device has passed it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch

from graphplan.nouns.task import Task
from graphplan_runtime.messages.buffers import Buffers

Mark = Any
Note = tuple[Task, float, float, float]
"""A task, when it began to wait for its tensors, when it started and when it ended."""
MarkedNote = tuple[Task, Mark, Mark, Mark]


class Work(Protocol):
    """An operation under way."""

    def wait(self) -> object: ...


Post = Callable[[], Work]


class Queues(Protocol):
    """What the runtime asks of a device."""

    @property
    def mark(self) -> Callable[[], Mark]:
        """Gives the present point of the device's work."""

    def take(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory for a message that will arrive."""

    def take_flat(self, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for what tasks make, from now until nobody has a view of it."""

    def receive(self, post: Post) -> Work:
        """Post a receive; when its `wait` returns, tasks may be queued that read the message."""

    def send(self, tensor: torch.Tensor, post: Post) -> Work:
        """Post a send of what the tasks queued so far make; `wait` gives up the tensor."""

    def place(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A tensor of the host on the device, for the tasks that will be queued."""

    def read(self, notes: Sequence[MarkedNote]) -> list[Note]:
        """Notes with times of the host's clock; waits for the device to pass the marks."""

    def drop_free(self) -> None:
        """Give back memory for messages that is not in use."""


def find_queues(device: torch.device) -> Queues:
    """The queues of a device."""
    if device.type == "cpu":
        return HostQueues()
    return AcceleratorQueues(Accelerator(device))


class HostQueues:
    """Of a CPU: everything in the order of the program."""

    def __init__(self) -> None:
        self.buffers = Buffers()
        self.mark = perf_counter
        self.take = self.buffers.take
        self.drop_free = self.buffers.drop_free

    def take_flat(self, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
        """As messages do: the memory of the step before."""
        return self.buffers.take((num_elements,), dtype)

    def receive(self, post: Post) -> Work:
        """Its `wait` returns when the message is there."""
        return post()

    def send(self, tensor: torch.Tensor, post: Post) -> Work:
        """Its `wait` returns when the message has left."""
        return post()

    def place(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Itself, or a cast."""
        return tensor.to("cpu", dtype)

    def read(self, notes: Sequence[MarkedNote]) -> list[Note]:
        """Marks are times."""
        return list(notes)


class Queue(Protocol):
    """One stream of torch; inside its context, work is queued there."""

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> Any: ...

    def wait_stream(self, other: Any) -> None: ...


class Accelerator:
    """The calls of torch that this file needs; tests put a strict device in its place."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def new_queue(self) -> Queue:
        """A queue beside the compute queue."""
        return torch.Stream(self.device)

    def compute_queue(self) -> Queue:
        """The queue of the tasks."""
        return torch.accelerator.current_stream(self.device)

    def new_event(self) -> torch.Event:
        """An event in the compute queue, behind the work queued so far."""
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def empty(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the queue whose context this is."""
        return torch.empty(sizes, dtype=dtype, device=self.device)

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        """Queue a copy from pinned memory."""
        return pinned.to(self.device, non_blocking=True)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """In memory that the device reads by itself; torch uses it again when that is done."""
        return tensor if tensor.is_pinned() else tensor.pin_memory()

    def is_there(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device already."""
        return tensor.device.type == self.device.type

    def use(self, tensor: torch.Tensor, queue: Queue) -> None:
        """When the tensor is freed, its memory is not given away before `queue` has come as far."""
        tensor.record_stream(queue)  # type: ignore[arg-type]


class AcceleratorQueues:
    """Of a GPU, or whatever else torch.accelerator knows."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.mark = accelerator.new_event
        self.arrivals = accelerator.new_queue()
        self.departures = accelerator.new_queue()
        self.copies = accelerator.new_queue()

    def take(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """From torch's allocator, on the queue of arrivals."""
        with self.arrivals:
            buffer = self.accelerator.empty(sizes, dtype)
        self.accelerator.use(buffer, self.accelerator.compute_queue())
        return buffer

    def take_flat(self, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
        """From torch's allocator, on the queue of the tasks."""
        return self.accelerator.empty((num_elements,), dtype)

    def receive(self, post: Post) -> Work:
        """The compute queue waits for the message when the host calls `wait`."""
        with self.arrivals:
            return post()

    def send(self, tensor: torch.Tensor, post: Post) -> Work:
        """Posted from the compute queue, which has just been given the task that makes it."""
        self.accelerator.use(tensor, self.departures)
        return _Departure(post(), tensor, self.departures)

    def place(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Copied beside the tasks of the step before; cast on the device."""
        if self.accelerator.is_there(tensor):
            return tensor.to(dtype)
        pinned = self.accelerator.pin(tensor)
        with self.copies:
            placed = self.accelerator.copy(pinned)
        compute = self.accelerator.compute_queue()
        compute.wait_stream(self.copies)
        self.accelerator.use(placed, compute)
        return placed.to(dtype)

    def read(self, notes: Sequence[MarkedNote]) -> list[Note]:
        """Times by their distance from now, which is when the compute queue has come to an end."""
        last = self.accelerator.new_event()
        last.synchronize()
        now_s = perf_counter()

        def to_seconds(mark: torch.Event) -> float:
            return now_s - mark.elapsed_time(last) / 1e3

        return [(task, *map(to_seconds, marks)) for task, *marks in notes]  # type: ignore[misc]

    def drop_free(self) -> None:
        """torch's allocator does so when memory runs short."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Departure:
    """A send under way; holds its tensor, whose memory must not be given away before `wait`."""

    work: Work
    tensor: torch.Tensor
    departures: Queue

    def wait(self) -> None:
        """The queue of departures waits until the message has left; tasks do not."""
        with self.departures:
            self.work.wait()
