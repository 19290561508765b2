"""Schedules with closed forms: makespans, in-flight counts and whole pictures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphplan.errors import InvalidOption, NoFeasiblePlan
from graphplan.nouns.prices import PricedStages
from graphplan.nouns.schedule import Schedule, parse_schedule
from graphplan.schedule.evaluate import evaluate_schedule
from graphplan.schedule.gpipe import build_gpipe
from graphplan.schedule.inflight import count_in_flight
from graphplan.schedule.interleaved import build_interleaved
from graphplan.schedule.kfkb import build_kfkb
from graphplan.schedule.onefoneb import build_1f1b
from graphplan.schedule.zerobubble import build_zero_bubble
from tests.pure.pictures import draw_schedule, sketch_timeline, time_schedule
from tests.pure.strategies import branch_edges, chain_prices, dag_prices, priced_stages

SIZES = [(1, 1), (2, 3), (4, 4), (4, 9), (8, 5), (5, 16)]


@pytest.mark.parametrize(("num_stages", "count"), SIZES)
@pytest.mark.parametrize("build", [build_gpipe, build_1f1b])
def test_balanced_chains_take_the_textbook_time(build, num_stages: int, count: int) -> None:  # type: ignore[no-untyped-def]
    """GPipe and 1F1B take (M + S - 1)(f + b)."""
    priced = chain_prices(num_stages, count, forward_s=2, backward_s=3)
    assert evaluate_schedule(priced, build(priced)).step_s == (count + num_stages - 1) * 5


@pytest.mark.parametrize(("num_stages", "count"), SIZES)
def test_1f1b_ticks(num_stages: int, count: int) -> None:
    """F(s,i) starts at s+i while i < S-s, then at 2i+s; B(s,i) starts at 2i+2S-1-s."""
    priced = chain_prices(num_stages, count)
    spans = time_schedule(priced, build_1f1b(priced)).spans
    starts = {span.name: span.start_s for span in spans}
    for s in range(num_stages):
        for i in range(count):
            assert starts[f"{s}F{i}"] == (s + i if i < num_stages - s else 2 * i + s)
            assert starts[f"{s}B{i}"] == 2 * i + 2 * num_stages - 1 - s


@settings(max_examples=30, deadline=None)
@given(priced_stages(max_stages=8, max_micro_batches=8, transfers=False))
def test_1f1b_on_graphs_has_the_depth_of_the_graph(shape: PricedStages) -> None:
    """With unit times and free messages a graph of depth D takes 2N + 2(D-1)."""
    count = shape.num_micro_batches(0)
    priced = dag_prices(shape.edges, count, num_stages=len(shape.stages))
    depth = 1 + max(priced.heights)
    assert evaluate_schedule(priced, build_1f1b(priced)).step_s == 2 * count + 2 * (depth - 1)


@settings(max_examples=30, deadline=None)
@given(priced_stages(max_stages=8, max_micro_batches=8))
def test_1f1b_keeps_height_plus_one_in_flight(priced: PricedStages) -> None:
    """Stage s holds the activations of min(M, h(s) + 1) micro-batches, whatever the times."""
    peaks = evaluate_schedule(priced, build_1f1b(priced)).peak_bytes_by_device
    for s, price in enumerate(priced.stages):
        in_flight = min(priced.num_micro_batches(s), priced.heights[s] + 1)
        assert peaks[price.devices[0]] == in_flight * price.saved_bytes


def test_fewer_warmups_are_slower() -> None:
    """h(s) + 1 in flight is tight: one less at the first stage costs time."""
    priced = chain_prices(3, 8)
    text = str(build_1f1b(priced)).split("\n")
    text[0] = "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0F4 0B3 0F5 0B4 0F6 0B5 0F7 0B6 0B7"
    fewer = parse_schedule("\n".join(text), name="fewer")
    assert evaluate_schedule(priced, fewer).step_s > 2 * 8 + 2 * 2


def test_1f1b_picture() -> None:
    """The picture of a balanced chain, backward twice as long as forward."""
    priced = chain_prices(3, 4, backward_s=2)
    assert draw_schedule(priced, build_1f1b(priced)) == "\n".join(
        [
            "0 |0F0 0F1 0F2 .   .   .   .   0B0==== 0F3 0B1==== .   0B2==== .   0B3==== |",
            "1 |.   1F0 1F1 .   .   1B0==== 1F2 1B1==== 1F3 1B2==== .   1B3==== .   .   |",
            "2 |.   .   2F0 2B0==== 2F1 2B1==== 2F2 2B2==== 2F3 2B3==== .   .   .   .   |",
        ]
    )


def test_branches_run_side_by_side() -> None:
    """Two branches that meet take the time of one: the picture of a graph of depth 2."""
    priced = dag_prices(branch_edges(2, 1), 3)
    assert draw_schedule(priced, build_1f1b(priced)) == "\n".join(
        [
            "0 |0F0 0F1 .   0B0 0F2 0B1 .   0B2 |",
            "1 |1F0 1F1 .   1B0 1F2 1B1 .   1B2 |",
            "2 |.   2F0 2B0 2F1 2B1 2F2 2B2 .   |",
        ]
    )


def test_zero_bubble_picture() -> None:
    """ZB-H1: weight gradients fill what 1F1B idles; the bubble is (S-1)(F+I-W)."""
    priced = chain_prices(
        3, 4, backward_s=2, input_grad_s=1, weight_grad_s=1, saved_for_weights_bytes=2
    )
    assert draw_schedule(priced, build_zero_bubble(priced)) == "\n".join(
        [
            "0 |0F0 0F1 0F2 .   .   0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3 |",
            "1 |.   1F0 1F1 .   1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3 |",
            "2 |.   .   2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3 |",
        ]
    )


@pytest.mark.parametrize(("num_stages", "count"), [(2, 4), (4, 8), (8, 32)])
def test_zero_bubble_has_a_third_of_the_bubble(num_stages: int, count: int) -> None:
    """With F = I = W the bubble is a third of 1F1B's at the memory of 1F1B's first stage."""
    priced = chain_prices(
        num_stages,
        count,
        backward_s=2,
        input_grad_s=1,
        weight_grad_s=1,
        saved_for_weights_bytes=2,
        memory_bytes=2 * num_stages,
    )
    work = 3 * count
    plain = evaluate_schedule(priced, build_1f1b(priced))
    split = evaluate_schedule(priced, build_zero_bubble(priced))
    assert plain.fits and split.fits
    assert plain.step_s - work == 3 * (num_stages - 1)
    assert split.step_s - work == num_stages - 1


def test_zero_bubble_with_twice_the_memory_leaves_no_bubble_without_barrier() -> None:
    """ZB-H2: with 2S - 1 in flight every device works without a break from first to last task."""
    priced = chain_prices(
        4, 12, backward_s=2, input_grad_s=1, weight_grad_s=1, saved_for_weights_bytes=2
    )
    schedule = build_zero_bubble(priced, in_flight=7, objective="span")
    found = evaluate_schedule(priced, schedule)
    assert found.span_s == 3 * 12
    assert max(found.peak_bytes_by_device) <= 7 * 2


def test_zero_bubble_memory_is_declared() -> None:
    """Fewer in flight than the warm-up needs is an error; devices without the memory as well."""
    priced = chain_prices(4, 8)
    with pytest.raises(InvalidOption, match="at least 4"):
        build_zero_bubble(priced, in_flight=3)
    with pytest.raises(NoFeasiblePlan):
        build_zero_bubble(chain_prices(4, 8, memory_bytes=1))


@pytest.mark.parametrize("num_chunks", [2, 3, 4])
def test_interleaving_divides_the_bubble(num_chunks: int) -> None:
    """v stages on a device have a v-th of the bubble (S-1)(F+B)."""
    num_devices, count = 4, 8
    num_stages = num_devices * num_chunks
    priced = chain_prices(
        num_stages,
        count,
        forward_s=1,
        backward_s=2,
        devices=[(s % num_devices,) for s in range(num_stages)],
    )
    step_s = evaluate_schedule(priced, build_interleaved(priced)).step_s
    assert step_s == count * num_chunks * 3 + (num_devices - 1) * 3


def test_interleaved_order_of_the_docstring() -> None:
    """The example in the module is what the function returns."""
    priced = chain_prices(4, 4, devices=[(0,), (1,), (0,), (1,)])
    assert str(build_interleaved(priced)) == "\n".join(
        [
            "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
            "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
        ]
    )


def test_gpipe_goes_down_and_up_again() -> None:
    """Stages on one device finish their forwards one after the other."""
    priced = dag_prices([(0, 1), (1, 2)], 2, devices=[(0,), (1,), (0,)])
    assert str(build_gpipe(priced)) == "\n".join(
        ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 1B0 1B1"]
    )


def test_kfkb_alternates_blocks() -> None:
    """Blocks of k forwards and k backwards, with the warm-up in blocks."""
    priced = chain_prices(2, 6)
    assert str(build_kfkb(priced, k=2)) == "\n".join(
        [
            "0F0 0F1 0F2 0F3 0B0 0B1 0F4 0F5 0B2 0B3 0B4 0B5",
            "1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3 1F4 1F5 1B4 1B5",
        ]
    )


def test_kfkb_aligns_unequal_sizes() -> None:
    """Blocks hold equal samples: the stage with halved micro-batches runs two at a time."""
    priced = chain_prices(2, 2, micro_batch_sizes=[2, 1])
    assert str(build_kfkb(priced)) == "\n".join(
        ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3"]
    )


@pytest.mark.parametrize(
    ("sizes", "samples"),
    [
        ([1, 1, 1], (3, 2, 1)),
        ([1, 2, 4], (10, 8, 4)),
        ([4, 2, 1], (12, 4, 1)),
        ([2, 2, 2], (6, 4, 2)),
    ],
)
def test_in_flight_of_unequal_sizes(sizes: list[int], samples: tuple[int, ...]) -> None:
    """The in-flight rule rounds up to whole micro-batches, with slack where they shrink."""
    priced = chain_prices(3, 4, micro_batch_sizes=sizes)
    assert count_in_flight(priced, units=sizes) == samples


@settings(max_examples=40, deadline=None)
@given(priced_stages(max_stages=6, transfers=False, mixed_sizes=True))
def test_few_in_flight_are_as_fast_as_all(shape: PricedStages) -> None:
    """With unequal micro-batches of equal seconds a sample, neither 1F1B nor aligned blocks are
    slower than GPipe, which has everything in flight."""
    sizes = [stage.micro_batch_size for stage in shape.stages]
    priced = dag_prices(
        shape.edges,
        num_stages=len(sizes),
        forward_s=sizes,
        backward_s=[2 * size for size in sizes],
        micro_batch_sizes=sizes,
        batch_size=shape.batch_size,
    )
    unlimited = evaluate_schedule(priced, build_gpipe(priced)).step_s
    assert evaluate_schedule(priced, build_1f1b(priced)).step_s <= unlimited
    assert evaluate_schedule(priced, build_kfkb(priced)).step_s <= unlimited


@pytest.mark.parametrize(
    ("build", "priced"),
    [
        (build_1f1b, chain_prices(2, 2, devices=[(0,), (0,)])),
        (build_1f1b, chain_prices(2, 1, micro_batch_sizes=[2, 3], batch_size=6)),
        (lambda priced: build_kfkb(priced, k=3), chain_prices(2, 4)),
        (lambda priced: build_kfkb(priced, k=0), chain_prices(2, 4)),
        (
            build_kfkb,
            chain_prices(3, 1, micro_batch_sizes=[2, 1, 3], batch_size=6),
        ),
        (build_interleaved, chain_prices(2, 1, micro_batch_sizes=[2, 1])),
    ],
)
def test_impossible_schedules_are_refused(build, priced: PricedStages) -> None:  # type: ignore[no-untyped-def]
    """What a schedule cannot do is an error with a remedy, not a wrong order."""
    with pytest.raises(InvalidOption) as caught:
        build(priced)
    assert caught.value.remedy


def test_sketch_has_a_letter_a_column() -> None:
    """The sketch for terminals shows kinds only."""
    priced = chain_prices(2, 2)
    assert sketch_timeline(time_schedule(priced, build_1f1b(priced)), num_columns=6) == "\n".join(
        ["0 |FF.B.B|", "1 |.FBFB.|"]
    )


def test_drawings_that_nobody_can_read_are_refused() -> None:
    """A cell that is far too small is an error that names a good one."""
    priced = chain_prices(1, 1)
    with pytest.raises(InvalidOption, match="cell_s"):
        draw_schedule(priced, build_1f1b(priced), cell_s=1e-6)


@given(st.integers(1, 4), st.integers(1, 4))
def test_schedules_print_and_parse_back(num_stages: int, count: int) -> None:
    """The text of a schedule is one line for each device and parses back exactly."""
    schedule: Schedule = build_1f1b(chain_prices(num_stages, count))
    assert parse_schedule(str(schedule), name=schedule.name) == schedule
