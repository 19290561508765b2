"""Properties of the simulator on random stage graphs, replicas, shared devices and channels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.errors import InvalidOption
from graphplan.nouns.policy import WeightPolicy
from graphplan.nouns.prices import PricedStages, Reduction, StagePrice
from graphplan.nouns.schedule import Program, Schedule
from graphplan.nouns.timeline import Timeline
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.lower import lower_schedule
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.simulate import engine, predict_step, simulate_program
from tests.pure.legal import split_backwards
from tests.pure.naive import Naive
from tests.pure.strategies import priced_stages

FLUSH = WeightPolicy()


@st.composite
def programs(draw: st.DrawFn, *, shared_channels: bool = True) -> tuple[PricedStages, Program]:
    """A random stage graph with a lowered schedule, sometimes with one channel for many devices."""
    priced = draw(
        priced_stages(
            replicas=True,
            shared_devices=True,
            mixed_sizes=True,
            frozen=True,
            updates=True,
            buckets=True,
        )
    )
    schedule = draw_schedule(draw, priced)
    program = lower_schedule(priced, schedule, FLUSH)
    if shared_channels:
        width = draw(st.sampled_from([0, 2, 100]), label="senders on one channel")
        priced = share_channels(priced, width) if width else priced
    return priced, program


@st.composite
def schedules(draw: st.DrawFn) -> tuple[PricedStages, Schedule]:
    """A random stage graph whose transfers take no time, with a schedule."""
    priced = draw(priced_stages(transfers=False, replicas=True, shared_devices=True))
    return priced, draw_schedule(draw, priced)


def draw_schedule(draw: st.DrawFn, priced: PricedStages) -> Schedule:
    """GPipe always exists; 1F1B only where every device has one stage."""
    try:
        schedule = draw(st.sampled_from([build_gpipe, build_1f1b]))(priced)
    except InvalidOption:
        schedule = build_gpipe(priced)
    if draw(st.booleans(), label="split"):
        return split_backwards(schedule)
    return schedule


def share_channels(priced: PricedStages, width: int) -> PricedStages:
    """The same prices with one channel for the messages of `width` sending devices."""
    transfers = tuple(
        msgspec.structs.replace(
            each,
            messages=tuple(
                msgspec.structs.replace(message, channel=f"n{message.src // width}>")
                for message in each.messages
            ),
        )
        for each in priced.transfers
    )
    stages = tuple(share_lanes(stage, width) for stage in priced.stages)
    return msgspec.structs.replace(priced, transfers=transfers, stages=stages)


def share_lanes(price: StagePrice, width: int) -> StagePrice:
    """The same price, with its buckets on these channels."""
    if price.reduction is None:
        return price
    lanes = tuple(f"n{device // width}>" for device in price.devices)
    reduction = msgspec.structs.replace(price.reduction, lanes=lanes)
    return msgspec.structs.replace(price, reduction=reduction)


def scale_buckets(reduction: Reduction | None, factor: float) -> Reduction | None:
    """All seconds of the buckets multiplied."""
    if reduction is None:
        return None
    names = ("seconds", "backward_s", "weight_grad_s")
    buckets = tuple(
        msgspec.structs.replace(each, **{name: factor * getattr(each, name) for name in names})
        for each in reduction.buckets
    )
    return msgspec.structs.replace(reduction, buckets=buckets)


def scale_times(priced: PricedStages, compute: float, transfers: float) -> PricedStages:
    """All seconds multiplied."""
    names = ("forward_s", "backward_s", "input_grad_s", "weight_grad_s", "reduce_s", "update_s")
    stages = tuple(
        msgspec.structs.replace(
            stage,
            reduction=scale_buckets(stage.reduction, compute),
            **{name: compute * getattr(stage, name) for name in names},
        )
        for stage in priced.stages
    )
    changed: Any = [
        msgspec.structs.replace(
            each,
            messages=tuple(
                msgspec.structs.replace(
                    m, seconds=transfers * m.seconds, latency_s=transfers * m.latency_s
                )
                for m in each.messages
            ),
        )
        for each in priced.transfers
    ]
    return msgspec.structs.replace(priced, stages=stages, transfers=tuple(changed))


@settings(max_examples=70, deadline=None)
@given(programs())
def test_agrees_with_a_naive_simulator(case: tuple[PricedStages, Program]) -> None:
    """Every span starts and ends when a slow simulator written from the rules says so."""
    priced, program = case
    timeline = simulate_program(priced, program)
    found = sorted((s.name, str(s.place), s.start_s, s.end_s) for s in timeline.spans)
    assert found == Naive(priced, program).run()


@settings(max_examples=30, deadline=None)
@given(programs())
def test_compiled_or_not_gives_the_same_timeline(case: tuple[PricedStages, Program]) -> None:
    """To the last bit, so that it does not matter from which size on the loop is compiled."""
    plain = simulate_program(*case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "WORTH_COMPILING", 0)
        assert simulate_program(*case) == plain


@settings(max_examples=30, deadline=None)
@given(programs())
def test_makespan_bounds(case: tuple[PricedStages, Program]) -> None:
    """The makespan is at least the busiest device and its own chain."""
    priced, program = case
    timeline = simulate_program(priced, program)
    assert timeline.makespan_s >= max(timeline.busy_s_by_device)
    assert timeline.makespan_s >= measure_chain(timeline)


def measure_chain(timeline: Timeline) -> float:
    """Seconds of the spans of the critical path."""
    seconds: dict[str, float] = {}
    for span in timeline.spans:
        seconds[span.name] = min(seconds.get(span.name, 1e9), span.end_s - span.start_s)
    return sum(seconds[name] for name in timeline.critical_path)


@settings(max_examples=30, deadline=None)
@given(programs())
def test_critical_path_has_no_slack(case: tuple[PricedStages, Program]) -> None:
    """Each step of the critical path starts when the one before it has arrived; it spans all."""
    priced, program = case
    timeline = simulate_program(priced, program)
    latency = max((m.latency_s for t in priced.transfers for m in t.messages), default=0.0)
    ends: set[float] = {0.0}
    for name in timeline.critical_path:
        spans = [span for span in timeline.spans if span.name == name]
        found = {span.end_s for span in spans if {span.start_s, span.start_s - latency} & ends}
        # A bucket leaves in the course of a task.
        buckets = [s for s in spans if ">" in str(s.place) and ">" not in name]
        found |= {s.end_s for s in buckets if s.start_s <= max(ends)}
        ends = found
        assert ends, name
    assert timeline.makespan_s in ends


@settings(max_examples=30, deadline=None)
@given(programs())
def test_doubling_all_times_doubles_the_makespan(case: tuple[PricedStages, Program]) -> None:
    """Time has no natural unit."""
    priced, program = case
    before = simulate_program(priced, program).makespan_s
    assert simulate_program(scale_times(priced, 2, 2), program).makespan_s == 2 * before


@settings(max_examples=30, deadline=None)
@given(programs(shared_channels=False))
def test_more_bandwidth_never_hurts(case: tuple[PricedStages, Program]) -> None:
    """Where channels are not shared, faster transfers never make a program slower."""
    priced, program = case
    faster = simulate_program(scale_times(priced, 1, 0.5), program).makespan_s
    assert faster <= simulate_program(priced, program).makespan_s


@settings(max_examples=30, deadline=None)
@given(programs())
def test_light_prediction_equals_the_timeline(case: tuple[PricedStages, Program]) -> None:
    """predict_step gives the figures of the timeline, and peaks are the sum of their parts."""
    priced, program = case
    timeline = simulate_program(priced, program)
    light = predict_step(priced, program)
    assert (light.step_s, light.bubble) == (timeline.makespan_s, timeline.bubble)
    assert light.samples_per_s == timeline.samples_per_s
    assert light.peak_bytes_by_device == tuple(peak.bytes for peak in timeline.peaks)
    for peak, curve in zip(timeline.peaks, timeline.memory, strict=True):
        assert sum(peak.parts.values()) == peak.bytes
        # A task of no seconds holds its bytes for no time, so a curve may miss its peak.
        assert max(curve.bytes) <= peak.bytes
