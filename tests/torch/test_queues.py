"""Queues: what waits for what on an accelerator, on a device that does nothing by luck."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import torch

from graphplan.nouns.task import Task
from graphplan_runtime.messages.buffers import LEAST_BYTES, Buffers
from graphplan_runtime.messages.deliveries import Delivery, Mailbox, Slot, Window
from graphplan_runtime.messages.letters import Letters
from graphplan_runtime.messages.queues import AcceleratorQueues, HostQueues, find_queues
from graphplan_runtime.messages.transport import Transport
from tests.torch.lazy_device import LazyDevice, LazyQueue, LazyWire

SEEDS = range(20)
MESSAGE = torch.arange(6.0).reshape(2, 3)


def make_queues(seed: int) -> tuple[LazyDevice, AcceleratorQueues]:
    """Queues of a late device."""
    device = LazyDevice(seed)
    return device, AcceleratorQueues(cast(Any, device))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_waits_for_its_message_and_the_message_for_no_task(seed: int) -> None:
    """The receive overlaps the tasks queued before it; the reader comes after it."""
    device, queues = make_queues(seed)
    task = device.compute.add(lambda: None)
    wire = LazyWire(device, MESSAGE)
    buffer = queues.take(MESSAGE.shape, MESSAGE.dtype)
    work = queues.receive(lambda: wire.receive(buffer))
    (message,) = wire.queue.last
    found: list[torch.Tensor] = []
    work.wait()
    reader = device.compute.add(lambda: found.append(buffer.clone()))
    device.run()
    assert torch.equal(found[0], MESSAGE)
    assert reader.follows(message)
    assert not message.follows(task)
    assert device.compute in device.users[buffer.data_ptr()]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_leaves_was_made_and_no_task_waits_for_it(seed: int) -> None:
    """A send follows its task; later tasks do not follow the send, its memory does."""
    device, queues = make_queues(seed)
    made = device.empty((2, 3), torch.float32)
    device.compute.add(lambda: made.copy_(MESSAGE))
    wire = LazyWire(device)
    work = queues.send(made, lambda: wire.send(made))
    (message,) = wire.queue.last
    work.wait()
    later = device.compute.add(lambda: None)
    departed = cast(LazyQueue, queues.departures).add(lambda: None)
    device.run()
    assert torch.equal(wire.left[0], MESSAGE)
    assert not later.follows(message)
    assert departed.follows(message)
    assert queues.departures in device.users[made.data_ptr()]


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_are_copied_beside_the_tasks(seed: int) -> None:
    """Through pinned memory, on a queue of their own; a task that reads them comes after."""
    device, queues = make_queues(seed)
    task = device.compute.add(lambda: None)
    placed = queues.place(MESSAGE, torch.float32)
    (copy,) = cast(LazyQueue, queues.copies).last
    found: list[torch.Tensor] = []
    device.compute.add(lambda: found.append(placed.clone()))
    device.run()
    assert torch.equal(found[0], MESSAGE)
    assert not copy.follows(task)
    assert queues.place(placed, torch.float32) is placed


@pytest.mark.parametrize("seed", SEEDS)
def test_letters_of_two_peers_fill_one_tensor(seed: int) -> None:
    """Rows of two messages, one of them through a copy, are where the task reads them."""
    device, queues = make_queues(seed)
    wires = [LazyWire(device, MESSAGE[:, :2]), LazyWire(device, MESSAGE[:, 2:])]

    class Wires:
        """The part of a transport that letters use."""

        def __init__(self) -> None:
            self.queues = queues

        def receive(self, buffer: torch.Tensor, peer: int, tag: int) -> object:
            return queues.receive(lambda: wires[peer].receive(buffer))

    letters, found = Letters(1), []
    for peer, (start, length) in enumerate([(0, 2), (2, 1)]):
        delivery = Delivery(
            value="x",
            take=None,
            sizes=(2, length),
            mailbox=Mailbox(1, "F", 0),
            slot=Slot("x", 1),
            put=Window(1, start, length),
            slot_sizes=(2, 3),
            peer=peer,
            tag=0,
        )
        letters.receive(0, delivery, cast(Transport, Wires()), torch.float32)
    copy = letters._copies
    assert len(copy) == 2, "columns of a tensor are not contiguous"
    for _, work in letters._works:
        work.wait()
    for target, buffer in copy:
        device.compute.add(partial(target.copy_, buffer))
    device.compute.add(lambda: found.append(letters.tensors[0].clone()))  # type: ignore[union-attr]
    device.run()
    assert torch.equal(found[0], MESSAGE)


def test_times_are_read_when_the_device_has_passed_the_marks() -> None:
    """Notes keep their order and distances, on the host's clock."""
    device, queues = make_queues(0)
    begin, start = queues.mark(), queues.mark()
    device.compute.add(lambda: None)
    end = queues.mark()
    with pytest.raises(AssertionError, match="not reached"):
        begin.elapsed_time(end)
    ((task, begin_s, start_s, end_s),) = queues.read([(Task(0, "F", 0), begin, start, end)])
    assert task == Task(0, "F", 0)
    assert start_s - begin_s == pytest.approx(1)
    assert end_s - start_s == pytest.approx(2)


def test_a_cpu_has_one_queue() -> None:
    """Marks are times, tensors are where they are."""
    queues = find_queues(torch.device("cpu"))
    assert isinstance(queues, HostQueues)
    mark = queues.mark()
    assert queues.read([(Task(0, "F", 0), mark, mark, mark)]) == [
        (Task(0, "F", 0), mark, mark, mark)
    ]
    assert queues.place(MESSAGE, torch.float32) is MESSAGE
    assert queues.place(MESSAGE, torch.float64).dtype == torch.float64


def test_buffers_are_used_again_when_nobody_reads_them() -> None:
    """A view, a saved tensor or a gradient function keeps a block; after them it is free."""
    buffers = Buffers()
    sizes = (LEAST_BYTES // 4,)
    first = buffers.take(sizes, torch.float32)
    address = first.data_ptr()
    leaf = first.detach().requires_grad_()
    product = leaf * leaf  # Autograd saves the leaf.
    del first, leaf
    second = buffers.take(sizes, torch.float32)
    assert second.data_ptr() != address
    assert buffers.num_bytes == 2 * LEAST_BYTES
    del product
    third = buffers.take((2, LEAST_BYTES // 8), torch.float32)
    assert third.data_ptr() == address, "the block is free, in whatever shape"
    fourth = buffers.take(sizes, torch.int32)
    assert fourth.data_ptr() not in (address, second.data_ptr())
    del second, fourth
    buffers.drop_free()
    assert buffers.num_bytes == LEAST_BYTES


def test_small_buffers_are_not_kept() -> None:
    """The C library does that by itself."""
    buffers = Buffers()
    assert buffers.take((4,), torch.float64).shape == (4,)
    assert buffers.num_bytes == 0
