"""Reducers: when buckets are posted and waited for, on a transport that notes what it is told."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import nn

from graphplan_runtime.messages.queues import HostQueues
from graphplan_runtime.updates.buckets import make_buckets
from graphplan_runtime.updates.reducers import Reducer

GROUP = (0, 1)
NUM_LAYERS = 4
WIDTH = 160
"""So that a layer is larger than what the C library keeps by itself."""


class NotingTransport:
    """Two replicas with equal gradients; sums are there when they are waited for."""

    def __init__(self) -> None:
        self.queues = HostQueues()
        self.events: list[str] = []
        self.num_posted = 0

    def sum_over(self, group: tuple[int, ...], flat: torch.Tensor) -> Any:
        """Note it; the tensor is added to itself when the work is waited for."""
        assert group == GROUP
        number, self.num_posted = self.num_posted, self.num_posted + 1
        self.events.append(f"post {number}")
        return NotedWork(number, flat, self.events)


@dataclasses.dataclass(frozen=True)
class NotedWork:
    """The sum of a bucket."""

    number: int
    flat: torch.Tensor
    events: list[str]

    def wait(self) -> None:
        """Note it, and have the sum."""
        self.events.append(f"wait {self.number}")
        self.flat.mul_(2)


@pytest.fixture
def transport() -> Iterator[NotingTransport]:
    """A fresh one, with its memory."""
    yield NotingTransport()


def make_layers(transport: NotingTransport) -> nn.Sequential:
    """Layers whose backward is noted before their gradients are."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)))
    for number, layer in enumerate(layers):
        layer.register_full_backward_pre_hook(
            lambda *_, number=number: transport.events.append(f"layer {number}")
        )
    return layers


def make_reducer(
    layers: nn.Sequential, transport: NotingTransport, *, per_bucket: int = 1
) -> Reducer:
    """Buckets of so many layers each, the last layers first."""
    parameters = [p for layer in reversed(layers) for p in reversed(list(layer.parameters()))]
    layer_bytes = sum(p.nbytes for p in layers[0].parameters())
    buckets = make_buckets(parameters, per_bucket * layer_bytes)
    made = Reducer(buckets, GROUP, cast(Any, transport))
    for each in parameters:
        each.register_post_accumulate_grad_hook(made.arrive)  # type: ignore[no-untyped-call]
    return made


def run_task(layers: nn.Sequential, reducer: Reducer, *, is_last: bool, seed: int = 0) -> None:
    """A backward between `begin` and `end`."""
    x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    made = layers(x).square().sum()
    reducer.begin(is_last=is_last)
    made.backward()
    reducer.end()


def test_buckets_are_posted_while_the_backward_runs(transport: NotingTransport) -> None:
    """Each as soon as its last gradient is there; nothing is waited for before R."""
    layers = make_layers(transport)
    reducer = make_reducer(layers, transport, per_bucket=2)
    run_task(layers, reducer, is_last=False)
    assert transport.events == ["layer 3", "layer 2", "layer 1", "layer 0"]
    transport.events.clear()
    run_task(layers, reducer, is_last=True)
    assert transport.events == ["layer 3", "layer 2", "post 0", "layer 1", "layer 0", "post 1"]
    reducer.join()
    assert transport.events[-2:] == ["wait 0", "wait 1"]


def test_gradients_are_sums_over_micro_batches_and_replicas(transport: NotingTransport) -> None:
    """To the last bit those of plain autograd, twice: one for each replica."""
    layers, plain = make_layers(transport), make_layers(transport)
    reducer = make_reducer(layers, transport)
    for step in range(2):
        for micro_batch in range(3):
            run_task(layers, reducer, is_last=micro_batch == 2, seed=10 * step + micro_batch)
            x = torch.randn(
                3, WIDTH, generator=torch.Generator().manual_seed(10 * step + micro_batch)
            )
            plain(x.requires_grad_()).square().sum().backward()
        reducer.join()
        for own, wanted in zip(layers.parameters(), plain.parameters(), strict=True):
            assert own.grad is not None
            assert wanted.grad is not None
            assert torch.equal(own.grad, 2 * wanted.grad)
            own.grad = wanted.grad = None


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_order_of_buckets_does_not_depend_on_gradients(
    transport: NotingTransport, order: tuple[int, ...]
) -> None:
    """Whatever comes first, bucket k is posted after bucket k - 1."""
    parameters = [nn.Parameter(torch.zeros(32, 1024) + n) for n in range(3)]
    reducer = Reducer(make_buckets(parameters, 1), GROUP, cast(Any, transport))
    reducer.begin(is_last=True)
    for place in order:
        transport.events.append(f"gradient {place}")
        parameters[place].grad = torch.full((32, 1024), float(place))
        reducer.arrive(parameters[place])
    reducer.end()
    events = transport.events
    for place in range(3):
        posted = events.index(f"post {place}")
        assert posted > events.index(f"gradient {place}")
        assert [each for each in events if each.startswith("post")][place] == f"post {place}"
        due = max(events.index(f"gradient {before}") for before in range(place + 1))
        assert not any(each.startswith("gradient") for each in events[due + 1 : posted])
    reducer.join()
    for place, each in enumerate(parameters):
        assert each.grad is not None
        assert torch.equal(each.grad, torch.full((32, 1024), 2.0 * place))


def test_what_does_not_come_is_zero(transport: NotingTransport) -> None:
    """A weight that no path of this replica reaches, and a replica that has no rows at all."""
    parameters = [nn.Parameter(torch.ones(32, 1024)) for _ in range(2)]
    reducer = Reducer(make_buckets(parameters, 1), GROUP, cast(Any, transport))
    reducer.begin(is_last=True)
    parameters[1].grad = torch.ones(32, 1024)
    reducer.arrive(parameters[1])
    assert transport.events == []
    reducer.end()
    assert transport.events == ["post 0", "post 1"]
    reducer.join()
    assert [float(each.grad.sum()) for each in parameters if each.grad is not None] == [
        0,
        2 * 2**15,
    ]


def test_memory_of_buckets_is_taken_again(transport: NotingTransport) -> None:
    """By the next update, when the gradients are gone; not while one of them waits elsewhere."""
    layers = make_layers(transport)
    reducer = make_reducer(layers, transport)

    def step(*, keep: bool = False) -> tuple[set[int], list[torch.Tensor | None]]:
        run_task(layers, reducer, is_last=True)
        reducer.join()
        gradients = [each.grad for each in layers.parameters()]
        places = {each.untyped_storage().data_ptr() for each in gradients if each is not None}
        layers.zero_grad()
        return places, gradients if keep else []

    first, _ = step()
    assert len(first) == NUM_LAYERS
    second, kept = step(keep=True)
    assert second == first
    copies = [each.clone() for each in kept if each is not None]
    third, _ = step()
    assert third.isdisjoint(second)
    assert all(torch.equal(a, b) for a, b in zip(copies, filter_none(kept), strict=True))


def filter_none(tensors: list[torch.Tensor | None]) -> list[torch.Tensor]:
    """Those that are there."""
    return [each for each in tensors if each is not None]


def test_a_backward_outside_of_tasks_is_left_alone(transport: NotingTransport) -> None:
    """The user may differentiate the same module."""
    layers = make_layers(transport)
    make_reducer(layers, transport)
    layers(torch.ones(1, WIDTH, requires_grad=True)).sum().backward()
    assert not any(each.startswith("post") for each in transport.events)


def test_a_gradient_after_its_sum_is_a_bug(transport: NotingTransport) -> None:
    """It would be lost on all replicas but one."""
    parameter = nn.Parameter(torch.ones(4))
    reducer = Reducer(make_buckets([parameter], 1), GROUP, cast(Any, transport))
    reducer.begin(is_last=True)
    reducer.end()
    reducer.begin(is_last=False)
    parameter.grad = torch.ones(4)
    with pytest.raises(AssertionError, match="after its sum"):
        reducer.arrive(parameter)
