"""Evaluation with contention: against the longest path, the simulator, and figures by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import Message, PricedStages, StagePrice, TransferPrice
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.queued import has_contention, measure_queued
from graphplan.simulate import predict_step
from tests.pure.strategies import priced_stages

FLUSH = WeightPolicy()


def make_branches(*, channels: tuple[str, str], seconds: float = 3.0) -> PricedStages:
    """Two sources that feed one sink, F 1 s, B 1 s, messages of 3 s."""
    stage = {
        "micro_batch_size": 1,
        "forward_s": 1.0,
        "backward_s": 1.0,
        "input_grad_s": 0.5,
        "weight_grad_s": 0.5,
    }

    def send(src: int, dst: int, channel: str, length_s: float) -> TransferPrice:
        message = Message(
            src=src, dst=dst, bytes=1, seconds=length_s, latency_s=0.0, channel=channel
        )
        return TransferPrice(src=src, dst=dst, backward=src > dst, messages=(message,))

    return PricedStages(
        batch_size=1,
        stages=tuple(StagePrice(devices=(d,), **stage) for d in range(3)),  # type: ignore[arg-type]
        edges=((0, 2), (1, 2)),
        backward_edges=((0, 2), (1, 2)),
        transfers=(
            send(0, 2, channels[0], seconds),
            send(1, 2, channels[1], seconds),
            send(2, 0, "back0", 0.0),
            send(2, 1, "back1", 0.0),
        ),
        memory_bytes_by_device=(100, 100, 100),
    )


def test_messages_on_one_channel_wait_for_each_other() -> None:
    """F 1 s, one message of 3 s or two in turn, F, B at the sink, B at the sources."""
    apart, shared = (make_branches(channels=c) for c in (("a", "b"), ("a", "a")))
    assert not has_contention(apart)
    assert has_contention(shared)
    assert measure_queued(apart, build_1f1b(apart)) == 1 + 3 + 1 + 1 + 1
    assert measure_queued(shared, build_1f1b(shared)) == 1 + 6 + 1 + 1 + 1


@settings(max_examples=40, deadline=None)
@given(priced_stages(max_stages=5))
def test_no_step_is_shorter_than_the_longest_path(priced: PricedStages) -> None:
    """With a channel for every message of a transfer, only micro-batches wait for one another."""
    lonely = msgspec.structs.replace(
        priced,
        transfers=tuple(
            msgspec.structs.replace(
                transfer,
                messages=tuple(
                    msgspec.structs.replace(message, channel=f"{t}.{m}")
                    for m, message in enumerate(transfer.messages)
                ),
            )
            for t, transfer in enumerate(priced.transfers)
        ),
    )
    schedule = build_gpipe(lonely)
    assert measure_queued(lonely, schedule) >= evaluate_schedule(lonely, schedule).step_s * (
        1 - 1e-9
    )


@pytest.mark.parametrize("seconds", [0.1, 0.5, 1.0])
def test_single_devices_agree_with_the_simulator(seconds: float) -> None:
    """A channel shared by two that keeps up: the same step, however long the batch."""
    for batch_size in (1, 2, 5, 12):
        priced = msgspec.structs.replace(
            make_branches(channels=("a", "a"), seconds=seconds), batch_size=batch_size
        )
        schedule = build_1f1b(priced)
        simulated = predict_step(priced, lower_schedule(priced, schedule, FLUSH)).step_s
        assert measure_queued(priced, schedule) == pytest.approx(simulated)
