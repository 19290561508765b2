"""Reductions on their way while the backward runs, on a transport that sleeps."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch

from graphplan_runtime import Pipeline
from graphplan_runtime.messages.queues import Work
from tests.processes.crew import Crew
from tests.processes.test_training import TOLERANCE, assert_equal_results
from tests.processes.training import (
    Result,
    Setup,
    make_batches,
    make_pipeline,
    read_weights,
    train_pipeline,
    train_whole,
)

SLEEP_S = 0.01
LAYER_BYTES = 8 * (6 * 6 + 6)
"""A bucket for every layer of the chain, in fp64."""
ONE_STAGE = {f"blocks.{i}": 0 for i in range(4)}


class SleepingTransport:
    """Sums of a pipeline set out late, one after the other; what happens is noted in order."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.events: list[str] = []
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.num_posted = 0
        self.sum_over = pipeline.transport.sum_over
        pipeline.transport.sum_over = self.sum_late  # type: ignore[method-assign]
        for name, weight in pipeline.weights.items():
            if weight.requires_grad:
                note = partial(self._note, name)
                weight.register_hook(note)  # type: ignore[no-untyped-call]

    def _note(self, event: str, _: torch.Tensor) -> None:
        self.events.append(event)

    def sum_late(self, group: tuple[int, ...], tensor: torch.Tensor) -> Work:
        """After a nap."""
        number, self.num_posted = self.num_posted, self.num_posted + 1
        self.events.append(f"post {number}")

        def travel() -> None:
            time.sleep(SLEEP_S)
            self.sum_over(group, tensor).wait()

        done, events = self.thread.submit(travel), self.events

        class LateWork:
            def wait(self) -> None:
                events.append(f"wait {number}")
                done.result()

        return LateWork()


def train_late(setup: Setup) -> tuple[Result, list[list[str]]]:
    """Train on sums that are late; what happened in every step."""
    pipeline = make_pipeline(setup)
    transport, losses, events = SleepingTransport(pipeline), [], []
    for batch in make_batches(setup):
        losses.append(pipeline.step(batch))
        events.append(list(transport.events))
        transport.events.clear()
        transport.num_posted = 0
    return Result(losses, read_weights(pipeline)), events


@pytest.mark.parametrize("schedule", ["1f1b", "split"])
def test_sums_travel_while_the_backward_runs(crew: Crew, schedule: str) -> None:
    """A layer's sum is posted before the gradient of the layer before it is known; all are waited
    for when the backward has ended. Only the last micro-batch posts."""
    setup = Setup(
        case="chain",
        devices=[(0, 1)],
        schedule=schedule,
        stage_by_module=ONE_STAGE,
        training={"bucket_bytes": LAYER_BYTES},
    )
    runs: list[Any] = crew.run(2, train_late, setup)
    assert_equal_results([result for result, _ in runs], train_whole(setup), TOLERANCE)
    for _, steps in runs:
        for events in steps:
            first = events.index("post 0")
            names = [each for each in events[:first] if "blocks" in each]
            assert len(names) == 3 * 8 + 2, "one layer of the last of four micro-batches"
            late = [".".join(each.split(".")[:2]) for each in events[first:]]
            layers = [late[i] for i in range(len(late)) if i == 0 or late[i] != late[i - 1]]
            assert layers == [
                *("post 0", "blocks.2", "post 1", "blocks.1", "post 2", "blocks.0", "post 3"),
                *("wait 0", "wait 1", "wait 2", "wait 3"),
            ]


def test_small_buckets_change_nothing(crew: Crew) -> None:
    """Several stages with replicas, tied weights, and batches that leave replicas without rows."""
    setup = Setup(
        case="tied",
        devices=[(0, 1), (2, 3), (0, 1)],
        schedule="gpipe",
        rows_by_step=[8, 7, 3, 1],
        training={"bucket_bytes": 1},
    )
    results: list[Result] = crew.run(4, train_pipeline, setup)
    assert_equal_results(results, train_whole(setup), TOLERANCE)
